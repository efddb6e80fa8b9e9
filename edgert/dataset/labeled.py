"""Images with their ground truth, found by what a path looks like.

    x.json          COCO annotations; images in a folder x, or images, or beside the file
    x.csv           file,label_index or file,label; images in a folder x without "_labels", or images, or beside it
    data.yaml, images + labels       YOLO's boxes (:mod:`~edgert.dataset.layouts`)
    Annotations + JPEGImages         Pascal VOC's
    gt/gt.txt + img1                 those of a MOT sequence
    folder/images + folder/masks     class indices as PNG files of the same stem
    folder/NAME/…   one folder per class, or per identity where the task is embed
    otherwise       images without labels: a folder, a glob, a video

Labeled images come in a dataset's fair order, so the first few of them are a sample.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from edgert import limits
from edgert.config import ClassifyTask, EmbedTask, SegmentTask, TaskConfig
from edgert.dataset import labels as label_files
from edgert.dataset.images import FileDataset, ImageDataset, fair_order, open_images
from edgert.dataset.layouts import LOOKED_FOR, Annotated, boxes_in
from edgert.errors import ConfigError, EdgertError, cause, nearest

_SHOWN = 5


@dataclass(frozen=True, slots=True, eq=False)
class LabeledDataset:
    """Images and their labels.

    Attributes:
        path: where they were found.
        images: the images.
        ground_truth: of every image, in the order of the images; None without labels.
        notes: how labels were understood, a sentence each.
    """

    path: Path
    images: ImageDataset
    ground_truth: label_files.GroundTruth | None = None
    notes: tuple[str, ...] = ()


def open_dataset(
    source: str | Path,
    task: TaskConfig | None = None,
    labels: Sequence[str] = (),
    *,
    limit: int | None = None,
    where: str = "",
) -> LabeledDataset:
    """Finds images and labels; decodes none yet.

    Args:
        source: see the head of this module.
        task: of the model; decides what the folders of a folder mean.
        labels: the model's class names, by which the dataset's are understood.
        limit: the most images.
        where: the ``file:line key`` that asked for it, for errors.

    Raises:
        ConfigError: nothing there, labels that cannot be understood, images that are missing or none.
        StageError: a video cannot be opened.
    """
    path = Path(source).expanduser().absolute()
    try:
        if path.is_file() and path.suffix.lower() == ".json":
            return _annotated(path, labels, limit)
        if path.is_file() and path.suffix.lower() == ".csv":
            classes = label_files.read_list(path, labels)
            chosen = fair_order(classes)[:limit]
            images = _listed_images(path, path.stem.removesuffix("_labels"), chosen)
            return LabeledDataset(path, images, label_files.GroundTruthClasses(tuple(classes[name] for name in chosen)))
        if (
            not isinstance(task, (ClassifyTask, EmbedTask, SegmentTask))
            and (there := boxes_in(path, limit)) is not None
        ):
            folder, data = there
            return _boxed(path, data, labels, _photos(folder, data.files), data.files)
        if path.is_dir() and (found := _in_folder(path, task, labels, limit)) is not None:
            return found
        note = f"no labels: versions are compared; looked for {LOOKED_FOR}, in {path}"
        return LabeledDataset(path, open_images(source, limit=limit, where=where), notes=(note,))
    except EdgertError as error:
        raise error.at(where)  # noqa: B904 - the same error, with its place


def _annotated(path: Path, labels: Sequence[str], limit: int | None) -> LabeledDataset:
    data = read_annotations(path)
    chosen = fair_order(data.files)[:limit]
    return _boxed(path, data, labels, _listed_images(path, path.stem.removeprefix("instances_"), chosen), chosen)


def _boxed(
    path: Path, data: Annotated, labels: Sequence[str], images: FileDataset, chosen: Sequence[str]
) -> LabeledDataset:
    """The boxes of the chosen images, with the model's classes."""
    numbers, note = class_numbers(data, labels, path)
    boxes = dict(zip(data.files, data.boxes, strict=True))
    known = []  # those whose category the model has a class for, with that class
    for one in map(boxes.__getitem__, chosen):
        rows = np.isin(one.classes, list(numbers))
        classes = np.array([numbers[category] for category in one.classes[rows].tolist()], np.int64)
        known.append(label_files.Boxes(one.corners[rows], classes, one.areas[rows], one.crowds[rows]))
    if not any((~one.crowds).any() for one in known):
        raise ConfigError(f"{path} has no box to find", why=f"on the {len(chosen)} images taken, nothing is marked")
    names = {number: data.categories[key] for key, number in numbers.items()}
    return LabeledDataset(
        path, images, label_files.GroundTruthBoxes(tuple(known), tuple(sorted(names)), names), (note,)
    )


