"""Trivial scenes for tests and measurements: ``synthetic:blank``, ``synthetic:noise`` and ``synthetic:counter``.

Each is made as the user's own images are, see :mod:`edgert.stages.source.python_source`.
"""

from collections.abc import Callable, Iterator, Mapping
from itertools import cycle
from typing import Any

import numpy as np

from edgert.errors import ConfigError, nearest
from edgert.runtime.frame import U8

NOISE_IMAGES = 8
BLANK_GRAY = 114
"""The gray that letterboxes are padded with."""
_BIT_PX = 8
_BITS = 32


def blank(width: int, height: int) -> Iterator[U8]:
    """One gray image, over and over: no work per frame."""
    return _lent_again(np.full((1, height, width, 3), BLANK_GRAY, np.uint8))


def noise(width: int, height: int, seed: int) -> Iterator[U8]:
    """A few images of noise, over and over: no work per frame."""
    return _lent_again(np.random.default_rng(seed).integers(0, 256, (NOISE_IMAGES, height, width, 3), np.uint8))


def _lent_again(images: U8) -> Iterator[U8]:
    images.flags.writeable = False  # nobody may change what others see
    return cycle(images)


class Counting:
    """The index in binary, as squares along the top, most significant bit first; white is 1."""

    def __init__(self, width: int, height: int) -> None:
        if width < _BITS * _BIT_PX or height < _BIT_PX:
            raise ValueError(f"it needs at least {_BITS * _BIT_PX}x{_BIT_PX} pixels")

    def render(self, index: int, out: U8) -> None:
        """Draws image ``index``; see :class:`~edgert.stages.source.python_source.Renderer`."""
        bits = np.unpackbits(np.array([index], ">u4").view(np.uint8)) * np.uint8(255)
        out[:] = BLANK_GRAY
        out[:_BIT_PX, : _BITS * _BIT_PX] = np.repeat(bits, _BIT_PX)[None, :, None]


def read_counter(image: U8) -> int:
    """The index that ``synthetic:counter`` put into an image; survives compression at the original size.

    Args:
        image: (height, width, 3) uint8 BGR or RGB, or (height, width) luma.
    """
    gray = image if image.ndim == 2 else image[..., 1]
    middle = gray[_BIT_PX // 2, _BIT_PX // 2 : _BITS * _BIT_PX : _BIT_PX]
    return int(np.packbits(middle > BLANK_GRAY).view(">u4")[0])


SCENES: Mapping[str, Callable[..., Any]] = {"blank": blank, "noise": noise, "counter": Counting}


def scene_named(name: str, where: str) -> Callable[..., Any]:
    """What makes a scene. Raises ConfigError: there is none of that name."""
    if name not in SCENES:
        raise ConfigError(
            f"unknown scene 'synthetic:{name}'{nearest(name, SCENES)}",
            why=f"known: {', '.join(f'synthetic:{known}' for known in SCENES)}",
            where=where,
            fix="use one of them, or images of your own code: python:module:name",
        )
    return SCENES[name]
