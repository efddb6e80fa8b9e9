"""Images with their ground ground_truth, found by what a path looks like.

    x.json          COCO annotations; images in a folder x, or images, or beside the file
    x.csv           file,label_index or file,label; images in a folder x without "_labels", or images, or beside it
    folder/images + folder/masks     class indices as PNG files of the same stem
    folder/NAME/…   one folder per class, or per identity where the task is embed
    otherwise       images without labels: a folder, a glob, a video

Labeled images come in a dataset's fair order, so the first few of them are a sample.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from edgert.config import ClassifyTask, EmbedTask, SegmentTask, TaskConfig
from edgert.dataset.coco_json import class_numbers, read_annotations
from edgert.dataset.images import FileDataset, ImageDataset, fair_order, open_images
from edgert.dataset.labels import (
    Boxes,
    GroundTruth,
    GroundTruthBoxes,
    GroundTruthClasses,
    GroundTruthIdentities,
    GroundTruthMasks,
    class_folders,
    folder_classes,
    masks_of,
    read_list,
)
from edgert.errors import ConfigError, EdgertError, nearest

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
    ground_truth: GroundTruth | None = None
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
            classes = read_list(path, labels)
            chosen = fair_order(classes)[:limit]
            images = _listed_images(path, path.stem.removesuffix("_labels"), chosen)
            return LabeledDataset(path, images, GroundTruthClasses(tuple(classes[name] for name in chosen)))
        if path.is_dir() and (found := _in_folder(path, task, labels, limit)) is not None:
            return found
        return LabeledDataset(
            path, open_images(source, limit=limit, where=where), notes=("no labels: versions are compared",)
        )
    except EdgertError as error:
        raise error.at(where)  # noqa: B904 - the same error, with its place


def _annotated(path: Path, labels: Sequence[str], limit: int | None) -> LabeledDataset:
    data = read_annotations(path)
    numbers, note = class_numbers(data, labels, path)
    boxes = dict(zip(data.files, data.boxes, strict=True))
    chosen = fair_order(boxes)[:limit]
    images = _listed_images(path, path.stem.removeprefix("instances_"), chosen)
    known = []  # those whose category the model has a class for, with that class
    for one in map(boxes.__getitem__, chosen):
        rows = np.isin(one.classes, list(numbers))
        classes = np.array([numbers[category] for category in one.classes[rows].tolist()], np.int64)
        known.append(Boxes(one.corners[rows], classes, one.areas[rows], one.crowds[rows]))
    if not any((~one.crowds).any() for one in known):
        raise ConfigError(f"{path} has no box to find", why=f"on the {len(chosen)} images taken, nothing is marked")
    names = {number: data.categories[key] for key, number in numbers.items()}
    return LabeledDataset(path, images, GroundTruthBoxes(tuple(known), tuple(sorted(names)), names), (note,))


def _in_folder(path: Path, task: TaskConfig | None, labels: Sequence[str], limit: int | None) -> LabeledDataset | None:
    """The dataset that a folder's structure shows; None for a plain folder of images."""
    if (path / "images").is_dir() and (path / "masks").is_dir() and isinstance(task, (SegmentTask, type(None))):
        masks = masks_of(path)
        chosen = fair_order(masks)[:limit]
        return LabeledDataset(
            path, _photos(path / "images", chosen), GroundTruthMasks(tuple(masks[name] for name in chosen))
        )
    if not isinstance(task, (ClassifyTask, EmbedTask)) or not (folders := class_folders(path)):
        return None
    chosen = fair_order(folders)[:limit]
    images = _photos(path, chosen)
    if isinstance(task, EmbedTask):
        return LabeledDataset(path, images, GroundTruthIdentities(tuple(folders[name] for name in chosen)))
    numbers, note = folder_classes(list(folders.values()), labels, str(path))
    return LabeledDataset(path, images, GroundTruthClasses(tuple(numbers[folders[name]] for name in chosen)), (note,))


def _listed_images(path: Path, stem: str, names: Sequence[str]) -> FileDataset:
    """The listed images: from the first folder that has one of the first, called as the file, ``stem`` or "images"."""
    if not names:
        raise ConfigError(f"{path} lists no image", where=str(path))
    near, above, stems = path.parent, path.parent.parent, dict.fromkeys((path.stem, stem))
    places = [*(near / one for one in stems), near / "images", near, *(above / one for one in stems), above / "images"]
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