def _in_folder(path: Path, task: TaskConfig | None, labels: Sequence[str], limit: int | None) -> LabeledDataset | None:
    """The dataset that a folder's structure shows; None for a plain folder of images."""
    if (path / "images").is_dir() and (path / "masks").is_dir() and isinstance(task, (SegmentTask, type(None))):
        masks = label_files.masks_of(path)
        chosen = fair_order(masks)[:limit]
        return LabeledDataset(
            path, _photos(path / "images", chosen), label_files.GroundTruthMasks(tuple(masks[name] for name in chosen))
        )
    if not isinstance(task, (ClassifyTask, EmbedTask)) or not (folders := label_files.class_folders(path)):
        return None
    chosen = fair_order(folders)[:limit]
    images = _photos(path, chosen)
    if isinstance(task, EmbedTask):
        return LabeledDataset(path, images, label_files.GroundTruthIdentities(tuple(folders[name] for name in chosen)))
    numbers, note = label_files.folder_classes(list(folders.values()), labels, str(path))
    return LabeledDataset(
        path, images, label_files.GroundTruthClasses(tuple(numbers[folders[name]] for name in chosen)), (note,)
    )


def _listed_images(path: Path, stem: str, names: Sequence[str]) -> FileDataset:
    """The listed images: from the first folder that has one of the first, called as the file, ``stem`` or "images"."""
    if not names:
        raise ConfigError(f"{path} lists no image", where=str(path))
    near, above, stems = path.parent, path.parent.parent, dict.fromkeys((path.stem, stem))
    places = [*(near / one for one in stems), near / "images", near, *(above / one for one in stems)]
    places += [*(place / "images" / one for place in (near, above) for one in stems), above / "images"]
    folder = next((place for place in places if any((place / name).is_file() for name in names[:_SHOWN])), None)
    if folder is None:
        looked = ", ".join(str(place) for place in places)
        raise ConfigError(f"no image of {path} was found, such as {names[0]}", why=f"looked in {looked}")
    return _photos(folder, names)


def _photos(folder: Path, names: Sequence[str]) -> FileDataset:
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
        hint = nearest(missing[0], (path.name for path in folder.iterdir()))
        raise ConfigError(
            f"{len(missing)} of {len(names)} images are not in {folder}",
            why=f"{', '.join(missing[:_SHOWN])}{more}{hint}",
            fix="copy them there, or take them off the list",
        )
    return FileDataset(tuple(folder / name for name in names), tuple(names))


# Boxes from COCO's annotation files (cocodataset.org/#format-data).


