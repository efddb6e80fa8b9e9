"""Boxes as people have them: YOLO folders and data.yaml, Pascal VOC, MOT sequences, COCO in any usual layout."""

import json
from pathlib import Path

import cv2
import numpy as np
import pytest

from edgert.config import ClassifyTask, DetectTask, KeypointsTask
from edgert.dataset import LabeledDataset, open_dataset
from edgert.dataset.labels import Boxes, GroundTruthBoxes
from edgert.errors import ConfigError

DETECT = DetectTask(detect="yolov8")


def image(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    assert cv2.imwrite(str(path), np.zeros((50, 100, 3), np.uint8))


def text(path: Path, content: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    return path


def boxes(found: LabeledDataset) -> list[list[float]]:
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
        "path: .\\\nval: .\\images\\val\nnames: [cat, dog]\n",
    ],
)
def test_a_data_yaml(content: str, tmp_path: Path) -> None:
    root = yolo(tmp_path / "set")
    found = open_dataset(text(root / "data.yaml", content), DETECT)
    assert boxes(found) == [pytest.approx(row) for row in A_AND_B]
    assert len(found.images) == 3 and isinstance(found.ground_truth, GroundTruthBoxes)
    assert found.ground_truth.names == {0: "cat", 1: "dog"}
    assert boxes(open_dataset(root, DETECT)) == boxes(found)  # the folder that has it


@pytest.mark.parametrize(
    ("folder", "names"), [("", "classes.txt"), ("", "_darknet.labels"), ("obj_train_data", "obj.names")]
)
def test_labels_beside_images_with_a_file_of_names(folder: str, names: str, tmp_path: Path) -> None:
    root = yolo(tmp_path / "set")
    for file in [*(root / "images" / "val").iterdir(), *(root / "labels" / "val").iterdir()]:
        (tmp_path / "flat" / folder).mkdir(parents=True, exist_ok=True)
        file.rename(tmp_path / "flat" / folder / file.name)
    text(tmp_path / "flat" / names, "cat\ndog\n")
    found = open_dataset(tmp_path / "flat", DETECT)
    assert boxes(found) == [pytest.approx(row) for row in A_AND_B]
    assert isinstance(found.ground_truth, GroundTruthBoxes) and found.ground_truth.names == {0: "cat", 1: "dog"}
    for file in (tmp_path / "flat").rglob("?.txt"):
        file.unlink()
    assert open_dataset(tmp_path / "flat", DETECT).ground_truth is None, "names alone are no labels"


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
        ("val: images/val\nnames: cat\n", "names that are not a list"),
    ],
)
def test_a_data_yaml_that_cannot_be_meant(content: str, message: str, tmp_path: Path) -> None:
    root = yolo(tmp_path)
    with pytest.raises(ConfigError, match=message):
        open_dataset(text(root / "data.yaml", content), DETECT)


@pytest.mark.parametrize(
    "line",
    [
        "cat 0.5 0.5 0.1 0.1",
        "0 0.5 0.5",
        "-1 0.5 0.5 0.1 0.1",
        "0.5 0 0 1 1",
        "0 0 0 1 1 1",
        "0 32 32 20 20",
        "0 -0.6 0 1 1",
    ],
)
def test_a_line_that_is_no_label_is_named(line: str, tmp_path: Path) -> None:
    root = yolo(tmp_path)
    text(root / "labels" / "val" / "a.txt", f"0 0.1 0.1 0.1 0.1\n{line}\n")
    with pytest.raises(ConfigError, match=r"line 2 of .*a\.txt is not a label"):
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
    for part in ("JPEGImages", "Annotations"):  # a subset of CVAT, and an export of Roboflow
        (root / part / "default").mkdir()
        for file in [*(root / part).glob("a.*")]:
            text(root / "flat" / file.name, "").write_bytes(file.read_bytes())
            file.rename(root / part / "default" / file.name)
    text(root / "ImageSets" / "Main" / "val.txt", "default/a\n")
    assert boxes(open_dataset(root, DETECT)) == boxes(open_dataset(root / "flat", DETECT)) == boxes(found)
    text(root / "ImageSets" / "Main" / "val.txt", "b\n")
    with pytest.raises(ConfigError, match="no image with an annotation"):
        open_dataset(root, DETECT)


