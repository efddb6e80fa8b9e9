"""Frames into tensors, against the arithmetic written down plainly."""

import tracemalloc
from itertools import product
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings, strategies as st

from edgert.config import InputConfig
from edgert.errors import ModelError
from edgert.memory import aligned_empty
from edgert.runtime import Color, Frame, PixelFormat
from edgert.stages.crop import Geometry
from edgert.stages.preprocess import Preprocessor, check_levels, layout_of, place
from tests.helpers.each import each
from tests.helpers.image_reference import as_people_write_it, image, smooth_frame

FORMATS: list[PixelFormat] = ["i420", "nv12", "yuyv", "bgr", "rgb", "gray"]
COLORS = [Color(matrix, full) for matrix, full in product(("bt601", "bt709"), (False, True))]  # type: ignore[arg-type]
PACKED, FROM_YUV = 1.5, 3.3
"""Gray levels from exact arithmetic, at most. Resizing rounds every plane to whole levels, off by up to 0.75; that of a
color difference counts up to 2.1 times in blue (BT.709, limited range), and the converted image is rounded again."""
ON_AVERAGE = 0.6


def tensor_of(layout: str, width: int, height: int, channels: int, dtype: str, rows: int = 1) -> npt.NDArray[Any]:
    shape = (rows, channels, height, width) if layout == "nchw" else (rows, height, width, channels)
    tensor = aligned_empty(shape, dtype)
    tensor.fill(77)
    return tensor


def seen(tensor: npt.NDArray[Any], layout: str, config: InputConfig, row: int = 0) -> npt.NDArray[np.float64]:
    """A row as (h, w, c) gray levels again."""
    values = tensor[row].astype(np.float64)
    values = values.transpose(1, 2, 0) if layout == "nchw" else values
    return values * np.array(config.std) + np.array(config.mean)


def assert_close(found: npt.NDArray[np.float64], exact: npt.NDArray[np.float64], form: PixelFormat) -> None:
    limit = FROM_YUV if form in ("i420", "nv12", "yuyv") else PACKED
    difference = np.abs(found - exact)
    assert difference.max() <= limit
    assert difference.size < 5000 or difference.mean() <= ON_AVERAGE


def expected(frame: Frame, config: InputConfig, width: int, height: int) -> npt.NDArray[np.float64]:
    """(h, w, c) gray levels, by the slow way."""
    channels = 1 if config.color == "gray" else 3
    put = place(frame, (width, height), config)
    out = np.full((height, width, channels), float(config.pad))
    left, top, across, down = put.rectangle
    small = image(put.frame, across, down, config.color)
    out[top : top + down, left : left + across] = small.reshape(down, across, channels)
    return out


@each("dtype", ["float32", "float16", "uint8", "int32"])
@each("layout", ["nchw", "nhwc"])
@each("order", ["rgb", "bgr", "gray"])
@each("form", FORMATS)
def test_every_format_order_layout_and_type(form: PixelFormat, order: Any, layout: Any, dtype: str) -> None:
    scale = {"float32": 58.0, "float16": 255.0, "uint8": 1.0, "int32": 1.0}[dtype]
    mean = 0.0 if dtype in ("uint8", "int32") else 104.0
    config = InputConfig(color=order, layout=layout, mean=(mean,), std=(scale,))
    for color in COLORS if form in ("i420", "nv12", "yuyv") else COLORS[:1]:
        tensor = tensor_of(layout, 40, 30, 1 if order == "gray" else 3, dtype)
        frame = smooth_frame(form, 64, 46, color, pad=7)
        Preprocessor(config, tensor).into(0, frame)
        assert_close(seen(tensor, layout, config), expected(frame, config, 40, 30), form)


