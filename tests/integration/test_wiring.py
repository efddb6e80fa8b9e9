"""``check`` and ``starter`` on real models: the documented wiring is called fine, a wrong one is told by its line."""

import io
import json
import warnings
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from rich.console import Console

from edgert.cli.file_commands import check as cli_check, new, print_check
from edgert.config import load_pipeline
from edgert.errors import ConfigError, ModelError
from edgert.wiring.check import check
from edgert.wiring.check_report import CheckReport, Finding
from edgert.wiring.photos import save_image
from edgert.wiring.starter import starter, write_pipeline
from tests.bench.bench_check import pipeline_text
from tests.bench.check_models import MODELS, RECIPES, images
from tests.helpers.clips import write_clip
from tests.helpers.command import ROOT
from tests.helpers.evaluation_data import data
from tests.helpers.models import node, save

ESSENTIAL = ("yolox_nano_416", "nanodet_m_320", "fastestdet", "squeezenet_fp32", "mobilenet_v1_025_224")
THE_REST = tuple(name for name in RECIPES if name not in ESSENTIAL)


def photos(model: str, count: int) -> list[Path]:
    data("models", f"{model}.onnx")
    found = images(MODELS[model][2])
    return found[:: len(found) // count][:count]


def checked(folder: Path, model: str, count: int, task: str = "", recipe: str | None = None) -> CheckReport:
    documented_task, documented, _ = MODELS[model]
    path = folder / "p.yaml"
    path.write_text(pipeline_text(model, task or documented_task, documented if recipe is None else recipe))
    return check(load_pipeline(path), photos(model, count))


def finding(report: CheckReport, key: str) -> Finding:
    return next(item for item in report.findings if item.key == key)


@pytest.mark.parametrize("model", ESSENTIAL)
def test_the_documented_wiring_is_fine(tmp_path: Path, model: str) -> None:
    report = checked(tmp_path, model, 2)
    written = next(row for row in report.rows if row.written)
    assert report.verdict != "wrong", report.findings
    assert not any(item.sure for item in report.findings)
    assert written.behind < 2
    assert written.names["task"] == report.rows[0].names["task"]


@pytest.mark.slow
@pytest.mark.parametrize("model", [*ESSENTIAL, *THE_REST])
def test_the_documented_color_and_scale_win_or_tie_on_eight_photos(tmp_path: Path, model: str) -> None:
    report = checked(tmp_path, model, 8)
    written = next(row for row in report.rows if row.written)
    assert report.verdict != "wrong", report.findings
    assert written.photos == 8
    wrong = [row for row in report.rows if row.behind >= 2]
    assert len(wrong) > len(report.rows) / 3  # a tie of everything would prove nothing


@pytest.mark.parametrize(
    ("model", "count", "recipe"),
    [
        ("fastestdet", 8, "resize: stretch, color: rgb, std: 255"),
        pytest.param("yolox_nano_416", 16, "resize: letterbox, anchor: top_left, color: rgb", marks=pytest.mark.slow),
    ],
)
def test_rgb_for_bgr_is_told_by_line_and_value(tmp_path: Path, model: str, count: int, recipe: str) -> None:
    report = checked(tmp_path, model, count, recipe=recipe)
    assert report.verdict == "wrong"
    found = finding(report, "input.color")
    assert (found.written, found.better, found.missing) == ("color: rgb", "color: bgr", False)
    assert found.where.startswith(f"{tmp_path / 'p.yaml'}:5 models.net.input.color")
    assert [item.key for item in report.findings] == ["input.color"]


def test_a_missing_std_is_told_with_the_section_it_belongs_to(tmp_path: Path) -> None:
    report = checked(tmp_path, "fastestdet", 2, recipe="resize: stretch, color: bgr")
    found = finding(report, "input.std")
    assert (found.written, found.better, found.missing) == ("std: 1", "std: 255", True)
    assert found.where == f"{tmp_path / 'p.yaml'}:5 models.net.input.std"
    assert "write std: 255" in str(found)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "wrong", "key"),
    [
        (
            "ppocr_en_number_rec",
            "size: 320x32, resize: letterbox, anchor: top_left, pad: 127, color: bgr",
            "input.mean",
        ),
        ("tbefn_360x640", "resize: stretch, color: bgr, std: 255", "input.color"),
    ],
)
def test_text_and_images_show_how_their_models_are_fed(tmp_path: Path, model: str, wrong: str, key: str) -> None:
    assert checked(tmp_path, model, 6).verdict != "wrong"
    report = checked(tmp_path, model, 6, recipe=wrong)
    assert report.verdict == "wrong" and finding(report, key).sure


