"""Readers of boxes in formats other than COCO's: YOLO folders and data.yaml, Pascal VOC, MOT sequences.

Each reader returns the folder of the images, and annotations as in a COCO file (:class:`Annotated`)::

    data.yaml                        https://docs.ultralytics.com/datasets/detect: path, train, val, test, names; a
                                     split is a folder, a text file with one image per line, or a list of these
    images/ + labels/                the same without the file: one .txt per image, rows of class and relative numbers:
                                     of boxes, polygons, oriented boxes (four corners), or boxes and points
    classes.txt                      the same rows beside the images, as of LabelImg; also obj.names of CVAT's YOLO 1.1,
                                     and _darknet.labels of Roboflow
    Annotations/ + JPEGImages/       http://host.robots.ox.ac.uk/pascal/VOC/voc2012/htmldoc: one .xml per image; or
                                     beside the images
    gt/gt.txt + img1/                https://motchallenge.net/instructions: rows of frame, id, x, y, w, h, ...
"""

import os
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path

import cv2
import numpy as np
import yaml

from edgert.dataset.images import fair_order, listed_files
from edgert.dataset.labels import Array, Boxes
from edgert.errors import ConfigError, cause, nearest, raised_as
from edgert.stages.source.stills import SUFFIXES, read_image
from edgert.text_files import lines_of, read_text
from edgert.units import whole_number

LOOKED_FOR = (
    "a COCO .json or folder annotations, a .csv of file,label_index (label, labels or text), a data.yaml, folders "
    "images and labels (YOLO), classes.txt or .xml beside images, masks, depth or targets, Annotations (Pascal VOC), "
    "gt/gt.txt (MOT), or a folder for each class"
)


@dataclass(frozen=True, slots=True, eq=False)
class Annotated:
    """Contents of an annotation file.

    Attributes:
        boxes: boxes of each image, whose classes are category ids.
        categories: id → name, in the order of the ids.
    """

    files: tuple[str, ...]
    boxes: tuple[Boxes, ...]
    categories: Mapping[int, str]


Found = tuple[Path, Annotated]
"""Folder that the names of images are relative to, and annotations."""


def read_boxes(path: Path, limit: int | None, points: bool = False) -> Found | None:
    """Return the boxes at a path; None if its layout is not one of these.

    Without a data.yaml, ``points`` states whether YOLO's rows have points after a box. Raises ConfigError: a file is
    not in its format; the error names the line.
    """
    if path.is_file() and path.suffix.lower() == ".txt":
        return _read_yolo([path], {}, limit, path, 3 if points else 0)
    if path.is_file():
        return _read_data_yaml(path, limit, points) if path.suffix.lower() in (".yaml", ".yml") else None
    if (path / "gt" / "gt.txt").is_file() and (path / "img1").is_dir():
        return _read_mot(path, limit)
    if (path / "Annotations").is_dir() and (path / "JPEGImages").is_dir():
        return _read_voc(path, path / "Annotations", path / "JPEGImages", limit)
    for name in ("data.yaml", "dataset.yaml"):
        if (path / name).is_file():
            return _read_data_yaml(path / name, limit, points)
    listed = next((path / name for name in _NAMES if (path / name).is_file()), None)
    names = dict(enumerate(line.strip() for _, line in lines_of(listed))) if listed else {}
    if (path / "images").is_dir() and (path / "labels").is_dir():
        return _read_yolo([path / "images"], names, limit, path, 3 if points else 0)
    if listed and any(_label_file(file).is_file() for file in _image_files(path)):
        return _read_yolo([path], names, limit, path, 3 if points else 0)
    stems = {file.stem for file in path.glob("*.xml")}
    if stems and any(file.stem in stems for file in _image_files(path)):
        return _read_voc(path, path, path, limit)
    return None


def _text(path: Path) -> str:
    with raised_as(ConfigError, f"cannot read {path}", where=str(path)):
        return read_text(path)


def _image_files(folder: Path) -> list[Path]:
    return [file for file in folder.rglob("*") if file.suffix.lower() in SUFFIXES and file.is_file()]