@settings(max_examples=100, deadline=None)
@given(
    form=st.sampled_from(FORMATS),
    order=st.sampled_from(["rgb", "bgr", "gray"]),
    resize=st.sampled_from(["letterbox", "stretch", "center_crop"]),
    anchor=st.sampled_from(["center", "top_left"]),
    layout=st.sampled_from(["nchw", "nhwc"]),
    size=st.tuples(st.integers(2, 70), st.integers(2, 70)),
    network=st.tuples(st.integers(4, 50), st.integers(4, 50)),
    pad=st.integers(0, 9),
    gray=st.integers(0, 255),
    seed=st.integers(0, 5),
)
def test_any_size_and_any_row_length(
    form: PixelFormat,
    order: Any,
    resize: Any,
    anchor: Any,
    layout: Any,
    size: tuple[int, int],
    network: tuple[int, int],
    pad: int,
    gray: int,
    seed: int,
) -> None:
    width, height = (size[0] & ~1, size[1]) if form == "yuyv" else size  # pixels of YUYV come in pairs
    config = InputConfig(resize=resize, anchor=anchor, color=order, layout=layout, pad=gray)
    frame = smooth_frame(form, width, height, COLORS[seed % 4], seed, pad)
    tensor = tensor_of(layout, *network, 1 if order == "gray" else 3, "float32", rows=3)
    Preprocessor(config, tensor).into(1, frame)
    assert_close(seen(tensor, layout, config, 1), expected(frame, config, *network), form)
    assert (tensor[[0, 2]] == 77).all()


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(FORMATS), st.tuples(*[st.integers(0, 50)] * 4), st.sampled_from(["letterbox", "stretch"]))
def test_crops_at_any_place(form: PixelFormat, corners: tuple[int, int, int, int], resize: Any) -> None:
    frame = smooth_frame(form, 50, 44, COLORS[1], pad=3)
    x1, x2 = sorted(corners[:2])
    y1, y2 = sorted(corners[2:])
    crop = frame.crop(min(x1, 48), min(y1, 42), max(x2, x1 + 2), max(y2, y1 + 2))
    config = InputConfig(resize=resize)
    tensor = tensor_of("nchw", 24, 32, 3, "float32")
    geometry = Preprocessor(config, tensor).into(0, crop)
    assert_close(seen(tensor, "nchw", config), expected(crop, config, 24, 32), form)
    left, top = crop.region[:2]
    assert geometry.bounds == (left, top, left + crop.width, top + crop.height)


@pytest.mark.parametrize("form", ["i420", "nv12"])
@pytest.mark.parametrize("color", COLORS)
def test_scaling_the_planes_first_looks_the_same_as_converting_first(form: PixelFormat, color: Color) -> None:
    frame = smooth_frame(form, 320, 180, color)
    config = InputConfig(resize="stretch")
    tensor = tensor_of("nchw", 128, 96, 3, "float32")
    Preprocessor(config, tensor).into(0, frame)
    assert_close(seen(tensor, "nchw", config), as_people_write_it(frame, 128, 96), form)


@pytest.mark.parametrize("interpolation", ["linear", "area", "nearest", "cubic"])
@pytest.mark.parametrize("form", FORMATS)
def test_a_frame_of_network_size_passes_unchanged_by_any_interpolation(form: PixelFormat, interpolation: Any) -> None:
    frame = smooth_frame(form, 32, 24, COLORS[1])
    config = InputConfig(resize="none", interpolation=interpolation)
    tensor = tensor_of("nchw", 32, 24, 3, "float32")
    geometry = Preprocessor(config, tensor).into(0, frame)
    if form in ("bgr", "rgb", "gray"):
        assert (seen(tensor, "nchw", config) == np.rint(expected(frame, config, 32, 24))).all()
    assert (geometry.scale_x, geometry.scale_y, geometry.offset_x, geometry.offset_y) == (1, 1, 0, 0)


