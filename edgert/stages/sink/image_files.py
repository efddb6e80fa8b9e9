"""Images written atomically as files."""

import os
import threading
import time
from collections import Counter as Tally, deque
from contextlib import suppress
from pathlib import Path

import cv2

from edgert.errors import StageError
from edgert.runtime.records import Result
from edgert.stages.draw import ImagePainter
from edgert.stages.sink import output_file, output_files
from edgert.stages.sink.output_file import cannot_write
from edgert.stages.sink.output_files import REPLACED, Rules, fill, has_field, make_parent

_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff")
_DEFAULT_NAME = "{stream}_{frame:06d}.jpg"
_FIELDS = ("stream", "frame", "date", "time")
_MOST_WAITING = 256
_CLOSE_S = 0.5  # of the 2 s in which a pipeline ends


class ImagesSink:
    """Sink that writes the drawn image, or else the frame, to a file.

    An image gets its name once it is on the disk, so none is ever found empty or cut short, not even after a power cut.
    The one that is replaced each time gets it at once.

    Args:
        path: a folder, which then gets ``{stream}_{frame:06d}.jpg``, or a pattern of such fields whose suffix sets
            the format. Without ``{frame}`` and ``{time}`` the same file is replaced each time and always holds the
            newest image.
        every: writes the first and then every n-th frame of each stream.
        rules: whether images of an earlier run stay, beside which the new ones get a number; and when old ones go.

    Raises:
        StageError: the pattern names something unknown, or a format that cannot be written.
    """

    def __init__(self, name: str, path: Path, every: int = 1, rules: Rules = REPLACED) -> None:
        self._where = f"stages.{name}"
        self.pattern = path if path.suffix and not path.is_dir() else path / _DEFAULT_NAME
        self.every, self._rules = every, rules
        self._seen: Tally[str] = Tally()
        self._images = ImagePainter()
        output_files.check_pattern(self.pattern, _FIELDS, self._where)
        if self.pattern.suffix.lower() not in _SUFFIXES:
            raise StageError(
                f"cannot write {self.pattern.suffix} images",
                where=self._where,
                fix=f"use one of {' '.join(_SUFFIXES)}, or a folder",
            )
        self._is_counted = has_field(self.pattern, "frame")
        self._is_newest = not self._is_counted and not has_field(self.pattern, "time")
        if self._is_newest and rules.removes:
            raise StageError(
                f"keep: has no effect on {self.pattern}",
                why="without {frame} or {time} every image replaces the one before",
                where=self._where,
                fix="put {frame} into path, or leave keep out",
            )
        self._retention = output_files.Retention(self.pattern, rules, self._where)
        relative = self.pattern.relative_to(output_files.fixed_folder(self.pattern))
        self._parts = output_files.fixed_folder(self.pattern) / f".{output_files.safe(f'{relative}.{name}')}.part"
        self._parts_lock, self._run = -1, 1
        # What the disk's thread takes over; the thread of the stage adds to these, and waits where there are too many.
        self.is_dirty, self._error = False, deque[OSError](maxlen=1)
        self._waiting, self._turn = dict[Path, Path](), threading.Condition()

    def open(self) -> None:
        """Create the folder, where its name is known yet.

        Raises StageError when that is impossible, or another process writes these images.
        """
        if not has_field(self.pattern.parent, *_FIELDS):
            make_parent(self.pattern, self._where)
        make_parent(self._parts, self._where)
        try:
            self._parts.mkdir(exist_ok=True)
            descriptor = os.open(self._parts, os.O_RDONLY | os.O_CLOEXEC)
            if not output_file.lock(descriptor):
                os.close(descriptor)
                raise output_file.written_elsewhere(self._parts, self._where)
            self._parts_lock = descriptor
            output_file.DISK.add(self)
            for left in self._parts.iterdir():  # by a process that was killed
                left.unlink()
        except OSError as error:
            self.close()  # another try would find it locked
            raise cannot_write(self.pattern, error, self._where) from error

    def process(self, result: Result) -> None:
        """Write one image, or none where ``every`` skips it. Raises StageError, for instance disk full."""
        stream = result.frame.stream
        number = self._seen[stream]
        self._seen[stream] += 1
        if number % self.every:
            return
        if len(self._seen) > 1 and not has_field(self.pattern, "stream"):
            raise StageError(
                f"{self.pattern} would hold images of {len(self._seen)} streams",
                why=f"{', '.join(self._seen)} arrive at one sink",
                where=self._where,
                fix="put {stream} into path",
            )
        self._retention.knows(stream)
        self._retention.tend([])
        path = self._path(stream, result.frame.index)
        make_parent(path, self._where)
        what = f"cannot encode a {self.pattern.suffix} image"
        try:
            done, data = cv2.imencode(self.pattern.suffix.lower(), self._images.host_image(result))
        except cv2.error as error:
            raise StageError(what, why=str(error.err), where=self._where) from error
        if not done:
            raise StageError(what, why="OpenCV gives no reason", where=self._where)
        part = self._parts / f"{sum(self._seen.values())}{self.pattern.suffix}"
        try:
            if self._error:
                raise self._error.pop()
            self._write(part, data.data)
            if self._is_newest:
                part.replace(path)
            else:
                self._hand_over(part, path, data.nbytes)
        except OSError as error:
            part.unlink(missing_ok=True)
            self.sync()
            raise cannot_write(path, error, self._where, kept="the images written so far are whole") from error

    def close(self) -> None:
        """Free the buffers; every file is closed already."""
        if self._parts_lock >= 0:
            output_file.DISK.remove(self)
            self._publish(time.monotonic() + _CLOSE_S)
            with suppress(OSError):
                self._parts.rmdir()
            os.close(self._parts_lock)
            self._parts_lock = -1
        self._images.close()

    def sync(self) -> None:
        """Flush images to the disk and give them their final names."""
        self._publish(float("inf"))

    def _path(self, stream: str, frame: int) -> Path:
        """Return an image's path. Where a kept file has it, this and all later images of the run get a number."""
        wanted = fill(self.pattern, stream, frame)
        if self._is_newest or (self._is_counted and not self._rules.keeps):
            return wanted
        number = self._run if self._is_counted else 1
        while (path := output_files.numbered(wanted, number)) in self._waiting or os.path.lexists(path):
            number += 1
        self._run = number
        return path

    def _write(self, part: Path, data: memoryview) -> None:
        while True:
            try:
                part.write_bytes(data)
                return
            except OSError as error:
                if error.errno not in output_file.FULL or not self._retention.make_room():
                    raise

    def _hand_over(self, part: Path, path: Path, size_bytes: int) -> None:
        with self._turn:
            self._turn.wait_for(lambda: len(self._waiting) < _MOST_WAITING)
            self._waiting[path] = part
            self.is_dirty = True
        self._retention.add(path, size_bytes)

    def _publish(self, until_s: float) -> None:
        """Give images their final names; until ``until_s`` only those that are on the disk."""
        self.is_dirty = False
        with self._turn:
            waiting = list(self._waiting.items())
        for path, part in waiting:
            try:
                if time.monotonic() < until_s:
                    output_file.sync_file(part)
                part.replace(path)
            except FileNotFoundError:  # named meanwhile by the other thread
                pass
            except OSError as error:
                self._error.append(error)
        for folder in {path.parent for path, _ in waiting}:
            output_file.sync_folder(folder)
        with self._turn:
            for path, _ in waiting:
                self._waiting.pop(path, None)
            self._turn.notify_all()
