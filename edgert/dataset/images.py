"""Datasets of images for calibration and evaluation, by number and in a fair order.

The code of the pipeline's sources decodes them, so that a model gets the same pixels as in a pipeline.
"""

import hashlib
import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Generator, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from edgert.clock import REAL
from edgert.config.stages import SourceStage
from edgert.dataset.generated import DEFAULT_COUNT, PREFIXES, GeneratedDataset
from edgert.errors import ConfigError, StageError, nearest
from edgert.memory import Counter, lend
from edgert.runtime import Frame
from edgert.runtime.frame import U8
from edgert.stages.source.ffmpeg import Video
from edgert.stages.source.stills import SUFFIXES, is_image, more_images, read_image
from edgert.stages.source.timeline import DEFAULT_PERIOD_NS, MediaClock, Timeline
from edgert.text_files import lines_of

log = logging.getLogger("edgert.dataset")

_SHOWN = 5
_LOOKED_AT = 1000
"""Maximum number of images that are decoded to list all damaged ones after the first."""
_KEPT = 8
"""Maximum number of decoded frames of a video that are kept, because threads do not request frames in exact order."""
_DECODED_WHOLE = 0.9
"""Share of a video's frames from which frames are counted by decoding, as there may be more packets than frames."""


class ImageDataset(Protocol):
    """Images by number; can be pickled and used from several threads."""

    def __len__(self) -> int: ...

    def name(self, index: int) -> str:
        """Return the name of an image for messages: that of its file, or of the video with the frame number."""

    def frame(self, index: int) -> Frame:
        """Return a decoded image; the caller must release its lease.

        Raises ConfigError: the image cannot be read; the error names all unreadable images. Raises StageError: the
        video cannot be decoded up to this frame.
        """

    def digest(self) -> str:
        """Read the files and return a digest, which is equal for equal images in the same order."""


def open_images(
    source: str | Path | Sequence[str | Path | U8],
    *,
    limit: int | None = None,
    within: int | None = None,
    where: str = "",
) -> ImageDataset:
    """Return the images of a source, after a check that its files begin like images.

    Files of folders, globs and text files are sorted by the SHA-256 of their names. So the order is the same
    everywhere, and the first images are a fair sample even if names are sorted by class or time. Files of a sequence
    keep their order. Frames of a video are spread evenly over it.

    Args:
        source: folder with images or with folders of images, glob, image, video, text file with one image per line, or
            ``python:[FOLDER/]module:name``. A sequence has image files or (h, w, 3) uint8 BGR arrays.
        limit: maximum number of images.
        within: number of a video's first frames from which the images are taken; None: all.
        where: ``file:line key`` of the request, for errors.

    Raises:
        ConfigError: there is nothing, or files are not images; the error counts these and names the first.
        StageError: the video cannot be opened.
    """
    if not isinstance(source, (str, Path)):
        return _sequence_dataset(source, limit, where)
    if str(source).startswith(PREFIXES):
        return GeneratedDataset(str(source), limit or DEFAULT_COUNT, where)
    path = Path(source).expanduser().absolute()  # a worker may run in another folder
    if path.is_dir():
        return _file_dataset(path, _folder_images(path, where), limit, where)
    if path.is_file() and path.suffix.lower() == ".txt":
        files = [Path(os.path.normpath(file)) for file in listed_files(path)]
        base = Path(os.path.commonpath([file.parent for file in files] or [path]))
        return _file_dataset(base, files, limit, where)
    if path.is_file():
        is_still = path.suffix.lower() in SUFFIXES or is_image(path)
        return FileDataset((path,), (path.name,), where) if is_still else _video_dataset(path, limit, within, where)
    wild = next((n for n, part in enumerate(path.parts) if any(sign in part for sign in "*?[")), None)
    if wild is None:
        raise _missing_error(path, where)
    base, pattern = Path(*path.parts[:wild]), str(Path(*path.parts[wild:]))
    found = [file for file in base.glob(pattern) if file.is_file()]
    if not found:
        raise ConfigError(f"no image matches {str(path)!r}", where=where, fix="check the pattern")
    return _file_dataset(base, found, limit, where)


def listed_files(path: Path) -> list[Path]:
    """Return the images that a text file lists, one per line, relative to the file or to the working folder.

    Raises ConfigError: a line names no image; the error counts such lines and names the first.
    """
    lines, found = list(lines_of(path)), list[Path]()
    missing = list[tuple[int, str]]()
    for number, line in lines:
        if Path(line).suffix.lower() not in SUFFIXES:
            what = f"line {number} of {path} names no image: {line!r}"
            raise ConfigError(what, why=f"images end with {', '.join(sorted(SUFFIXES))}", where=f"{path}:{number}")
        spellings = (line, line.replace("\\", "/"), _latin1_name(line))
        file = next((one for name in spellings if (one := _find_listed(path, name)) is not None), None)
        if file is None:
            missing.append((number, line))
        else:
            found.append(file)
    if missing:
        number, line = missing[0]
        raise ConfigError(
            f"{len(missing)} of {len(lines)} images that {path} lists are missing, first on line {number}: {line!r}",
            why=f"there is no such file, neither from {path.parent} nor from {Path.cwd()}",
            where=f"{path}:{number}",
            fix="write paths from the list's own folder, like ./images/a.jpg",
        )
    return found


