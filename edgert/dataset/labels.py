"""Ground truth as plain records, and readers of lists, of folders for each class or identity, and of mask files."""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress
from pathlib import Path
from typing import Any, TypeVar

import cv2
import numpy as np
import numpy.typing as npt

from edgert import limits
from edgert.array_file import read_array
from edgert.errors import ConfigError, nearest, raised_as
from edgert.runtime import Segmentation
from edgert.runtime.frame import U8
from edgert.stages.source.stills import SUFFIXES, read_pixels
from edgert.text_files import read_text
from edgert.units import whole_number

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]
Array = npt.NDArray[Any]
_T = TypeVar("_T", bound=np.generic)


@dataclass(frozen=True, slots=True, eq=False)
class Boxes:
    """True boxes of one image; optional fields are None if the labels have none.

    Attributes:
        corners: (N, 4) float64 x1, y1, x2, y2 in pixels.
        classes: (N,) int64 class indices of the model.
        areas: (N,) float64 areas of the objects in square pixels, by which COCO distinguishes small and large objects.
        crowds: (N,) whether a box does not count, because it covers many objects or a difficult one.
        size: height and width of the image.
        outlines: outline of each object in COCO's format: polygons [x, y, x, y, ...] in pixels, a dict of run lengths,
            or empty.
        turned: (N, 4, 2) float64 corners of oriented boxes, in order around each box.
        points: (N, K, 3) float64 x, y in pixels, and 0 for not labeled, 1 for hidden, 2 for visible.
        ids: (N,) int64 identity of each object in a sequence.
    """

    corners: F64
    classes: I64
    areas: F64
    crowds: Bool
    size: tuple[int, int] | None = None
    outlines: tuple[Any, ...] | None = None
    turned: F64 | None = None
    points: F64 | None = None
    ids: I64 | None = None

    def select(self, rows: Bool, numbers: Mapping[int, int]) -> "Boxes":
        """Return the selected rows, with classes changed by ``numbers``, old → new."""
        classes = np.array([numbers[one] for one in self.classes[rows].tolist()], np.int64)
        arrays: tuple[Any, ...] = (self.turned, self.points, self.ids)
        outlines = None if self.outlines is None else tuple(compress(self.outlines, rows.tolist()))
        boxes = self.corners[rows], classes, self.areas[rows], self.crowds[rows]
        return Boxes(*boxes, self.size, outlines, *(None if one is None else one[rows] for one in arrays))


@dataclass(frozen=True, slots=True, eq=False)
class GroundTruthBoxes:
    """True boxes of every image; detections of classes that are not in ``classes`` do not count."""

    images: tuple[Boxes, ...]
    classes: tuple[int, ...]
    names: Mapping[int, str] = field(default_factory=dict)

    def has(self, what: str) -> bool:
        """Return whether any object has ``outlines``, ``turned``, ``points`` or ``ids``."""
        return any(len(one.corners) and getattr(one, what) is not None for one in self.images)


@dataclass(frozen=True, slots=True, eq=False)
class GroundTruthClasses:
    """Class index of every image."""

    classes: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class GroundTruthMasks:
    """File of every image's mask, with a class index for each pixel."""

    files: tuple[Path, ...]


@dataclass(frozen=True, slots=True, eq=False)
class GroundTruthIdentities:
    """Identity that every image shows."""

    identities: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class GroundTruthLabels:
    """Class indices of every image, several or none."""

    classes: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True, eq=False)
class GroundTruthTexts:
    """Text in every image."""

    texts: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class GroundTruthDepth:
    """File of every image's depth, for :func:`read_depth`."""

    files: tuple[Path, ...]


@dataclass(frozen=True, slots=True, eq=False)
class GroundTruthPictures:
    """File of every image's target image."""

    files: tuple[Path, ...]


GroundTruth = (
    GroundTruthBoxes
    | GroundTruthClasses
    | GroundTruthMasks
    | GroundTruthIdentities
    | GroundTruthLabels
    | GroundTruthTexts
    | GroundTruthDepth
    | GroundTruthPictures
)


VOID = 255
"""Index of pixels that do not count, such as edges in Pascal VOC."""
_EDGE_PX = 1.0  # rounding of a region's border


def read_mask(path: Path) -> U8:
    """Return the (h, w) class indices of a gray or palette PNG.

    Raises ConfigError: the file is unreadable, a color image, or has indices above 255.
    """
    mask = read_pixels(path)
    if mask is None:
        raise ConfigError(f"cannot read the mask {str(path)!r}", why="it is missing, damaged or not an image")
    if mask.ndim == 3:
        return _palette_indices(np.asarray(mask[..., :3]), path)
    if mask.dtype != np.uint8 and int(mask.max(initial=0)) > VOID:
        raise ConfigError(f"mask {str(path)!r} has indices up to {int(mask.max())}", why=f"the largest index is {VOID}")
    return mask.astype(np.uint8, copy=False)