def _table(rows: Iterable[Sequence[float]]) -> Boxes:
    """Return boxes from rows of x1, y1, x2, y2, class, area, and whether it is a crowd."""
    table = np.array(list(rows), np.float64).reshape(-1, 7)
    return Boxes(table[:, :4], table[:, 4].astype(np.int64), table[:, 5], table[:, 6].astype(np.bool_))


# YOLO.

_NAMES = ("classes.txt", "_darknet.labels", "obj.names")
_SPLITS = ("val", "validation", "test", "train")
"""Splits of a data.yaml; the first that exists is used."""


def _read_data_yaml(path: Path, limit: int | None, points: bool) -> Found:
    try:
        data = yaml.safe_load(_text(path))
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not YAML", why=str(error).splitlines()[0], where=str(path)) from error
    if not isinstance(data, dict):
        raise ConfigError(f"{path} is not a data.yaml", why="it is not a mapping with val and names", where=str(path))
    split = next((name for name in _SPLITS if data.get(name)), None)
    if split is None:
        why = f"it has none of {', '.join(_SPLITS)}{nearest('val', map(str, data))}"
        raise ConfigError(f"{path} names no images", why=why, where=str(path))
    listed = data[split] if isinstance(data[split], list) else [data[split]]
    places = [_find_split(path, str(data.get("path") or ""), str(one), split) for one in listed]
    names = data.get("names") or {}
    numbered = dict(enumerate(names)) if isinstance(names, list) else names
    plain = isinstance(numbered, dict) and all(isinstance(name, (str, int, float)) for name in numbered.values())
    if not plain or not all(whole_number(str(key)) is not None for key in numbered):
        fix = "write a list, like names: [person, car]"
        raise ConfigError(f"{path} has names that are not a list", where=f"{path}: names", fix=fix)
    shape = data.get("kpt_shape", [0, 3 if points else 0])
    if not isinstance(shape, list) or len(shape) != 2 or shape[1] not in (0, 2, 3):
        raise ConfigError(f"{path} has a kpt_shape of {shape}", where=f"{path}: kpt_shape", fix="kpt_shape: [17, 3]")
    return _read_yolo(places, {int(key): str(name) for key, name in numbered.items()}, limit, path, shape[1])


def _find_split(path: Path, base: str, entry: str, split: str) -> Path:
    """Return the folder or text file of a split's entry, from the first place where it exists.

    Places are relative to the data.yaml and its ``path``, and in the folder ``datasets`` of Ultralytics.
    """
    root, here = Path(base.replace("\\", "/")).expanduser(), Path.cwd()
    roots = [
        place / root for place in (path.parent, path.parent.parent, here, here / "datasets", here.parent / "datasets")
    ]
    roots += [path.parent]  # ``path`` may come from another machine
    # Roboflow exports ../valid/images although the folder valid is beside the file.
    name = entry.replace("\\", "/")  # separators of Windows
    tried = [root / name for root in roots] + [root / name.removeprefix("../") for root in (roots[0], path.parent)]
    found = next((one for one in tried if one.is_dir() or one.is_file()), None)
    if found is None:
        looked = ", ".join(dict.fromkeys(str(one) for one in tried))
        why, where = f"there is no folder and no list of images; searched for {looked}", f"{path}: {split}"
        raise ConfigError(f"no folder of images {entry!r}", why=why, where=where)
    return found


def _read_yolo(places: Sequence[Path], names: Mapping[int, str], limit: int | None, path: Path, numbers: int) -> Found:
    files = list[Path]()
    for place in places:
        some = _image_files(place) if place.is_dir() else listed_files(place)
        if not some:
            what = f"{place} has no image" if place.is_dir() else f"{place} lists no image"
            raise ConfigError(what, why="labels need images", where=str(path))
        files += some
    alone = len(places) == 1 and places[0].is_dir()
    folder = places[0] if alone else Path(os.path.commonpath([file.parent.absolute() for file in files]))
    images = {os.path.relpath(file, folder): file for file in files}  # without duplicates
    texts = {name: _label_file(file) for name, file in images.items()}
    if not any(text.is_file() for text in texts.values()):
        first = next(iter(texts.values()))
        raise ConfigError(
            f"{path} has images without labels",
            why=f"no file of the same name in {first.parent}, such as {first.name}",
            where=str(path),
            fix="put the labels there, or give only the folder of images to compare versions",
        )
    chosen = fair_order(images)[:limit]
    boxes, found = list[Boxes](), dict(names)
    for name in chosen:
        one = _yolo_boxes(texts[name], images[name], numbers) if texts[name].is_file() else _table(())
        for number in one.classes.tolist():
            if names and number not in names:
                raise ConfigError(
                    f"class {number} has no name", why=f"{path} names {len(names)}", where=str(texts[name])
                )
            found.setdefault(number, str(number))
        boxes.append(one)
    return folder, Annotated(tuple(chosen), tuple(boxes), dict(sorted(found.items())))


