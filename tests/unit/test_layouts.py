"""Boxes as people have them: YOLO folders and data.yaml, Pascal VOC, MOT sequences, COCO in any usual layout."""

from __future__ import annotations

import json
from pathlib import Path

import cv2
import numpy as np
import pytest

from edgert.config import DetectTask, KeypointsTask
from edgert.dataset import LabeledDataset, open_dataset
from edgert.dataset.labels import Boxes, GroundTruthBoxes
from edgert.errors import ConfigError

DETECT = DetectTask(detect="yolov8")


def image(path: Path) -> None:
    """100 x 50 pixels."""
    path.parent.mkdir(parents=True, exist_ok=True)
    assert cv2.imwrite(str(path), np.zeros((50, 100, 3), np.uint8))


def text(path: Path, content: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    return path


def boxes(found: LabeledDataset) -> list[list[float]]:
    """Class and corners of every box, image by image in the order of their names."""
    assert isinstance(found.ground_truth, GroundTruthBoxes)
    named = sorted((found.images.name(n), one) for n, one in enumerate(found.ground_truth.images))
    return [
        [kind, *corners]
        for _, one in named
        for kind, corners in zip(one.classes.tolist(), one.corners.tolist(), strict=True)
    ]


def yolo(root: Path, split: str = "val") -> Path:
    image(root / "images" / split / "a.jpg")
    image(root / "images" / split / "b.png")
    image(root / "images" / split / "empty.jpg")
    text(root / "labels" / split / "a.txt", "1 0.5 0.5 0.2 0.4\n\n0 0.1 0.1 0.1 0.1\n")
    text(root / "labels" / split / "b.txt", "0 0.1 0.2 0.3 0.2 0.3 0.6\n")
    return root


A_AND_B = [[1, 40, 15, 60, 35], [0, 5, 2.5, 15, 7.5], [0, 10, 10, 30, 30]]


@pytest.mark.parametrize(
    "content",
    [
        "path: .\nval: images/val\nnames: [cat, dog]\n",
        "val: images/val\nnames: {0: cat, 1: dog}\n",
        "train: nothing\nval: ../images/val\nnames: [cat, dog]\nnc: 2\n",
    ],
)
def test_a_data_yaml(content: str, tmp_path: Path) -> None:
    root = yolo(tmp_path / "set")
    found = open_dataset(text(root / "data.yaml", content), DETECT)
    assert boxes(found) == [pytest.approx(row) for row in A_AND_B]
    assert len(found.images) == 3 and isinstance(found.ground_truth, GroundTruthBoxes)
    assert found.ground_truth.names == {0: "cat", 1: "dog"}
    assert boxes(open_dataset(root, DETECT)) == boxes(found)  # the folder that has it


def test_names_are_matched_with_the_models(tmp_path: Path) -> None:
    root = yolo(tmp_path)
    data = text(root / "data.yaml", "val: images/val\nnames: [cat, dog]\n")
    assert [row[0] for row in boxes(open_dataset(data, DETECT, ("dog", "cat")))] == [0, 1, 1]
    with pytest.raises(ConfigError, match="is a label of the model"):
        open_dataset(data, DETECT, ("boat",))


def test_folders_of_images_and_labels_without_a_file(tmp_path: Path) -> None:
    assert boxes(open_dataset(yolo(tmp_path), DETECT)) == [pytest.approx(row) for row in A_AND_B]


def test_numbers_without_names_are_class_indices_where_there_are_so_many(tmp_path: Path) -> None:
    found = open_dataset(yolo(tmp_path), DETECT, ("cat", "dog"))
    assert boxes(found) == [pytest.approx(row) for row in A_AND_B] and "class indices" in found.notes[0]
    with pytest.raises(ConfigError, match="is a label of the model"):  # class 1 of one
        open_dataset(tmp_path, DETECT, ("cat",))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("names: [a]\n", "names no images"),
        ("val: nowhere\n", "no folder of images 'nowhere'"),
        ("- 1\n", "data.yaml"),
        ("val: images/val\nnames: [cat]\n", "class 1 has no name"),
        ("val: images/val\nnames: cat\n", "names that are no list"),
    ],
)
def test_a_data_yaml_that_cannot_be_meant(content: str, message: str, tmp_path: Path) -> None:
    root = yolo(tmp_path)
    with pytest.raises(ConfigError, match=message):
        open_dataset(text(root / "data.yaml", content), DETECT)


@pytest.mark.parametrize(
    "line", ["cat 0.5 0.5 0.1 0.1", "0 0.5 0.5", "-1 0.5 0.5 0.1 0.1", "0.5 0 0 1 1", "0 0 0 1 1 1"]
)
def test_a_line_that_is_no_label_is_named(line: str, tmp_path: Path) -> None:
    root = yolo(tmp_path)
    text(root / "labels" / "val" / "a.txt", f"0 0.1 0.1 0.1 0.1\n{line}\n")
    with pytest.raises(ConfigError, match=r"line 2 of .*a\.txt is no label"):
        open_dataset(root, DETECT)