def resized_mask(found: Segmentation, true: U8, path: Path) -> tuple[U8, U8]:
    """Return the found mask in the resolution of the true one, and the part of the true mask that it covers.

    Raises ConfigError: the true mask has another size than the image.
    """
    part = covered_part(found.region, true, path)
    size = part.shape[1], part.shape[0]
    return cv2.resize(found.mask, size, interpolation=cv2.INTER_NEAREST).astype(np.uint8, copy=False), part


def covered_part(region: tuple[float, float, float, float], true: npt.NDArray[_T], path: Path) -> npt.NDArray[_T]:
    """Return the part of a (h, w) array of labels that a region covers.

    Raises ConfigError: the labels have another size than the image.
    """
    height, width = true.shape
    if region[2] > width + _EDGE_PX or region[3] > height + _EDGE_PX:
        raise ConfigError(
            f"mask {str(path)!r} is {width}x{height}",
            why=f"its image reaches to {region[2]:g},{region[3]:g}",
            fix="give masks the size of their images",
        )
    x1, y1, x2, y2 = (round(edge) for edge in region)
    return true[max(y1, 0) : y2, max(x1, 0) : x2]


_MM_PER_M = 1000.0


def read_depth(path: Path) -> F32:
    """Return (h, w) float32 meters, which are 0 or not finite where unknown.

    The file is a .npy in meters, or a 16-bit PNG in millimeters. Raises ConfigError: the file is unreadable or has
    another format.
    """
    with raised_as(ConfigError, f"cannot read the depth {str(path)!r}", of=(OSError, ValueError)):
        is_array = path.suffix.lower() == ".npy"
        depth: Array | None = (
            read_array(path.read_bytes(), 8 * limits.INPUT_ELEMENTS) if is_array else read_pixels(path)
        )
    if depth is None or depth.ndim != 2 or depth.dtype.kind not in "fu" or (not is_array and depth.dtype != np.uint16):
        raise ConfigError(
            f"{str(path)!r} is not a depth map",
            why="it is missing, damaged or not an image" if depth is None else f"{depth.dtype} of shape {depth.shape}",
            fix="give a .npy of (height, width) float32 meters, or a PNG of 16 bits in millimeters",
        )
    meters: F32 = depth.astype(np.float32) / np.float32(1.0 if is_array else _MM_PER_M)
    return meters


def _palette_indices(image: U8, path: Path) -> U8:
    """Return the palette indices of an image that OpenCV converted to colors; of equal colors the first index."""
    palette = _palette(path.read_bytes())
    if palette is None:
        raise ConfigError(
            f"mask {str(path)!r} is a color image",
            why="a mask holds class indices: a gray PNG, or one with a palette",
            fix="convert colors to indices first",
        )
    codes, first = np.unique(palette.astype(np.int64) @ (1 << 16, 1 << 8, 1), return_index=True)
    wanted = image[..., ::-1].astype(np.int64) @ np.array((1 << 16, 1 << 8, 1))
    found: U8 = first[np.searchsorted(codes, wanted)].astype(np.uint8)
    return found


def _palette(data: bytes) -> U8 | None:
    """Return the (N, 3) uint8 RGB palette of an indexed PNG (specification, 11.2.2); None for other files."""
    if data[:8] != b"\x89PNG\r\n\x1a\n" or data[25] != 3:  # 25: color type in IHDR
        return None
    place = 8
    while place + 8 <= len(data):
        length, kind = int.from_bytes(data[place : place + 4], "big"), data[place + 4 : place + 8]
        if kind == b"PLTE":
            return np.frombuffer(data, np.uint8, length, place + 8).reshape(-1, 3)
        place += length + 12
    return None


_SHOWN = 5
_HEADERS = {"label_index": GroundTruthClasses, "label": GroundTruthClasses, "labels": GroundTruthLabels,
            "text": GroundTruthTexts}  # fmt: skip
Listed = type[GroundTruthClasses] | type[GroundTruthLabels] | type[GroundTruthTexts]


def read_list(path: Path, labels: Sequence[str]) -> tuple[dict[str, Any], Listed]:
    """Return image file → label from a CSV file, and the kind of these labels.

    The header is ``file,label_index`` or ``file,label`` for a class, ``file,labels`` for several separated by ; or
    none, or ``file,text``. Raises ConfigError: the header is another, there are no rows, or a row, whose line is named,
    cannot be parsed.
    """
    with raised_as(ConfigError, f"cannot read {path}", of=(OSError, csv.Error)):
        reader = csv.reader(read_text(path).split("\n"))
        rows = [(reader.line_num, row) for row in reader if row]
    header = tuple(cell.strip().lower() for cell in rows[0][1]) if rows else ()
    if header[:1] != ("file",) or len(header) < 2 or header[1] not in _HEADERS:
        raise ConfigError(
            f"{path} is not a list of labeled images",
            why=f"its first line is {','.join(header) or 'missing'}",
            where=f"{path}:1",
            fix="begin with file,label_index (numbers), file,label (names), file,labels (several, a;b) or file,text",
        )
    found = {}
    for line, row in rows[1:]:
        where = f"{path}:{line}"
        if len(row) < 2 or not row[0].strip():
            raise ConfigError(f"line {line} of {path} names no image and label", where=where)
        found[row[0].strip()] = _parse_label(row[1].strip(), header[1], labels, where)
    if not found:
        raise ConfigError(f"{path} lists no image", where=str(path))
    return found, _HEADERS[header[1]]


