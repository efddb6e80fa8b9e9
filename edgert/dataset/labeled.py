"""Images with their ground truth, found by the layout of a path.

The layouts are::

    x.json          COCO annotations; images in a folder x, or images, or beside the file
    annotations/    COCO as it is unpacked; _annotations.coco.json in valid, as Roboflow exports it
    x.csv           file,label_index, file,label, file,labels (a;b) or file,text; images in a folder x without
                    "_labels", or images, or beside it
    data.yaml, images + labels       YOLO's boxes (:mod:`~edgert.dataset.layouts`)
    Annotations + JPEGImages         Pascal VOC's
    gt/gt.txt + img1                 those of a MOT sequence
    folder/images + folder/masks     class indices as PNG files of the same stem; of VOC, SegmentationClass
    folder/images + folder/depth     meters (.npy) or millimeters (16-bit PNG) of the same stem
    folder/images + folder/targets   the images that an image task should make
    folder/NAME/…   one folder per class, or per identity where the task is embed
    otherwise       images without labels: a folder, a glob, a video

Labeled images come in a dataset's fair order, so the first few of them are a sample.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from edgert.config import ClassifyTask, EmbedTask, KeypointsTask, SegmentTask, TaskConfig
from edgert.config.model_section import DepthTask, ImageTask
from edgert.dataset import coco_file, labels as label_files
from edgert.dataset.images import FileDataset, ImageDataset, fair_order, open_images
from edgert.dataset.layouts import LOOKED_FOR, Annotated, boxes_in
from edgert.errors import ConfigError, EdgertError, nearest
from edgert.stages.source.stills import SUFFIXES

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
    """Find images and labels; decode none yet.

    Args:
        source: see the head of this module.
        task: of the model; decides what the folders of a folder mean.
        labels: the model's class names, by which the dataset's are understood.
        limit: the most images.
        where: the ``file:line key`` that requested it, for errors.

    Raises:
        ConfigError: nothing there, labels that cannot be understood, images that are missing or none.
        StageError: a video cannot be opened.
    """
    path = Path(source).expanduser().absolute()
    try:
        of_points = isinstance(task, KeypointsTask)
        if path.is_file() and path.suffix.lower() == ".json":
            return _annotated(path, labels, limit)
        if path.is_file() and path.suffix.lower() == ".csv":
            listed, kind = label_files.read_list(path, labels)
            chosen = fair_order(listed)[:limit]
            images = _listed_images(path, path.stem.removesuffix("_labels"), chosen)
            return LabeledDataset(path, images, kind(tuple(listed[name] for name in chosen)))
        if not isinstance(task, (ClassifyTask, EmbedTask, SegmentTask)):
            if path.is_dir() and (file := coco_file.file_in(path, of_points)) is not None:
                return _annotated(file, labels, limit)
            if (there := boxes_in(path, limit, of_points)) is not None:
                folder, data = there
                return _boxed(path, data, labels, _photos(folder, data.files), data.files)
        if path.is_dir() and (found := _in_folder(path, task, labels, limit)) is not None:
            return found
        note = f"no labels: versions are compared; searched for {LOOKED_FOR}, in {path}"
        return LabeledDataset(path, open_images(source, limit=limit, where=where), notes=(note,))
    except EdgertError as error:
        raise error.at(where)  # noqa: B904 - the same error, with its place


def _annotated(path: Path, labels: Sequence[str], limit: int | None) -> LabeledDataset:
    data = coco_file.read_annotations(path)
    chosen = fair_order(data.files)[:limit]
    stem = path.stem.removeprefix("instances_").removeprefix("person_keypoints_")
    return _boxed(path, data, labels, _listed_images(path, stem, chosen), chosen)


def _boxed(
    path: Path, data: Annotated, labels: Sequence[str], images: FileDataset, chosen: Sequence[str]
) -> LabeledDataset:
    """Return the boxes of the chosen images, with the model's classes."""
    numbers, note = class_numbers(data, labels, path)
    boxes = dict(zip(data.files, data.boxes, strict=True))
    # boxes whose category is a class of the model, with that class
    known = [one.select(np.isin(one.classes, list(numbers)), numbers) for one in map(boxes.__getitem__, chosen)]
    if not any((~one.crowds).any() for one in known):
        raise ConfigError(f"{path} has no box to find", why=f"none of the {len(chosen)} chosen images has a box")
    names = {number: data.categories[key] for key, number in numbers.items()}
    return LabeledDataset(
        path, images, label_files.GroundTruthBoxes(tuple(known), tuple(sorted(names)), names), (note,)
    )


def _in_folder(path: Path, task: TaskConfig | None, labels: Sequence[str], limit: int | None) -> LabeledDataset | None:
    """Return the dataset that a folder's structure shows; None for a plain folder of images."""
    if (pairs := _pairs(path, task)) is not None:
        folder, files, kind = pairs
        chosen = fair_order(files)[:limit]
        return LabeledDataset(path, _photos(folder, chosen), kind(tuple(files[name] for name in chosen)))
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