def test_images_whose_labels_are_missing_name_where_they_were_looked_for(tmp_path: Path) -> None:
    image(tmp_path / "images" / "a.jpg")
    (tmp_path / "labels").mkdir()
    with pytest.raises(ConfigError, match="images without labels") as caught:
        open_dataset(tmp_path, DETECT)
    assert str(tmp_path / "labels") in caught.value.why
    image(tmp_path / "alone" / "a.jpg")
    found = open_dataset(tmp_path / "alone", DETECT)
    assert found.ground_truth is None and "data.yaml" in found.notes[0] and str(tmp_path / "alone") in found.notes[0]


def voc(root: Path, objects: str) -> Path:
    image(root / "JPEGImages" / "a.jpg")
    text(root / "Annotations" / "a.xml", f"<annotation><filename>a.jpg</filename>{objects}</annotation>")
    return root


BOX = "<bndbox><xmin>11</xmin><ymin>6</ymin><xmax>20</xmax><ymax>15</ymax></bndbox>"


def test_pascal_voc(tmp_path: Path) -> None:
    root = voc(
        tmp_path,
        f"<object><name>dog</name>{BOX}</object><object><name>cat</name><difficult>1</difficult>{BOX}</object>",
    )
    found = open_dataset(root, DETECT)
    assert boxes(found) == [[1, 10, 5, 20, 15], [0, 10, 5, 20, 15]]
    assert isinstance(found.ground_truth, GroundTruthBoxes)
    assert found.ground_truth.images[0].crowds.tolist() == [False, True]
    text(root / "ImageSets" / "Main" / "val.txt", "b\n")
    with pytest.raises(ConfigError, match="no image with an annotation"):
        open_dataset(root, DETECT)


DAMAGED = ["<object>", f"<object>{BOX}</object>", "<object><name>a</name></object>", "<!ENTITY a 'b'>"]


@pytest.mark.parametrize("objects", DAMAGED)
def test_an_annotation_that_is_damaged_is_named(objects: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"a\.xml is no annotation"):
        open_dataset(voc(tmp_path, objects), DETECT)


def test_a_mot_sequence(tmp_path: Path) -> None:
    image(tmp_path / "img1" / "000001.jpg")
    rows = "1,1,11,6,10,10,1,1,1\n1,2,1,1,5,5,1,7,1\n1,3,1,1,5,5,0,1,1\n1,4,1,1,5,5,1,3,1\n"
    file = text(tmp_path / "gt" / "gt.txt", rows)
    found = open_dataset(tmp_path, DETECT, ("person", "car"))
    assert boxes(found) == [[0, 10, 5, 20, 15], [0, 0, 0, 5, 5]]
    assert isinstance(found.ground_truth, GroundTruthBoxes)
    assert found.ground_truth.images[0].crowds.tolist() == [False, True]
    file.write_text("1,1,a,6\n")
    with pytest.raises(ConfigError, match="line 1 of"):
        open_dataset(tmp_path, DETECT)


@pytest.mark.parametrize(
    ("labels", "images"),
    [
        ("annotations/instances_val2017.json", "val2017"),
        ("annotations/instances_val2017.json", "images/val2017"),
        ("valid/_annotations.coco.json", "valid"),
        ("instances_val.json", "images"),
    ],
)
def test_coco_in_usual_layouts(labels: str, images: str, tmp_path: Path) -> None:
    image(tmp_path / images / "a.jpg")
    content = {
        "images": [{"id": 1, "file_name": "a.jpg"}],
        "categories": [{"id": 1, "name": "cat"}],
        "annotations": [{"id": 1, "image_id": 1, "category_id": 1, "bbox": [10, 5, 10, 10]}],
    }
    assert boxes(open_dataset(text(tmp_path / labels, json.dumps(content)), DETECT)) == [[0, 10, 5, 20, 15]]


def truth(found: LabeledDataset) -> Boxes:
    """The labels of the only image."""
    assert isinstance(found.ground_truth, GroundTruthBoxes)
    (one,) = found.ground_truth.images
    return one


def one_yolo(root: Path, rows: str, content: str = "") -> Path:
    image(root / "images" / "a.jpg")
    text(root / "labels" / "a.txt", rows)
    return text(root / "data.yaml", f"val: images\nnames: [cat]\n{content}") if content else root


def test_yolos_polygons_and_oriented_boxes(tmp_path: Path) -> None:
    one = truth(open_dataset(one_yolo(tmp_path, "0 0.1 0.2 0.3 0.2 0.3 0.6 0.1 0.6\n"), DETECT))
    assert one.turned is not None and one.turned.reshape(-1).tolist() == pytest.approx([10, 10, 30, 10, 30, 30, 10, 30])
    assert one.outlines is not None and one.outlines[0][0].tolist() == pytest.approx([10, 10, 30, 10, 30, 30, 10, 30])
    assert (one.size, one.areas.tolist()) == ((50, 100), [pytest.approx(400)])
    five = truth(open_dataset(one_yolo(tmp_path, "0 0.1 0.2 0.3 0.2 0.3 0.6\n"), DETECT))
    assert five.turned is None and five.outlines is not None and five.areas.tolist() == [pytest.approx(200)]
    boxed = truth(open_dataset(one_yolo(tmp_path, "0 0.1 0.2 0.3 0.2 0.3 0.6\n0 0.5 0.5 0.1 0.1\n"), DETECT))
    assert boxed.outlines is None and len(boxed.corners) == 2


