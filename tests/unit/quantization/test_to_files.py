"""Ranges and INT8 models made from Python: of files, of sections, and of images in memory."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from onnx import helper

import edgert
from edgert.config import ClassifyTask, EmbedTask, ModelConfig
from edgert.errors import ConfigError
from edgert.graph import load, to_bytes
from edgert.reporter import OnProgress
from edgert.wiring import inferred
from tests.unit.quantization.network import IMAGES, SIZE, network

INPUT = edgert.InputConfig(resize="stretch", std=(64.0,))


ALL_IMAGES = edgert.CalibrateOptions(early_stop=False)


def notes_to(lines: list[str]) -> OnProgress:
    return lambda one: lines.append(one.detail) if one.state == "note" else None


def images() -> list[np.ndarray]:
    random = np.random.default_rng(5)
    return [random.integers(0, 256, (SIZE, SIZE, 3), dtype=np.uint8) for _ in range(IMAGES)]


def test_images_in_a_folder_in_memory_and_one_after_the_other_have_the_same_ranges(file: Path, tmp_path: Path) -> None:
    for number, image in enumerate(images()):
        assert cv2.imwrite(str(tmp_path / f"{number}.png"), image)
    whole = edgert.calibrate(file, tmp_path, input=INPUT, options=ALL_IMAGES)
    section = ModelConfig(onnx=file, task=EmbedTask(embed="none"), input=INPUT)
    for source, given in ((file, images()), (section, images()), (section, iter(images()))):
        text = INPUT if source is file else None
        found = edgert.calibrate(source, given, input=text, options=ALL_IMAGES)
        assert found.histograms == whole.histograms and found.method == "mse"
    assert edgert.calibrate(file, images(), input=INPUT, options=edgert.CalibrateOptions(limit=9)).images == 9
    assert edgert.calibrate(file, images(), input=INPUT, options=edgert.CalibrateOptions("entropy")).method == "entropy"


def test_a_model_is_made_and_written_where_the_output_says(file: Path, tmp_path: Path) -> None:
    ranges = edgert.calibrate(file, images(), input=INPUT, output=tmp_path / "ranges.json")
    made = edgert.quantize(file, images(), input=INPUT, options=edgert.QuantizeOptions(ranges=ranges))
    assert made.path is None and list(tmp_path.iterdir()) == [tmp_path / "ranges.json"]
    options = edgert.QuantizeOptions(ranges=tmp_path / "ranges.json", keep=["third"])
    again = edgert.quantize(file, images(), input=INPUT, output=tmp_path, options=options)
    assert again.path == tmp_path / "net.int8.onnx"
    assert load(again.path).digest != made.model.digest
    assert again.outcome is not None and again.outcome.kept["third"] == "asked for"
    report = tmp_path / "report.html"
    edgert.quantize(file, images(), input=INPUT, output=str(tmp_path / "own.onnx")).save_report(report)
    assert (tmp_path / "own.onnx").exists() and "images in memory" in report.read_text()


@pytest.mark.parametrize("make", [edgert.calibrate, edgert.quantize])
def test_what_the_callback_raises_ends_the_work_and_comes_out(make: Any, file: Path, tmp_path: Path) -> None:
    seen = list[edgert.Progress]()

    def enough(progress: edgert.Progress) -> None:
        seen.append(progress)
        if progress.state == "progress" and progress.done >= 5:
            raise LookupError("enough")

    with pytest.raises(LookupError, match="enough"):
        make(file, images(), input=INPUT, output=tmp_path / "made",
             on_progress=enough)  # fmt: skip
    assert 5 <= seen[-1].done < IMAGES and not (tmp_path / "made").exists()


def test_a_section_has_its_own_settings(file: Path) -> None:
    section = ModelConfig(onnx=file, task=EmbedTask(embed="none"), input=INPUT)
    with pytest.raises(ConfigError, match="are for files"):
        edgert.calibrate(section, images(), input="rgb")
    for given in ("rgb", INPUT):
        with pytest.raises(ConfigError, match="--input works with ONNX files only"):
            edgert.calibrate("usb-camera", images(), input=given)


def test_how_a_file_is_fed_is_asked_where_nothing_shows_it(file: Path, tmp_path: Path) -> None:
    for number, image in enumerate(images()[:4]):
        assert cv2.imwrite(str(tmp_path / f"{number}.png"), image)
    for make in (edgert.quantize, edgert.calibrate):
        with pytest.raises(ConfigError, match=r"cannot tell the preprocessing of .*net\.onnx") as caught:
            make(file, tmp_path, output=tmp_path / "made")
        assert "--input '" in caught.value.fix and "spoils every number" in caught.value.why
    assert not (tmp_path / "made").exists()


def test_more_images_are_tried_where_few_cannot_tell(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried, lines = list[int](), list[str]()

    def infer(path: Path, images: Sequence[str] = (), limit: int = 0, **keys: object) -> inferred.Inferred:
        assert [*images] == ([str(tmp_path)] if limit else [])
        tried.append(limit)
        return replace(found, sure=limit > 4)

    found = inferred.infer(file, task=ClassifyTask(classify="auto"))
    monkeypatch.setattr(inferred, "infer", infer)
    for number in range(20):
        assert cv2.imwrite(str(tmp_path / f"{number}.png"), images()[0])
    edgert.calibrate(file, tmp_path, options=ALL_IMAGES, on_progress=notes_to(lines))
    assert tried == [0, 4, 16] and "trying it on 16 images" in lines[1]


def test_what_the_exporter_wrote_down_is_used_and_named(tmp_path: Path) -> None:
    model = network()
    helper.set_model_props(model.proto, {"author": "Ultralytics", "task": "classify", "names": str(list("abcde"))})
    (tmp_path / "net.onnx").write_bytes(to_bytes(model))
    lines: list[str] = []
    edgert.calibrate(tmp_path / "net.onnx", images(), options=ALL_IMAGES, on_progress=notes_to(lines))
    assert lines[0].startswith("input: center_crop ") and "rgb mean=0 std=255" in lines[0]
    assert "Ultralytics YOLO classifier" in lines[0]
    assert lines[1].startswith("task: classify auto")
