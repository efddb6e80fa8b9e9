"""Scenes made on the spot: for demos, tests and measurements, with no camera and no file."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Protocol

import numpy as np

from edgert.clock import Clock
from edgert.config.stages import SourceStage
from edgert.errors import ConfigError, StageError, nearest
from edgert.memory import Counter, Lease, lend
from edgert.memory.cuda import CudaDevice
from edgert.runtime.frame import U8, Frame
from edgert.runtime.stage import SourceStats
from edgert.stages.source.timeline import Canvas, Image, MediaClock, Timeline

if TYPE_CHECKING:
    from edgert.stages.source.conveyor import Conveyor, Truth

DEFAULT_SIZE = (640, 480)
DEFAULT_FPS = 30.0
NOISE_IMAGES = 8
BLANK_GRAY = 114
"""The gray that letterboxes are padded with."""
_BIT_PX = 8
_BITS = 32


class Scene(Protocol):
    """Makes the image of any index."""

    def image(self, index: int) -> tuple[U8, Lease]:
        """A (height, width, 3) uint8 BGR image and its lease."""
        ...

    def truth(self, index: int) -> Truth | None:
        """What is on it; None for scenes without objects."""
        ...

    def share(self, device: CudaDevice) -> None:
        """Images that are made from now on lie in memory that this GPU reads, too."""
        ...

    def close(self) -> None:
        """Gives memory back that images are drawn in."""
        ...


def check_scene(scene: str, where: str) -> None:
    """Raises ConfigError for a scene that there is not."""
    if scene not in SCENES:
        raise ConfigError(
            f"unknown scene 'synthetic:{scene}'{nearest(scene, SCENES)}",
            why=f"known: {', '.join(f'synthetic:{known}' for known in SCENES)}",
            where=where,
            fix="use one of them",
        )


class Synthetic:
    """Frames of a scene, as fast as they are taken, or at ``fps`` with ``realtime: true``. The same seed gives the same
    frames. Never ends by itself: set ``limit``.

    Scenes: ``conveyor`` (machined parts passing under a camera, with ground truth), ``blank`` and ``noise`` (made
    once, no work per frame), ``counter`` (each frame's index in its pixels, for :func:`read_counter`).
    """

    def __init__(self, name: str, scene: str, config: SourceStage, counter: Counter, clock: Clock) -> None:
        self.live = bool(config.realtime)
        check_scene(scene, f"stages.{name}.source")
        width, height = config.size or DEFAULT_SIZE
        fps = config.fps or DEFAULT_FPS
        self._period_ns, self._clock = 1e9 / fps, clock
        self._scene = SCENES[scene](width, height, fps, config.seed, counter)
        self._timeline = Timeline(name, config, clock, MediaClock(False), fps=None, paced=self.live)

    def frames(self, stop: threading.Event) -> Iterator[Frame]:
        """Frames until the limit or ``stop``."""
        with closing(self._images(stop)) as images:
            yield from self._timeline.frames(images, stop)

    def truth(self, index: int) -> Truth:
        """What is on frame ``index``. Raises StageError for scenes without objects."""
        truth = self._scene.truth(index)
        if truth is None:
            raise StageError("this scene has no ground truth", fix="use synthetic:conveyor")
        return truth

    def share(self, device: CudaDevice) -> None:
        """Draws where this GPU reads; images that are made once are copied there. Ask before the start."""
        self._scene.share(device)
        self._timeline.share(device)

    def stats(self) -> SourceStats:
        """Nothing ever goes wrong here."""
        return SourceStats()

    def close(self) -> None:
        """Gives memory back; frames already handed out stay valid."""
        self._scene.close()

    def _images(self, stop: threading.Event) -> Generator[Image, None, None]:
        index = 0
        while not stop.is_set():
            image, lease = self._scene.image(index)
            height, width = image.shape[:2]
            media_ns = round(index * self._period_ns)
            yield Image("bgr", width, height, (image,), lease, self._clock.now_ns(), media_ns)
            index += 1


class _Still:
    """A few images made once and lent over and over; nobody may change them."""

    def __init__(self, images: list[U8], counter: Counter) -> None:
        self._images, self._counter = images, counter
        for image in images:
            image.flags.writeable = False

    def image(self, index: int) -> tuple[U8, Lease]:
        image = self._images[index % len(self._images)]
        return image, lend(image, self._counter)

    def truth(self, index: int) -> None:
        return None

    def share(self, device: CudaDevice) -> None: ...

    def close(self) -> None: ...


def _blank(width: int, height: int, fps: float, seed: int, counter: Counter) -> Scene:
    return _Still([np.full((height, width, 3), BLANK_GRAY, np.uint8)], counter)


def _noise(width: int, height: int, fps: float, seed: int, counter: Counter) -> Scene:
    random = np.random.default_rng(seed)
    shape = (height, width, 3)
    return _Still([random.integers(0, 256, shape, np.uint8) for _ in range(NOISE_IMAGES)], counter)


class _Counting:
    """The index in binary, as squares along the top, most significant bit first; white is 1."""

    def __init__(self, width: int, height: int, fps: float, seed: int, counter: Counter) -> None:
        if width < _BITS * _BIT_PX or height < _BIT_PX:
            raise ConfigError(f"synthetic:counter needs at least {_BITS * _BIT_PX}x{_BIT_PX}", fix="set size:")
        self._canvas = Canvas(width, height, counter)
        self.share, self.close = self._canvas.share, self._canvas.close

    def image(self, index: int) -> tuple[U8, Lease]:
        buffer, lease = self._canvas.acquire()
        bits = np.unpackbits(np.array([index], ">u4").view(np.uint8)) * np.uint8(255)
        buffer[:] = BLANK_GRAY
        buffer[:_BIT_PX, : _BITS * _BIT_PX] = np.repeat(bits, _BIT_PX)[None, :, None]
        return buffer, lease

    def truth(self, index: int) -> None:
        return None


def read_counter(image: U8) -> int:
    """The index that ``synthetic:counter`` put into an image; survives compression at the original size.

    Args:
        image: (height, width, 3) uint8 BGR or RGB, or (height, width) luma.
    """
    gray = image if image.ndim == 2 else image[..., 1]
    middle = gray[_BIT_PX // 2, _BIT_PX // 2 : _BITS * _BIT_PX : _BIT_PX]
    return int(np.packbits(middle > BLANK_GRAY).view(">u4")[0])


class _Conveyor:
    """The conveyor, drawn into buffers that are used again."""

    def __init__(self, width: int, height: int, fps: float, seed: int, counter: Counter) -> None:
        from edgert.stages.source.conveyor import Conveyor

        self._canvas = Canvas(width, height, counter)
        self.share, self.close = self._canvas.share, self._canvas.close
        self._again = partial(Conveyor, width, height, fps, seed)
        self._oracle: Conveyor | None = None
        try:
            self._scene = self._again()
        except ValueError as error:
            raise ConfigError("synthetic:conveyor cannot be made", why=str(error), fix="set size: and fps:") from error
        self._asked = threading.Lock()

    def image(self, index: int) -> tuple[U8, Lease]:
        buffer, lease = self._canvas.acquire()
        self._scene.render(index, buffer)
        return buffer, lease

    def truth(self, index: int) -> Truth:
        """Renders a second time, in a scene of its own: the truth is what can be seen, so it takes an image."""
        with self._asked:
            self._oracle = self._oracle or self._again()
            scratch, lease = self._canvas.acquire()
            try:
                return self._oracle.render(index, scratch)
            finally:
                lease.release()


SCENES: dict[str, Callable[[int, int, float, int, Counter], Scene]] = {
    "conveyor": _Conveyor,
    "blank": _blank,
    "noise": _noise,
    "counter": _Counting,
}