def test_yolos_points(tmp_path: Path) -> None:
    """Two points, of three numbers, and of two of which an unlabeled one is 0 0."""
    rows = "0 0.5 0.5 0.2 0.4 0.4 0.5 2 0.6 0.5 1\n"
    for path in (one_yolo(tmp_path, rows, "kpt_shape: [2, 3]\n"), one_yolo(tmp_path / "bare", rows)):
        one = truth(open_dataset(path, KeypointsTask(keypoints="yolo-pose")))
        assert one.points is not None and one.corners.tolist() == [pytest.approx([40, 15, 60, 35])]
        assert one.points.tolist() == [[pytest.approx([40, 25, 2]), pytest.approx([60, 25, 1])]]
    pairs = one_yolo(tmp_path / "two", "0 0.5 0.5 0.2 0.4 0.4 0.5 0 0\n", "kpt_shape: [2, 2]\n")
    one = truth(open_dataset(pairs, DETECT))
    assert one.points is not None and one.points[0, :, 2].tolist() == [2, 0]
    text(tmp_path / "two" / "labels" / "a.txt", "0 0.5 0.5 0.2 0.4 0.4 0.5 0\n")
    with pytest.raises(ConfigError, match=r"line 1 of .* is no label"):
        open_dataset(pairs, DETECT)
    with pytest.raises(ConfigError, match="kpt_shape"):
        open_dataset(one_yolo(tmp_path / "bad", rows, "kpt_shape: 17\n"), DETECT)


def coco(**shapes: object) -> str:
    size = {"width": 100, "height": 50}
    row = {"image_id": 1, "category_id": 1, "bbox": [10, 10, 20, 20], **shapes}
    return json.dumps({"images": [{"id": 1, "file_name": "a.jpg", **size}], "annotations": [row],
                       "categories": [{"id": 1, "name": "person"}]})  # fmt: skip


def test_coco_as_it_is_unpacked_and_as_roboflow_exports_it(tmp_path: Path) -> None:
    image(tmp_path / "val2017" / "a.jpg")
    text(tmp_path / "annotations" / "instances_val2017.json", coco(segmentation=[[10, 10, 30, 10, 30, 30]]))
    text(tmp_path / "annotations" / "person_keypoints_val2017.json", coco(keypoints=[12, 12, 2, 0, 0, 0]))
    assert truth(open_dataset(tmp_path, DETECT)).outlines == ([[10, 10, 30, 10, 30, 30]],)
    points = truth(open_dataset(tmp_path, KeypointsTask(keypoints="yolo-pose"))).points
    assert points is not None and points.tolist() == [[[12, 12, 2], [0, 0, 0]]]
    image(tmp_path / "flow" / "valid" / "a.jpg")
    text(tmp_path / "flow" / "valid" / "_annotations.coco.json", coco())
    assert truth(open_dataset(tmp_path / "flow", DETECT)).outlines is None


@pytest.mark.parametrize(
    "shapes",
    [
        {"segmentation": [[10, 10, 30]]},
        {"segmentation": [[10, 10, 30, 10, 30, "x"]]},
        {"segmentation": {"size": [50, 100], "counts": [3, 4]}},
        {"segmentation": {"size": [50, 100], "counts": "not run lengths"}},
        {"segmentation": {"size": [-50, -100], "counts": [5000]}},
        {"keypoints": [1, 2]},
        {"keypoints": [1, 2, None]},
    ],
)
def test_shapes_that_are_not_as_coco_has_them(shapes: dict[str, object], tmp_path: Path) -> None:
    image(tmp_path / "a.jpg")
    with pytest.raises(ConfigError, match="is not in COCO's format") as caught:
        open_dataset(text(tmp_path / "x.json", coco(**shapes)), DETECT)
    assert "annotations[0]" in str(caught.value)


def test_run_lengths_of_coco_as_lists_and_as_pycocotools_writes_them(tmp_path: Path) -> None:
    from pycocotools.mask import encode

    mask = np.zeros((50, 100), np.uint8, order="F")
    mask[10:30, 10:30] = 1
    compressed = {"size": [50, 100], "counts": encode(mask)["counts"].decode()}
    image(tmp_path / "a.jpg")
    for outline in (compressed, {"size": [50, 100], "counts": [510, 20, *(30, 20) * 19, 3520]}):
        found = open_dataset(text(tmp_path / "x.json", coco(segmentation=outline)), DETECT)
        assert truth(found).outlines == (outline,)
