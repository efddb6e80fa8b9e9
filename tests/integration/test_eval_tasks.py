"""``edgert.evaluate`` for every task, from a model file and labels as people have them to the metric.

The models answer with what stands in them, or with their input: what they should come to is known.
"""

from pathlib import Path

import cv2
import numpy as np
import onnx
import pytest

import edgert
from tests.helpers import models
from tests.helpers.models import node

pytestmark = pytest.mark.slow
SIZE = 64
PIXELS = "none rgb mean=0 std=255"
RING = "0 0.25 0.25 0.75 0.25 0.75 0.75 0.25 0.75"
"""YOLO's label of the square from 16 to 48: a polygon, and an oriented box."""


def photo(path: Path, seed: int = 0) -> np.ndarray:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (SIZE, SIZE, 3), np.uint8)
    assert cv2.imwrite(str(path), pixels)
    return pixels


def text(path: Path, content: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    return path


def constant(path: Path, **outputs: np.ndarray) -> Path:
    onnx.save(models.constant(outputs, (1, 3, SIZE, SIZE)).proto, path)
    return path


def values(source: Path, task: str, data: Path, input: str = PIXELS) -> dict[str, float]:
    found = edgert.evaluate(source, data=str(data), input=input, options=edgert.EvaluateOptions(task=task))
    assert found is not None
    return dict(found.result.results[0].values)


def test_boxes_and_tracks(tmp_path: Path) -> None:
    rows = []
    for frame in range(1, 6):
        photo(tmp_path / "img1" / f"{frame:06d}.jpg")
        rows.append(f"{frame},1,17,17,32,32,1,1,1")
    text(tmp_path / "gt" / "gt.txt", "\n".join(rows))
    source = constant(tmp_path / "m.onnx", y=np.array([[[16, 16, 48, 48, 0.9, 0]]]))
    found = values(source, "detect yolov10", tmp_path)
    assert found["map"] == pytest.approx(1)
    if "hota" in found:  # the extra mot
        assert found["hota"] > 0.9 and found["idf1"] > 0.9


def test_masks(tmp_path: Path) -> None:
    photo(tmp_path / "images" / "a.jpg")
    text(tmp_path / "labels" / "a.txt", RING)
    proto = np.full((1, 8, 16, 16), -8.0)
    proto[0, 0, 4:12, 4:12] = 8
    box = np.array([[[16, 16, 48, 48, 0.9, 0, 1, *[0] * 7]]])
    found = values(constant(tmp_path / "m.onnx", y=box, p=proto), "detect yolov8-seg", tmp_path)
    assert found["mask_map50"] == pytest.approx(1) and found["map"] == pytest.approx(1)


def test_oriented_boxes(tmp_path: Path) -> None:
    photo(tmp_path / "images" / "a.jpg")
    text(tmp_path / "labels" / "a.txt", RING)
    rows = np.zeros((1, 20, 7))
    rows[0, 0] = [32, 32, 32, 32, 0.9, 0, 0]
    source = constant(tmp_path / "m.onnx", y=rows)
    assert values(source, "detect yolov8-obb", tmp_path)["obb_map"] == pytest.approx(1)


def test_keypoints(tmp_path: Path) -> None:
    photo(tmp_path / "images" / "a.jpg")
    place = np.linspace(0.3, 0.7, 17)
    label = " ".join(f"{one} {one} 2" for one in place)
    text(tmp_path / "labels" / "a.txt", f"0 0.5 0.5 0.5 0.5 {label}")
    points = np.stack([place * SIZE, place * SIZE, np.ones(17)], axis=1).reshape(-1)
    rows = np.zeros((1, 56, 84))
    rows[0, :, 0] = [32, 32, 32, 32, 0.9, *points]
    found = values(constant(tmp_path / "m.onnx", y=rows), "keypoints yolo-pose", tmp_path)
    assert found["oks_map"] == pytest.approx(1)


def test_several_labels(tmp_path: Path) -> None:
    for seed, name in enumerate(("a", "b")):
        photo(tmp_path / "images" / f"{name}.png", seed)
    data = text(tmp_path / "list.csv", "file,labels\na.png,0;2\nb.png,0\n")
    found = values(constant(tmp_path / "m.onnx", y=np.array([[0.9, 0.1, 0.4]])), "classify multilabel", data)
    assert found["top1"] == 1 and found["map"] > 0.5


def test_images_and_depth(tmp_path: Path) -> None:
    """The image itself, and its mean over the channels as meters."""
    image = {"x": (1, 3, SIZE, SIZE)}
    same = models.save(tmp_path / "i.onnx", [node("Identity", ["x"], ["y"])], image, {"y": image["x"]})
    pixels = photo(tmp_path / "images" / "a.png")
    photo(tmp_path / "targets" / "a.png")
    assert values(same, "image unit", tmp_path) == pytest.approx({"psnr": 100, "ssim": 1})
    nodes = [node("ReduceMean", ["x"], ["y"], axes=[1])]
    mean = models.save(tmp_path / "d.onnx", nodes, image, {"y": (1, 1, SIZE, SIZE)})
    (tmp_path / "depth").mkdir()
    np.save(tmp_path / "depth" / "a.npy", pixels.astype(np.float32).mean(axis=2) / 255)
    assert values(mean, "depth metric", tmp_path) == pytest.approx({"abs_rel": 0, "rmse": 0, "delta1": 1}, abs=1e-4)


def test_texts(tmp_path: Path) -> None:
    photo(tmp_path / "images" / "a.png")
    data = text(tmp_path / "list.csv", "file,text\na.png,ac\n")
    names = text(tmp_path / "letters.txt", "a\nb\nc\n")
    steps = np.eye(4)[[1, 0, 2]][None]  # a, blank, b
    found = values(constant(tmp_path / "m.onnx", y=steps), f"text ctc labels={names}", data)
    assert found == pytest.approx({"cer": 0.5, "exact": 0})
