"""``edgert eval`` as a user runs it."""

import json
import re
import signal
import time
from pathlib import Path

import cv2
import numpy as np
import pytest

from edgert.installation import demo_images
from tests.helpers.command import ROOT, in_process, start
from tests.helpers.models import node, save

INPUT = ("--input", "stretch bgr std=255")
CLASSIFY = ("--task", "classify logits")


def model(path: Path, order: tuple[int, int, int]) -> Path:
    """The mean of every channel, in an order: ``0, 1, 2`` classifies the brightest channel rightly."""
    nodes = [
        node("GlobalAveragePool", ["x"], ["pooled"]),
        node("Flatten", ["pooled"], ["flat"]),
        node("Gather", ["flat", "order"], ["means"], axis=1),
    ]
    return save(path, nodes, {"x": (1, 3, 8, 8)}, {"means": (1, 3)}, {"order": np.array(order)})


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with a right model, one that mixes up two classes, and an image folder for each class."""
    model(tmp_path / "right.onnx", (0, 1, 2))
    model(tmp_path / "wrong.onnx", (1, 0, 2))
    for number in range(9):
        image = np.full((8, 8, 3), 20, np.uint8)
        image[..., number % 3] = 200
        path = tmp_path / "photos" / str(number % 3) / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        assert cv2.imwrite(str(path), image)
    (tmp_path / "p.yaml").write_text(
        "models:\n"
        "  net:\n"
        "    onnx: right.onnx\n"
        "    task: {classify: logits}\n"
        "    input: {resize: stretch, color: bgr, std: 255}\n"
        "    accuracy: {dataset: photos, metric: top1, max_drop: 0.1}\n"
        "stages:\n"
        "  cam: {source: 'images:photos/*/*.png'}\n"
        "  see: {infer: net, from: cam}\n"
        "  out: {sink: 'null', from: see}\n"
    )
    return tmp_path


def test_one_model_on_labeled_images(place: Path) -> None:
    done = in_process("eval", "right.onnx", *CLASSIFY, *INPUT, "--data", "photos", "--json", "-", cwd=place)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["metric"] == "top1" and found["results"][0]["values"] == {"top1": 1.0, "top5": 1.0}
    assert found["results"][0]["images"] == 9 and found["comparisons"] == []
    assert "1.000" in done.stderr and "9 images" in done.stderr


def test_a_budget_that_is_missed_is_exit_code_1(place: Path) -> None:
    versions = ("--against", "wrong.onnx", "--max-drop", "0.2")
    done = in_process("eval", "right.onnx", *CLASSIFY, *INPUT, "--data", "photos", *versions, cwd=place)
    assert done.returncode == 1
    assert "+0.667" in done.stdout and "wrong.onnx: misses the budget of 0.2 top1" in done.stdout
    done = in_process(
        "eval", "right.onnx", *CLASSIFY, *INPUT, "--data", "photos", "--against", "right.onnx", "--max-drop", "0",
        cwd=place,
    )  # fmt: skip
    assert done.returncode == 0 and "within the budget" in done.stdout


def test_a_pipeline_says_what_to_judge_by(place: Path) -> None:
    done = in_process("eval", "p.yaml", "--against", "wrong.onnx", "--json", "out/eval.json", cwd=place)
    assert done.returncode == 1, done.stderr
    found = json.loads((place / "out" / "eval.json").read_text())
    assert found["model"] == "net" and found["comparisons"][0]["max_drop"] == 0.1
    done = in_process("eval", "p.yaml", "--limit", "4", cwd=place)
    assert done.returncode == 0 and "4 images" in done.stdout


def test_images_without_labels_compare_two_models(place: Path) -> None:
    arguments = ("eval", "p.yaml", "--data", "photos/*/*.png", "--metric", "agreement")
    done = in_process(*arguments, "--against", "wrong.onnx", "--json", "-", cwd=place)
    found = json.loads(done.stdout)
    assert found["results"][1]["values"]["agreement"] == pytest.approx(1 / 3)
    done = in_process(*arguments, cwd=place)
    assert done.returncode == 1 and "--against other.onnx" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("right.onnx", "--data", "photos"), "cannot tell the task of right.onnx"),
        (("right.onnx", *CLASSIFY, "--data", "photos"), "cannot tell the preprocessing of right.onnx"),
        (("right.onnx", *CLASSIFY, *INPUT), "no images to evaluate on"),
        (("right.onnx", "--task", "clasify x", "--data", "photos"), "did you mean 'classify'?"),
        (("right.onnx", *CLASSIFY, "--input", "strech", "--data", "photos"), "did you mean 'stretch'?"),
        (("right.onnx", *CLASSIFY, *INPUT, "--data", "fotos"), "did you mean 'photos'?"),
        (("right.onnx", *CLASSIFY, "--model", "net", "--data", "photos"), "--model works with pipelines only"),
        (("p.yaml", "--model", "nett"), "did you mean 'net'?"),
        (("p.yaml", *CLASSIFY), "--task works with ONNX files only"),
        (("p.yaml", "--metric", "map"), "no metric 'map' here"),
        (("p.yaml", "--against", "none.onnx"), "none.onnx"),
    ],
)
def test_mistakes_are_told(place: Path, arguments: tuple[str, ...], message: str) -> None:
    done = in_process("eval", *arguments, cwd=place)
    assert done.returncode == 1 and message in done.stderr, done.stderr
    assert "Traceback" not in done.stderr


@pytest.fixture
def belt(tmp_path: Path) -> Path:
    """A folder with the shipped detector, to be calibrated on its synthetic belt."""
    assets = ROOT / "pipelines" / "assets"
    (tmp_path / "p.yaml").write_text(
        "models:\n"
        "  parts:\n"
        f"    onnx: {assets}/parts.onnx\n"
        f"    task: {{detect: yolox, labels: {assets}/parts.txt, score: 0.4, iou: 0.5}}\n"
        "    input: {resize: letterbox, color: rgb, mean: 0, std: 255}\n"
        f"    calibrate: {{images: '{demo_images()}', limit: 16}}\n"
        "stages:\n"
        f"  cam: {{source: '{demo_images()}', limit: 3}}\n"
        "  see: {infer: parts, from: cam}\n"
        "  out: {sink: 'null', from: see}\n"
    )
    return tmp_path


@pytest.fixture
def filtered(place: Path) -> Path:
    """The same folder, where the pipeline's model has a convolution to be calibrated on the photos."""
    weights = {"w": np.eye(3, dtype=np.float32)[..., None, None]}
    nodes = [
        node("Conv", ["x", "w"], ["filtered"]),
        node("GlobalAveragePool", ["filtered"], ["pooled"]),
        node("Flatten", ["pooled"], ["means"]),
    ]
    save(place / "right.onnx", nodes, {"x": (1, 3, 8, 8)}, {"means": (1, 3)}, weights)
    text = (place / "p.yaml").read_text()
    (place / "p.yaml").write_text(re.sub("accuracy: .*", "calibrate: {images: photos}", text))
    return place


