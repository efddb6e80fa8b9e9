"""Images: one file, a folder, or a glob."""

import re
import threading
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from pathlib import Path

import cv2

from edgert.clock import Clock
from edgert.config.stages import SourceStage
from edgert.errors import StageError, nearest
from edgert.memory import Counter, lend
from edgert.runtime.frame import U8, Frame
from edgert.runtime.stage import SourceStats
from edgert.stages.source.timeline import Image, MediaClock, Timeline

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff"})
DEFAULT_FPS = 30.0
_SHOWN = 5


class Images:
    """Images as BGR frames, in natural order (``a2`` before ``a10``), upright by their EXIF.

    Sizes may differ from image to image. ``fps`` (30 by default) sets how far apart they lie in media time, and
    with ``realtime: true`` really. Images that cannot be read are skipped and counted.

    Raises:
        StageError: no image matches, or none of them can be read.
    """

    live = False

    def __init__(self, name: str, pattern: Path, config: SourceStage, counter: Counter, clock: Clock) -> None:
        self._where, self._pattern = f"stages.{name}", pattern
        self._loop, self._counter, self._clock = config.loop, counter, clock
        self._period_ns = round(1e9 / (config.fps or DEFAULT_FPS))
        self._paths = self._found()
        self._unreadable: dict[Path, None] = {}
        self._skipped = 0
        media = MediaClock(False, self._period_ns)
        self._timeline = Timeline(name, config, clock, media, fps=None, paced=bool(config.realtime))

    def frames(self, stop: threading.Event) -> Iterator[Frame]:
        """Frames until the last image (never, when looping), the limit, or ``stop``."""
        with closing(self._images(stop)) as images:
            yield from self._timeline.frames(images, stop)

    def stats(self) -> SourceStats:
        return SourceStats(self._skipped)

    def close(self) -> None:
        """Nothing is held open."""

    def _images(self, stop: threading.Event) -> Generator[Image, None, None]:
        while not stop.is_set():
            for path in self._paths:
                if stop.is_set():
                    return
                if (image := read_image(path)) is None:
                    self._skipped += 1
                    self._unreadable[path] = None
                    continue
                lease = lend(image, self._counter)
                yield Image("bgr", (image,), lease, self._clock.now_ns())
            if len(self._unreadable) == len(self._paths):
                names = [path.name for path in self._paths]
                more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
                raise StageError(
                    f"none of the {len(names)} images at {self._pattern} can be read",
                    why=f"not an image, or damaged: {', '.join(names[:_SHOWN])}{more}",
                    where=self._where,
                    fix="check that they open elsewhere; an images: pattern must match images only",
                )
            if not self._loop:
                return

    def _found(self) -> Sequence[Path]:
        pattern = self._pattern
        if pattern.is_dir():
            found = [path for path in pattern.iterdir() if path.suffix.lower() in SUFFIXES]
        elif pattern.is_file():
            found = [pattern]
        else:
            anchor = Path(pattern.anchor)
            found = [path for path in anchor.glob(str(pattern.relative_to(anchor))) if path.is_file()]
        if not found:
            if pattern.is_dir():
                why = "the folder holds none"
            elif pattern.parent.is_dir():
                why = f"nothing there matches{nearest(pattern.name, (path.name for path in pattern.parent.iterdir()))}"
            else:
                why = f"there is no folder {pattern.parent}"
            raise StageError(
                f"no image at {pattern}",
                why=why,
                where=self._where,
                fix=f"check the path; folders are searched for {', '.join(sorted(SUFFIXES))}",
            )
        parts = {path: re.findall(r"\d+|\D+", str(path)) for path in found}  # numbers in names count by value
        return sorted(found, key=lambda path: [(0, int(p), p) if p.isdigit() else (1, 0, p) for p in parts[path]])


def is_image(path: Path) -> bool:
    """Whether a file begins as images do that can be read here. Looks at its first bytes only."""
    return path.is_file() and bool(cv2.haveImageReader(str(path)))


def read_image(path: Path) -> U8 | None:
    """A (height, width, 3) uint8 BGR image turned by its EXIF; None when it cannot be read."""
    try:
        image: U8 | None = cv2.imread(str(path), cv2.IMREAD_COLOR)  # type: ignore[assignment]
    except cv2.error:
        # Larger than OpenCV's limit on pixels, or a header that lies about it.
        return None
    return image