def test_a_decoder_whose_family_is_fed_otherwise_is_told(tmp_path: Path) -> None:
    report = checked(tmp_path, "yolox_nano_416", 2, task="detect: yolov5")
    assert report.verdict == "wrong"
    assert [(item.written, item.better) for item in report.findings] == [("detect: yolov5", "detect: yolox")]


def test_a_wrong_decoder_is_told_and_the_right_one_named(tmp_path: Path) -> None:
    report = checked(tmp_path, "nanodet_m_320", 1, task="detect: yolox")
    found = finding(report, "task.detect")
    assert (found.written, found.better) == ("detect: yolox", "detect: nanodet")
    assert ":4 " in found.where
    data = report.to_json()
    assert data["verdict"] == "wrong" and data["findings"][0]["better"] == "detect: nanodet"


def test_a_starter_with_photos_is_wired_as_documented(tmp_path: Path) -> None:
    model = "fastestdet"
    shown = photos(model, 2)
    made = starter(data("models", f"{model}.onnx"), shown, "clip.mp4", directory=tmp_path)
    write_pipeline(made.text, tmp_path / "p.yaml", force=False)
    file = load_pipeline(tmp_path / "p.yaml")
    config = file.config.models["net"]
    assert config.onnx.is_file()
    assert getattr(config.task, "detect", "") == "fastestdet"
    assert (config.input.color, config.input.mean, config.input.std) == ("bgr", (0.0,), (255.0,))
    assert getattr(file.config.stages["camera"], "source", "") == "clip.mp4"
    assert made.report[0].answers > 0.5


def tiny_model(path: Path, channels: int = 3, outputs: tuple[int, ...] = (1, 10)) -> Path:
    """A classifier: mean color times a fixed matrix. ``outputs`` other than (1, n) are reshaped zeros."""
    size = int(np.prod(outputs))
    weights = np.random.default_rng(0).standard_normal((channels, size)).astype(np.float32) / 50
    nodes = [
        node("GlobalAveragePool", ["x"], ["pooled"]),
        node("Flatten", ["pooled"], ["flat"]),
        node("MatMul", ["flat", "weights"], ["product"]),
        node("Reshape", ["product", "shape"], ["y"]),
    ]
    stored = {"weights": weights, "shape": np.array(outputs)}
    return save(path, nodes, {"x": (1, channels, 32, 32)}, {"y": outputs}, stored)


def scene(path: Path) -> Path:
    import cv2

    image = np.random.default_rng(1).integers(0, 256, (48, 64, 3), dtype=np.uint8)
    cv2.imwrite(str(path), image)
    return path


def pipeline(folder: Path, models: str) -> Path:
    path = folder / "p.yaml"
    path.write_text(f"models:\n{models}stages:\n  camera: {{source: api}}\n  out: {{sink: 'null', from: camera}}\n")
    return path


def test_a_starter_of_any_classifier_loads_and_can_be_checked_and_painted(tmp_path: Path) -> None:
    made = starter(tiny_model(tmp_path / "tiny.onnx"), directory=tmp_path)
    write_pipeline(made.text, tmp_path / "p.yaml", force=False)
    assert "classify: auto" in made.text and any("10 numbers" in note for note in made.notes)
    steps: list[tuple[int, int]] = []
    report = check(
        load_pipeline(tmp_path / "p.yaml"),
        [scene(tmp_path / "a.png")],
        on_progress=lambda one: steps.append((one.done, one.total)),
    )
    assert report.runs == len(steps) and all(done <= planned for done, planned in steps)
    assert sum(row.written for row in report.rows) == 1
    save_image(report, tmp_path / "out" / "best.png")
    assert (tmp_path / "out" / "best.png").stat().st_size > 100
    with pytest.raises(ConfigError, match="cannot write an image"):
        save_image(report, tmp_path / "best.txt")


