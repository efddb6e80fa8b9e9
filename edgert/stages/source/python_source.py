"""Images that Python code makes: the user's own (``python:module:name``), and edgert's ``synthetic:`` scenes."""

import inspect
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from itertools import count
from typing import Any, Protocol, runtime_checkable

from edgert.clock import Clock
from edgert.config.stages import SourceStage
from edgert.errors import ConfigError
from edgert.memory import Counter, Lease, lend
from edgert.memory.cuda import CudaDevice
from edgert.runtime.frame import U8, Frame
from edgert.runtime.stage import SourceStats
from edgert.stages.source.planes import as_planes
from edgert.stages.source.timeline import Canvas, Image, MediaClock, Timeline

DEFAULT_SIZE = (640, 480)
DEFAULT_FPS = 30.0


@runtime_checkable
class Renderer(Protocol):
    """Draws any image into memory that it is lent, so that nothing is copied. Never ends: ``limit`` does that."""

    def render(self, index: int, out: U8) -> object:
        """Draws image ``index``, from 0 on; what it returns is not looked at.

        Args:
            out: (height, width, 3) uint8 BGR of the size asked for, contents undefined.
        """
        ...


@runtime_checkable
class Closable(Protocol):
    """What has something to give back: a generator, or an object that opened a device."""

    def close(self) -> None:
        """Called in the source's thread after the last image."""
        ...


class PythonSource:
    """Frames of a :class:`Renderer` or of an iterable of images, as fast as they are taken; at ``fps`` with
    ``realtime: true``.

    An iterable's images are uint8 (height, width, 3) BGR arrays. They are not copied: each is a new array, or one that
    never changes.

    Args:
        make: is called with those of ``width``, ``height``, ``fps`` and ``seed`` that it takes, and with the options.

    Raises:
        ConfigError: ``make`` does not take these arguments or refuses them, or what it made is neither.
    """

    def __init__(
        self, name: str, make: Callable[..., Any], config: SourceStage, counter: Counter, clock: Clock
    ) -> None:
        self.live = bool(config.realtime)
        self._where, self._counter, self._clock = f"stages.{name}", counter, clock
        self._period_ns = 1e9 / (config.fps or DEFAULT_FPS)
        self._made = _made(make, config, self._where)
        self._canvas = Canvas(*(config.size or DEFAULT_SIZE), counter)
        self._timeline = Timeline(name, config, clock, MediaClock(False), fps=None, paced=self.live)

    def frames(self, stop: threading.Event) -> Iterator[Frame]:
        """Frames until the images end, the limit, or ``stop``."""
        with closing(self._images()) as images:
            yield from self._timeline.frames(images, stop)

    def share(self, device: CudaDevice) -> None:
        """Lets a renderer draw where this GPU reads; an iterable's images are copied there. Ask before the start."""
        self._canvas.share(device)
        self._timeline.share(device)

    def stats(self) -> SourceStats:
        """Nothing is lost here."""
        return SourceStats()

    def close(self) -> None:
        """Gives memory back; frames already handed out stay valid."""
        self._canvas.close()

    def _images(self) -> Generator[Image, None, None]:
        drawn = self._rendered(self._made) if isinstance(self._made, Renderer) else map(self._lent, self._made)
        try:
            for index, (image, lease) in enumerate(drawn):
                height, width = image.shape[:2]
                media_ns = round(index * self._period_ns)
                yield Image("bgr", width, height, (image,), lease, self._clock.now_ns(), media_ns)
        finally:
            if isinstance(self._made, Closable):
                self._made.close()

    def _rendered(self, renderer: Renderer) -> Iterator[tuple[U8, Lease]]:
        for index in count():
            out, lease = self._canvas.acquire()
            renderer.render(index, out)
            yield out, lease

    def _lent(self, image: object) -> tuple[U8, Lease]:
        (plane,) = as_planes(image, "bgr", self._where, copy=False)
        return plane, lend(plane, self._counter)


def _made(make: Callable[..., Any], config: SourceStage, where: str) -> Renderer | Iterable[Any]:
    title = f"{config.source!r} cannot make images"
    try:
        arguments = _arguments(make, config)
        found = make(**arguments, **config.options)
    except (TypeError, ValueError) as error:
        raise ConfigError(title, why=str(error), where=where, fix="see size:, fps:, seed: and options:") from error
    if isinstance(found, Renderer):
        return found
    if not isinstance(found, Iterable):
        raise ConfigError(
            title,
            why=f"it gives a {type(found).__name__}",
            where=where,
            fix="yield images, (height, width, 3) uint8 BGR arrays, or give the class render(self, index, out)",
        )
    if config.size is not None and not {"width", "height"} <= arguments.keys():
        raise ConfigError(
            f"size: has no meaning for {config.source!r}",
            why="it takes no width and height",
            where=f"{where}.size",
            fix="leave size: out, or add these arguments",
        )
    return found


def _arguments(make: Callable[..., Any], config: SourceStage) -> dict[str, Any]:
    """Those of the usual arguments that ``make`` takes."""
    width, height = config.size or DEFAULT_SIZE
    usual = {"width": width, "height": height, "fps": config.fps or DEFAULT_FPS, "seed": config.seed}
    takes = inspect.signature(make).parameters
    open_ended = any(one.kind is one.VAR_KEYWORD for one in takes.values())
    return {key: value for key, value in usual.items() if key in takes or open_ended}
