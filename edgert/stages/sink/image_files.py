"""Sink that writes images as files, atomically."""

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
from edgert.stages.sink import output_file, retention

_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff")
_DEFAULT_NAME = "{stream}_{frame:06d}.jpg"
_FIELDS = ("stream", "frame", "date", "time")
_MAX_QUEUED = 256
_CLOSE_S = 0.5  # part of the 2 s in which a pipeline ends


class ImagesSink:
    """Sink that writes the drawn image, or else the frame, to a file.

    A file gets its name once it is on the disk, so no file is empty or incomplete, not even after a power cut. A file
    that each image replaces gets its name at once.

    Args:
        path: a folder, for files named ``{stream}_{frame:06d}.jpg``, or a pattern with such fields, whose suffix sets
            the format. Without ``{frame}`` and ``{time}``, every image replaces the one before.
        every: 1: every frame of each stream is written; n: the first, and then every n-th.
        rules: whether images of earlier runs stay, so that new ones get a number; and which old ones are removed.

    Raises:
        StageError: the pattern has an unknown field, or a suffix that is no image format.
    """

    def __init__(self, name: str, path: Path, every: int = 1, rules: retention.Rules = retention.REPLACED) -> None:
        self._where = f"stages.{name}"
        self.pattern = path if path.suffix and not path.is_dir() else path / _DEFAULT_NAME
        self.every, self._rules = every, rules
        self._seen: Tally[str] = Tally()
        self._images = ImagePainter()
        retention.check_pattern(self.pattern, _FIELDS, self._where)
        if self.pattern.suffix.lower() not in _SUFFIXES:
            raise StageError(
                f"cannot write {self.pattern.suffix} images",
                where=self._where,
                fix=f"use one of {' '.join(_SUFFIXES)}, or a folder",
            )
        self._has_number = retention.has_field(self.pattern, "frame")
        self._replaces_file = not self._has_number and not retention.has_field(self.pattern, "time")
        if self._replaces_file and rules.removes:
            raise StageError(
                f"keep: has no effect on {self.pattern}",
                why="without {frame} or {time} every image replaces the one before",
                where=self._where,
                fix="put {frame} into path, or remove keep:",
            )
        self._retention = retention.Retention(self.pattern, rules, self._where)
        relative = self.pattern.relative_to(retention.fixed_folder(self.pattern))
        self._parts = retention.fixed_folder(self.pattern) / f".{retention.safe_name(f'{relative}.{name}')}.part"
        self._parts_lock, self._run = -1, 1
        # The stage's thread queues files, and waits where they are too many; the disk thread names them.
        self.is_dirty, self._error = False, deque[OSError](maxlen=1)
        self._queued, self._change = dict[Path, Path](), threading.Condition()

    def open(self) -> None:
        """Create the folder, if its name has no field.

        Raises StageError where that fails, or where another process writes these images.
        """
        if not retention.has_field(self.pattern.parent, *_FIELDS):
            retention.make_parent(self.pattern, self._where)
        retention.make_parent(self._parts, self._where)
        try:
            self._parts.mkdir(exist_ok=True)
            self._parts_lock = output_file.lock_folder(self._parts, self._where)
            output_file.DISK.add(self)
        except OSError as error:
            self.close()  # releases the lock, for another try
            raise output_file.cannot_write(self.pattern, error, self._where) from error

    def process(self, result: Result) -> None:
        """Write one image, unless ``every`` skips it. Raises StageError, for instance where the disk is full."""
        stream = result.frame.stream
        number = self._seen[stream]
        self._seen[stream] += 1
        if number % self.every:
            return
        if len(self._seen) > 1 and not retention.has_field(self.pattern, "stream"):
            raise StageError(
                f"{self.pattern} would hold images of {len(self._seen)} streams",
                why=f"{', '.join(self._seen)} arrive at one sink",
                where=self._where,
                fix="put {stream} into path",
            )
        self._retention.add_stream(stream)
        self._retention.remove_old()
        path = self._path(stream, result.frame.index)
        retention.make_parent(path, self._where)
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
            if self._replaces_file:
                part.replace(path)
            else:
                self._queue(part, path, data.nbytes)
        except OSError as error:
            part.unlink(missing_ok=True)
            self.sync()
            raise output_file.cannot_write(
                path, error, self._where, kept="the images written so far are complete"
            ) from error

    def close(self) -> None:
        """Name the files that are queued, and free the buffers."""
        if self._parts_lock >= 0:
            output_file.DISK.remove(self)
            self._publish(time.monotonic() + _CLOSE_S)
            with suppress(OSError):
                self._parts.rmdir()
            os.close(self._parts_lock)
            self._parts_lock = -1
        self._images.close()

    def sync(self) -> None:
        """Flush queued files to the disk, and give them their names."""
        self._publish(float("inf"))

    def _path(self, stream: str, frame: int) -> Path:
        """Return the path of an image. If a kept file has it, this and all later images of the run get a number."""
        wanted = retention.fill(self.pattern, stream, frame)
        if self._replaces_file or (self._has_number and not self._rules.keeps):
            return wanted
        number = self._run if self._has_number else 1
        while (path := retention.numbered_path(wanted, number)) in self._queued or os.path.lexists(path):
            number += 1
        self._run = number
        return path

    def _write(self, part: Path, data: memoryview) -> None:
        """Write a file; make room while the disk is full. Raises OSError."""
        while True:
            try:
                part.write_bytes(data)
                return
            except OSError as error:
                if error.errno not in output_file.FULL or not self._retention.make_room():
                    raise

    def _queue(self, part: Path, path: Path, size_bytes: int) -> None:
        with self._change:
            self._change.wait_for(lambda: len(self._queued) < _MAX_QUEUED)
            self._queued[path] = part
            self.is_dirty = True
        self._retention.add(path, size_bytes)

    def _publish(self, until_s: float) -> None:
        """Give queued files their names. Before ``until_s``, flush each to the disk first."""
        self.is_dirty = False
        with self._change:
            waiting = list(self._queued.items())
        for path, part in waiting:
            try:
                if time.monotonic() < until_s:
                    output_file.sync_file(part)
                part.replace(path)
            except FileNotFoundError:  # the other thread has just named it
                pass
            except OSError as error:
                self._error.append(error)
        for folder in {path.parent for path, _ in waiting}:
            output_file.sync_folder(folder)
        with self._change:
            for path, _ in waiting:
                self._queued.pop(path, None)
            self._change.notify_all()