def _label_file(image: Path) -> Path:
    """Return the path of an image's labels: its last folder "images" becomes "labels"; otherwise beside the image."""
    beside, parts = image.with_suffix(".txt"), list(image.parts)
    place = max((n for n, part in enumerate(parts[:-1]) if part == "images"), default=None)
    if place is None:
        return beside
    parts[place] = "labels"
    usual = Path(*parts).with_suffix(".txt")
    return usual if usual.is_file() or not beside.is_file() else beside


def _yolo_boxes(text: Path, image: Path, numbers: int) -> Boxes:
    """Return the boxes of an image's labels.

    A row has a class and relative numbers: center x, y, width, height; or these and points of ``numbers`` each; or the
    corners of a polygon. Four corners are also an oriented box.
    """
    lines = list(lines_of(text))
    pixels = read_image(image) if lines else None
    height, width = (1, 1) if pixels is None else pixels.shape[:2]  # evaluation reports a damaged image
    rows, outlines, turned, points = list[tuple[float, ...]](), list[list[Array]](), list[Array](), list[Array]()
    for number, line in lines:
        try:
            first, *values = (float(part) for part in line.split())
        except ValueError:
            first, values = -1.0, []
        if not _is_label_row(first, values, numbers):
            behind = f", and points of {numbers} numbers" if numbers else ", or the corners of a polygon"
            raise ConfigError(
                f"line {number} of {text} is not a label",
                why=f"expected a class and center x, y, width, height{behind}, from 0 to 1",
                where=f"{text}:{number}",
            )
        if len(values) == 4 or numbers:
            x, y, w, h = (part * size for part, size in zip(values[:4], (width, height) * 2, strict=True))
            box = (x - w / 2, y - h / 2, x + w / 2, y + h / 2)
        else:
            ring = np.array(values).reshape(-1, 2) * (width, height)
            box = (*ring.min(axis=0), *ring.max(axis=0))
            outlines.append([ring.reshape(-1)])
            turned += [ring] if len(ring) == 4 else []
        if numbers:
            some = np.array(values[4:]).reshape(-1, numbers)
            seen = some[:, 2:] if numbers == 3 else 2.0 * (some != 0).any(axis=1, keepdims=True)
            points.append(np.hstack([some[:, :2] * (width, height), seen]))
        rows.append((*box, first, (box[2] - box[0]) * (box[3] - box[1]), 0))
    if len({len(one) for one in points}) > 1:
        raise ConfigError(f"{text} has objects of different numbers of points", where=str(text))
    every = _table(rows)
    return replace(
        every,
        size=None if pixels is None else (height, width),
        areas=np.array([cv2.contourArea(one[0].astype(np.float32).reshape(-1, 2)) for one in outlines])
        if rows and len(outlines) == len(rows)
        else every.areas,
        outlines=tuple(outlines) if rows and len(outlines) == len(rows) else None,
        turned=np.array(turned) if rows and len(turned) == len(rows) else None,
        points=np.array(points) if points else None,
    )


_LEAST_PART, _MOST_PART = -0.5, 1.5
"""Range of parts of an image; objects at its border may exceed it a little, pixels exceed it by far."""


def _is_label_row(first: float, values: Sequence[float], numbers: int) -> bool:
    if first < 0 or first != int(first) or not all(map(isfinite, values)):
        return False
    if not all(_LEAST_PART <= one <= _MOST_PART for one in (values[:4] if numbers else values)):
        return False
    if numbers:
        return len(values) > 4 and (len(values) - 4) % numbers == 0
    return len(values) == 4 or (len(values) >= 6 and len(values) % 2 == 0)


# Pascal VOC.


