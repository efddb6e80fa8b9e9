"""Datasets: which labels a path means, where their images are, and how mistakes are told."""

import json
import zlib
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from edgert.config import ClassifyTask, EmbedTask, SegmentTask
from edgert.dataset import LabeledDataset, open_dataset
from edgert.dataset.labels import (
    GroundTruthBoxes,
    GroundTruthClasses,
    GroundTruthIdentities,
    GroundTruthMasks,
    read_mask,
)
from edgert.errors import ConfigError
from tests.helpers.errors import Exactly, raises

CLASSIFY, EMBED, SEGMENT = ClassifyTask(classify="auto"), EmbedTask(embed="l2"), SegmentTask(segment="argmax")


def photo(path: Path, size: tuple[int, int] = (16, 12)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    assert cv2.imwrite(str(path), np.zeros((size[1], size[0], 3), np.uint8))
    return path


def coco(**changes: Any) -> dict[str, Any]:
    data: dict[str, Any] = {
        "images": [{"id": 7, "file_name": "a.png"}, {"id": 9, "file_name": "b.png"}],
        "categories": [{"id": 1, "name": "Cat"}, {"id": 3, "name": "big_dog"}, {"id": 8, "name": "owl"}],
        "annotations": [
            {"image_id": 7, "category_id": 3, "bbox": [1, 2, 4, 5]},
            {"image_id": 7, "category_id": 1, "bbox": [0, 0, 8, 8], "iscrowd": 1, "area": 9},
            {"image_id": 9, "category_id": 8, "bbox": [1, 1, 2, 2]},
        ],
    }
    return {**data, **changes}


def written(folder: Path, data: object, name: str = "val.json") -> Path:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(data if isinstance(data, str) else json.dumps(data))
    return folder / name


def by_name(dataset: LabeledDataset) -> dict[str, int]:
    return {dataset.images.name(n): n for n in range(len(dataset.images))}


def boxes_of(dataset: LabeledDataset, name: str) -> tuple[list[list[float]], list[int]]:
    assert isinstance(dataset.ground_truth, GroundTruthBoxes)
    one = dataset.ground_truth.images[by_name(dataset)[name]]
    return one.corners.tolist(), one.classes.tolist()


@pytest.mark.parametrize("place", ["val", "images", ".", "../val", "../images"])
def test_coco_images_are_found_beside_the_file(tmp_path: Path, place: str) -> None:
    for name in "ab":
        photo(tmp_path / "sets" / place / f"{name}.png")
    dataset = open_dataset(written(tmp_path, coco(), "sets/instances_val.json"))
    assert sorted(by_name(dataset)) == ["a.png", "b.png"]
    assert dataset.images.frame(0).width == 16


def test_categories_are_counted_off_or_are_class_indices(tmp_path: Path) -> None:
    photo(tmp_path / "a.png"), photo(tmp_path / "b.png")
    dataset = open_dataset(written(tmp_path, coco()))
    assert boxes_of(dataset, "a.png") == ([[1, 2, 5, 7], [0, 0, 8, 8]], [1, 0])
    assert isinstance(dataset.ground_truth, GroundTruthBoxes) and dataset.ground_truth.classes == (0, 1, 2)
    one = dataset.ground_truth.images[by_name(dataset)["a.png"]]
    assert one.crowds.tolist() == [False, True] and one.areas.tolist() == [20, 9]
    assert "numbered in the order" in dataset.notes[0]
    from_zero = coco(categories=[{"id": n, "name": str(n)} for n in (0, 1, 3, 8)])
    dataset = open_dataset(written(tmp_path, from_zero))
    assert boxes_of(dataset, "a.png")[1] == [3, 1] and "used as class indices" in dataset.notes[0]


def test_categories_are_known_by_name_where_labels_are(tmp_path: Path) -> None:
    photo(tmp_path / "a.png"), photo(tmp_path / "b.png")
    dataset = open_dataset(written(tmp_path, coco()), labels=("person", "big dog", "cat"))
    assert boxes_of(dataset, "a.png")[1] == [1, 2]
    assert boxes_of(dataset, "b.png") == ([], [])
    assert "2 of 3 categories" in dataset.notes[0] and "left out: owl" in dataset.notes[0]
    with raises(ConfigError, what="is a label of the model", why="did you mean 'cats'?"):
        open_dataset(written(tmp_path, coco()), labels=("cats", "person"))


@pytest.mark.parametrize(
    ("data", "place", "why"),
    [
        ("{", "", "Expecting property name"),
        ([1], "the file", "a mapping with"),
        (coco(images=[{"id": "7", "file_name": "a.png"}]), "images[0].id", "whole number"),
        (coco(images=[{"id": 7}], annotations=[]), "images[0].file_name", "name of a file"),
        (coco(categories=None), "categories", "list of mappings"),
        (coco(annotations=[{"image_id": 7, "category_id": 1, "bbox": [1, 2]}]), "annotations[0].bbox", "[x, y, width"),
        (coco(annotations=[{"image_id": 7, "category_id": 1, "bbox": [1, 2, -1, 2]}]), "annotations[0].bbox", "-1x2"),
        (coco(annotations=[{"image_id": 1, "category_id": 1, "bbox": [1, 2, 1, 2]}]), "annotations[0]", "image_id 1"),
        (
            coco(annotations=[{"image_id": 7, "category_id": 2, "bbox": [1, 2, 1, 2]}]),
            "annotations[0]",
            "category_id 2",
        ),
    ],
)
def test_mistakes_in_annotations_name_the_entry(tmp_path: Path, data: object, place: str, why: str) -> None:
    with raises(ConfigError, why=why) as caught:
        open_dataset(written(tmp_path, data), where="p.yaml:4 models.net.accuracy.dataset")
    assert caught.value.where == (place or "p.yaml:4 models.net.accuracy.dataset")


def test_a_dataset_without_a_box_is_refused(tmp_path: Path) -> None:
    photo(tmp_path / "a.png"), photo(tmp_path / "b.png")
    with pytest.raises(ConfigError, match="has no box to find"):
        open_dataset(written(tmp_path, coco(annotations=[])))


def test_missing_images_are_counted_and_named(tmp_path: Path) -> None:
    photo(tmp_path / "val" / "a.png")
    with pytest.raises(ConfigError) as caught:
        open_dataset(written(tmp_path, coco()))
    assert caught.value.what.startswith("1 of 2 images are not in") and caught.value.why.startswith("b.png")
    with pytest.raises(ConfigError, match=r"no image of .*other\.json was found"):
        open_dataset(written(tmp_path / "else", coco(), "other.json"))


def classes_of(dataset: LabeledDataset) -> dict[str, int]:
    assert isinstance(dataset.ground_truth, GroundTruthClasses)
    return {dataset.images.name(n): dataset.ground_truth.classes[n] for n in range(len(dataset.images))}


def test_a_list_of_classes(tmp_path: Path) -> None:
    for name in "abc":
        photo(tmp_path / "photos" / f"{name}.png")
    path = written(tmp_path, "file,label_index\na.png,4\nb.png,0\n\nc.png,17\n", "photos_labels.csv")
    assert classes_of(open_dataset(path)) == {"a.png": 4, "b.png": 0, "c.png": 17}
    assert len(open_dataset(path, limit=2).images) == 2
    path = written(tmp_path, "file,label\na.png,cat\nc.png,dog\n", "photos.csv")
    assert classes_of(open_dataset(path, labels=("dog", "cat"))) == {"a.png": 1, "c.png": 0}


@pytest.mark.parametrize(
    ("text", "labels", "line", "what"),
    [
        ("name,class\na,1\n", (), 1, "not a list of labeled images"),
        ("file,label_index\na.png,1\nb.png,one\n", (), 3, "'one' is not a class index"),
        ("file,label_index\na.png,7\n", ("x", "y"), 2, "'7' is not a class index"),
        ("file,label\na.png,catt\n", ("dog", "cat"), 2, "did you mean 'cat'?"),
        ("file,label_index\na.png\n", (), 2, "names no image and label"),
    ],
)
def test_mistakes_in_lists_name_the_line(
    tmp_path: Path, text: str, labels: tuple[str, ...], line: int, what: str
) -> None:
    path = written(tmp_path, text, "x.csv")
    with raises(ConfigError, what=what, where=Exactly(f"{path}:{line}")):
        open_dataset(path, labels=labels)


def test_a_folder_per_class(tmp_path: Path) -> None:
    for name in ("cat/1.png", "cat/deep/2.png", "dog/1.png"):
        photo(tmp_path / name)
    counted = open_dataset(tmp_path, CLASSIFY)
    assert classes_of(counted) == {"cat/1.png": 0, "cat/deep/2.png": 0, "dog/1.png": 1}
    assert "in the order of their names" in counted.notes[0]
    assert classes_of(open_dataset(tmp_path, CLASSIFY, ("dog", "cat")))["dog/1.png"] == 0
    with pytest.raises(ConfigError, match="no class 'cat'"):
        open_dataset(tmp_path, CLASSIFY, ("dog", "bird"))


def test_folders_of_numbers_are_class_indices(tmp_path: Path) -> None:
    photo(tmp_path / "12" / "1.png"), photo(tmp_path / "3" / "1.png")
    assert classes_of(open_dataset(tmp_path, CLASSIFY)) == {"12/1.png": 12, "3/1.png": 3}


def test_a_folder_per_identity(tmp_path: Path) -> None:
    photo(tmp_path / "ann" / "1.png"), photo(tmp_path / "bob" / "1.png")
    dataset = open_dataset(tmp_path, EMBED)
    assert isinstance(dataset.ground_truth, GroundTruthIdentities)
    assert [f"{who}/1.png" for who in dataset.ground_truth.identities] == list(by_name(dataset))


def test_masks_of_the_same_stem(tmp_path: Path) -> None:
    for name in "ab":
        photo(tmp_path / "images" / f"{name}.jpg")
        photo(tmp_path / "masks" / f"{name}.png")
    dataset = open_dataset(tmp_path, SEGMENT)
    assert isinstance(dataset.ground_truth, GroundTruthMasks)
    assert [path.stem + ".jpg" for path in dataset.ground_truth.files] == list(by_name(dataset))
    (tmp_path / "masks" / "b.png").unlink()
    with pytest.raises(ConfigError, match=r"1 of 2 images in .* have no mask"):
        open_dataset(tmp_path, SEGMENT)


def test_images_without_labels(tmp_path: Path) -> None:
    photo(tmp_path / "a.png")
    for task in (None, CLASSIFY, SEGMENT):
        dataset = open_dataset(tmp_path, task)
        assert dataset.ground_truth is None and list(by_name(dataset)) == ["a.png"]
    with pytest.raises(ConfigError, match="no images at"):
        open_dataset(tmp_path / "nowhere")


def chunk(kind: bytes, data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big")


def palette_png(path: Path, indices: np.ndarray, palette: np.ndarray) -> Path:
    """A PNG of color type 3 (W3C PNG specification)."""
    height, width = indices.shape
    header = width.to_bytes(4, "big") + height.to_bytes(4, "big") + bytes([8, 3, 0, 0, 0])
    rows = b"".join(b"\0" + row.tobytes() for row in indices.astype(np.uint8))
    parts = chunk(b"IHDR", header) + chunk(b"PLTE", palette.astype(np.uint8).tobytes())
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + parts + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))
    return path


