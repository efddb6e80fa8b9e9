"""Masks on disk: gray, with a palette, and what is refused."""

import zlib
from pathlib import Path

import cv2
import numpy as np
import pytest

from edgert.dataset.labels import read_mask
from edgert.errors import ConfigError


def chunk(kind: bytes, data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big")


def palette_png(path: Path, indices: np.ndarray, palette: np.ndarray) -> Path:
    """A PNG of color type 3 (W3C PNG specification)."""
    height, width = indices.shape
    header = width.to_bytes(4, "big") + height.to_bytes(4, "big") + bytes([8, 3, 0, 0, 0])
    rows = b"".join(b"\0" + row.tobytes() for row in indices.astype(np.uint8))
    parts = chunk(b"IHDR", header) + chunk(b"PLTE", palette.astype(np.uint8).tobytes())
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + parts + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))
    return path


@pytest.mark.parametrize("dtype", ["uint8", "uint16"])
def test_gray_masks(tmp_path: Path, dtype: str) -> None:
    mask = np.arange(60, dtype=dtype).reshape(6, 10)
    assert cv2.imwrite(str(tmp_path / "a.png"), mask)
    found = read_mask(tmp_path / "a.png")
    assert found.dtype == np.uint8
    np.testing.assert_array_equal(found, mask)


def test_palette_masks_are_read_as_indices(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    palette = random.permutation(256**3)[:256]
    palette = np.stack([palette >> 16, palette >> 8 & 255, palette & 255], axis=1)
    indices = random.integers(0, 256, (20, 31))
    np.testing.assert_array_equal(read_mask(palette_png(tmp_path / "voc.png", indices, palette)), indices)


def test_of_equal_colors_the_first_index_counts(tmp_path: Path) -> None:
    palette = np.array([[0, 0, 0], [128, 0, 0], [0, 0, 0]])
    mask = palette_png(tmp_path / "a.png", np.array([[0, 1, 2]]), palette)
    np.testing.assert_array_equal(read_mask(mask), [[0, 1, 0]])


def test_color_images_large_indices_and_damage_are_refused(tmp_path: Path) -> None:
    assert cv2.imwrite(str(tmp_path / "rgb.png"), np.zeros((4, 4, 3), np.uint8))
    assert cv2.imwrite(str(tmp_path / "ids.png"), np.full((4, 4), 1000, np.uint16))
    (tmp_path / "bad.png").write_bytes(b"\x89PNG no")
    for name, why in (("rgb", "is a color image"), ("ids", "indices up to 1000"), ("bad", "cannot read the mask")):
        with pytest.raises(ConfigError, match=why):
            read_mask(tmp_path / f"{name}.png")
