"""Images from the user's own code (``python:module:name``), and synthetic scenes for tests and measurements.

The scenes are ``synthetic:blank``, ``noise`` and ``counter``.
"""

import inspect
import math
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from functools import partial
from itertools import count, cycle, repeat
from typing import Any, Protocol, runtime_checkable

import numpy as np

from edgert.config.stages import SourceStage
from edgert.errors import ConfigError, nearest
from edgert.memory import Lease, Pool, lend
from edgert.memory.cuda import CudaDevice, SharedPool
from edgert.runtime.frame import U8
from edgert.stages.context import Context
from edgert.stages.source.planes import as_planes
from edgert.stages.source.timeline import Image, ImageSource, MediaClock
from edgert.user_code import constructor_errors, load_object

DEFAULT_SIZE = (640, 480)
DEFAULT_FPS = 30.0


@runtime_checkable
class Renderer(Protocol):
    """User object that draws images into given memory, without a copy. It never ends; ``limit`` ends the source."""

    def render(self, index: int, out: U8) -> object:
        """Draw image ``index``, from 0 on, into ``out``; the returned value is ignored.

        ``out`` is (height, width, 3) uint8 BGR of the configured size, contents undefined.
        """


class PythonSource(ImageSource):
    """Source of frames from a :class:`Renderer` or an iterable, as fast as they are taken; ``realtime`` paces them.

    ``python:module:name`` or ``synthetic:NAME`` names the function that returns it. The function gets those of
    ``width``, ``height``, ``fps`` and ``seed`` that it has as parameters, and the options. An iterable's images are
    uint8 (height, width, 3) BGR arrays. They are not copied: each must be a new array, or one that never changes.

    Raises ConfigError: there is no such function, it refuses these arguments, or returns something else.
    """

    def __init__(self, name: str, config: SourceStage, context: Context) -> None:
        super().__init__(name, config, context, MediaClock(False), None)
        self.live = bool(config.realtime)
        self._period_ns = 1e9 / (config.fps or DEFAULT_FPS)
        kind, _, code = config.source.partition(":")
        where = f"{self._where}.source"
        make = scene_named(code, where) if kind == "synthetic" else load_object(code, where, context.directory)
        self._maker = _call_factory(make, config, self._where)
        self._size = config.size or DEFAULT_SIZE
        self._pool: Pool | None = None
        self._make_pool: Callable[[], Pool] = partial(Pool, math.prod(self._size) * 3, context.counter)
        self.thin = self._timeline.thin

    def share(self, device: CudaDevice) -> None:
        """Give a renderer memory that this GPU reads; copy an iterable's images there. Call it before the start."""
        self._make_pool = partial(SharedPool, device, math.prod(self._size) * 3)
        self._timeline.share(device)

    def close(self) -> None:
        """Free the memory of images when the last lease ends; later images get new memory."""
        self._pool = None

    def _images(self, stop: threading.Event) -> Generator[Image, None, None]:
        try:
            for index, (image, lease) in enumerate(self._drawn()):
                media_ns = round(index * self._period_ns)
                yield Image("bgr", (image,), lease, self._clock.now_ns(), media_ns)
        finally:
            if (close := getattr(self._maker, "close", None)) is not None:  # a generator has one
                close()

    def _drawn(self) -> Iterator[tuple[U8, Lease]]:
        if isinstance(self._maker, Renderer):
            width, height = self._size
            for index in count():
                self._pool = self._pool or self._make_pool()
                leased = self._pool.acquire()
                assert leased is not None  # there is no limit
                out = leased[0].reshape(height, width, 3)
                self._maker.render(index, out)
                yield out, leased[1]
        else:
            for image in self._maker:
                (plane,) = as_planes(image, "bgr", self._where)
                yield plane, lend(plane, self._counter)


def _call_factory(make: Callable[..., Any], config: SourceStage, where: str) -> Renderer | Iterable[Any]:
    """Return what ``make`` returns; see :class:`PythonSource` for arguments and errors."""
    title = f"{config.source!r} cannot make images"
    width, height = config.size or DEFAULT_SIZE
    usual = {"width": width, "height": height, "fps": config.fps or DEFAULT_FPS, "seed": config.seed}
    with constructor_errors(title, where, "see size:, fps:, seed: and options:"):
        takes = inspect.signature(make).parameters
        open_ended = any(one.kind is one.VAR_KEYWORD for one in takes.values())
        arguments = {key: value for key, value in usual.items() if key in takes or open_ended}
        found = make(**arguments, **config.options)
    if isinstance(found, Renderer):
        return found
    if not isinstance(found, Iterable):
        raise ConfigError(
            title,
            why=f"it returns {type(found).__name__}",
            where=where,
            fix="yield images, (height, width, 3) uint8 BGR arrays, or write a class with render(self, index, out)",
        )
    if config.size is not None and not {"width", "height"} <= arguments.keys():
        raise ConfigError(
            f"size: has no meaning for {config.source!r}",
            why="it has no parameters width and height",
            where=f"{where}.size",
            fix="leave size: out, or add these parameters",
        )
    return found


# Synthetic scenes.

NOISE_IMAGES = 8
BLANK_GRAY = 114
"""Gray level of letterbox padding."""
SQUARE_PX = 8
BITS = 32


def blank(width: int, height: int) -> Iterator[U8]:
    """Return one gray image without end, which costs no work per frame."""
    image = np.full((height, width, 3), BLANK_GRAY, np.uint8)
    image.flags.writeable = False  # all frames share it
    return repeat(image)


def noise(width: int, height: int, seed: int) -> Iterator[U8]:
    """Return a few images of noise without end, which costs no work per frame."""
    images = np.random.default_rng(seed).integers(0, 256, (NOISE_IMAGES, height, width, 3), np.uint8)
    images.flags.writeable = False
    return cycle(images)


class Counting:
    """Scene that shows its index in binary, as squares along the top, most significant bit first; white is 1."""

    def __init__(self, width: int, height: int) -> None:
        if width < BITS * SQUARE_PX or height < SQUARE_PX:
            raise ValueError(f"it needs at least {BITS * SQUARE_PX}x{SQUARE_PX} pixels")

    def render(self, index: int, out: U8) -> None:
        bits = np.unpackbits(np.array([index], ">u4").view(np.uint8)) * np.uint8(255)
        out[:] = BLANK_GRAY
        out[:SQUARE_PX, : BITS * SQUARE_PX] = np.repeat(bits, SQUARE_PX)[None, :, None]


SCENES: Mapping[str, Callable[..., Any]] = {"blank": blank, "noise": noise, "counter": Counting}


def scene_named(name: str, where: str) -> Callable[..., Any]:
    """Return the function that makes a scene. Raises ConfigError for an unknown name."""
    if name not in SCENES:
        raise ConfigError(
            f"unknown scene 'synthetic:{name}'{nearest(name, SCENES)}",
            why=f"known: {', '.join(f'synthetic:{known}' for known in SCENES)}",
            where=where,
            fix="use one of them, or images of your own code: python:module:name",
        )
    return SCENES[name]
