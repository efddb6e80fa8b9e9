"""Conversion of detections to the labels of a dataset: YOLO's rows, and COCO's annotation file."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypedDict

import cv2
import numpy as np
import numpy.typing as npt

from edgert.runtime.records import Detections, Segmentation

F64 = npt.NDArray[np.float64]
_SMOOTH_PX = 1.0  # tolerance of an outline, at the network's resolution


class _Shapes(TypedDict, total=False):
    outline: list[float]
    points: list[float]


class Object(_Shapes):
    """One label; ``box``, ``outline`` and ``points`` are in pixels.

    Attributes:
        label: number of the class in the dataset.
        box: x1, y1, x2, y2.
        outline: x, y, x, y, … around the object.
        points: x, y and visibility of each keypoint.
    """

    label: int
    box: list[float]
    score: float


class _Stored(TypedDict, total=False):
    bytes: int


class Sample(_Stored):
    """One image of a dataset and its labels, as a line of the index.

    Attributes:
        time: time of the capture, RFC 3339.
        time_s: time of the capture, seconds of the epoch.
        why: reasons to keep the image.
        size: width and height in pixels.
        bytes: size of its files on the disk.
    """

    image: str
    stream: str
    frame: int
    time: str
    time_s: float
    why: list[str]
    size: tuple[int, int]
    objects: list[Object]


class Classes:
    """The classes of a dataset, and the number of keypoints of an object. Classes are never renumbered.

    Attributes:
        names: names of the classes, by number.
        points: number of keypoints of each object; 0 where none are labeled.
    """

    def __init__(self) -> None:
        self.names, self.points = list[str](), 0

    def take(self, found: Detections) -> bool:
        """Add the classes and keypoints of a record; return whether any are new."""
        names = found.labels or tuple(str(one) for one in range(int(found.classes.max(initial=-1)) + 1))
        new = [one for one in dict.fromkeys(names) if one not in self.names]
        self.names += new
        has_points = not self.points and found.points is not None and len(found)
        self.points = found.points.shape[1] if has_points and found.points is not None else self.points
        return bool(new or has_points)

    def objects(self, found: Detections, size: tuple[int, int]) -> list[Object]:
        """Return the labels of an image of (width, height), without detections that lie outside."""
        numbers = {name: number for number, name in enumerate(self.names)}
        limits, rows = np.array(size * 2, np.float64), list[Object]()
        for row, one in enumerate(found):
            name = one.label or str(one.class_index)
            box = np.clip(one.box.astype(np.float64), 0, limits)
            if name not in numbers or not np.isfinite(box).all() or (box[2:] <= box[:2]).any():
                continue
            entry: Object = {"label": numbers[name], "box": _rounded(box), "score": round(one.score, 4)}
            ring = one.corners if one.mask is None else outline_of(one.mask)
            if ring is not None:
                entry["outline"] = _rounded(np.clip(np.asarray(ring, np.float64), 0, limits[:2]))
            if found.points is not None and found.points.shape[1] == self.points:
                seen = np.where(found.points[row, :, 2:] >= _VISIBLE, 2.0, 0.0)
                entry["points"] = _rounded(np.hstack([np.clip(found.points[row, :, :2], 0, limits[:2]), seen]))
            rows.append(entry)
        return rows


_VISIBLE = 0.5
"""Score from which a keypoint counts as visible."""


def outline_of(mask: Segmentation) -> F64 | None:
    """Return the (N, 2) points around a mask's largest part, in source pixels; None for an empty mask."""
    parts, _ = cv2.findContours(mask.mask, cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_SIMPLE)
    ring = cv2.approxPolyDP(max(parts, key=cv2.contourArea), _SMOOTH_PX, True).reshape(-1, 2) if parts else ()
    if len(ring) < 3:
        return None
    height, width = mask.mask.shape
    x1, y1, x2, y2 = mask.region
    scaled: F64 = (np.asarray(ring, np.float64) + 0.5) * ((x2 - x1) / width, (y2 - y1) / height) + (x1, y1)
    return scaled


def _rounded(values: npt.NDArray[Any]) -> list[float]:
    found: list[float] = np.round(values.astype(np.float64), 2).ravel().tolist()
    return found


# YOLO.


def yolo_rows(sample: Sample, points: int) -> str:
    """Return the text of an image's label file.

    Args:
        sample: image with its labels.
        points: number of keypoints of each object. With any, boxes and points are written; else outlines, or boxes.
    """
    width, height = sample["size"]
    lines = []
    for one in sample["objects"]:
        x1, y1, x2, y2 = one["box"]
        box = [(x1 + x2) / 2 / width, (y1 + y2) / 2 / height, (x2 - x1) / width, (y2 - y1) / height]
        if points:
            known = np.array(one.get("points") or [0.0] * 3 * points).reshape(-1, 3) / (width, height, 1)
            values = [*box, *known.ravel().tolist()]
        elif "outline" in one:
            values = (np.array(one["outline"]).reshape(-1, 2) / (width, height)).ravel().tolist()
        else:
            values = box
        lines.append(" ".join([str(one["label"]), *(f"{value:.6g}" for value in values)]) + "\n")
    return "".join(lines)


def data_yaml(classes: Classes) -> str:
    """Return the ``data.yaml`` of a folder with ``images`` and ``labels``."""
    lines = ["train: images", "val: images", f"names: {json.dumps(classes.names, ensure_ascii=False)}"]
    return "\n".join([*lines, *([f"kpt_shape: [{classes.points}, 3]"] if classes.points else [])]) + "\n"


# COCO.


def coco(samples: Iterable[Sample], classes: Classes) -> dict[str, Any]:
    """Return the contents of an annotation file."""
    images, annotations = list[Mapping[str, Any]](), list[Mapping[str, Any]]()
    for number, sample in enumerate(samples, 1):
        width, height = sample["size"]
        about = {"file_name": sample["image"], "width": width, "height": height, "date_captured": sample["time"]}
        images.append({"id": number, **about, "why": sample["why"]})
        annotations += [_annotation(one, number, len(annotations) + n) for n, one in enumerate(sample["objects"], 1)]
    named = [f"point {one}" for one in range(1, classes.points + 1)]
    points = {"keypoints": named, "skeleton": []} if named else {}
    categories = [{"id": number, "name": name, **points} for number, name in enumerate(classes.names)]
    return {"images": images, "annotations": annotations, "categories": categories}


def _annotation(one: Object, image: int, number: int) -> dict[str, Any]:
    x1, y1, x2, y2 = one["box"]
    outline = one.get("outline", [])
    area = (x2 - x1) * (y2 - y1) if not outline else _area(outline)
    found: dict[str, Any] = {
        "id": number,
        "image_id": image,
        "category_id": one["label"],
        "iscrowd": 0,
        "score": one["score"],
    }
    found |= {"bbox": _rounded(np.array([x1, y1, x2 - x1, y2 - y1])), "area": round(area, 2)}
    if outline:
        found["segmentation"] = [outline]
    if points := one.get("points"):
        found |= {"keypoints": points, "num_keypoints": sum(1 for seen in points[2::3] if seen)}
    return found


def _area(outline: Sequence[float]) -> float:
    return float(cv2.contourArea(np.array(outline, np.float32).reshape(-1, 2)))
