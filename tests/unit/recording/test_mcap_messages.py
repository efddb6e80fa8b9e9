"""Messages of recordings: ROS 2's and Foxglove's readers understand them, and ours gives back what went in."""

import io
from typing import Any

import numpy as np
import pytest

from edgert.recording import mcap_messages as messages
from edgert.recording.cdr import DamagedMessage
from edgert.recording.mcap_file import McapWriter, Topic
from edgert.runtime import Detections
from tests.helpers.frames import result_of

STAMP_NS = 1_795_000_000_123_456_789


def as_ros(topic: Topic, *parts: bytes | memoryview) -> Any:
    """Return a message as ROS 2's own reader gives it."""
    pytest.importorskip("mcap_ros2", reason="mcap-ros2-support (extra 'mcap') is not installed")
    from mcap.reader import make_reader
    from mcap_ros2.decoder import DecoderFactory

    writer = McapWriter("edgert")
    data = writer.begin()
    writer.add(topic, STAMP_NS, STAMP_NS, *parts)
    reader = make_reader(io.BytesIO(data + writer.end()), decoder_factories=[DecoderFactory()])
    ((_, _, _, found),) = reader.iter_decoded_messages()
    return found


@pytest.mark.parametrize("stream", ["a", "ab", "abc", "abcd"])
@pytest.mark.parametrize("size", [0, 1, 2, 3, 1000])
def test_packets(stream: str, size: int) -> None:
    data = bytes(range(256)) * 4
    parts = messages.video_message(stream, STAMP_NS, data[:size], "hevc")
    unit = messages.read_video(memoryview(b"".join(parts)))
    assert (unit.format, bytes(unit.data)) == ("hevc", data[:size])
    if size == 3:
        found = as_ros(messages.topic(f"/{stream}/video"), *parts)
        assert found.format == "h265"
        assert bytes(found.data) == data[:3]
        assert (found.frame_id, found.timestamp.nanosec) == (stream, STAMP_NS % 10**9)


@pytest.mark.parametrize(("format", "shape"), [("bgr", (5, 6, 3)), ("gray", (5, 7)), ("yuyv", (4, 6, 2))])
def test_images(format: str, shape: tuple[int, ...]) -> None:
    pixels = np.arange(np.prod(shape), dtype=np.uint8).reshape(shape)
    head = messages.image_head("cam", STAMP_NS, (shape[1], shape[0]), format, pixels.nbytes)
    unit = messages.read_image(memoryview(head + pixels.tobytes()))
    assert (unit.format, unit.size, bytes(unit.data)) == (format, (shape[1], shape[0]), pixels.tobytes())
    found = as_ros(messages.topic("/cam/image"), head, pixels.tobytes())
    assert (found.width, found.height, bytes(found.data)) == (shape[1], shape[0], pixels.tobytes())
    assert found.step == pixels.nbytes // shape[0]


def test_damaged_messages_raise_what_their_reader_expects() -> None:
    whole = b"".join(messages.video_message("cam", STAMP_NS, b"1234", "h264"))
    for size in range(len(whole)):
        with pytest.raises(DamagedMessage):
            messages.read_video(memoryview(whole[:size]))
    head = messages.image_head("cam", STAMP_NS, (2, 2), "gray", 4).replace(b"mono8", b"blue8")
    with pytest.raises(DamagedMessage, match="unknown encoding"):
        messages.read_image(memoryview(head + bytes(4)))


def test_boxes_are_drawn_over_the_image() -> None:
    found = Detections(np.float32([[1, 2, 3, 4]]), np.float32([0.5]), np.int32([0]), ("nut",), ids=np.int64([7]))
    data = messages.drawn(result_of(outputs={"find": found}), STAMP_NS)
    assert data is not None
    assert b'"text":"nut 7 0.50"' in data
    assert b'"points":[{"x":1.0,"y":2.0},{"x":3.0,"y":2.0}' in data
    assert messages.drawn(result_of(), STAMP_NS) is None


def test_digests_differ_where_any_bit_does() -> None:
    boxes = np.float32([[1, 2, 3, 4]])
    one, other = Detections(boxes, np.float32([0.5]), np.int32([0])), boxes.copy()
    other[0, 0] = np.nextafter(other[0, 0], np.float32(9))
    changed = [
        Detections(other, one.scores, one.classes),
        Detections(boxes, one.scores, one.classes, ("a",)),
        Detections(boxes.astype(np.float64), one.scores, one.classes),
        {"a": [1, 2.0]}, {"a": [1, 2]}, {"a": (1, 2.5)}, {"b": [1, 2.0]}, [], {}, "", None, 0, 0.0, -0.0, False,
        "1", 1, [1], [[1]], [1, 1], np.int8(1), np.int16(1),
    ]  # fmt: skip
    assert len({messages.digest(record) for record in [one, *changed]}) == len(changed) + 1
    assert messages.digest(one) == messages.digest(Detections(boxes.copy(), one.scores.copy(), one.classes.copy()))
    assert messages.digest({"a": 1, "b": 2}) == messages.digest({"b": 2, "a": 1})