def test_a_gray_model_gets_a_gray_starter(tmp_path: Path) -> None:
    made = starter(tiny_model(tmp_path / "gray.onnx", channels=1), [scene(tmp_path / "a.png")], directory=tmp_path)
    write_pipeline(made.text, tmp_path / "p.yaml", force=False)
    assert load_pipeline(tmp_path / "p.yaml").config.models["net"].input.color == "gray"


def test_the_commands_write_check_and_tell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, photo, written = tiny_model(tmp_path / "tiny.onnx"), scene(tmp_path / "a.png"), tmp_path / "p.yaml"
    new(model, output=written, source=str(write_clip(tmp_path / "clip.mp4", 8)))
    printed = capsys.readouterr().out
    assert "classify: " in printed and "4 photos" in printed and f"next: edgert run {written}" in printed
    with pytest.raises(ConfigError, match="exists already"):
        new(model, output=written, source="clip.mp4")
    cli_check(str(written), [str(photo)], output=tmp_path / "best.png", json=tmp_path / "check.json")
    printed = capsys.readouterr().out
    assert "→" in printed and "1 image," in printed
    data = json.loads((tmp_path / "check.json").read_text())
    assert sum(row["written"] for row in data["rows"]) == 1
    assert data["runs"] > 0 and data["photos"] == [str(photo)]
    assert (tmp_path / "best.png").exists()


@pytest.mark.parametrize(
    ("change", "verdict", "keys"),
    [
        ("input.std=[255, 255, 255]", "fine", []),
        ("input.color=bgr", "wrong", ["input.color"]),
        ("input.std=1", "wrong", ["input.std"]),
    ],
)
def test_the_demo_is_told_from_what_it_is_not_by_one_photo(change: str, verdict: str, keys: list[str]) -> None:
    report = check("hello", [ROOT / "docs" / "hello.jpg"], overrides=[f"models.parts.{change}"])
    assert (report.verdict, [finding.key for finding in report.findings]) == (verdict, keys)
    assert report.known == "the metadata of its exporter"


def test_a_family_that_finds_nothing_where_another_setting_does_leaves_it_open(tmp_path: Path) -> None:
    model = onnx.load(ROOT / "pipelines" / "assets" / "parts.onnx")
    del model.metadata_props[:]  # what is left looks like a YOLOX, which is fed otherwise
    onnx.save(model, tmp_path / "parts.onnx")
    photo = [ROOT / "docs" / "hello.jpg"]
    report = check("hello", photo, overrides=[f"models.parts.onnx={tmp_path / 'parts.onnx'}"])
    assert report.verdict == "unclear" and report.rows[0].answers > 0.5
    assert "with its family's settings, but does with those of the first row" in report.summary


def test_the_table_stands_whole_in_80_columns_and_boxes_of_wrong_settings_warn_of_nothing() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        report = check("hello", [ROOT / "docs" / "hello.jpg"])
    shown = io.StringIO()
    print_check(Console(width=80, file=shown, color_system=None), report, 8)
    lines = shown.getvalue().splitlines()
    assert all(word in lines[1] for word in ("color", "scale", "placement", "task", "score", "answers", "behind"))
    assert "…" not in "".join(lines) and max(map(len, lines)) <= 80


def test_which_model_must_be_said_when_there_are_several(tmp_path: Path) -> None:
    onnx_path = tiny_model(tmp_path / "tiny.onnx")
    section = f"{{onnx: {onnx_path}, task: {{classify: auto}}}}"
    file = load_pipeline(pipeline(tmp_path, f"  parts: {section}\n  plates: {section}\n"))
    photo = scene(tmp_path / "a.png")
    with pytest.raises(ConfigError, match="cannot tell which of 2 models to check") as caught:
        check(file, [photo])
    assert "parts" in caught.value.fix
    with pytest.raises(ConfigError, match="did you mean 'plates'"):
        check(file, [photo], model="plate")
    assert check(file, [photo], model="plates").model == "plates"