def test_int8_made_on_the_spot_and_simulated(filtered: Path) -> None:
    versions = ("--precision", "int8", "--emulate", "dla", "--emulate", "gpu", "--data", "photos/*/*.png")
    done = in_process("eval", "p.yaml", *versions, "--report", "out/eval.html", "--json", "-", cwd=filtered)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    names = [one["name"] for one in found["results"]]
    assert names == ["net", "int8", "int8 dla (emulated)", "int8 gpu (emulated)"]
    for one in found["comparisons"]:
        assert one["metric"] == "agreement" and one["other"] > 0.9
    page = (filtered / "out" / "eval.html").read_text()
    assert "right.onnx" in page and "INT8, DLA emulated" in page and "9\N{NO-BREAK SPACE}images" in page


def test_a_simulated_dla_alone_and_float16(filtered: Path) -> None:
    arguments = ("--emulate", "dla", "--precision", "fp16", "--data", "photos/*/*.png")
    done = in_process("eval", "p.yaml", *arguments, "--max-drop", "0.1", "--report", "dla.html", cwd=filtered)
    assert done.returncode == 0, done.stderr
    assert "fp16: within the budget of 0.1 agreement" in done.stdout
    assert "TensorRT on a DLA, emulated" in (filtered / "dla.html").read_text()


@pytest.mark.timing
@pytest.mark.parametrize(("number", "heard"), [(signal.SIGTERM, "correcting biases"), (signal.SIGINT, "calibrating")])
def test_a_signal_ends_an_emulation_soon(belt: Path, number: signal.Signals, heard: str) -> None:
    arguments = ("--data", demo_images(), "--limit", "400", "--emulate", "dla")
    process = start("eval", "p.yaml", *arguments, cwd=belt)
    assert process.stdout is not None
    for line in process.stdout:
        if heard in line:
            break
    time.sleep(0.2)
    process.send_signal(number)
    began_s = time.monotonic()
    rest, errors = process.communicate(timeout=30)
    assert (
        time.monotonic() - began_s <= 1.0 + 1.0
    )  # 1 s for edgert; the rest is this machine ending a process under load
    assert process.returncode == 130, errors
    assert "stopped; nothing was measured to the end" in rest


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--precision", "int9"), "did you mean 'int8'?"),
        (("--emulate", "dla0"), "did you mean 'dla'?"),
        (("--images", "photos"), "--images is for INT8"),
        (("--precision", "int8"), "INT8 of right.onnx needs images"),
        (("--precision", "int8", "--images", "fotos"), "did you mean 'photos'?"),
        (("--precision", "int8", "--images", "photos"), "has nothing to quantize"),
    ],
)
def test_what_int8_lacks_is_told(place: Path, arguments: tuple[str, ...], message: str) -> None:
    done = in_process("eval", "p.yaml", *arguments, cwd=place)
    assert done.returncode == 1 and message in done.stderr, done.stderr
    assert "Traceback" not in done.stderr
