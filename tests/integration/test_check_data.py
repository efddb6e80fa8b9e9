"""``check --data`` on boxes as people have them: YOLO's, COCO's and Pascal VOC's settle how a detector is fed."""

import json
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import onnx
import onnx.parser
import pytest

from edgert.errors import ConfigError
from edgert.wiring.check import check

NAMES = ("red", "blue")
SIDE, CELL = 32, 8
Scene = tuple[str, int, tuple[int, int]]
"""Name of an image, class of the block on it, and its left upper corner."""


def scenes(folder: Path) -> list[Scene]:
    """Writes black images with one block of a class's color in a cell of the detector."""
    folder.mkdir(parents=True)
    found = []
    for number in range(12):
        kind, x, y = number % 2, CELL * (number % 4), CELL * (number % 3)
        image = np.zeros((SIDE, SIDE, 3), np.uint8)
        image[y : y + CELL, x : x + CELL] = ((0, 0, 255), (255, 0, 0))[kind]  # as OpenCV writes them
        assert cv2.imwrite(str(folder / f"{number}.png"), image)
        found.append((f"{number}.png", kind, (x, y)))
    return found


def as_yolo(root: Path) -> Path:
    (root / "labels" / "val").mkdir(parents=True)
    for name, kind, (x, y) in scenes(root / "images" / "val"):
        row = f"{kind} {(x + CELL / 2) / SIDE} {(y + CELL / 2) / SIDE} {CELL / SIDE} {CELL / SIDE}\n"
        (root / "labels" / "val" / name).with_suffix(".txt").write_text(row)
    (root / "data.yaml").write_text(f"path: .\nval: images/val\nnames: [{', '.join(NAMES)}]\n")
    return root / "data.yaml"


def as_yolo_folders(root: Path) -> Path:
    return as_yolo(root).rename(root / "unused.txt").parent


def as_coco(root: Path) -> Path:
    found = scenes(root / "val2017")
    images = [{"id": n, "file_name": name, "width": SIDE, "height": SIDE} for n, (name, _, _) in enumerate(found)]
    boxes = [
        {"id": n, "image_id": n, "category_id": kind + 1, "bbox": [x, y, CELL, CELL], "area": CELL**2, "iscrowd": 0}
        for n, (_, kind, (x, y)) in enumerate(found)
    ]
    categories = [{"id": n + 1, "name": name} for n, name in enumerate(NAMES)]
    (root / "annotations").mkdir()
    file = root / "annotations" / "instances_val2017.json"
    file.write_text(json.dumps({"images": images, "annotations": boxes, "categories": categories}))
    return root


def as_voc(root: Path) -> Path:
    (root / "Annotations").mkdir(parents=True)
    for name, kind, (x, y) in scenes(root / "JPEGImages"):
        ends = {"xmin": x + 1, "ymin": y + 1, "xmax": x + CELL, "ymax": y + CELL}  # counted from 1, both inside
        box = "".join(f"<{key}>{value}</{key}>" for key, value in ends.items())
        text = f"<object><name>{NAMES[kind]}</name><bndbox>{box}</bndbox></object>"
        file = (root / "Annotations" / name).with_suffix(".xml")
        file.write_text(f"<annotation><filename>{name}</filename>{text}</annotation>")
    return root


def detector(path: Path) -> Path:
    """A head as YOLOv8's, that finds what is red or blue in a cell of stride 8, when it is fed RGB."""
    cells, all_cells = (SIDE // CELL) ** 2, 21  # of strides 8, 16 and 32
    y, x = np.indices((SIDE // CELL, SIDE // CELL)).reshape(2, -1) * CELL + CELL / 2
    boxes = np.ones((1, 4, all_cells), np.float32)
    boxes[0, :, :cells] = np.stack([x, y, np.full(cells, CELL), np.full(cells, CELL)])
    text = f"""<ir_version: 8, opset_import: ["": 13]>
    blocks (float[1, 3, {SIDE}, {SIDE}] images) => (float[1, 6, {all_cells}] output0)
    <int64[3] flat = {{1, 3, {cells}}}, int64[2] red_and_blue = {{0, 2}}, float low = {{0}}, float high = {{1}},
     float[1, 2, {all_cells - cells}] none = {{{", ".join(["0"] * (2 * (all_cells - cells)))}}},
     float[1, 4, {all_cells}] boxes = {{{", ".join(map(str, boxes.flat))}}}>
    {{
        pooled = AveragePool <kernel_shape = [{CELL}, {CELL}], strides = [{CELL}, {CELL}]> (images)
        colors = Reshape (pooled, flat)
        picked = Gather <axis = 1> (colors, red_and_blue)
        scores = Clip (picked, low, high)
        all_scores = Concat <axis = 2> (scores, none)
        output0 = Concat <axis = 1> (boxes, all_scores)
    }}"""
    onnx.save(onnx.parser.parse_model(text), path)
    return path


def pipeline(folder: Path, color: str) -> Path:
    (folder / "names.txt").write_text("\n".join(NAMES))
    task = f"{{detect: yolov8, labels: {folder / 'names.txt'}}}"
    model = f"{{onnx: {detector(folder / 'm.onnx')}, task: {task}, input: {{color: {color}, std: 255}}}}"
    stages = '{camera: {source: api}, see: {infer: net, from: camera}, out: {sink: "null", from: see}}'
    (folder / "p.yaml").write_text(f"models:\n  net: {model}\nstages: {stages}\n")
    return folder / "p.yaml"


@pytest.mark.parametrize(("color", "verdict", "score"), [("rgb", "fine", "1.000"), ("bgr", "wrong", "0.000")])
@pytest.mark.parametrize("written", [as_yolo, as_yolo_folders, as_coco, as_voc])
def test_boxes_settle_it(tmp_path: Path, written: Callable[[Path], Path], color: str, verdict: str, score: str) -> None:
    report = check(pipeline(tmp_path, color), data=written(tmp_path / "data"))
    assert (report.verdict, len(report.photos)) == (verdict, 12)
    assert report.metric == "map" and f"map {score}" in report.summary
    assert [one.key for one in report.findings] == (["input.color"] if verdict == "wrong" else [])


def test_boxes_of_other_classes_are_refused(tmp_path: Path) -> None:
    data = as_yolo(tmp_path / "data")
    data.write_text(data.read_text().replace("red", "crimson").replace("blue", "azure"))
    with pytest.raises(ConfigError, match="is a label of the model") as caught:
        check(pipeline(tmp_path, "rgb"), data=data)
    assert "crimson" in caught.value.why and "red" in caught.value.why


def test_data_without_labels_say_what_was_looked_for_and_where(tmp_path: Path) -> None:
    scenes(tmp_path / "plain")
    with pytest.raises(ConfigError, match="has no labels") as caught:
        check(pipeline(tmp_path, "rgb"), data=tmp_path / "plain")
    assert str(tmp_path / "plain") in caught.value.what and "--images" in caught.value.fix
    assert all(word in caught.value.why for word in ("COCO", "data.yaml", "Pascal VOC"))