def test_per_channel_mean_and_std_follow_the_order_of_the_channels() -> None:
    frame = smooth_frame("bgr", 8, 8)
    for order in ("rgb", "bgr"):
        config = InputConfig(resize="none", color=order, mean=(10, 20, 30), std=(2, 4, 8))  # type: ignore[arg-type]
        tensor = tensor_of("nchw", 8, 8, 3, "float32")
        Preprocessor(config, tensor).into(0, frame)
        levels = frame.planes[0][..., :: 1 if order == "bgr" else -1].astype(np.float32)
        exact = (levels - [10, 20, 30]) / [2, 4, 8]
        assert np.allclose(tensor[0].transpose(1, 2, 0), exact, atol=1e-6)


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_int8_is_rounded_and_clipped(layout: Any) -> None:
    frame = smooth_frame("rgb", 16, 16)
    config = InputConfig(resize="none", mean=(128,), std=(0.5,), layout=layout)
    tensor = tensor_of(layout, 16, 16, 3, "int8")
    Preprocessor(config, tensor).into(0, frame)
    exact = np.clip((frame.planes[0].astype(int) - 128) * 2, -128, 127)
    assert (tensor[0] == (exact.transpose(2, 0, 1) if layout == "nchw" else exact)).all()


class TestBorder:
    @pytest.mark.parametrize("layout", ["nchw", "nhwc"])
    @pytest.mark.parametrize("dtype", ["float32", "float16", "uint8", "int8", "int32"])
    def test_is_the_pad_level_normalized_like_a_pixel(self, layout: Any, dtype: str) -> None:
        mean, std = ((0.0,), (1.0,)) if dtype == "uint8" else ((100.0,), (2.0,))
        config = InputConfig(pad=114, mean=mean, std=std, layout=layout)
        tensor = tensor_of(layout, 20, 20, 3, dtype)
        Preprocessor(config, tensor).into(0, smooth_frame("bgr", 20, 10))
        border = tensor[0, :, :5] if layout == "nchw" else tensor[0, :5]
        assert np.unique(border).tolist() == [(114 - mean[0]) / std[0]]

    def test_is_the_pad_level_also_where_gray_comes_from_limited_luma(self) -> None:
        config = InputConfig(pad=50, color="gray")
        tensor = tensor_of("nchw", 20, 20, 1, "float32")
        Preprocessor(config, tensor).into(0, smooth_frame("i420", 20, 10, Color(full_range=False)))
        assert np.unique(tensor[0, 0, :5]).tolist() == [50]

    def test_is_cleaned_when_the_image_moves_and_for_each_row_apart(self) -> None:
        config = InputConfig(pad=3)
        tensor = tensor_of("nchw", 20, 20, 3, "float32", rows=2)
        fill = Preprocessor(config, tensor)
        wide, tall = smooth_frame("bgr", 40, 20), smooth_frame("bgr", 20, 40)
        for row, frame in ((0, wide), (1, tall), (0, tall), (1, wide), (1, wide)):
            fill.into(row, frame)
        for row, frame in ((0, tall), (1, wide)):
            assert_close(seen(tensor, "nchw", config, row), expected(frame, config, 20, 20), "bgr")


@pytest.mark.parametrize("form", ["i420", "nv12", "yuyv", "bgr"])
def test_at_steady_state_nothing_grows(form: PixelFormat) -> None:
    tensor = tensor_of("nchw", 128, 128, 3, "float32")
    fill, frame = Preprocessor(InputConfig(mean=(1,), std=(2,)), tensor), smooth_frame(form, 256, 192)
    for _ in range(5):
        fill.into(0, frame)
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    tracemalloc.reset_peak()
    for _ in range(50):
        fill.into(0, frame)
    after, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert after - before < 4096
    assert peak - before < 128 * 96  # not even one plane of the image


def test_read_only_memory_can_be_read() -> None:
    for form in FORMATS:
        frame = smooth_frame(form, 24, 24)
        for plane in frame.planes:
            plane.flags.writeable = False
        for size in (24, 16):
            config = InputConfig(resize="stretch")
            tensor = tensor_of("nchw", size, size, 3, "float32")
            Preprocessor(config, tensor).into(0, frame)
            assert_close(seen(tensor, "nchw", config), expected(frame, config, size, size), form)


Layout = Literal["nchw", "nhwc"]


