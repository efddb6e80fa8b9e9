"""Reader of COCO's annotation files (cocodataset.org/#format-data): boxes, outlines and points of objects."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from edgert import limits
from edgert.dataset import labels as label_files, layouts
from edgert.errors import ConfigError, cause, nearest
from edgert.text_files import as_text

_FILES = (
    ("instances_val", "instances_", "person_keypoints_val", "person_keypoints_"),
    ("person_keypoints_val", "person_keypoints_", "instances_val", "instances_"),
)
"""Beginnings of file names in a folder ``annotations``, best first, for boxes and outlines, and for points."""


def file_in(folder: Path, points: bool) -> Path | None:
    """Return the annotation file in an unpacked COCO folder or an export; None for another folder."""
    exported = [folder / name / "_annotations.coco.json" for name in (".", "valid", "test", "train")]
    exported.append(folder / "labels.json")  # beside FiftyOne's folder data
    if (found := next((one for one in exported if one.is_file()), None)) is not None:
        return found
    files = sorted((folder / "annotations").glob("*.json"))
    ranked = (one for start in _FILES[points] for one in files if one.name.startswith(start))
    return next(ranked, files[0] if files else None)


def read_annotations(path: Path) -> layouts.Annotated:
    """Return the images, boxes and categories in a file.

    Raises ConfigError: the file is not JSON, or an entry, which the error names, is not in COCO's format.
    """
    try:
        data = json.loads(as_text(path.read_bytes(), str(path)))
    except OSError as error:
        raise ConfigError(f"cannot read {path}", why=cause(error)) from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not JSON", why=str(error)) from error
    if not isinstance(data, dict):
        raise _format_error(path, "the file", "COCO's format is a mapping with images, annotations and categories")
    images = {_number(one, "id", f"images[{n}]", path): one for n, one in enumerate(_list(data, "images", path))}
    names = {
        _number(one, "id", f"categories[{n}]", path): str(one.get("name", one["id"]))
        for n, one in enumerate(_list(data, "categories", path))
    }
    rows: dict[int, list[tuple[Any, ...]]] = {number: [] for number in images}
    shapes: dict[int, list[tuple[Any, list[float]]]] = {number: [] for number in images}
    for n, one in enumerate(_list(data, "annotations", path)):
        image, category, row = _parse_annotation(one, f"annotations[{n}]", path)
        if image not in rows:
            raise _format_error(path, f"annotations[{n}]", f"image_id {image} is not in images")
        if category not in names:
            raise _format_error(path, f"annotations[{n}]", f"category_id {category} is not in categories")
        rows[image].append(row)
        shapes[image].append(_outline_and_points(one, f"annotations[{n}]", path))
    for n, one in enumerate(images.values()):
        if not isinstance(one.get("file_name"), str) or not one["file_name"]:
            raise _format_error(path, f"images[{n}].file_name", "expected the name of a file")
    boxes = tuple(_boxes(one, rows[number], shapes[number], path) for number, one in images.items())
    return layouts.Annotated(tuple(one["file_name"] for one in images.values()), boxes, dict(sorted(names.items())))


def _boxes(
    image: Mapping[str, Any], rows: list[tuple[Any, ...]], shapes: list[tuple[Any, list[float]]], path: Path
) -> label_files.Boxes:
    table = np.array(rows, np.float64).reshape(-1, 7)
    size = image.get("height"), image.get("width")
    height, width = (one if isinstance(one, int) and 0 < one <= limits.WHOLE_NUMBER else 0 for one in size)
    lengths = {len(points) for _, points in shapes}
    if len(lengths) > 1:
        raise _format_error(
            path, "annotations", f"keypoints of {image['file_name']} differ in number: {sorted(lengths)}"
        )
    points = np.array([points for _, points in shapes], np.float64).reshape(len(shapes), -1, 3) if shapes else None
    return label_files.Boxes(
        table[:, :4],
        table[:, 4].astype(np.int64),
        table[:, 5],
        table[:, 6].astype(np.bool_),
        (height, width) if height and width else None,
        tuple(outline for outline, _ in shapes) if height and width and any(one for one, _ in shapes) else None,
        points=points if points is not None and points.size else None,
    )


def _outline_and_points(one: Mapping[str, Any], place: str, path: Path) -> tuple[Any, list[float]]:
    """Return (outline, points) of an annotation, each empty if it has none."""
    outline, points = one.get("segmentation") or [], one.get("keypoints") or []
    if isinstance(outline, list):
        polygons = all(
            isinstance(ring, list) and len(ring) >= 6 and len(ring) % 2 == 0 and all(map(_is_number, ring))
            for ring in outline
        )
        if not polygons:
            raise _format_error(path, f"{place}.segmentation", "expected polygons [x, y, x, y, x, y, ...]")
    elif not isinstance(outline, dict) or not _is_run_lengths(outline):
        raise _format_error(path, f"{place}.segmentation", "expected polygons, or run lengths: {counts, size: [h, w]}")
    if not isinstance(points, list) or len(points) % 3 or not all(map(_is_number, points)):
        raise _format_error(path, f"{place}.keypoints", "expected [x, y, visibility, ...]")
    return outline, points


def _is_run_lengths(outline: Mapping[str, Any]) -> bool:
    """Return whether run lengths sum to the size, which pycocotools does not check."""
    size, counts = outline.get("size"), outline.get("counts")
    if not isinstance(size, list) or len(size) != 2 or not all(isinstance(one, int) and one > 0 for one in size):
        return False
    lengths = _lengths(counts) if isinstance(counts, str) else counts
    whole = isinstance(lengths, list) and all(isinstance(one, int) and one >= 0 for one in lengths)
    return whole and sum(lengths) == size[0] * size[1]  # type: ignore[arg-type]


def _lengths(text: str) -> list[int]:
    """Return the run lengths in pycocotools' text: five bits a character, and differences from the third number on."""
    found: list[int] = []
    number = shift = 0
    for letter in text:
        bits = ord(letter) - 48
        number |= (bits & 31) << shift
        shift += 5
        if bits & 32 and shift < 64:
            continue
        number -= bool(bits & 16) << shift
        found.append(number + (found[-2] if len(found) > 2 else 0))
        number = shift = 0
    return found


