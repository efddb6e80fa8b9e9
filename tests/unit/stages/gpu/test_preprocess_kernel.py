"""What ``preprocess.cu`` writes, on the processor and on a GPU where there is one, beside OpenCV and the CPU path."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from typing import Any, get_args
from unittest.mock import patch

import cv2
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from edgert.config import InputConfig
from edgert.runtime import Color, Frame, PixelFormat
from edgert.runtime.frame import U8
from edgert.stages.gpu import gpu_preprocess
from edgert.stages.gpu.gpu_preprocess import Target
from edgert.stages.gpu.kernels import Kernels
from edgert.stages.preprocess import INTERPOLATIONS, Preprocessor, place
from tests.helpers.frames import frame_of, planes
from tests.helpers.gpu_target import target
from tests.helpers.gpu_written import POISON, images_in, written
from tests.helpers.image_reference import resized

FORMATS: tuple[PixelFormat, ...] = get_args(PixelFormat)
METHODS = ("linear", "nearest", "area", "cubic")
ORDERS = ("rgb", "bgr", "gray")
SIZE = st.integers(2, 90)
VECTOR = 8
COLORS = st.builds(Color, st.sampled_from(["bt601", "bt709"]), st.booleans())


def levels(kernels: Kernels, frame: Frame, config: InputConfig, width: int, height: int) -> Any:
    """(height, width, channels) of what the kernel writes."""
    wanted = target("nchw", "float32", 1, width, height, 1 if config.color == "gray" else 3)
    return images_in(written(kernels, [frame], config, wanted), wanted)[0]


def cpu_levels(frame: Frame, config: InputConfig, width: int, height: int) -> Any:
    """(height, width, channels) of what the CPU path writes."""
    tensor = np.empty((1, 1 if config.color == "gray" else 3, height, width), np.float32)
    Preprocessor(config, tensor).into(0, frame)
    return tensor[0].transpose(1, 2, 0)


@contextmanager
def unconverted() -> Iterator[None]:
    """Y, U and V are written as they were scaled, not as colors."""
    plain = np.hstack([np.eye(3), np.zeros((3, 1))]).astype(np.int32).reshape(12) * 1024
    gpu_preprocess.kernel_matrix.cache_clear()
    with patch.object(gpu_preprocess, "fixed_matrix", lambda *_: plain):
        yield
    gpu_preprocess.kernel_matrix.cache_clear()


def scaled_chroma(kernels: Kernels, parts: Sequence[U8], wanted: tuple[int, int], how: Any) -> Any:
    """(height, width, 2) of what the kernel makes of chroma: of a pair (h, w, 2) of nv12, or of two planes of i420."""
    height, width = parts[0].shape[:2]
    frame = frame_of(
        2 * width,
        2 * height,
        "nv12" if len(parts) == 1 else "i420",
        pixels=(np.zeros((2 * height, 2 * width), np.uint8), *parts),
    )
    with unconverted():
        return levels(kernels, frame, InputConfig(resize="stretch", interpolation=how), *wanted)[..., 1:]


@pytest.mark.parametrize(
    ("form", "how", "order"),
    [(form, how, ORDERS[number % 3]) for number, (form, how) in enumerate(product(FORMATS, METHODS))],
)
@settings(max_examples=15, deadline=None)
@given(
    size=st.tuples(SIZE, SIZE),
    network=st.tuples(SIZE, SIZE),
    resize_how=st.sampled_from(["letterbox", "stretch", "center_crop"]),
    color=COLORS,
    padding=st.integers(0, 9),
    seed=st.integers(0, 2**16),
)
def test_is_within_one_gray_level_of_the_cpu_path(
    kernels: Kernels, form: PixelFormat, how: Any, order: Any, size: tuple[int, int], network: tuple[int, int],
    resize_how: Any, color: Color, padding: int, seed: int,
) -> None:  # fmt: skip
    width, height = size
    frame = frame_of(width & ~1 if form == "yuyv" else width, height, form, color=color, padding=padding, index=seed)
    config = InputConfig(resize=resize_how, color=order, interpolation=how)
    apart = np.abs(levels(kernels, frame, config, *network) - cpu_levels(frame, config, *network))
    if how == "cubic":  # OpenCV rounds halves in what its vectors leave over otherwise than in all before
        left, _, across, _ = place(frame, network, config).rectangle
        over = apart[:, max(left + across - VECTOR + 1, 0) : left + across]
        assert over.max() <= 3  # of colors, made from three planes that are a level apart
        over[...] = 0
    # OpenCV rounds some halves of pairs to even where it halves these: a level of chroma is 2.1 of a color, or three.
    assert apart.max() <= (3 if how == "linear" and halves_pairs(frame, config, *network) else 1)


def halves_pairs(frame: Any, config: InputConfig, width: int, height: int) -> bool:
    """Whether chroma that lies in pairs is made exactly half as large both ways."""
    placed = place(frame, (width, height), config)
    _, _, across, down = placed.rectangle
    return frame.format == "nv12" and placed.frame.planes[1].shape[:2] == (2 * down, 2 * across)


@pytest.mark.parametrize("channels", [1, 2, 3])
def test_halved_planes_are_those_of_opencv_and_pairs_a_level_apart_where_halves_are_rounded(
    kernels: Kernels, channels: int
) -> None:
    pixels = np.random.default_rng(channels).integers(0, 256, (36, 42, channels), np.uint8)
    wanted = cv2.resize(pixels, (21, 18), interpolation=cv2.INTER_LINEAR).reshape(18, 21, channels)
    if channels == 2:
        found = scaled_chroma(kernels, [pixels], (21, 18), "linear")
    else:
        form: Any = "bgr" if channels == 3 else "gray"
        frame = frame_of(42, 36, form, pixels=(pixels.squeeze(),))
        found = levels(kernels, frame, InputConfig(color=form), 21, 18)
    halves = pixels.reshape(18, 2, 21, 2, channels).sum(axis=(1, 3), dtype=int) % 4 == 2
    apart = np.abs(found - wanted)
    assert apart.max() == (1 if channels == 2 else 0) and not apart[~halves].any()


def test_colors_of_halved_pairs_may_be_more_than_a_level_apart(kernels: Kernels) -> None:
    frame = frame_of(35, 3, "nv12", color=Color("bt601", False), padding=0, index=0)
    config = InputConfig(resize="letterbox", color="rgb", interpolation="linear")
    apart = np.abs(levels(kernels, frame, config, 9, 2) - cpu_levels(frame, config, 9, 2))
    assert halves_pairs(frame, config, 9, 2) and apart.max() == 2


@pytest.mark.parametrize("form", FORMATS)
@settings(max_examples=25, deadline=None)
@given(
    edges=st.tuples(st.integers(-9, 60), st.integers(-9, 60), st.integers(1, 70), st.integers(1, 70)),
    odd=st.tuples(st.integers(0, 1), st.integers(0, 1)),
    padding=st.integers(0, 5),
)
def test_crops_at_any_place_too(
    kernels: Kernels, form: PixelFormat, edges: tuple[int, int, int, int], odd: tuple[int, int], padding: int
) -> None:
    width, height = 64 + (0 if form == "yuyv" else odd[0]), 48 + odd[1]
    frame = frame_of(width, height, form, padding=padding)
    x, y = min(edges[0], width - 1), min(edges[1], height - 1)
    crop = frame.crop(x, y, max(x + edges[2], 1), max(y + edges[3], 1))
    if form == "yuyv" and crop.width < 2:
        return
    config = InputConfig(resize="letterbox")
    assert np.abs(levels(kernels, crop, config, 33, 29) - cpu_levels(crop, config, 33, 29)).max() <= 1


@settings(max_examples=300, deadline=None)
@given(
    source=st.tuples(SIZE, SIZE),
    wanted=st.tuples(SIZE, SIZE),
    times=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    whole=st.booleans(),
    paired=st.booleans(),
    how=st.sampled_from(["area", "cubic"]),
)
def test_area_and_cubic_are_opencvs_own(
    kernels: Kernels, source: tuple[int, int], wanted: tuple[int, int], times: tuple[int, int], whole: bool,
    paired: bool, how: str,
) -> None:  # fmt: skip
    if whole:
        source = (wanted[0] * times[0], wanted[1] * times[1])
    chroma = np.random.default_rng(source).integers(0, 256, (source[1], source[0], 2), np.uint8)
    parts = [chroma] if paired else [np.ascontiguousarray(chroma[..., number]) for number in range(2)]
    found = scaled_chroma(kernels, parts, wanted, how)
    before = cv2.ipp.useIPP()
    cv2.ipp.setUseIPP(False)
    exact = np.dstack([cv2.resize(part, wanted, interpolation=INTERPOLATIONS[how]) for part in parts])
    cv2.ipp.setUseIPP(before)
    apart, over = np.abs(found - exact), wanted[0] % VECTOR if how == "cubic" else 0
    assert apart.max() <= (how == "cubic") and not apart[:, : wanted[0] - over].any()


@settings(max_examples=200, deadline=None)
@given(source=st.tuples(SIZE, SIZE), wanted=st.tuples(SIZE, SIZE))
def test_scaling_is_bilinear_between_pixel_centers(
    kernels: Kernels, source: tuple[int, int], wanted: tuple[int, int]
) -> None:
    frame = frame_of(*source, "gray", pixels=planes("gray", *source, sum(source)))
    found = levels(kernels, frame, InputConfig(resize="stretch", color="gray"), *wanted)[..., 0]
    assert np.abs(found - resized(frame.planes[0], *wanted)).max() <= 1


@pytest.mark.parametrize(("dtype", "mean", "std"), [("float32", (3.0,), (7.0,)), ("float16", (123.7,), (58.4,))])
def test_normalizes_like_the_cpu_path(kernels: Kernels, dtype: Any, mean: Any, std: Any) -> None:
    frame, config = frame_of(40, 30, "bgr"), InputConfig(resize="none", mean=mean, std=std)
    tensor = np.empty((1, 3, 30, 40), dtype)
    Preprocessor(config, tensor).into(0, frame)
    found = written(kernels, [frame], config, target("nchw", dtype, 1, 40, 30)).view(dtype).reshape(tensor.shape)
    assert np.abs(found - tensor).max() <= np.spacing(np.abs(tensor).max())


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_int8_is_rounded_and_clipped_like_the_cpu_path(kernels: Kernels, layout: Any) -> None:
    frame, config = frame_of(40, 30, "rgb"), InputConfig(resize="none", mean=(128,), std=(0.5,), layout=layout)
    tensor = np.empty((1, 3, 30, 40) if layout == "nchw" else (1, 30, 40, 3), np.int8)
    Preprocessor(config, tensor).into(0, frame)
    found = written(kernels, [frame], config, target(layout, "int8", 1, 40, 30))
    assert (found.view(np.int8) == tensor.ravel()).all()


LAYOUTS: dict[str, Any] = {
    "nchw": lambda out: out.reshape(2, 3, 5, 7).transpose(0, 2, 3, 1),
    "nhwc": lambda out: out.reshape(2, 5, 7, 3),
    "dla_linear": lambda out: out.reshape(2, 3, 5, -1)[..., :7].transpose(0, 2, 3, 1),
    "dla_hwc4": lambda out: out.reshape(2, 5, -1, 4)[:, :, :7, :3],
    "chw16": lambda out: out.reshape(2, 5, 7, 16)[..., :3],
    "chw32": lambda out: out.reshape(2, 5, 7, 32)[..., :3],
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_is_the_one_that_tensorrt_describes(kernels: Kernels, layout: Any) -> None:
    dtype: Any = "int8" if layout == "chw32" else "float16"
    frames, config = [frame_of(7, 5, "rgb", index=row) for row in range(2)], InputConfig(mean=(128,))
    memory = written(kernels, frames, config, target(layout, dtype, 2, 7, 5)).view(dtype)
    for row, image in enumerate(LAYOUTS[layout](memory)):
        assert (image == frames[row].planes[0].astype(float) - 128).all()
    LAYOUTS[layout](memory)[...] = 0
    poison = np.full(2, POISON, np.uint8).view(dtype)[0]
    assert ((memory == 0) | (memory == poison)).all()  # channels beside them, and what is left as it was


@pytest.mark.parametrize(
    ("layout", "dtype", "row"),
    [("dla_linear", "int8", 64), ("dla_linear", "float16", 32), ("dla_hwc4", "int8", 64), ("dla_hwc4", "float16", 32)],
)
def test_rows_of_a_dla_are_whole_64_bytes(layout: Any, dtype: Any, row: int) -> None:
    found = target(layout, dtype, 1, 9, 4)
    assert found.strides[2] % row == 0 and found.strides[2] * np.dtype(dtype).itemsize % 64 == 0


def test_neighbors_are_stored_together_only_where_rows_allow_it() -> None:
    def aligned(layout: Any, width: int, height: int = 6) -> bool:
        one: Target = target(layout, "float16", 1, width, height)
        return one.aligned(4)

    assert aligned("nchw", 8) and aligned("dla_linear", 8)
    assert not aligned("nchw", 10) and not aligned("dla_hwc4", 8) and not aligned("nhwc", 8)
