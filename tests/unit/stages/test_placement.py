from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings, strategies as st

from edgert.config import InputConfig
from edgert.errors import StageError
from edgert.stages.preprocess import place
from tests.helpers.frames import frame_of

SIZES = st.tuples(st.integers(1, 300), st.integers(1, 300))
CONFIGS = st.builds(
    InputConfig,
    resize=st.sampled_from(["letterbox", "stretch", "center_crop"]),
    anchor=st.sampled_from(["center", "top_left"]),
    crop=st.floats(0.2, 1.0),
)


@settings(max_examples=100, deadline=None)
@example((88, 260), (1, 243), InputConfig(resize="letterbox"), "bgr")  # a pixel of the network is 87 of the source
@given(SIZES, SIZES, CONFIGS, st.sampled_from(["bgr", "i420"]))
def test_boxes_there_and_back(size: tuple[int, int], network: tuple[int, int], config: InputConfig, form: Any) -> None:
    """Source → network by the definition of the rectangle, network → source by the geometry."""
    frame = frame_of(*size, form)
    put = place(frame, network, config)
    x, y = put.frame.region[:2]
    random = np.random.default_rng(size[0])
    corners = np.sort(random.uniform(0, 1, (20, 2, 2)), axis=1) * [put.frame.width, put.frame.height] + [x, y]
    source = corners.reshape(20, 4)
    left, top, width, height = put.rectangle
    scale = np.array([width / put.frame.width, height / put.frame.height] * 2)
    there = (source - [x, y, x, y]) * scale + [left, top] * 2
    back = put.geometry.boxes(there.astype(np.float32))
    assert back.dtype == np.float32
    # Rounded are place, factor, product, offset and sum, none larger than this many source pixels.
    largest = float((there / scale).max() + source.max())
    rounding = 3 * float(np.finfo(np.float32).eps) * largest
    assert np.abs(back - source).max() <= rounding
    points = np.concatenate([there.reshape(40, 2), np.full((40, 1), 0.5)], axis=1).astype(np.float32)
    assert np.abs(put.geometry.points(points)[:, :2] - source.reshape(40, 2)).max() <= rounding


@settings(max_examples=100, deadline=None)
@given(SIZES, SIZES, CONFIGS)
def test_the_image_lies_inside_the_network(
    size: tuple[int, int], network: tuple[int, int], config: InputConfig
) -> None:
    frame = frame_of(*size)
    put = place(frame, network, config)
    left, top, width, height = put.rectangle
    assert left >= 0 and top >= 0 and width >= 1 and height >= 1
    assert left + width <= network[0] and top + height <= network[1]
    if config.resize == "letterbox":
        assert width == network[0] or height == network[1]
        assert (left, top) == (0, 0) or config.anchor == "center"
    else:
        assert put.rectangle == (0, 0, *network)


def test_a_letterbox_of_a_wide_image() -> None:
    put = place(frame_of(1280, 720), (640, 640), InputConfig())
    assert put.rectangle == (0, 140, 640, 360)
    assert put.geometry.boxes(np.array([[0, 140, 640, 500]], np.float32)).tolist() == [[0, 0, 1280, 720]]
    top = place(frame_of(1280, 720), (640, 640), InputConfig(anchor="top_left"))
    assert top.rectangle == (0, 0, 640, 360)


def test_a_center_crop_is_cut_out_of_the_middle() -> None:
    put = place(frame_of(100, 60), (30, 30), InputConfig(resize="center_crop", crop=0.5))
    assert put.frame.region == (35, 15, 65, 45)
    assert put.geometry.bounds == (35, 15, 65, 45)


def test_the_geometry_of_a_crop_leads_back_to_the_whole_image() -> None:
    crop = frame_of(100, 80).crop(20, 30, 60, 70)
    put = place(crop, (80, 80), InputConfig())
    assert put.geometry.boxes(np.array([[0, 0, 40, 80]], np.float32)).tolist() == [[20, 30, 40, 70]]


@pytest.mark.parametrize("size", [(63, 64), (64, 63), (128, 128)])
def test_resize_none_takes_its_own_size_only(size: tuple[int, int]) -> None:
    with pytest.raises(StageError, match=f"{size[0]}x{size[1]} does not fit") as caught:
        place(frame_of(*size), (64, 64), InputConfig(resize="none"))
    assert caught.value.where == "stage 'camera'"
    assert place(frame_of(64, 64), (64, 64), InputConfig(resize="none")).rectangle == (0, 0, 64, 64)
