"""Messages in CDR: the same bytes as another implementation writes, and no surprise from damaged ones."""

import random

import pytest

from edgert.recording.cdr import DamagedMessage, decode, encode
from edgert.recording.definitions import DEFINITIONS, DETECTIONS, IMAGE, VIDEO, parts_of
from tests.helpers.ros_messages import DISTRIBUTIONS, as_object, plain, random_message, typestore

TOP_TYPES = sorted(set(DEFINITIONS) - {part for name in DEFINITIONS for part in parts_of(name)[1:]} - {VIDEO})
"""Those of ROS 2; VIDEO is Foxglove's."""


@pytest.mark.parametrize("name", TOP_TYPES)
def test_a_thousand_messages_are_those_of_every_distribution(name: str) -> None:
    stores = [typestore(one) for one in DISTRIBUTIONS]
    rng = random.Random(name)
    for _ in range(1000):
        message = random_message(name, rng)
        data = b"".join(encode(name, message))
        assert plain(decode(name, data)) == message
        for store in stores:
            other = bytes(store.serialize_cdr(as_object(name, message, store), name))
            assert data.ljust(len(other), b"\0") == other  # others may pad the end
            assert plain(decode(name, other)) == message


def test_types_are_the_same_in_every_distribution() -> None:
    for name in DEFINITIONS.keys() - {VIDEO}:
        assert len({typestore(one).hash_rihs01(name) for one in DISTRIBUTIONS}) == 1


def test_pixels_are_not_copied() -> None:
    pixels = bytearray(12)
    pieces = encode(IMAGE, {"height": 2, "width": 2, "encoding": "bgr8", "step": 6, "data": pixels})
    assert sum(map(len, pieces[:-1])) == 52 - 4  # without a frame_id: 3 bytes shorter and aligned
    pixels[0] = 7
    data = bytearray(b"".join(pieces))
    view = decode(IMAGE, data)["data"]
    assert view[0] == 7
    data[-12] = 9
    assert view[0] == 9


def test_left_out_fields_have_their_defaults() -> None:
    data = b"".join(encode(DETECTIONS, {"detections": [{"results": [{"hypothesis.class_id": "dog"}]}]}))
    (box,) = decode(DETECTIONS, data)["detections"]
    assert box["results"][0]["pose.pose.orientation.w"] == 1.0
    assert box["bbox.size_x"] == 0.0 and box["id"] == "" and box["results"][0]["hypothesis.score"] == 0.0


@pytest.mark.parametrize(
    "data", [b"", b"\0\0\0\0", b"\0\1\0\0", b"\0\1\0\0" + b"\xff" * 40], ids=["empty", "big-endian", "cut", "lengths"]
)
def test_damaged_messages_are_named(data: bytes) -> None:
    with pytest.raises(DamagedMessage, match="Detection2DArray"):
        decode(DETECTIONS, data)
