"""Conversion of detections to Roboflow's supervision (https://supervision.roboflow.com), for its annotators."""

from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from edgert import installation
from edgert.errors import ConfigError


def to_supervision(found: Any, size: tuple[int, int] | None = None) -> Any:
    """Return detections as ``supervision.Detections``, in the same order. Arrays are shared.

    Boxes, scores, classes and track numbers are in supervision's own fields, class names in ``data["class_name"]``,
    corners of oriented boxes in ``data["xyxyxyxy"]``, points in ``data["keypoints"]``: (N, K, 3) x, y, score.

    Args:
        found: :class:`~edgert.runtime.records.Detections`.
        size: width and height of the frame, for masks, as supervision's are N images of that size. Without it, masks
            are left out.

    Raises:
        ConfigError: supervision is not installed.
    """
    try:
        import supervision
    except ImportError as error:
        what, fix = "to_supervision() needs the package supervision", installation.command("supervision")
        raise ConfigError(what, fix=fix) from error
    data: dict[str, Any] = {}
    if found.labels:
        known = range(len(found.labels))
        names = [found.labels[number] if number in known else "" for number in found.classes.tolist()]
        data["class_name"] = np.array(names, dtype=str)
    if found.corners is not None:
        data["xyxyxyxy"] = found.corners
    if found.points is not None:
        data["keypoints"] = found.points
    masks = None
    if size is not None and found.masks is not None:
        masks = np.zeros((len(found), size[1], size[0]), bool)
        for mask, image in zip(found.masks, masks, strict=True):
            _paste(mask, image)
    return supervision.Detections(
        xyxy=found.boxes,
        mask=masks,
        confidence=found.scores,
        class_id=found.classes,
        tracker_id=found.ids,
        data=data,
    )


def _paste(mask: Any, image: npt.NDArray[np.bool_]) -> None:
    """Scale the mask of an object to its region, and write it into a mask of the image's size."""
    height, width = image.shape
    left, top, right, bottom = (round(side) for side in mask.region)
    if right <= left or bottom <= top:
        return
    large = cv2.resize(mask.mask, (right - left, bottom - top), interpolation=cv2.INTER_NEAREST)
    part = large[max(0, -top) : height - top, max(0, -left) : width - left]
    top, left = max(0, top), max(0, left)
    image[top : top + part.shape[0], left : left + part.shape[1]] = part > 0
