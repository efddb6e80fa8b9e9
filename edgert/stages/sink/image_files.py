"""Images as files, each one whole or not there at all."""

import os
import re
from collections import Counter as Tally
from pathlib import Path

import cv2

from edgert.errors import StageError, cause, nearest
from edgert.runtime.records import Result
from edgert.stages.draw import Images

# File names made from a pattern, and the folders they lie in.

_FIELD = re.compile(r"\{([^{}:]*)(?::([^{}]*))?\}")
_WIDTH = re.compile(r"0?[1-9]?d?")
_UNSAFE = re.compile(r"[^\w.\-]|^\.")


def check_pattern(pattern: Path, fields: tuple[str, ...], where: str) -> None:
    """Raises StageError when ``pattern`` has a ``{field}`` other than ``fields``, or one it cannot format."""
    for name, spec in _FIELD.findall(str(pattern)):
        if name not in fields:
            what = f"{pattern} has an unknown field {{{name}}}{nearest(name, fields)}"
            raise StageError(what, where=where, fix="known: " + ", ".join(f"{{{field}}}" for field in fields))
        if spec and (name != "frame" or not _WIDTH.fullmatch(spec)):
            what = f"{pattern}: cannot format {{{name}:{spec}}}"
            raise StageError(what, where=where, fix="write {frame:06d} or {stream}")


def fill(pattern: Path, stream: str, frame: int = 0) -> Path:
    """``pattern`` with ``{stream}`` and ``{frame}`` or ``{frame:06d}`` filled in; nothing else is looked up."""

    def value(match: re.Match[str]) -> str:
        name, spec = match.groups()
        return _UNSAFE.sub("_", stream) if name == "stream" else format(frame, spec or "")

    return Path(_FIELD.sub(value, str(pattern)))


def has_field(pattern: Path, name: str) -> bool:
    """Whether ``{name}`` stands in ``pattern``."""
    return any(found == name for found, _ in _FIELD.findall(str(pattern)))


def make_parent(path: Path, where: str) -> None:
    """Makes the folder of ``path``. Raises StageError when that cannot be."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StageError(f"cannot make the folder {path.parent}", why=cause(error), where=where) from error


def cannot_write(path: Path, error: OSError, where: str, kept: str = "") -> StageError:
    """The error for a file that does not take what is written to it."""
    return StageError(
        f"cannot write {path}",
        why="; ".join(filter(None, (cause(error), kept))),
        where=where,
        fix="free some space or choose another path" if error.errno is not None else "",
    )


_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff")
_DEFAULT_NAME = "{stream}_{frame:06d}.jpg"


class ImagesSink:
    """Writes the drawn image, or the frame where nothing was drawn.

    Args:
        path: a folder, which then gets ``{stream}_{frame:06d}.jpg``, or a pattern of such fields whose suffix sets
            the format. Without ``{frame}`` the same file is replaced each time and always holds the newest image.
        every: writes the first and then every n-th frame of each stream.

    Raises:
        StageError: the pattern names something unknown, or a format that cannot be written.
    """

    def __init__(self, name: str, path: Path, every: int = 1) -> None:
        self._where = f"stages.{name}"
        self.pattern = path if path.suffix and not path.is_dir() else path / _DEFAULT_NAME
        self._every = every
        self._seen: Tally[str] = Tally()
        self._images = Images()
        check_pattern(self.pattern, ("stream", "frame"), self._where)
        if self.pattern.suffix.lower() not in _SUFFIXES:
            raise StageError(
                f"cannot write {self.pattern.suffix} images",
                where=self._where,
                fix=f"use one of {' '.join(_SUFFIXES)}, or a folder",
            )

    def open(self) -> None:
        """Makes the folder, where its name is known yet. Raises StageError when that cannot be."""
        if not has_field(self.pattern.parent, "stream") and not has_field(self.pattern.parent, "frame"):
            make_parent(self.pattern, self._where)

    def process(self, result: Result) -> None:
        """Writes one image, or none where ``every`` passes it over. Raises StageError, for instance disk full."""
        stream = result.frame.stream
        number = self._seen[stream]
        self._seen[stream] += 1
        if number % self._every:
            return
        if len(self._seen) > 1 and not has_field(self.pattern, "stream"):
            raise StageError(
                f"{self.pattern} would hold images of {len(self._seen)} streams",
                why=f"{', '.join(self._seen)} arrive at one sink",
                where=self._where,
                fix="put {stream} into path",
            )
        path = fill(self.pattern, stream, result.frame.index)
        make_parent(path, self._where)
        what = f"cannot encode a {self.pattern.suffix} image"
        try:
            done, data = cv2.imencode(self.pattern.suffix.lower(), self._images.shown(result))
        except cv2.error as error:
            raise StageError(what, why=str(error.err), where=self._where) from error
        if not done:
            raise StageError(what, why="OpenCV gives no reason", where=self._where)
        part = path.with_name(f".{path.name}.{os.getpid()}.part")
        try:
            part.write_bytes(data.data)
            part.replace(path)
        except OSError as error:
            part.unlink(missing_ok=True)
            raise cannot_write(path, error, self._where, kept="the images written so far are whole") from error

    def close(self) -> None:
        """Gives the buffers back; every file is closed already."""
        self._images.close()
