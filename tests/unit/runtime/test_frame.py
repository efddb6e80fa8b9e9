import numpy as np
import pytest
from hypothesis import given, strategies as st

from edgert.errors import StageError
from edgert.memory import Counter
from edgert.runtime import Color, Frame, PixelFormat
from edgert.runtime.frame import full_frame
from tests.helpers.frames import frame_of

FORMATS: list[PixelFormat] = ["i420", "nv12", "yuyv", "bgr", "rgb", "gray"]
PLANES: list[PixelFormat] = ["i420", "nv12"]


@pytest.mark.parametrize("form", ["bgr", "rgb", "gray", "yuyv"])
def test_numpy_shares_a_frame_without_copying(form: PixelFormat) -> None:
    frame = frame_of(form=form, padding=3)
    for array in (np.asarray(frame), np.from_dlpack(frame)):
        assert np.shares_memory(array, frame.planes[0])
        assert (array == frame.planes[0]).all()


@pytest.mark.parametrize("form", PLANES)
def test_a_frame_of_planes_is_not_one_array(form: PixelFormat) -> None:
    with pytest.raises(StageError, match="planes, not one array") as caught:
        np.asarray(frame_of(form=form).__array_interface__)
    assert "to_bgr" in caught.value.fix


def test_use_after_release_is_an_error() -> None:
    frame = frame_of(index=3)
    frame.lease.release()
    for use in (lambda: frame.__array_interface__, lambda: frame.__dlpack__(), lambda: frame.__dlpack_device__()):
        with pytest.raises(StageError, match="frame 3 of 'camera' was used after its release"):
            use()


def test_to_bgr_is_counted() -> None:
    counter = Counter()
    frame = frame_of(width=8, height=6, form="i420", counter=counter)
    image = frame.to_bgr()
    assert (image.shape, image.dtype) == ((6, 8, 3), np.uint8)
    assert (counter.read().copies, counter.read().bytes_copied) == (1, 144)


def planes_of(form: PixelFormat, width: int, height: int) -> list[tuple[int, ...]]:
    half = (height + 1) // 2, (width + 1) // 2
    return {
        "i420": [(height, width), half, half],
        "nv12": [(height, width), (*half, 2)],
        "yuyv": [(height, width, 2)],
        "gray": [(height, width)],
    }.get(form, [(height, width, 3)])


@given(
    st.sampled_from(FORMATS),
    st.integers(1, 40),
    st.integers(1, 40),
    st.tuples(*[st.integers(-20, 60)] * 4),
)
def test_crops_are_views_inside_the_frame(
    form: PixelFormat, width: int, height: int, box: tuple[int, int, int, int]
) -> None:
    frame = frame_of(width, height, form, padding=5)
    x1, y1, x2, y2 = max(box[0], 0), max(box[1], 0), min(box[2], width), min(box[3], height)
    if x1 >= x2 or y1 >= y2:
        with pytest.raises(StageError, match="is empty"):
            frame.crop(*box)
        return
    crop = frame.crop(*box)
    left, top = crop.region[:2]
    assert left <= x1 and top <= y1 and left + crop.width >= x2 and top + crop.height >= y2
    assert x1 - left <= 1 and y1 - top <= 1 and left + crop.width - x2 <= 1 and top + crop.height - y2 <= 1
    assert [plane.shape for plane in crop.planes] == planes_of(form, crop.width, crop.height)
    assert all(np.shares_memory(part, whole) for part, whole in zip(crop.planes, frame.planes, strict=True))
    expected = frame.planes[0][top : top + crop.height, left : left + crop.width]
    assert (crop.planes[0] == expected).all()
    assert full_frame(crop) is frame and crop.lease is frame.lease


@given(st.sampled_from(FORMATS), st.data())
def test_crops_of_crops_know_where_they_are(form: PixelFormat, data: st.DataObject) -> None:
    frame = frame_of(40, 30, form)
    first = frame.crop(*_box(data, frame))
    second = first.crop(*_box(data, first))
    left, top = second.region[:2]
    again = frame.crop(left, top, left + second.width, top + second.height)
    assert full_frame(second) is frame
    assert all((a == b).all() for a, b in zip(second.planes, again.planes, strict=False) if a.shape == b.shape)
    assert second.planes[0].shape == again.planes[0].shape


def _box(data: st.DataObject, frame: Frame) -> tuple[int, int, int, int]:
    x, y = data.draw(st.integers(0, frame.width - 1)), data.draw(st.integers(0, frame.height - 1))
    return x, y, data.draw(st.integers(x + 1, frame.width)), data.draw(st.integers(y + 1, frame.height))


def test_a_crop_keeps_what_belongs_to_the_frame() -> None:
    color = Color("bt709", True)
    frame = frame_of(form="nv12", color=color, stream="door", index=7, timestamp_ns=5, media_ns=6)
    crop = frame.crop(3, 3, 9, 9)
    assert (crop.stream, crop.index, crop.timestamp_ns, crop.media_ns, crop.color) == ("door", 7, 5, 6, color)
    assert crop.region == (2, 2, 10, 10)


class OnGpu:
    """What says of itself that it is memory of a GPU."""

    @property
    def __cuda_array_interface__(self) -> dict[str, object]:
        return {}


def test_a_frame_is_where_its_planes_are() -> None:
    assert not frame_of().is_on_gpu
    there = frame_of(pixels=(OnGpu(),))  # type: ignore[arg-type]
    assert there.is_on_gpu
    assert not frame_of(pixels=(object(),)).is_on_gpu  # type: ignore[arg-type]


@pytest.mark.parametrize("form", PLANES)
def test_a_crop_of_planes_has_its_part_of_each(form: PixelFormat) -> None:
    frame = frame_of(40, 30, form)
    crop = frame.crop(6, 4, 16, 10)
    assert [plane.shape for plane in crop.planes] == planes_of(form, 10, 6)
    assert (crop.planes[1] == frame.planes[1][2:5, 3:8]).all()