def _parse_label(text: str, column: str, labels: Sequence[str], where: str) -> Any:
    if column == "text":
        return text
    if column != "labels":
        return class_index(text, labels, column == "label_index", where)
    some = [one.strip() for one in text.split(";") if one.strip()]
    return tuple(sorted(class_index(one, labels, one.isdecimal() and one not in labels, where) for one in some))


def class_index(text: str, labels: Sequence[str], is_number: bool, where: str) -> int:
    """Return the class index for a number or a name; raise ConfigError if there is none."""
    if is_number:
        number = whole_number(text)
        if number is None or (labels and number >= len(labels)):
            most = f"0 to {len(labels) - 1}" if labels else "a whole number from 0"
            raise ConfigError(f"{text!r} is not a class index", why=f"expected {most}", where=where)
        return number
    if text not in labels:
        known = f"the model's labels begin {', '.join(labels[:_SHOWN])}" if labels else "the model's labels are unknown"
        fix = "" if labels else "give the task labels: names.txt, or write class indices"
        raise ConfigError(f"no class {text!r}{nearest(text, labels)}", why=known, where=where, fix=fix)
    return labels.index(text)


def class_folders(folder: Path) -> dict[str, str]:
    """Return image, relative to the folder → name of its subfolder; empty without subfolders."""
    found = {}
    for inside in sorted(path for path in folder.iterdir() if path.is_dir()):
        for path in inside.rglob("*"):
            if path.suffix.lower() in SUFFIXES and path.is_file():
                found[path.relative_to(folder).as_posix()] = inside.name
    return found


def folder_classes(folders: Sequence[str], labels: Sequence[str], where: str) -> tuple[dict[str, int], str]:
    """Return folder name → class index, and a note that says whether this is by label, by number or by order.

    Raises ConfigError: labels are known and a folder is not one of them.
    """
    names = sorted(set(folders))
    if all(name.isdecimal() for name in names):
        indices = {name: class_index(name, labels, True, where) for name in names}
        return indices, "folder names are used as class indices"
    if labels:
        return {name: class_index(name, labels, False, f"{where}/{name}") for name in names}, "folders are labels"
    return {name: n for n, name in enumerate(names)}, "folders are numbered in the order of their names"


def pairs_of(images: Path, others: Path, endings: Sequence[str], what: str) -> Mapping[str, Path]:
    """Return image, relative to its folder → file of the same stem in another folder.

    ``what`` names the other files' content in errors. Raises ConfigError: images have no such file; the error counts
    them and names the first.
    """
    known = {path.stem: path for path in others.iterdir() if path.suffix.lower() in endings}
    photos = sorted(path for path in images.iterdir() if path.suffix.lower() in SUFFIXES)
    missing = [path.name for path in photos if path.stem not in known]
    if missing or not photos:
        more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
        kinds = "PNG" if endings == (".png",) else f"file ({', '.join(endings)})"
        raise ConfigError(
            f"{len(missing)} of {len(photos)} images in {images} have no {what}"
            if photos
            else f"{images} has no image",
            why=f"no {kinds} of the same stem in {others}: {', '.join(missing[:_SHOWN])}{more}" if missing else "",
            fix=f"give every image a {what}, or remove it",
        )
    return {path.name: known[path.stem] for path in photos}


def voc_masks(folder: Path) -> Mapping[str, Path]:
    """Return image in JPEGImages → mask of Pascal VOC, for the images in its list of segmented images."""
    masks = {path.stem: path for path in (folder / "SegmentationClass").glob("*.png")}
    lists = (folder / "ImageSets" / "Segmentation" / f"{name}.txt" for name in ("val", "test", "trainval"))
    if (chosen := next((one for one in lists if one.is_file()), None)) is not None:
        masks = {stem: masks[stem] for stem in read_text(chosen).split() if stem in masks}
    photos = {path.stem: path for path in (folder / "JPEGImages").iterdir() if path.suffix.lower() in SUFFIXES}
    found = {photos[stem].name: mask for stem, mask in sorted(masks.items()) if stem in photos}
    if not found:
        raise ConfigError(f"{folder} has no image with a mask", why=f"searched {folder / 'SegmentationClass'} for PNGs")
    return found