@pytest.mark.parametrize("dtype", ["uint8", "uint16"])
def test_gray_masks(tmp_path: Path, dtype: str) -> None:
    mask = np.arange(60, dtype=dtype).reshape(6, 10)
    assert cv2.imwrite(str(tmp_path / "a.png"), mask)
    found = read_mask(tmp_path / "a.png")
    assert found.dtype == np.uint8
    np.testing.assert_array_equal(found, mask)


def test_palette_masks_are_read_as_indices(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    palette = random.permutation(256**3)[:256]
    palette = np.stack([palette >> 16, palette >> 8 & 255, palette & 255], axis=1)
    indices = random.integers(0, 256, (20, 31))
    np.testing.assert_array_equal(read_mask(palette_png(tmp_path / "voc.png", indices, palette)), indices)


def test_of_equal_colors_the_first_index_counts(tmp_path: Path) -> None:
    palette = np.array([[0, 0, 0], [128, 0, 0], [0, 0, 0]])
    mask = palette_png(tmp_path / "a.png", np.array([[0, 1, 2]]), palette)
    np.testing.assert_array_equal(read_mask(mask), [[0, 1, 0]])


def test_color_images_large_indices_and_damage_are_refused(tmp_path: Path) -> None:
    assert cv2.imwrite(str(tmp_path / "rgb.png"), np.zeros((4, 4, 3), np.uint8))
    assert cv2.imwrite(str(tmp_path / "ids.png"), np.full((4, 4), 1000, np.uint16))
    (tmp_path / "bad.png").write_bytes(b"\x89PNG no")
    for name, why in (("rgb", "is a color image"), ("ids", "indices up to 1000"), ("bad", "cannot read the mask")):
        with pytest.raises(ConfigError, match=why):
            read_mask(tmp_path / f"{name}.png")