@pytest.mark.parametrize(
    ("shape", "wanted", "channels", "layout"),
    [
        ((1, 3, 8, 8), "auto", 3, "nchw"),
        ((1, 8, 8, 3), "auto", 3, "nhwc"),
        ((1, 1, 8, 8), "auto", 1, "nchw"),
        ((4, 8, 8, 1), "auto", 1, "nhwc"),
        ((1, 3, 8, 3), "auto", 3, "nchw"),
        ((1, 3, 8, 3), "nhwc", 3, "nhwc"),
    ],
)
def test_the_layout_is_read_from_the_shape(shape: tuple[int, ...], wanted: str, channels: int, layout: Layout) -> None:
    assert layout_of(shape, wanted, channels) == layout


@pytest.mark.parametrize(
    ("shape", "wanted", "channels"),
    [
        ((1, 3, 8, 8), "nhwc", 3),
        ((1, 3, 8, 8), "auto", 1),
        ((3, 8, 8), "auto", 3),
        ((1, 4, 8, 8), "auto", 3),
        ((), "auto", 3),
    ],
)
def test_a_shape_that_is_no_image(shape: tuple[int, ...], wanted: str, channels: int) -> None:
    with pytest.raises(ModelError, match="does not fit an image") as caught:
        layout_of(shape, wanted, channels, "m.onnx")
    assert caught.value.where == "m.onnx"


@pytest.mark.parametrize("dtype", ["float64", "int64", "bool"])
def test_a_type_that_is_no_pixel(dtype: str) -> None:
    with pytest.raises(ModelError, match=f"the model takes {dtype} pixels"):
        Preprocessor(InputConfig(), np.zeros((1, 3, 4, 4), dtype))


@pytest.mark.parametrize(
    ("dtype", "mean", "std"),
    [
        ("uint8", (0.0,), (255.0,)),
        ("uint8", (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)),
        ("int8", (127.5,), (127.5,)),
        ("int32", (0.0,), (255.0,)),
        ("uint8", (0.0,), (1.0, 1.0, 255.0)),
    ],
)
def test_integers_that_are_scaled_as_real_numbers_are_refused(dtype: str, mean: Any, std: Any) -> None:
    config = InputConfig(mean=mean, std=std, layout="nhwc")
    with pytest.raises(ModelError, match=r"leave \d of 256 gray levels") as caught:
        Preprocessor(config, tensor_of("nhwc", 8, 8, 3, dtype), "m.onnx")
    assert caught.value.where == "m.onnx" and dtype in (caught.value.why or "")


@pytest.mark.parametrize(
    ("dtype", "mean", "std", "part"),
    [
        ("uint8", 0.0, 1.0, ""),
        ("int8", 128.0, 1.0, ""),
        ("int8", 0.0, 2.008, ""),
        ("int32", 0.0, 1.0, ""),
        ("float32", 0.0, 255.0, ""),
        ("float16", 127.5, 127.5, ""),
        ("bfloat16", 0.0, 255.0, ""),
        ("unknown", 0.0, 255.0, ""),
        ("uint8", 128.0, 1.0, "50%"),
        ("int8", 0.0, 1.0, "50%"),
    ],
)
def test_what_integers_cannot_hold_is_said(dtype: str, mean: float, std: float, part: str) -> None:
    lost = check_levels(InputConfig(mean=(mean,), std=(std,)), dtype, "")
    assert (f"put {part} of the gray levels outside the range of {dtype}" in lost) == bool(part) == bool(lost)


def test_boxes_are_clipped_to_the_image_and_points_are_not() -> None:
    geometry = Geometry(2, 2, 10, 20, (50, 50), (10, 20, 110, 120))
    assert geometry.boxes(np.array([[-5, -5, 80, 20]], np.float32)).tolist() == [[10, 20, 110, 60]]
    assert geometry.points(np.array([[-5, -5, 0.5]], np.float32)).tolist() == [[0, 10, 0.5]]


def test_nothing_in_nothing_out_and_inputs_stay() -> None:
    geometry = Geometry(2, 3, 1, 1, (5, 5), (0, 0, 9, 9))
    assert geometry.boxes(np.zeros((0, 4), np.float32)).shape == (0, 4)
    assert geometry.points(np.zeros((0, 17, 3), np.float32)).shape == (0, 17, 3)
    points = np.ones((1, 2), np.float32)
    geometry.points(points)
    assert points.tolist() == [[1, 1]]