def _list(data: Mapping[str, Any], key: str, path: Path) -> list[dict[str, Any]]:
    found = data.get(key)
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise _format_error(path, key, f"expected a list of mappings{nearest(key, data) if found is None else ''}")
    return found


def _parse_annotation(one: Mapping[str, Any], place: str, path: Path) -> tuple[int, int, tuple[Any, ...]]:
    box = one.get("bbox")
    if not isinstance(box, list) or len(box) != 4 or not all(_is_number(value) for value in box):
        raise _format_error(path, f"{place}.bbox", "expected [x, y, width, height]")
    x, y, width, height = (float(value) for value in box)
    if width < 0 or height < 0:
        raise _format_error(
            path, f"{place}.bbox", f"a box of {width:g}x{height:g}; width and height must not be negative"
        )
    area = one.get("area", width * height)
    if not _is_number(area):
        raise _format_error(path, f"{place}.area", "expected a number")
    category = _number(one, "category_id", place, path)
    row = (x, y, x + width, y + height, category, area, bool(one.get("iscrowd", 0)))
    return _number(one, "image_id", place, path), category, row


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= limits.WHOLE_NUMBER


def _number(one: Mapping[str, Any], key: str, place: str, path: Path) -> int:
    found = one.get(key)
    if not isinstance(found, int) or not _is_number(found):
        raise _format_error(path, f"{place}.{key}", "expected a whole number")
    return found


def _format_error(path: Path, place: str, why: str) -> ConfigError:
    return ConfigError(f"{path} is not in COCO's format", why=why, where=place)
