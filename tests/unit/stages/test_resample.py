from itertools import product

import numpy as np
import pytest

from edgert.runtime import Color
from edgert.stages.preprocess import INTERPOLATIONS, Resampler, yuv_matrix
from tests.helpers.frames import frame_of
from tests.helpers.image_reference import rgb_of, smooth_frame

COLORS = [Color(matrix, full) for matrix, full in product(("bt601", "bt709"), (False, True))]  # type: ignore[arg-type]


@pytest.mark.parametrize("color", COLORS)
def test_the_matrix_is_the_standards(color: Color) -> None:
    """Against the equations themselves, for every combination of coarse levels that stays within range."""
    y, u, v = (part.ravel().astype(float) for part in np.meshgrid(*[np.arange(16, 236, 12)] * 3))
    exact = rgb_of(y, u, v, color)
    inside = ((exact > 0) & (exact < 255)).all(axis=1)
    levels = np.stack([y, u, v, np.ones_like(y)])
    for order, step in (("rgb", 1), ("bgr", -1)):
        found = (yuv_matrix(color, order).astype(float) @ levels).T
        assert np.abs(found - exact[:, ::step])[inside].max() < 1e-3
    assert inside.sum() > 300


@pytest.mark.parametrize("how", INTERPOLATIONS)
@pytest.mark.parametrize("form", ["i420", "nv12", "yuyv", "bgr", "gray"])
def test_a_flat_image_stays_flat_at_any_size(form: str, how: str) -> None:
    frame = smooth_frame(form, 30, 22)  # type: ignore[arg-type]
    for plane in frame.planes:
        plane[:] = 128
    resampler = Resampler(64, 48, "rgb", how)
    for width, height in ((64, 48), (1, 1), (7, 3), (30, 22)):
        image = resampler.image(frame, width, height)
        assert image.shape == (height, width, 3) and np.unique(image).size == 1


def test_area_averages_and_nearest_does_not() -> None:
    checks = np.indices((32, 32)).sum(axis=0) % 2 * 255
    frame = frame_of(32, 32, "gray", pixels=(checks.astype(np.uint8),))
    area = Resampler(8, 8, "gray", "area").image(frame, 8, 8)
    nearest = Resampler(8, 8, "gray", "nearest").image(frame, 8, 8)
    assert set(area.ravel()) <= {127, 128} and set(nearest.ravel()) <= {0, 255}


def test_only_gray_of_limited_yuv_is_limited() -> None:
    gray, color = Resampler(4, 4, "gray", "linear"), Resampler(4, 4, "rgb", "linear")
    limited, full = frame_of(8, 8, "nv12"), frame_of(8, 8, "nv12", color=Color(full_range=True))
    assert gray.gray_is_limited(limited)
    assert not any((gray.gray_is_limited(full), gray.gray_is_limited(frame_of(8, 8)), color.gray_is_limited(limited)))


def test_frames_of_changing_size_may_follow_each_other() -> None:
    resampler = Resampler(16, 16, "rgb", "linear")
    sizes = [(8, 8), (40, 30), (8, 8), (6, 50)]
    first = [resampler.image(smooth_frame("yuyv", *size), 16, 16).copy() for size in sizes]
    fresh = [Resampler(16, 16, "rgb", "linear").image(smooth_frame("yuyv", *size), 16, 16) for size in sizes]
    assert all((a == b).all() for a, b in zip(first, fresh, strict=True))
