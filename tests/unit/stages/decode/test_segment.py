"""Masks, without the padding."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from edgert.stages.crop import Geometry
from edgert.stages.decode.maps import VOID, SegmentArgmax, SegmentThreshold, argmax_channels

CENTERED = Geometry(10, 10, 0, -160, (64, 64), (0, 0, 640, 320))
"""A 640x320 image in the middle rows of a 64x64 network: 16 rows of padding above and below."""


@settings(deadline=None)
@given(seed=st.integers(0, 2**32 - 1), classes=st.integers(1, 255))
def test_argmax_is_numpy_s_also_among_equals(seed: int, classes: int) -> None:
    scores = np.random.default_rng(seed).integers(0, 4, (classes, 9, 7)).astype(np.float32)
    mask = argmax_channels(scores)
    assert mask.dtype == np.uint8
    np.testing.assert_array_equal(mask, scores.argmax(axis=0))


def test_a_pixel_of_no_numbers_has_no_class() -> None:
    scores = np.zeros((3, 2, 2), np.float32)
    scores[:, 0, 1] = np.nan
    assert argmax_channels(scores).tolist() == [[0, VOID], [0, 0]]


@pytest.mark.parametrize("layout", ["chw", "hwc", "hw", "1hw", "hw1"])
@pytest.mark.parametrize("step", [1, 4])
def test_padding_is_cut_off_in_every_layout(layout: str, step: int) -> None:
    """Maps at the network's size and at a quarter of it."""
    side = 64 // step
    truth = np.random.default_rng(1).integers(0, 21, (side, side))
    scores = np.eye(21, dtype=np.float32)[truth]
    output = {"chw": np.ascontiguousarray(scores.transpose(2, 0, 1)), "hwc": scores}
    output |= {"hw": truth, "1hw": truth[None], "hw1": truth[..., None]}
    record = SegmentArgmax()([output[layout]], CENTERED)
    np.testing.assert_array_equal(record.mask, truth[side // 4 : -side // 4])
    assert record.mask.dtype == np.uint8 and record.region == (0, 0, 640, 320)


def test_a_image_in_the_top_left_corner() -> None:
    corner = Geometry(2, 2, 0, 0, (64, 64), (0, 0, 100, 128))
    output = np.zeros((2, 64, 64), np.float32)
    output[1, :, :50] = 1
    record = SegmentArgmax()([output], corner)
    assert record.mask.shape == (64, 50) and record.mask.all()
    assert record.region == (0, 0, 100, 128)


def test_a_crop_s_mask_lies_where_the_crop_lies() -> None:
    crop = Geometry(0.5, 0.5, 300, 200, (64, 64), (300, 200, 332, 232))
    assert SegmentArgmax()([np.zeros((2, 64, 64), np.float32)], crop).region == (300, 200, 332, 232)


@given(width=st.integers(20, 2000), height=st.integers(20, 2000))
def test_the_region_never_leaves_the_image(width: int, height: int) -> None:
    scale = max(width, height) / 64
    geometry = Geometry(
        scale, scale, (width - 64 * scale) / 2, (height - 64 * scale) / 2, (64, 64), (0, 0, width, height)
    )
    record = SegmentArgmax()([np.zeros((2, 64, 64), np.float32)], geometry)
    x1, y1, x2, y2 = record.region
    assert 0 <= x1 < x2 <= width and 0 <= y1 < y2 <= height
    assert record.mask.size > 0
    # a cell is scale pixels; an edge is off by half of one at most
    assert max(x1, y1, width - x2, height - y2) <= 0.5001 * scale


@pytest.mark.parametrize("shape", [(1, 64, 64), (64, 64, 1), (64, 64)])
def test_one_channel_against_a_threshold(shape: tuple[int, ...]) -> None:
    score = np.linspace(0, 1, 64 * 64, dtype=np.float32).reshape(64, 64)
    record = SegmentThreshold(0.3, ("text",))([score.reshape(shape)], CENTERED)
    np.testing.assert_array_equal(record.mask, score[16:48] >= np.float32(0.3))
    assert record.mask.dtype == np.uint8 and record.labels == ("", "text")


def test_a_map_of_classes_does_not_tell_how_many_there_are() -> None:
    SegmentArgmax(("a", "b")).check(((257, 257),), (257, 257))