def _find_listed(path: Path, name: str) -> Path | None:
    tried = (place / name for place in (path.parent, Path.cwd()))
    return next((one.absolute() for one in tried if one.is_file()), None)


def _latin1_name(name: str) -> str:
    """Return a name as on a disk where names are in Latin-1, like the text of the list."""
    return os.fsdecode(name.encode("cp1252", "ignore"))


def fair_order(names: Iterable[str]) -> list[str]:
    """Return the names sorted by their SHA-256, which is the same order everywhere and independent of their meaning."""
    return sorted(names, key=lambda name: (hashlib.sha256(name.encode(errors="surrogateescape")).digest(), name))


@dataclass(frozen=True, slots=True)
class FileDataset:
    """Image files, upright by their EXIF data, as an :class:`ImageDataset`; other files are refused."""

    paths: tuple[Path, ...]
    names: tuple[str, ...]
    where: str = ""

    def __post_init__(self) -> None:
        if not self.paths:
            raise ConfigError("no image was given", where=self.where)
        wrong = [name for name, path in zip(self.names, self.paths, strict=True) if not is_image(path)]
        if wrong:
            raise _unreadable_error(wrong, len(self.paths), self.where)
        several = [path for path in self.paths if more_images(path)]
        if several:
            more = f" and {len(several) - 1} more hold" if len(several) > 1 else " holds"
            log.warning(
                "%s%s several images, of which the first is read: %s", several[0], more, more_images(several[0])
            )

    def __len__(self) -> int:
        return len(self.paths)

    def name(self, index: int) -> str:
        return self.names[index]

    def frame(self, index: int) -> Frame:
        image = read_image(self.paths[index])
        if image is None:
            others = (n for n in range(min(len(self.paths), _LOOKED_AT)) if n != index)
            damaged = [index, *(n for n in others if read_image(self.paths[n]) is None)]
            raise _unreadable_error([self.names[n] for n in damaged], len(self.paths), self.where)
        return _image_frame(image, index)

    def digest(self) -> str:
        """Return the SHA-256 of the files and their names."""
        found = hashlib.sha256()
        for name, path in zip(self.names, self.paths, strict=True):
            found.update(f"{name}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode(errors="surrogateescape"))
        return found.hexdigest()


@dataclass(frozen=True, slots=True, eq=False)
class ArrayDataset:
    """Images in memory, (h, w, 3) uint8 BGR, as an :class:`ImageDataset`; callers must not change them."""

    images: tuple[U8, ...]
    where: str = ""

    def __post_init__(self) -> None:
        for index, image in enumerate(self.images):
            if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3 or not image.size:
                raise ConfigError(
                    f"image {index} is {image.dtype} {list(image.shape)}",
                    why="an image is uint8 [height, width, 3], blue green red",
                    where=self.where,
                )

    def __len__(self) -> int:
        return len(self.images)

    def name(self, index: int) -> str:
        return f"image {index}"

    def frame(self, index: int) -> Frame:
        return _image_frame(self.images[index], index)

    def digest(self) -> str:
        """Return the SHA-256 of the pixels and shapes."""
        found = hashlib.sha256()
        for image in self.images:
            found.update(str(image.shape).encode() + np.ascontiguousarray(image).data)
        return found.hexdigest()


class VideoDataset:
    """Frames of a video file, as an :class:`ImageDataset`; a frame before the last one restarts the decoder."""

    def __init__(self, path: Path, positions: Sequence[int], where: str = "") -> None:
        self.path, self.where = path, where
        self._positions = tuple(positions)
        self._lock = threading.Lock()
        self._wanted = frozenset(self._positions)
        self._frames: Generator[Frame, None, None] | None = None
        self._next = 0
        self._kept: OrderedDict[int, Frame] = OrderedDict()

    def __len__(self) -> int:
        return len(self._positions)

    def __reduce__(self) -> tuple[Any, ...]:
        return VideoDataset, (self.path, self._positions, self.where)

    def name(self, index: int) -> str:
        return f"{self.path.name} frame {self._positions[index]}"

    def frame(self, index: int) -> Frame:
        position = self._positions[index]
        with self._lock:
            if position not in self._kept:
                self._play_to(position)
            frame = self._kept[position]
            frame.lease.retain()
            return frame

    def digest(self) -> str:
        """Return a digest of the file's name, size and time, because its content may be long."""
        stat = self.path.stat()
        return repr((self.path.name, stat.st_size, stat.st_mtime_ns, self._positions))

    def _play_to(self, position: int) -> None:
        if self._frames is None or position < self._next:
            self._frames, self._next = _decode(self.path, self.where), 0
        for frame in self._frames:
            here, self._next = self._next, self._next + 1
            dropped: Frame | None = frame
            if here in self._wanted:
                before = self._kept.pop(here, None)
                self._kept[here] = frame
                dropped = before or (self._kept.popitem(last=False)[1] if len(self._kept) > _KEPT else None)
            if dropped is not None:
                dropped.lease.release()
            if here == position:
                return
        self._frames = None
        raise StageError(
            f"{self.path} ends after {self._next} frames",
            why=f"its packets announce frame {position}; the file is damaged or cut off",
            where=self.where,
            fix="copy it again, or record it again",
        )


def _image_frame(image: U8, index: int) -> Frame:
    height, width = image.shape[:2]
    return Frame("dataset", index, 0, 0, width, height, "bgr", (image,), lend(image, Counter()))


def _sequence_dataset(source: Sequence[str | Path | U8], limit: int | None, where: str) -> ImageDataset:
    arrays = [item for item in source if isinstance(item, np.ndarray)]
    paths = [Path(item).expanduser().absolute() for item in source if isinstance(item, (str, Path))]
    if len(arrays) not in (0, len(source)) or len(arrays) + len(paths) != len(source):
        raise ConfigError("images must be all files or all arrays", where=where, fix="pass only files or only arrays")
    if not source:
        raise ConfigError("no image was given: the list is empty", where=where)
    if arrays:
        return ArrayDataset(tuple(arrays[:limit]), where)
    for path in paths[:limit]:
        if not path.is_file():
            raise _missing_error(path, where)
    names = [str(item) for item in source]
    return FileDataset(tuple(paths[:limit]), tuple(names[:limit]), where)


def _file_dataset(base: Path, files: Iterable[Path], limit: int | None, where: str) -> FileDataset:
    names = {file.relative_to(base).as_posix(): file for file in files}
    chosen = fair_order(names)[:limit]
    return FileDataset(tuple(names[name] for name in chosen), tuple(chosen), where)


def _video_dataset(path: Path, limit: int | None, within: int | None, where: str) -> VideoDataset:
    with closing(Video(str(path), Counter(), REAL, where=where)) as video:
        count = video.count()
    if within is not None:
        count = min(count, within)
    if limit is None or limit >= count * _DECODED_WHOLE:
        count = 0
        for frame in _decode(path, where):
            frame.lease.release()
            count += 1
    if not count:
        raise ConfigError(f"{path} has no frame", why="the file is empty or damaged", where=where)
    wanted = min(limit or count, count)
    return VideoDataset(path, [(2 * n + 1) * count // (2 * wanted) for n in range(wanted)], where)


def _decode(path: Path, where: str) -> Generator[Frame, None, None]:
    with closing(Video(str(path), Counter(), REAL, where=where)) as video:
        media = MediaClock(False, video.outline.period_ns or DEFAULT_PERIOD_NS)
        timeline = Timeline("dataset", SourceStage(source=str(path)), REAL, media, fps=None, paced=False)
        yield from timeline.frames(video.images(), threading.Event())


def _folder_images(folder: Path, where: str) -> list[Path]:
    for pattern in ("*", "**/*"):
        if found := [path for path in folder.glob(pattern) if path.suffix.lower() in SUFFIXES and path.is_file()]:
            return found
    raise ConfigError(
        f"folder {str(folder)!r} has no image",
        why=f"it and its subfolders were searched for {', '.join(sorted(SUFFIXES))}",
        where=where,
        fix="name the folder with the images",
    )


def _missing_error(path: Path, where: str) -> ConfigError:
    missing = path
    while not missing.parent.exists():
        missing = missing.parent
    siblings = [item.name for item in missing.parent.iterdir()] if missing.parent.is_dir() else []
    why = f"there is no {str(missing)!r}{nearest(missing.name, siblings)}"
    return ConfigError(f"no images at {str(path)!r}", why=why, where=where, fix="check the path")


def _unreadable_error(names: Sequence[str], total: int, where: str) -> ConfigError:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ConfigError(
        f"{len(names)} of {total} images cannot be read",
        why=f"not images, empty, or damaged: {', '.join(names[:_SHOWN])}{more}",
        where=where,
        fix="remove them, or copy them again (edgert does not skip them, because that would change the results)",
    )
