"""Images with their ground truth, found by the layout of a path.

Layouts::

    x.json          COCO annotations; images in a folder x, or images, or beside the file
    annotations/    unpacked COCO; or _annotations.coco.json in valid, as exported by Roboflow
    x.csv           file,label_index, file,label, file,labels (a;b) or file,text; images in a folder x without
                    "_labels", or images, or beside it
    data.yaml, images + labels       boxes of YOLO (:mod:`~edgert.dataset.layouts`)
    Annotations + JPEGImages         boxes of Pascal VOC
    gt/gt.txt + img1                 boxes of a MOT sequence
    folder/images + folder/masks     class indices as PNG files with the same stem; SegmentationClass of Pascal VOC
    folder/images + folder/depth     meters (.npy) or millimeters (16-bit PNG) with the same stem
    folder/images + folder/targets   target images of an image task
    folder/NAME/…   one folder per class, or per identity for the task embed
    otherwise       images without labels: a folder, a glob, a video

Labeled images are in a fair order, so that the first ones are a sample.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from edgert.config import ClassifyTask, EmbedTask, KeypointsTask, SegmentTask, TaskConfig, model_section
from edgert.dataset import coco_file, labels as label_files, layouts
from edgert.dataset.images import FileDataset, ImageDataset, fair_order, open_images
from edgert.errors import ConfigError, located_at, nearest
from edgert.stages.source.stills import SUFFIXES

_SHOWN = 5


@dataclass(frozen=True, slots=True, eq=False)
class LabeledDataset:
    """Images and their labels.

    Attributes:
        ground_truth: ground truth of every image, in the order of the images; None without labels.
        notes: how labels were interpreted, a sentence each.
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
    """Return the images and labels at a path, without decoding images.

    The task decides what subfolders mean; classes of the dataset are matched to ``labels``, the model's. Raises
    ConfigError: there is nothing, labels cannot be interpreted, or images are missing. Raises StageError: a video
    cannot be opened.
    """
    path = Path(source).expanduser().absolute()
    with located_at(where):
        of_points = isinstance(task, KeypointsTask)
        if path.is_file() and path.suffix.lower() == ".json":
            return _coco_dataset(path, labels, limit)
        if path.is_file() and path.suffix.lower() == ".csv":
            listed, kind = label_files.read_list(path, labels)
            chosen = fair_order(listed)[:limit]
            images = _listed_images(path, path.stem.removesuffix("_labels"), chosen)
            return LabeledDataset(path, images, kind(tuple(listed[name] for name in chosen)))
        if not isinstance(task, (ClassifyTask, EmbedTask, SegmentTask)):
            if path.is_dir() and (file := coco_file.file_in(path, of_points)) is not None:
                return _coco_dataset(file, labels, limit)
            if (there := layouts.read_boxes(path, limit, of_points)) is not None:
                folder, data = there
                return _boxes_dataset(path, data, labels, _images_in(folder, data.files), data.files)
        if path.is_dir() and (found := _folder_dataset(path, task, labels, limit)) is not None:
            return found
        note = f"no labels: versions are compared; searched for {layouts.LOOKED_FOR}, in {path}"
        return LabeledDataset(path, open_images(source, limit=limit, where=where), notes=(note,))


def _coco_dataset(path: Path, labels: Sequence[str], limit: int | None) -> LabeledDataset:
    data = coco_file.read_annotations(path)
    chosen = fair_order(data.files)[:limit]
    stem = path.stem.removeprefix("instances_").removeprefix("person_keypoints_")
    return _boxes_dataset(path, data, labels, _listed_images(path, stem, chosen), chosen)


def _boxes_dataset(
    path: Path, data: layouts.Annotated, labels: Sequence[str], images: FileDataset, chosen: Sequence[str]
) -> LabeledDataset:
    numbers, note = class_numbers(data, labels, path)
    boxes = dict(zip(data.files, data.boxes, strict=True))
    known = [one.select(np.isin(one.classes, list(numbers)), numbers) for one in map(boxes.__getitem__, chosen)]
    if not any((~one.crowds).any() for one in known):
        raise ConfigError(f"{path} has no box to find", why=f"none of the {len(chosen)} chosen images has a box")
    names = {number: data.categories[key] for key, number in numbers.items()}
    return LabeledDataset(
        path, images, label_files.GroundTruthBoxes(tuple(known), tuple(sorted(names)), names), (note,)
    )