def _read_voc(path: Path, folder: Path, photos: Path, limit: int | None) -> Found:
    files = {file.stem: file for file in folder.rglob("*.xml")}
    lists = (path / "ImageSets" / "Main" / f"{name}.txt" for name in ("val", "test", "trainval"))
    if (chosen := next((one for one in lists if one.is_file()), None)) is not None:
        stems = [Path(line.split()[0]).name for _, line in lines_of(chosen)]
        files = {stem: files[stem] for stem in stems if stem in files}
    images = {file.stem: file.relative_to(photos).as_posix() for file in _image_files(photos)}
    known = fair_order(images[stem] for stem in files if stem in images)[:limit]
    if not known:
        raise ConfigError(
            f"{path} has no image with an annotation", why=f"searched {folder} for .xml files of its name"
        )
    objects = {name: list(_voc_objects(files[Path(name).stem])) for name in known}
    names = sorted({one[0] for some in objects.values() for one in some})
    numbers = {name: number for number, name in enumerate(names)}
    boxes = [_table((*box, numbers[name], _area(box), hard) for name, box, hard in objects[one]) for one in known]
    return photos, Annotated(tuple(known), tuple(boxes), dict(enumerate(names)))


def _area(box: tuple[float, ...]) -> float:
    return (box[2] - box[0]) * (box[3] - box[1])


def _voc_objects(file: Path) -> Iterator[tuple[str, tuple[float, ...], bool]]:
    """Yield (name, corners, whether it is difficult) of each object; difficult objects do not count.

    Pixels in the file count from 1, and both ends are included.
    """
    try:
        content = file.read_bytes()
        if b"<!ENTITY" in content.replace(b"\0", b""):  # in UTF-16 too
            raise ValueError("it has entities, which annotations do not need")
        root = ET.fromstring(content)  # noqa: S314 - entities were refused
        for item in root.iter("object"):
            box = item.find("bndbox")
            keys = ("xmin", "ymin", "xmax", "ymax") if box is not None else ()
            values = [float(str(box.findtext(key))) for key in keys]  # type: ignore[union-attr]
            name = (item.findtext("name") or "").strip()
            if len(values) != 4 or not name or not all(map(isfinite, values)):
                raise ValueError("an object has no name or no finite bndbox")
            yield name, (values[0] - 1, values[1] - 1, values[2], values[3]), item.findtext("difficult") == "1"
    except OSError as error:
        raise ConfigError(f"cannot read {file}", why=cause(error), where=str(file)) from error
    except (ET.ParseError, ValueError) as error:
        raise ConfigError(f"{file} is not an annotation of Pascal VOC", why=str(error), where=str(file)) from error


# MOT sequences.

_PEDESTRIAN = 1
_LIKE = (2, 7, 8, 12)
"""Classes that never count: people on vehicles, standing people, distractors, reflections (arXiv:1603.00831)."""


def _read_mot(path: Path, limit: int | None) -> Found:
    file = path / "gt" / "gt.txt"
    rows: dict[int, list[tuple[float, ...]]] = {}
    for line, row in lines_of(file):
        try:
            parts = (*row.split(","), "1", "1")[:8]
            frame, number, x, y, w, h, counts, kind = values = [float(part) for part in parts]
            if not all(map(isfinite, values)):
                raise ValueError("a number is not finite")
        except ValueError as error:
            why = "expected frame, id, x, y, width, height, whether it counts, class"
            raise ConfigError(f"line {line} of {file} is not a box", why=why, where=f"{file}:{line}") from error
        if (counts and kind == _PEDESTRIAN) or kind in _LIKE:
            box = (x - 1, y - 1, x - 1 + w, y - 1 + h)
            rows.setdefault(int(frame), []).append((*box, 0, w * h, kind != _PEDESTRIAN, number))
    images = {int(name.stem): name.name for name in (path / "img1").iterdir() if name.stem.isdecimal()}
    known = [images[frame] for frame in sorted(rows) if frame in images][:limit]  # in order of time, for tracking
    tables = [rows[int(Path(name).stem)] for name in known]
    boxes = [
        replace(_table(one[:7] for one in table), ids=np.array([one[7] for one in table], np.int64)) for table in tables
    ]
    return path / "img1", Annotated(tuple(known), tuple(boxes), {0: "person"})
