"""Frames of a recording whose messages are damaged."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from edgert.memory import Counter
from edgert.recording.mcap_messages import image_head
from edgert.recording.recording import Piece
from edgert.stages.source.recorded_frames import RecordedStream


def piece_of(kind: str, image_format: str, values: np.ndarray) -> Piece:
    """Return the first image, or depth image, of a stream."""
    height, width = values.shape[:2]
    head = image_head("cam", 0, (width, height), image_format, values.nbytes)
    return Piece("cam", 0, kind, memoryview(head + values.tobytes()))


def test_a_damaged_depth_image_leaves_its_color_image() -> None:
    depth, color = piece_of("depth", "16UC1", np.ones((4, 6), np.uint16)), np.full((4, 6, 3), 9, np.uint8)
    few_rows = piece_of("depth", "16UC1", np.ones((3, 6), np.uint16)).data[-36:]
    wrong_size = bytes(depth.data[:-52]) + (36).to_bytes(4, "little") + bytes(few_rows)
    for data, damaged in ((depth.data, 0), (depth.data[:9], 1), (memoryview(wrong_size), 1)):
        stream = RecordedStream("cam", Counter())
        stream.add(replace(depth, data=data))
        stream.add(piece_of("image", "bgr", color))
        image = stream.image(0)
        assert image is not None and stream.damaged == damaged
        np.testing.assert_array_equal(image.planes[0], color)
        assert (image.depth is None) == bool(damaged)
        image.lease.release()