NAN = f"<object><name>a</name>{BOX.replace('<xmin>11', '<xmin>nan')}</object>"
DAMAGED = ["<object>", f"<object>{BOX}</object>", "<object><name>a</name></object>", "<!ENTITY a 'b'>", NAN]


@pytest.mark.parametrize("objects", DAMAGED)
def test_an_annotation_that_is_damaged_is_named(objects: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"a\.xml is not an annotation"):
        open_dataset(voc(tmp_path, objects), DETECT)


def test_a_mot_sequence(tmp_path: Path) -> None:
    image(tmp_path / "img1" / "000001.jpg")
    rows = "1,1,11,6,10,10,1,1,1\n1,2,1,1,5,5,1,7,1\n1,3,1,1,5,5,0,1,1\n1,4,1,1,5,5,1,3,1\n"
    file = text(tmp_path / "gt" / "gt.txt", rows)
    found = open_dataset(tmp_path, DETECT, ("person", "car"))
    assert boxes(found) == [[0, 10, 5, 20, 15], [0, 0, 0, 5, 5]]
    assert isinstance(found.ground_truth, GroundTruthBoxes)
    assert found.ground_truth.images[0].crowds.tolist() == [False, True]
    for row in ("1,1,a,6\n", "nan,1,1,1,5,5,1,1,1", "1,1,1,inf,5,5,1,1,1"):
        file.write_text(row)
        with pytest.raises(ConfigError, match="is not a box"):
            open_dataset(tmp_path, DETECT)