def _folder_dataset(
    path: Path, task: TaskConfig | None, labels: Sequence[str], limit: int | None
) -> LabeledDataset | None:
    """Return the dataset of a folder with a known structure; None for a plain folder of images."""
    if (pairs := _find_pairs(path, task)) is not None:
        folder, files, kind = pairs
        chosen = fair_order(files)[:limit]
        return LabeledDataset(path, _images_in(folder, chosen), kind(tuple(files[name] for name in chosen)))
    if not isinstance(task, (ClassifyTask, EmbedTask)) or not (folders := label_files.class_folders(path)):
        return None
    chosen = fair_order(folders)[:limit]
    images = _images_in(path, chosen)
    if isinstance(task, EmbedTask):
        return LabeledDataset(path, images, label_files.GroundTruthIdentities(tuple(folders[name] for name in chosen)))
    numbers, note = label_files.folder_classes(list(folders.values()), labels, str(path))
    return LabeledDataset(
        path, images, label_files.GroundTruthClasses(tuple(numbers[folders[name]] for name in chosen)), (note,)
    )


_PICTURES = (("images", "targets"), ("input", "target"), ("low", "high"), ("lq", "gt"))
"""Pairs of folders of input images and target images."""
_Paired = (
    type[label_files.GroundTruthMasks] | type[label_files.GroundTruthDepth] | type[label_files.GroundTruthPictures]
)


def _find_pairs(path: Path, task: TaskConfig | None) -> tuple[Path, Mapping[str, Path], _Paired] | None:
    """Return the folder of images, image → file of its ground truth, and the kind of ground truth."""
    images = path / "images"
    if isinstance(task, (SegmentTask, type(None))) and images.is_dir() and (path / "masks").is_dir():
        files = label_files.pairs_of(images, path / "masks", (".png",), "mask")
        return images, files, label_files.GroundTruthMasks
    if isinstance(task, SegmentTask) and (path / "SegmentationClass").is_dir() and (path / "JPEGImages").is_dir():
        return path / "JPEGImages", label_files.voc_masks(path), label_files.GroundTruthMasks
    if isinstance(task, model_section.DepthTask) and images.is_dir() and (path / "depth").is_dir():
        files = label_files.pairs_of(images, path / "depth", (".npy", ".png"), "depth")
        return images, files, label_files.GroundTruthDepth
    for one, other in _PICTURES if isinstance(task, model_section.ImageTask) else ():
        if (path / one).is_dir() and (path / other).is_dir():
            files = label_files.pairs_of(path / one, path / other, sorted(SUFFIXES), "target")
            return path / one, files, label_files.GroundTruthPictures
    return None


def _listed_images(path: Path, stem: str, names: Sequence[str]) -> FileDataset:
    """Return the listed images from the first folder that has one of the first images.

    Candidate folders are named like the file, ``stem`` or "images".
    """
    if not names:
        raise ConfigError(f"{path} lists no image", where=str(path))
    near, above, stems = path.parent, path.parent.parent, dict.fromkeys((path.stem, stem))
    places = [*(near / one for one in stems), near / "images", near / "data", near, *(above / one for one in stems)]
    places += [*(place / "images" / one for place in (near, above) for one in stems), above / "images"]
    folder = next((place for place in places if any((place / name).is_file() for name in names[:_SHOWN])), None)
    if folder is None:
        looked = ", ".join(str(place) for place in places)
        raise ConfigError(f"no image of {path} was found, such as {names[0]}", why=f"searched {looked}")
    return _images_in(folder, names)


def _images_in(folder: Path, names: Sequence[str]) -> FileDataset:
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


def class_numbers(annotated: layouts.Annotated, labels: Sequence[str], path: Path) -> tuple[dict[int, int], str]:
    """Return category id → class index of the model, and a note on how this was determined.

    If the model's labels are known, names are matched, and categories without a label are left out. Otherwise ids that
    begin with 0 are class indices, and other ids, such as COCO's 1 to 90, are numbered in their order. Ids without
    names, as in YOLO folders without a data.yaml, are also class indices. Raises ConfigError: no name is a label.
    """
    names = annotated.categories
    if not labels:
        if min(names, default=0) == 0:
            return {number: number for number in names}, "category ids are used as class indices"
        return {number: n for n, number in enumerate(names)}, "categories are numbered in the order of their ids"
    places = {_normalized_name(label): n for n, label in reversed(list(enumerate(labels)))}
    found = {
        number: places[_normalized_name(name)] for number, name in names.items() if _normalized_name(name) in places
    }
    missing = [name for number, name in names.items() if number not in found]
    if not found and all(name == str(number) for number, name in names.items()) and max(names, default=0) < len(labels):
        return {number: number for number in names}, "the categories have no names: their numbers are class indices"
    if not found:
        first = missing[0] if missing else ""
        raise ConfigError(
            f"no category of {path} is a label of the model",
            why=f"categories: {', '.join(missing[:_SHOWN])}; labels: {', '.join(labels[:_SHOWN])}"
            + nearest(_normalized_name(first), labels),
            fix="use the dataset's names in the labels",
        )
    note = f"{len(found)} of {len(names)} categories are labels of the model"
    more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
    return found, f"{note}; left out: {', '.join(missing[:_SHOWN])}{more}" if missing else note


def _normalized_name(name: str) -> str:
    return name.strip().lower().replace("_", " ").replace("-", " ")
