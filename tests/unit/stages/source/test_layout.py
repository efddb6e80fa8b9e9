"""Arrays from outside: shared when they are pixels, refused with a reason when not."""

from typing import Any

import numpy as np
import pytest

from edgert.errors import StageError
from edgert.runtime.frame import PixelFormat
from edgert.stages.source.planes import as_planes
from tests.helpers.errors import Exactly, raises


def zeros(*shape: int) -> Any:
    return np.zeros(shape, np.uint8)


@pytest.mark.parametrize(
    ("format", "array"),
    [
        ("bgr", zeros(4, 6, 3)),
        ("rgb", zeros(4, 6, 3)),
        ("gray", zeros(4, 6)),
        ("yuyv", zeros(4, 6, 2)),
        ("nv12", (zeros(4, 6), zeros(2, 3, 2))),
        ("i420", [zeros(5, 7), zeros(3, 4), zeros(3, 4)]),
    ],
)
def test_every_format_is_shared_not_copied(format: PixelFormat, array: Any) -> None:
    parts = array if isinstance(array, (tuple, list)) else [array]
    planes = as_planes(array, format, "stages.cam")
    assert all(np.shares_memory(plane, part) for plane, part in zip(planes, parts, strict=True))
    copies = as_planes(array, format, "stages.cam", copy=True)
    assert not any(np.shares_memory(plane, part) for plane, part in zip(copies, parts, strict=True))


def test_padded_rows_are_fine() -> None:
    padded = zeros(4, 10, 3)[:, :6]
    assert as_planes(padded, "bgr", "")[0].strides == (30, 3, 1)


class Tensor:
    """Offers DLPack only, like a tensor of another framework."""

    def __init__(self, array: Any, device: int = 1) -> None:
        self.array, self.device = array, device

    def __dlpack__(self, **options: Any) -> Any:
        if self.device != 1:
            raise BufferError("it lies on another device")
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device, 0


def test_dlpack_is_shared() -> None:
    array = zeros(4, 6, 3)
    assert np.shares_memory(as_planes(Tensor(array), "bgr", "")[0], array)


@pytest.mark.parametrize(
    ("format", "array", "what", "why"),
    [
        ("bgr", zeros(4, 6, 3).astype(np.float32), "uint8, not float32", "0 to 255"),
        ("bgr", zeros(4, 6), "has shape (4, 6)", "(height, width, 3)"),
        ("bgr", zeros(3, 4, 6), "has shape (3, 4, 6)", "(height, width, 3)"),
        ("gray", zeros(0, 6), "has shape (0, 6)", ""),
        ("bgr", [[1, 2, 3]], "cannot take list", "__array_interface__"),
        ("bgr", zeros(4, 6, 3)[..., ::-1], "contiguous", "need a hidden copy"),
        ("bgr", zeros(4, 6, 3)[::-1], "contiguous", "flipped"),
        ("bgr", zeros(6, 4, 3).transpose(1, 0, 2), "contiguous", "transposed"),
        ("i420", zeros(6, 6), "sequence of 3 planes", ""),
        ("nv12", (zeros(6, 6),), "sequence of 2 planes", ""),
        ("nv12", zeros(4, 6), "in one array has shape (4, 6)", "(height * 3 / 2, width)"),
        ("nv12", zeros(6, 5), "in one array has shape (6, 5)", "both even"),
        ("nv12", zeros(6, 6, 3), "in one array has shape (6, 6, 3)", "luma"),
        ("nv12", zeros(6, 12)[:, ::2], "contiguous", "strided"),
        ("nv12", (zeros(4, 6), zeros(2, 3)), "plane 1 of format nv12", "(2, 3, 2)"),
        ("brg", zeros(4, 6, 3), "unknown format 'brg'; did you mean", "known: bgr"),
        ("bgr", Tensor(zeros(4, 6, 3), device=2), "cannot share Tensor", "device"),
    ],
)
def test_refusals_say_why(format: Any, array: Any, what: str, why: str) -> None:
    with raises(StageError, what=what, why=why, where=Exactly("stages.cam")):
        as_planes(array, format, "stages.cam")


def test_a_flipped_view_may_be_copied_when_asked() -> None:
    image = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)
    assert (as_planes(image[:, ::-1], "bgr", "", copy=True)[0] == image[:, ::-1]).all()


def test_nv12_in_one_array_is_two_planes_of_it() -> None:
    whole = np.arange(6 * 16, dtype=np.uint8).reshape(6, 16)[:, :8]  # rows are padded
    luma, chroma = as_planes(whole, "nv12", "")
    assert (luma.shape, chroma.shape, chroma.strides) == ((4, 8), (2, 4, 2), (16, 2, 1))
    assert np.shares_memory(luma, whole) and np.shares_memory(chroma, whole)
    assert (chroma.reshape(2, 8) == whole[4:]).all()
