"""Our conversions beside FFmpeg's, on a smooth image, where ways of interpolating chroma hardly differ."""

import av
import numpy as np
import pytest

from edgert.runtime.frame import U8, Color, Frame, bgr_from
from tests.helpers.frames import frame_of

WIDTH, HEIGHT = 320, 240


def smooth() -> tuple[U8, U8, U8]:
    x, y = np.meshgrid(np.linspace(0, 1, WIDTH), np.linspace(0, 1, HEIGHT))
    luma = 60 + 130 * x * y
    u, v = 100 + 60 * x[::2, ::2], 150 - 50 * y[::2, ::2]
    return luma.astype(np.uint8), u.astype(np.uint8), v.astype(np.uint8)


def by_ffmpeg(planes: tuple[U8, U8, U8], color: Color) -> U8:
    packed = np.concatenate([plane.reshape(-1) for plane in planes]).reshape(HEIGHT * 3 // 2, WIDTH)
    frame = av.VideoFrame.from_ndarray(packed, format="yuv420p")
    frame.color_range = 2 if color.full_range else 1
    frame.colorspace = 1 if color.matrix == "bt709" else 6
    return frame.to_ndarray(
        format="bgr24",
        src_colorspace="ITU709" if color.matrix == "bt709" else "ITU601",
        src_color_range="JPEG" if color.full_range else "MPEG",
        dst_color_range="JPEG",
    )


@pytest.mark.parametrize("color", [Color(), Color("bt709"), Color("bt601", True), Color("bt709", True)], ids=str)
@pytest.mark.parametrize("form", ["i420", "nv12"])
def test_agrees_with_swscale(form: str, color: Color) -> None:
    y, u, v = smooth()
    pixels = (y, u, v) if form == "i420" else (y, np.stack([u, v], axis=-1))
    frame: Frame = frame_of(WIDTH, HEIGHT, form, pixels=pixels, color=color)  # type: ignore[arg-type]
    apart = np.abs(bgr_from(frame).astype(int) - by_ffmpeg((y, u, v), color))
    # FFmpeg's default conversion rounds down and so lies about one level below the exact values; ours does not
    # (tests/unit/runtime/test_color.py).
    assert apart.mean() < 1.5 and apart.max() <= 3