@pytest.mark.parametrize(
    ("labels", "images"),
    [
        ("annotations/instances_val2017.json", "val2017"),
        ("annotations/instances_val2017.json", "images/val2017"),
        ("valid/_annotations.coco.json", "valid"),
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
    with pytest.raises(ConfigError, match=r"line 1 of .* is not a label"):
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


def two_places(root: Path) -> Path:
    for name in ("day", "night/deep"):
        image(root / name / "images" / "one.jpg")
        label = "0 0.5 0.5 0.2 0.4\n" if name == "day" else "1 0.5 0.5 0.4 0.4\n"
        text(root / name / "labels" / "one.txt", label)
    text(root / "day.txt", "# by day\n./day/images/one.jpg  \r\n\r\n")
    text(root / "lists" / "night.txt", f"{root}/night/deep/images/one.jpg\r")
    text(root / "lists" / "up.txt", "../night/deep/images/one.jpg\n..\\day\\images\\one.jpg\n")
    return root


DAY, NIGHT = [0, 40, 15, 60, 35], [1, 30, 15, 70, 35]


@pytest.mark.parametrize(
    ("val", "wanted"),
    [
        ("day/images", [DAY]),
        ("[day/images, night/deep/images]", [DAY, NIGHT]),
        ("[day, night]", [DAY, NIGHT]),
        ("day.txt", [DAY]),
        ("./day.txt", [DAY]),
        ("[day.txt, lists/night.txt]", [DAY, NIGHT]),
        ("lists/up.txt", [DAY, NIGHT]),
        ("[day.txt, night/deep/images]", [DAY, NIGHT]),
        ("[day/images, day.txt, .]", [DAY, NIGHT]),  # an image that several hold counts once
        ("\n  - day/images\n  - night/deep/images", [DAY, NIGHT]),
    ],
)
@pytest.mark.parametrize("split", ["val", "test", "train", "validation"])
@pytest.mark.parametrize("root", ["", "path: .\n", "path: PARENT\n", "path: SET\n", "path: DATASETS\n"])
def test_every_form_of_a_split(
    root: str, split: str, val: str, wanted: list[list[float]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ultralytics' documentation of datasets has folders, text files and lists of both."""
    place = tmp_path / "datasets" / "set" if "DATASETS" in root else tmp_path / "set"
    two_places(place)
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    content = root.replace("PARENT", str(place)).replace("SET", "../set").replace("DATA../setS", "set")
    names = "names: {'0': car, 1: bus}\n"
    file = text(place / "data.yaml", f"{content}{split}: {val}\n{names}")
    if "DATASETS" in root:  # it is elsewhere, as the files that Ultralytics ships are
        file = text(tmp_path / "cfg" / "data.yaml", f"{content}{split}: {val}\n{names}")
    assert sorted(boxes(open_dataset(file, DETECT))) == wanted


@pytest.mark.parametrize(
    ("val", "message", "where"),
    [
        ("[day/images, nowhere]", "no folder of images 'nowhere'", "data.yaml: val"),
        ("gone.txt", "no folder of images 'gone.txt'", "data.yaml: val"),
        ("[day/images, empty]", "empty has no image", "data.yaml"),
        ("none.txt", "none.txt lists no image", "data.yaml"),
        ("some.txt", r"2 of 3 images that .*some.txt lists are missing, first on line 3: './gone.jpg'", "some.txt:3"),
        ("wrong.txt", "line 2 of .*wrong.txt names no image: './data.yaml'", "wrong.txt:2"),
    ],
)
def test_a_split_with_something_missing_is_refused(val: str, message: str, where: str, tmp_path: Path) -> None:
    root = two_places(tmp_path)
    (root / "empty").mkdir()
    text(root / "none.txt", "\n\n")
    text(root / "some.txt", "./day/images/one.jpg\n\n./gone.jpg\n./lost.jpg\n")
    text(root / "wrong.txt", "./day/images/one.jpg\n./data.yaml\n")
    file = text(root / "data.yaml", f"val: {val}\nnames: [car, bus]\n")
    with pytest.raises(ConfigError, match=message) as caught:
        open_dataset(file, DETECT)
    assert caught.value.where.endswith(where)


def test_a_list_of_images_is_a_dataset_by_itself(tmp_path: Path) -> None:
    root = two_places(tmp_path)
    assert boxes(open_dataset(root / "lists" / "up.txt", DETECT)) == [DAY, NIGHT]


def test_labels_lie_in_the_folder_that_belongs_to_the_image_or_beside_it(tmp_path: Path) -> None:
    root = two_places(tmp_path)
    image(root / "flat" / "two.jpg")
    text(root / "flat" / "two.txt", "0 0.5 0.5 0.2 0.4\n")
    file = text(root / "data.yaml", "val: .\nnames: [car, bus]\n")
    assert boxes(open_dataset(file, DETECT)) == [DAY, DAY, NIGHT]


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-32", "cp1252"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_texts_of_other_editors_and_systems(encoding: str, end: str, tmp_path: Path) -> None:
    def written(path: Path, *lines: str) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes((end.join(lines) + end).encode(encoding))
        return path

    image(tmp_path / "images" / "Größe.jpg")
    written(tmp_path / "labels" / "Größe.txt", "# für später", "1 0.5 0.5 0.2 0.4 ", "")
    listed = written(tmp_path / "val.txt", "./images/Größe.jpg", " ")
    file = written(tmp_path / "data.yaml", f"val: {listed.name}", "names: [Käfer, Hündin]")
    found = open_dataset(file, DETECT, ("Käfer", "Hündin"))
    assert boxes(found) == [[1, *DAY[1:]]] and found.notes == ("2 of 2 categories are labels of the model",)
    coco = {"images": [{"id": 1, "file_name": "Größe.jpg"}], "categories": [{"id": 1, "name": "Käfer"}]}
    coco["annotations"] = [{"image_id": 1, "category_id": 1, "bbox": [1, 2, 3, 4]}]
    file = written(tmp_path / "coco.json", json.dumps(coco, ensure_ascii=False))
    assert boxes(open_dataset(file, DETECT, ("Käfer",))) == [[0, 1, 2, 4, 6]]
    file = written(tmp_path / "list.csv", "file,label", "Größe.jpg,Käfer")
    assert open_dataset(file, ClassifyTask(classify="auto"), ("Hündin", "Käfer")).ground_truth.classes == (1,)  # type: ignore[union-attr]
