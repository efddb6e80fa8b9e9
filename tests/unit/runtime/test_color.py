import itertools

import numpy as np
import numpy.typing as npt
import pytest

from edgert.errors import StageError
from edgert.memory import Counter
from edgert.runtime.frame import U8, Color, Frame, PixelFormat, bgr_from, bgr_into, bgr_matrix
from tests.helpers.each import each
from tests.helpers.frames import frame_of

COLORS = [Color(matrix, full) for matrix, full in itertools.product(("bt601", "bt709"), (False, True))]
SIZES = [(64, 48), (37, 51), (51, 36), (1, 1), (2, 2), (130, 2), (1, 9)]


def spread(plane: U8, height: int, width: int) -> npt.NDArray[np.float64]:
    """Chroma repeated to full size."""
    rows = np.arange(height) // (1 if plane.shape[0] == height else 2)
    return plane[rows][:, np.arange(width) // 2].astype(np.float64)


def reference(frame: Frame) -> npt.NDArray[np.float64]:
    """The textbook equations in double precision."""
    height, width = frame.height, frame.width
    if frame.format == "yuyv":
        y, chroma = frame.planes[0][..., 0], frame.planes[0][..., 1]
        u, v = chroma[:, 0::2], np.full((height, (width + 1) // 2), 128, np.uint8)
        v[:, : width // 2] = chroma[:, 1::2]
        if width % 2 and width > 1:
            v[:, -1] = v[:, -2]
    elif frame.format == "nv12":
        y, u, v = frame.planes[0], frame.planes[1][..., 0], frame.planes[1][..., 1]
    else:
        y, u, v = frame.planes
    kr, kb = {"bt601": (0.299, 0.114), "bt709": (0.2126, 0.0722)}[frame.color.matrix]
    luma, chroma_scale, black = (1.0, 1.0, 0) if frame.color.full_range else (255 / 219, 255 / 224, 16)
    light = (y.astype(np.float64) - black) * luma
    pb, pr = (spread(plane, height, width) - 128 for plane in (u, v))
    red = light + 2 * (1 - kr) * pr * chroma_scale
    blue = light + 2 * (1 - kb) * pb * chroma_scale
    green = (light - kr * red - kb * blue) / (1 - kr - kb)
    return np.clip(np.stack([blue, green, red], axis=-1), 0, 255)


@each("color", COLORS)
@each("form", ["i420", "nv12", "yuyv"])
@each(("width", "height"), SIZES)
@each("padding", [0, 6])
def test_every_yuv_form_matches_the_equations(
    form: PixelFormat, width: int, height: int, color: Color, padding: int
) -> None:
    frame = frame_of(width, height, form, color=color, padding=padding)
    image = bgr_from(frame)
    assert image.shape == (height, width, 3)
    assert np.abs(image - reference(frame)).max() <= 1


def test_packed_forms() -> None:
    bgr, rgb, gray = (frame_of(7, 5, form, padding=3) for form in ("bgr", "rgb", "gray"))
    assert np.array_equal(bgr_from(bgr), bgr.planes[0])
    assert np.array_equal(bgr_from(rgb), rgb.planes[0][..., ::-1])
    assert np.array_equal(bgr_from(gray), np.repeat(gray.planes[0][..., None], 3, axis=2))


def test_white_black_and_red_are_what_the_standards_say() -> None:
    # BT.709-6, table 4: 8-bit limited range, red (1, 0, 0) is Y 63, Cb 102, Cr 240.
    levels = np.array([[235, 128, 128, 1], [16, 128, 128, 1], [63, 102, 240, 1]])
    bgr = levels @ bgr_matrix(Color("bt709")).T
    assert np.abs(bgr - [[255, 255, 255], [0, 0, 0], [0, 0, 255]]).max() < 1.2


@pytest.mark.parametrize("color", COLORS, ids=str)
@pytest.mark.parametrize("form", ["i420", "nv12", "yuyv", "bgr", "rgb", "gray"])
def test_a_smaller_image_is_scaled_before_it_is_converted(form: PixelFormat, color: Color) -> None:
    flat = frame_of(64, 48, form, color=color, pixels=tuple(np.full_like(p, 90) for p in frame_of(64, 48, form).planes))
    for height, width in ((24, 32), (31, 41), (96, 130)):
        out = np.zeros((height, width, 3), np.uint8)
        bgr_into(flat, out)
        assert np.abs(out.astype(int) - bgr_from(flat)[0, 0]).max() <= 1


def test_writes_into_a_part_of_a_larger_array() -> None:
    frame, canvas = frame_of(16, 8, "i420"), np.zeros((20, 40, 3), np.uint8)
    bgr_into(frame, canvas[4:12, 10:26])
    assert np.array_equal(canvas[4:12, 10:26], bgr_from(frame))
    assert not canvas[:4].any() and not canvas[12:].any() and not canvas[:, :10].any() and not canvas[:, 26:].any()


@pytest.mark.parametrize("out", [np.zeros((8, 16), np.uint8), np.zeros((8, 16, 3), np.float32)])
def test_refuses_what_is_no_image(out: npt.NDArray[np.generic]) -> None:
    with pytest.raises(StageError, match="cannot write an image"):
        bgr_into(frame_of(16, 8, "i420"), out)  # type: ignore[arg-type]


def test_to_bgr_is_counted() -> None:
    counter = Counter()
    image = frame_of(16, 8, "nv12", counter=counter).to_bgr()
    assert (counter.read().copies, counter.read().bytes_copied) == (1, image.nbytes)


@pytest.mark.parametrize("form", ["i420", "nv12"])
@pytest.mark.parametrize(("height", "width"), [(24, 40), (25, 61)])
def test_planes_are_scaled_each_to_its_own_size(form: PixelFormat, height: int, width: int) -> None:
    """Slow changes over the image survive the scaling: every pixel is near to its place in the large image."""
    rows, columns = np.mgrid[0:48, 0:64].astype(np.float64)
    y = (60 + 2 * rows + columns).astype(np.uint8)
    u, v = (100 + rows[::2, ::2]).astype(np.uint8), (100 + columns[::2, ::2] / 2).astype(np.uint8)
    frame = frame_of(64, 48, form, pixels=(y, u, v) if form == "i420" else (y, np.stack([u, v], axis=-1)))
    out = np.zeros((height, width, 3), np.uint8)
    bgr_into(frame, out)
    at_row = np.clip(((np.arange(height) + 0.5) * 48 / height - 0.5).round().astype(int), 0, 47)
    at_column = np.clip(((np.arange(width) + 0.5) * 64 / width - 0.5).round().astype(int), 0, 63)
    assert np.abs(out.astype(float) - reference(frame)[at_row][:, at_column]).max() <= 12
