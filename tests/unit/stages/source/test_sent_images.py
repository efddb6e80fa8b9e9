"""Messages of another machine: what is an image in them, and what a stranger may send without harm."""

import base64
import json
from typing import Any
from unittest.mock import Mock

import cv2
import numpy as np
import pytest

from edgert import limits
from edgert.config.stages import SourceStage
from edgert.stages.context import Context
from edgert.stages.source.nats_group import Group, assign_cameras, camera_name
from edgert.stages.source.nats_source import nats_source
from edgert.stages.source.sent_images import decode_jpeg, jpeg_size, parse_traceparent, read_images
from tests.helpers.virtual_clock import VirtualClock

_, _ENCODED = cv2.imencode(".jpg", np.full((30, 40, 3), 90, np.uint8))
JPEG = _ENCODED.tobytes()


def image(data: Any = None) -> dict[str, Any]:
    return {"type": "image/jpeg", "data": base64.b64encode(JPEG).decode() if data is None else data}


def body(**keys: Any) -> bytes:
    about = {"frame": 812, "media_s": 27.5, "time_ns": 10**18, **keys}
    return json.dumps({key: value for key, value in about.items() if value is not None}).encode()


def test_crops_have_numbers_in_order_and_what_they_show() -> None:
    crop = {"row": 1, "label": "car", "score": 0.5, "box": [1, 2, 3, 4], "id": 9, "mask": {"x": 1}, "image": image()}
    first, second = read_images(body(crops=[{**crop, "row": 0}, crop]))
    assert (first.index, second.index) == (812 * 64, 812 * 64 + 1)
    assert (second.media_ns, second.sender_ns) == (27_500_000_000, 10**18)
    assert second.about == {"frame": 812, "row": 1, "label": "car", "score": 0.5, "box": [1, 2, 3, 4], "id": 9}
    assert decode_jpeg(second.jpeg).shape == (30, 40, 3)


def test_a_result_with_its_image_is_a_frame() -> None:
    (only,) = read_images(body(image=image()))
    assert only.index == 812 and only.about == {"frame": 812}


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[1]", "not a JSON object"),
        (b"{}", "no frame number"),
        (body(frame="1"), "no frame number"),
        (body(frame=-1, image=image()), "no frame number"),
        (body(frame=1 << 70, image=image()), "no frame number"),
        (body(), "no image"),
        (body(image={"data": 3}), "no image"),
        (body(image=image("*")), "not base64"),
        (body(crops=[]), "not a list of objects"),
        (body(crops=[3]), "not a list of objects"),
        (body(crops=[{"row": 0}]), "no image"),
        (body(crops=[{"image": image()}] * 65), "the limit is 64"),
    ],
)
def test_what_is_no_message(data: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        read_images(data)


def test_what_it_says_about_an_object_is_bounded() -> None:
    crop = {"label": "x" * 10_000, "score": 1e300, "row": True, "box": [1, 2, 3], "image": image()}
    (one,) = read_images(body(media_s="soon", time_ns=1.5, crops=[crop]))
    assert one.about == {"frame": 812, "label": "x" * 200} and (one.media_ns, one.sender_ns) == (0, None)


def sized(width: int, height: int) -> bytes:
    """The JPEG with another size in its header."""
    at = JPEG.index(b"\xff\xc0") + 5
    return JPEG[:at] + height.to_bytes(2, "big") + width.to_bytes(2, "big") + JPEG[at + 4 :]


def test_the_size_is_known_before_a_pixel_is_decoded() -> None:
    assert jpeg_size(JPEG) == (40, 30)
    assert limits.SENT_PIXELS < 65_000 * 65_000
    with pytest.raises(ValueError, match="65000x65000 pixels"):
        decode_jpeg(sized(65_000, 65_000))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        JPEG[:40],
        b"\x89PNG\r\n\x1a\n" + JPEG,
        sized(0, 30),
        b"\xff\xd8" + b"\xff" * 50,
        b"\xff\xd8\xff\xe0\0\0" * 9,
    ],
)
def test_what_is_no_jpeg(data: bytes) -> None:
    with pytest.raises(ValueError, match="image"):
        decode_jpeg(data)


def test_a_damaged_jpeg_is_an_image_or_an_error() -> None:
    random = np.random.default_rng(1)
    for _ in range(200):
        data = bytearray(JPEG)
        for at in random.integers(2, len(data), 4):
            data[at] = random.integers(256)
        try:
            assert decode_jpeg(bytes(data)).size <= 3 * limits.SENT_PIXELS
        except ValueError as error:
            assert "image" in str(error)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (f"00-{'ab' * 16}-{'cd' * 8}-01", ("ab" * 16, "cd" * 8, True)),
        (f"00-{'ab' * 16}-{'cd' * 8}-02", ("ab" * 16, "cd" * 8, False)),
        (f"00-{'ab' * 16}-{'0' * 16}-01", ("", "", False)),
        (f"00-{'0' * 32}-{'cd' * 8}-01", ("", "", False)),
        (f"00-{'AB' * 16}-{'cd' * 8}-01", ("", "", False)),
        ("", ("", "", False)),
        ('00-"-x', ("", "", False)),
    ],
)
def test_a_trace(text: str, found: tuple[str, str, bool]) -> None:
    assert parse_traceparent(text) == found


# Who has which camera.


def test_boards_share_cameras_evenly_and_agree() -> None:
    cameras = [f"edgert.gate.cam{n}.crops" for n in range(16)]
    for count in range(1, 6):
        boards = [f"board{n}" for n in range(count)]
        found = assign_cameras(cameras, boards)
        sizes = [list(found.values()).count(one) for one in boards]
        assert found.keys() == set(cameras) and max(sizes) <= -(-16 // count)
        assert found == assign_cameras(cameras[::-1], boards[::-1])
    assert assign_cameras(cameras, []) == {} and assign_cameras([], ["a"]) == {}


def test_a_board_that_dies_gives_its_cameras_and_few_others_move() -> None:
    cameras, boards = [f"cam{n}" for n in range(32)], ["a", "b", "c", "d"]
    before, after = assign_cameras(cameras, boards), assign_cameras(cameras, boards[:3])
    moved = [one for one in cameras if before[one] != "d" and before[one] != after[one]]
    assert len(moved) <= 8 and set(after.values()) == {"a", "b", "c"}


@pytest.mark.parametrize(
    ("pattern", "subject", "name"),
    [
        ("edgert.gate.*.crops", "edgert.gate.north.crops", "north"),
        ("edgert.*.*.crops", "edgert.gate.north.crops", "gate-north"),
        ("crops.>", "crops.a.b", "a-b"),
        ("edgert.gate.north.crops", "edgert.gate.north.crops", "edgert-gate-north-crops"),
        ("edgert.gate.*.crops", "edgert.yard.north.crops", ""),
        ("edgert.*.crops", "edgert.a/b c.crops", "a-b-c"),
        ("a.*", "a." + "x" * 500, "x" * 100),
    ],
)
def test_a_cameras_name(pattern: str, subject: str, name: str) -> None:
    assert camera_name(pattern, subject) == name


def test_a_connection_that_was_made_while_the_source_ended_is_closed() -> None:
    config = SourceStage.model_validate({"source": "nats://127.0.0.1:4222/crops.*"})
    source, connection = nats_source("cam", config, Context(clock=VirtualClock())), Mock()
    source._outcomes.put(Group(connection, "crops.*", "plates"))
    source.close()
    connection.close.assert_called_once_with()