def test_outputs_that_nothing_can_read_say_what_was_tried(tmp_path: Path) -> None:
    onnx_path = tiny_model(tmp_path / "odd.onnx", outputs=(1, 2, 3, 5, 7))
    file = load_pipeline(pipeline(tmp_path, f"  odd: {{onnx: {onnx_path}, task: {{detect: yolox}}}}\n"))
    with pytest.raises(ModelError, match="no decoder can read") as caught:
        check(file, [scene(tmp_path / "a.png")])
    assert "detect: yolox" in caught.value.why and "python: module:function" in caught.value.fix
    assert caught.value.where.startswith(f"{tmp_path / 'p.yaml'}:2")


def test_names_that_are_too_few_are_refused_and_what_the_file_says_against_its_graph_is_told(tmp_path: Path) -> None:
    onnx_path = tiny_model(tmp_path / "ten.onnx", outputs=(1, 10))
    (tmp_path / "names.txt").write_text("a\nb\n")
    task = f"{{classify: auto, labels: {tmp_path / 'names.txt'}}}"
    with pytest.raises(ConfigError, match="2 labels for 10 classes") as caught:
        check(pipeline(tmp_path, f"  net: {{onnx: {onnx_path}, task: {task}}}\n"), [scene(tmp_path / "a.png")])
    assert caught.value.where.startswith(f"{tmp_path / 'p.yaml'}:2")
    model = onnx.load(onnx_path)
    for key, value in {"author": "Ultralytics", "task": "detect", "imgsz": "[640, 480]"}.items():
        model.metadata_props.add(key=key, value=value)
    onnx.save(model, onnx_path)
    path = pipeline(tmp_path, f"  net: {{onnx: {onnx_path}, task: {{classify: auto}}}}\n")
    known = check(path, [tmp_path / "a.png"]).known
    assert "mean detect: yolov8, which contradicts its outputs" in known and "say 480x640" in known


PRIMARY = (("blue", (255, 0, 0)), ("green", (0, 255, 0)), ("red", (0, 0, 255)))  # as OpenCV writes them


def colors(folder: Path, count: int) -> Path:
    """A folder per class, of images of one color each."""
    import cv2

    random = np.random.default_rng(0)
    for name, color in PRIMARY:
        (folder / name).mkdir(parents=True)
        for number in range(count):
            image = random.integers(0, 60, (24, 32, 3)) + np.array(color) // 2
            cv2.imwrite(str(folder / name / f"{name}{number}.png"), image.astype(np.uint8))
    return folder


def of_colors(folder: Path, color: str) -> Path:
    """A classifier of the mean color, blue, green or red, and a pipeline that feeds it one order of colors."""
    path = tiny_model(folder / "colors.onnx", outputs=(1, 3))
    model = onnx.load(path)
    weights = next(one for one in model.graph.initializer if one.name == "weights")
    weights.CopyFrom(numpy_helper.from_array(np.eye(3, dtype=np.float32)[::-1].copy() / 50, "weights"))
    onnx.save(model, path)
    (folder / "names.txt").write_text("blue\ngreen\nred\n")
    task = f"{{classify: auto, labels: {folder / 'names.txt'}}}"
    return pipeline(folder, f"  net: {{onnx: {path}, task: {task}, input: {{resize: stretch, color: {color}}}}}\n")


@pytest.mark.parametrize(("color", "verdict", "score"), [("rgb", "fine", "1.000"), ("bgr", "wrong", "0.333")])
def test_labels_settle_it(tmp_path: Path, color: str, verdict: str, score: str) -> None:
    report = check(of_colors(tmp_path, color), data=colors(tmp_path / "data", 6))
    assert (report.verdict, report.metric, len(report.photos)) == (verdict, "top1", 18)
    assert f"top1 {score}" in report.summary and report.to_json()["metric"] == "top1"
    assert [one.key for one in report.findings] == (["input.color"] if verdict == "wrong" else [])


def test_labels_that_are_missing_or_of_other_classes_are_refused(tmp_path: Path) -> None:
    path, data = of_colors(tmp_path, "rgb"), colors(tmp_path / "data", 1)
    with pytest.raises(ConfigError, match="has no labels"):
        check(path, data=data / "red")
    (data / "red").rename(data / "crimson")
    with pytest.raises(ConfigError, match="crimson"):
        check(path, data=data)
    for shown in ((), [data]):
        with pytest.raises(ConfigError, match="either images or labeled data"):
            check(path, shown, data=data if shown else None)