def read_annotations(path: Path, where: str = "") -> Annotated:
    """Reads images, boxes and categories.

    Raises:
        ConfigError: not JSON, or an entry that is not as the format has it; the entry is named.
    """
    try:
        data = json.loads(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"cannot read {path}", why=cause(error), where=where) from error
    except (ValueError, RecursionError) as error:  # not JSON, or not even text
        raise ConfigError(f"{path} is not JSON", why=str(error), where=where) from error
    if not isinstance(data, dict):
        raise _wrong(path, "the file", "COCO's format is a mapping with images, annotations and categories")
    images = {_number(one, "id", f"images[{n}]", path): one for n, one in enumerate(_list(data, "images", path))}
    names = {
        _number(one, "id", f"categories[{n}]", path): str(one.get("name", one["id"]))
        for n, one in enumerate(_list(data, "categories", path))
    }
    rows: dict[int, list[tuple[Any, ...]]] = {number: [] for number in images}
    for n, one in enumerate(_list(data, "annotations", path)):
        image, category, row = _annotation(one, f"annotations[{n}]", path)
        if image not in rows:
            raise _wrong(path, f"annotations[{n}]", f"image_id {image} is none of the images")
        if category not in names:
            raise _wrong(path, f"annotations[{n}]", f"category_id {category} is none of the categories")
        rows[image].append(row)
    for n, one in enumerate(images.values()):
        if not isinstance(one.get("file_name"), str) or not one["file_name"]:
            raise _wrong(path, f"images[{n}].file_name", "expected the name of a file")
    tables = [np.array(some, np.float64).reshape(-1, 7) for some in rows.values()]
    boxes = tuple(
        label_files.Boxes(one[:, :4], one[:, 4].astype(np.int64), one[:, 5], one[:, 6].astype(np.bool_))
        for one in tables
    )
    return Annotated(tuple(one["file_name"] for one in images.values()), tuple(boxes), dict(sorted(names.items())))


def class_numbers(annotated: Annotated, labels: Sequence[str], path: Path) -> tuple[dict[int, int], str]:
    """Category id → the model's class index, and how that was found out, in a sentence.

    By name where the model's labels are known, and categories that it has no label for are left out; otherwise ids
    from 0 are class indices, and others are counted off in the order of the ids, as COCO's own 1 to 90 are.

    Raises:
        ConfigError: none of the names is a label.
    """
    names = annotated.categories
    if not labels:
        if min(names, default=0) == 0:
            return {number: number for number in names}, "category ids are taken for class indices"
        return {number: n for n, number in enumerate(names)}, "categories are counted off in the order of their ids"
    places = {_plain(label): n for n, label in reversed(list(enumerate(labels)))}
    found = {number: places[_plain(name)] for number, name in names.items() if _plain(name) in places}
    missing = [name for number, name in names.items() if number not in found]
    if not found:
        first = missing[0] if missing else ""
        raise ConfigError(
            f"no category of {path} is a label of the model",
            why=f"categories: {', '.join(missing[:_SHOWN])}; labels: {', '.join(labels[:_SHOWN])}"
            + nearest(_plain(first), labels),
            fix="give the labels the dataset's names",
        )
    note = f"{len(found)} of {len(names)} categories are labels of the model"
    more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
    return found, f"{note}; left out: {', '.join(missing[:_SHOWN])}{more}" if missing else note


def _plain(name: str) -> str:
    """Names differ in case and in how they join words."""
    return name.strip().lower().replace("_", " ").replace("-", " ")


def _list(data: Mapping[str, Any], key: str, path: Path) -> list[dict[str, Any]]:
    found = data.get(key)
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise _wrong(path, key, f"expected a list of mappings{nearest(key, data) if found is None else ''}")
    return found


def _annotation(one: Mapping[str, Any], place: str, path: Path) -> tuple[int, int, tuple[Any, ...]]:
    box = one.get("bbox")
    if not isinstance(box, list) or len(box) != 4 or not all(_is_number(value) for value in box):
        raise _wrong(path, f"{place}.bbox", "expected [x, y, width, height]")
    x, y, width, height = (float(value) for value in box)
    if width < 0 or height < 0:
        raise _wrong(path, f"{place}.bbox", f"a box of {width:g}x{height:g}; width and height are not negative")
    area = one.get("area", width * height)
    if not _is_number(area):
        raise _wrong(path, f"{place}.area", "expected a number")
    category = _number(one, "category_id", place, path)
    row = (x, y, x + width, y + height, category, area, bool(one.get("iscrowd", 0)))
    return _number(one, "image_id", place, path), category, row


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= limits.WHOLE_NUMBER


def _number(one: Mapping[str, Any], key: str, place: str, path: Path) -> int:
    found = one.get(key)
    if not isinstance(found, int) or not _is_number(found):
        raise _wrong(path, f"{place}.{key}", "expected a whole number")
    return found


def _wrong(path: Path, place: str, why: str) -> ConfigError:
    return ConfigError(f"{path} is not in COCO's format", why=why, where=place)
