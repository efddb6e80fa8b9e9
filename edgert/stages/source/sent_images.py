"""Images in messages of another edgert. A stranger may have sent them, so sizes are checked before pixels."""

import base64
import json
import re
from dataclasses import dataclass
from typing import Any, TypeGuard

import cv2
import numpy as np

from edgert import limits
from edgert.runtime.frame import U8

_TEXT = 200
"""Longest text that is read from a message."""
_TRACE = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
_WORDS, _NUMBERS = ("label",), ("row", "class", "score", "id")


@dataclass(frozen=True, slots=True, eq=False)
class SentImage:
    """One image of a message.

    Attributes:
        index: number of the frame; each crop of a camera's frame has its own.
        media_ns: position in the camera's stream.
        sender_ns: capture time in ns since 1970, by the sender's clock; None where the message has none.
        about: number of the camera's frame, and plain data about the object that was cropped.
        jpeg: JPEG file.
    """

    index: int
    media_ns: int
    sender_ns: int | None
    about: dict[str, Any]
    jpeg: bytes


def read_images(body: bytes) -> list[SentImage]:
    """Return the images of a message. Raises ValueError: the message has no image, or does not have edgert's format."""
    try:
        message = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is not JSON: {error}") from error
    if not isinstance(message, dict):
        raise ValueError("it is not a JSON object")
    index, media_s, sender_ns = message.get("frame"), message.get("media_s"), message.get("time_ns")
    if not _is_whole(index):
        raise ValueError("it has no frame number")
    media_ns = round(media_s * 1e9) if _is_number(media_s) else 0
    captured_ns = sender_ns if _is_whole(sender_ns) else None
    crops = message.get("crops")
    if crops is None:
        return [SentImage(index, media_ns, captured_ns, {"frame": index}, _jpeg_of(message))]
    if not isinstance(crops, list) or not crops or not all(isinstance(one, dict) for one in crops):
        raise ValueError("crops is not a list of objects")
    if len(crops) > limits.SENT_CROPS:
        raise ValueError(f"it has {len(crops)} images, and the limit is {limits.SENT_CROPS}")
    first = index * limits.SENT_CROPS
    return [
        SentImage(first + n, media_ns, captured_ns, {"frame": index, **_crop_data(one)}, _jpeg_of(one))
        for n, one in enumerate(crops)
    ]


def parse_traceparent(traceparent: str) -> tuple[str, str, bool]:
    """Return trace id, span id and sampled flag of a W3C ``traceparent``; empty ids and False for a malformed one."""
    found = _TRACE.fullmatch(traceparent)
    if found is None or not found[1].strip("0") or not found[2].strip("0"):
        return "", "", False
    return found[1], found[2], bool(int(found[3], 16) & 1)


def decode_jpeg(jpeg: bytes) -> U8:
    """Return the (h, w, 3) uint8 BGR pixels of a JPEG file.

    Raises ValueError: the data is not a JPEG, is damaged, or has more pixels than :data:`edgert.limits.SENT_PIXELS`.
    """
    width, height = jpeg_size(jpeg)
    if width * height > limits.SENT_PIXELS:
        raise ValueError(f"its image has {width}x{height} pixels, and the limit is {limits.SENT_PIXELS}")
    try:
        image = cv2.imdecode(np.frombuffer(jpeg, np.uint8), cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION)
    except cv2.error as error:
        raise ValueError(f"its image is damaged: {error.err}") from error
    if image is None:
        raise ValueError("its image is damaged")
    return np.asarray(image, np.uint8)


def jpeg_size(data: bytes | memoryview) -> tuple[int, int]:
    """Return width and height of a JPEG file, from its frame header (ITU-T T.81, B.2.2). Raises ValueError."""
    at = 2
    while data[:2] == b"\xff\xd8" and at + 9 <= len(data) and data[at] == 0xFF:
        marker, length = data[at + 1], int.from_bytes(data[at + 2 : at + 4], "big")
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            height, width = int.from_bytes(data[at + 5 : at + 7], "big"), int.from_bytes(data[at + 7 : at + 9], "big")
            if width and height:
                return width, height
            break
        at += 2 + max(length, 2)
    raise ValueError("its image is not a JPEG")


def _jpeg_of(holder: dict[str, Any]) -> bytes:
    image = holder.get("image")
    data = image.get("data") if isinstance(image, dict) else None
    if not isinstance(data, str):
        raise ValueError("it has no image")
    try:
        return base64.b64decode(data, validate=True)
    except ValueError as error:
        raise ValueError("its image is not base64") from error


def _crop_data(crop: dict[str, Any]) -> dict[str, Any]:
    """Return a crop's known fields that have the right type."""
    found = {key: crop[key] for key in _NUMBERS if _is_number(crop.get(key))}
    found |= {key: crop[key][:_TEXT] for key in _WORDS if isinstance(crop.get(key), str)}
    box = crop.get("box")
    if isinstance(box, list) and len(box) == 4 and all(map(_is_number, box)):
        found["box"] = box
    return found


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= limits.WHOLE_NUMBER


def _is_whole(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 62