_PICTURES = (("images", "targets"), ("input", "target"), ("low", "high"), ("lq", "gt"))
"""Folders of input images, and of target images."""
_Paired = (
    type[label_files.GroundTruthMasks] | type[label_files.GroundTruthDepth] | type[label_files.GroundTruthPictures]
)


def _pairs(path: Path, task: TaskConfig | None) -> tuple[Path, Mapping[str, Path], _Paired] | None:
    """Return the folder of images, image → file of its ground truth, and the kind of that."""
    images = path / "images"
    if isinstance(task, (SegmentTask, type(None))) and images.is_dir() and (path / "masks").is_dir():
        files = label_files.pairs_of(images, path / "masks", (".png",), "mask")
        return images, files, label_files.GroundTruthMasks
    if isinstance(task, SegmentTask) and (path / "SegmentationClass").is_dir() and (path / "JPEGImages").is_dir():
        return path / "JPEGImages", label_files.voc_masks(path), label_files.GroundTruthMasks
    if isinstance(task, DepthTask) and images.is_dir() and (path / "depth").is_dir():
        files = label_files.pairs_of(images, path / "depth", (".npy", ".png"), "depth")
        return images, files, label_files.GroundTruthDepth
    for one, other in _PICTURES if isinstance(task, ImageTask) else ():
        if (path / one).is_dir() and (path / other).is_dir():
            files = label_files.pairs_of(path / one, path / other, sorted(SUFFIXES), "target")
            return path / one, files, label_files.GroundTruthPictures
    return None


def _listed_images(path: Path, stem: str, names: Sequence[str]) -> FileDataset:
    """Return the listed images, from the first candidate folder that has one of the first images.

    Candidates have the name of the file, ``stem`` or "images".
    """
    if not names:
        raise ConfigError(f"{path} lists no image", where=str(path))
    near, above, stems = path.parent, path.parent.parent, dict.fromkeys((path.stem, stem))
    places = [*(near / one for one in stems), near / "images", near, *(above / one for one in stems)]
    places += [*(place / "images" / one for place in (near, above) for one in stems), above / "images"]
    folder = next((place for place in places if any((place / name).is_file() for name in names[:_SHOWN])), None)
    if folder is None:
        looked = ", ".join(str(place) for place in places)
        raise ConfigError(f"no image of {path} was found, such as {names[0]}", why=f"searched {looked}")
    return _photos(folder, names)


def _photos(folder: Path, names: Sequence[str]) -> FileDataset:
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
        hint = nearest(missing[0], (path.name for path in folder.iterdir()))
        raise ConfigError(
            f"{len(missing)} of {len(names)} images are not in {folder}",
            why=f"{', '.join(missing[:_SHOWN])}{more}{hint}",
            fix="copy them there, or remove them from the list",
        )
    return FileDataset(tuple(folder / name for name in names), tuple(names))


# Mapping of the labels' categories to classes of the model.


def class_numbers(annotated: Annotated, labels: Sequence[str], path: Path) -> tuple[dict[int, int], str]:
    """Return category id → the model's class index, and how that was determined, in a sentence.

    Where the model's labels are known, names are matched, and categories without a label are left out. Otherwise ids
    from 0 are class indices. Other ids are numbered in their order, as COCO's own 1 to 90 are. Numbers without names,
    as in YOLO folders without a data.yaml, are class indices, too.

    Raises:
        ConfigError: none of the names is a label.
    """
    names = annotated.categories
    if not labels:
        if min(names, default=0) == 0:
            return {number: number for number in names}, "category ids are used as class indices"
        return {number: n for n, number in enumerate(names)}, "categories are numbered in the order of their ids"
    places = {_plain(label): n for n, label in reversed(list(enumerate(labels)))}
    found = {number: places[_plain(name)] for number, name in names.items() if _plain(name) in places}
    missing = [name for number, name in names.items() if number not in found]
    if not found and all(name == str(number) for number, name in names.items()) and max(names, default=0) < len(labels):
        return {number: number for number in names}, "the categories have no names: their numbers are class indices"
    if not found:
        first = missing[0] if missing else ""
        raise ConfigError(
            f"no category of {path} is a label of the model",
            why=f"categories: {', '.join(missing[:_SHOWN])}; labels: {', '.join(labels[:_SHOWN])}"
            + nearest(_plain(first), labels),
            fix="use the dataset's names in the labels",
        )
    note = f"{len(found)} of {len(names)} categories are labels of the model"
    more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
    return found, f"{note}; left out: {', '.join(missing[:_SHOWN])}{more}" if missing else note


def _plain(name: str) -> str:
    """Return a name without differences in case and in how words are joined."""
    return name.strip().lower().replace("_", " ").replace("-", " ")
