"""The picture that goes with a check: what the best setting sees in the first photograph."""

from __future__ import annotations

from pathlib import Path

import cv2

from edgert.errors import ConfigError, cause
from edgert.memory import Counter, lend
from edgert.runtime import Frame, Result
from edgert.runtime.frame import U8
from edgert.stages.overlay import Overlay
from edgert.wiring.report import CheckReport

_ELEMENTS = ("boxes", "labels", "masks", "keypoints")


def painted(report: CheckReport) -> U8:
    """A new (h, w, 3) uint8 BGR picture: the first photograph with the best setting's answer on it."""
    picture: U8 = report.picture.copy()
    height, width = picture.shape[:2]
    frame = Frame("photo", 0, 0, 0, width, height, "bgr", (report.picture,), lend(report.picture, Counter()))
    Overlay(_ELEMENTS).paint(picture, Result(frame, {"best": report.record}))
    return picture


def save_picture(report: CheckReport, path: Path) -> None:
    """Writes :func:`painted` as PNG or JPEG, by the name's ending.

    Raises:
        ConfigError: another ending, or the folder cannot be written to.
    """
    if path.suffix.lower() not in (".png", ".jpg", ".jpeg"):
        raise ConfigError(f"cannot write a picture named {path.name!r}", fix="end its name in .png or .jpg")
    _, data = cv2.imencode(path.suffix.lower(), painted(report))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data.tobytes())
    except OSError as error:
        raise ConfigError(f"cannot write {str(path)!r}", why=cause(error)) from error
