"""The folder of a collected dataset: written so that it can be read at any moment, and kept within its limits.

An image enters in this order: a line of the index ``collected.jsonl``, the label, the image under its own name, the
annotation file. It leaves in the opposite one. A process that is killed in between leaves lines without an image, which
the next run removes, and nothing else.
"""

from __future__ import annotations

import errno
import json
import os
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from edgert.files import replace_bytes
from edgert.runtime import json_form
from edgert.stages.sink import output_file
from edgert.stages.sink.collect.label_formats import Classes, Sample, coco, data_yaml, yolo_rows
from edgert.stages.sink.output_files import CLOCK_WAS_SET
from edgert.units import format_bytes

Format = Literal["yolo", "coco"]
_SPARE_LINES = 64
"""Lines of images that are gone, beside half as many as there are images, before the index is written anew."""
_LONGEST_INDEX_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a dataset: images, bytes on the disk, age in seconds, and bytes left free on the disk."""

    count: int
    size_bytes: int
    age_s: float
    free_bytes: int


class DatasetFolder:
    """A dataset that images are added to, by one thread.

    The folder may be moved away for labeling at any time: the next image begins a new one.

    Args:
        path: of the folder.
        format: ``yolo``: data.yaml, images and labels; ``coco``: images, and annotations/instances_collected.json.
        where: the sink's stage, for messages.
    """

    def __init__(self, path: Path, format: Format, limits: Limits, where: str) -> None:
        self.path, self._format, self._limits, self._where = path, format, limits, where
        self._images, self._labels, self._parts = path / "images", path / "labels", path / ".parts"
        self._index, self._annotations = path / "collected.jsonl", path / "annotations" / "instances_collected.json"
        self._lock = -1
        self._samples, self._names = deque[Sample](), set[str]()
        self._size_bytes = self._lines = 0
        self._classes = Classes()

    def __len__(self) -> int:
        return len(self._samples)

    @property
    def size_bytes(self) -> int:
        """What the images and their labels take."""
        return self._size_bytes

    def has(self, name: str) -> bool:
        """Return whether an image of that name is there."""
        return name in self._names

    def open(self) -> None:
        """Make the folder, or read what an earlier run left in it.

        Raises:
            OSError: it cannot be read or written.
            StageError: another process, or another stage, writes it.
        """
        for folder in (self._images, self._parts, self._annotations.parent if self._format == "coco" else self._labels):
            folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self._parts, os.O_RDONLY | os.O_CLOEXEC)
        if not output_file.try_lock(descriptor):
            os.close(descriptor)
            raise output_file.written_elsewhere(self._parts, self._where)
        self._lock = descriptor
        for left in self._parts.iterdir():  # by a process that was killed
            left.unlink()
        self._samples.clear()
        self._classes = Classes()
        for line in self._read():
            self._understand(line)
        self._names = {one["image"] for one in self._samples}
        self._size_bytes = sum(one.get("bytes", 0) for one in self._samples)
        self._write_index()
        self._describe()

    def close(self) -> None:
        """Give the folder back."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1
            with suppress(OSError):
                self._parts.rmdir()

    def add(self, image: memoryview, sample: Sample, found: Any) -> None:
        """Add an image, and remove the oldest ones beyond the limits.

        Args:
            image: the bytes of its file.
            sample: what is known of it; its labels are added here.
            found: the detections in it.

        Raises:
            OSError: the disk is full, or fails; nothing was added.
            StageError: another process has the folder meanwhile.
        """
        self._come_back()
        if self._classes.take(found):
            self._append({"names": self._classes.names, "points": self._classes.points})
            if self._format == "yolo":
                self._describe()
        sample["objects"] = self._classes.objects(found, sample["size"])
        label = yolo_rows(sample, self._classes.points).encode() if self._format == "yolo" else b""
        line_bytes = len(json_form.encoded(sample)) * (2 if self._format == "yolo" else 4)  # the index is written anew
        sample["bytes"] = image.nbytes + len(label) + line_bytes
        self._check_room(sample["bytes"])
        part = self._parts / sample["image"]
        try:
            part.write_bytes(image)
            output_file.sync_file(part)
            self._append(sample)
            if label or self._format == "yolo":
                replace_label(self._labels / sample["image"], label, self._parts)
            part.replace(self._images / sample["image"])
        except OSError:
            part.unlink(missing_ok=True)
            raise
        self._samples.append(sample)
        self._names.add(sample["image"])
        self._size_bytes += sample["bytes"]
        self.tend(sample["time_s"], has_new=True)

    def tend(self, now_s: float, has_new: bool = False) -> None:
        """Remove what is beyond the limits at a time in seconds of the epoch. Raises OSError."""
        gone = []
        limits = self._limits
        while self._samples and (
            len(self._samples) > limits.count
            or self._size_bytes > limits.size_bytes
            or CLOCK_WAS_SET < self._samples[0]["time_s"] < now_s - limits.age_s
        ):
            old = self._samples.popleft()
            self._names.discard(old["image"])
            self._size_bytes -= old.get("bytes", 0)
            gone.append(old)
        try:
            if self._format == "coco" and (gone or has_new):
                self._describe()
        finally:  # on a full disk, too: this is what makes room
            for old in gone:
                (self._images / old["image"]).unlink(missing_ok=True)
                self._label_file(old).unlink(missing_ok=True)
        if self._lines > 1.5 * len(self._samples) + _SPARE_LINES:
            self._write_index()

    def _come_back(self) -> None:
        """Begin a new folder where this one was moved away or removed."""
        with suppress(FileNotFoundError):
            if self._lock >= 0 and os.path.samestat(self._parts.stat(), os.fstat(self._lock)):
                return
        self.close()
        self.open()

    def _check_room(self, more_bytes: int) -> None:
        """Raise OSError where an image would not fit."""
        limits, disk = self._limits, os.statvfs(self.path)
        free_bytes, left = disk.f_bavail * disk.f_frsize - more_bytes, format_bytes(limits.free_bytes)
        if free_bytes < limits.free_bytes:
            why = f"{format_bytes(max(free_bytes, 0))} are free, and keep: free leaves {left}"
            raise OSError(errno.ENOSPC, why, str(self.path))
        if more_bytes > limits.size_bytes:
            why = f"an image takes {format_bytes(more_bytes)}, more than keep: size"
            raise OSError(errno.EFBIG, why, str(self.path))

    def _read(self) -> list[dict[str, Any]]:
        """Return the lines of the index; those that are damaged are left out."""
        try:
            with self._index.open("rb") as file:
                lines = file.read(_LONGEST_INDEX_BYTES).splitlines()
        except FileNotFoundError:
            return []
        found = []
        for line in lines:
            with suppress(ValueError):  # a power cut may leave half a line
                found.append(json.loads(line))
        return [one for one in found if isinstance(one, dict)]

    def _understand(self, line: dict[str, Any]) -> None:
        if isinstance(names := line.get("names"), list) and isinstance(points := line.get("points"), int):
            self._classes.names, self._classes.points = [str(one) for one in names], points
            return
        sample = cast("Sample", line)
        try:
            coco([sample], self._classes)  # whether all of it is there
            image = self._images / Path(sample["image"]).name
            float(sample["time_s"]), int(sample["bytes"])
        except (KeyError, TypeError, ValueError):
            return
        if image.is_file():
            self._samples.append(sample)
        else:
            self._label_file(sample).unlink(missing_ok=True)

    def _label_file(self, sample: Sample) -> Path:
        return (self._labels / Path(sample["image"]).name).with_suffix(".txt")

    def _append(self, line: Mapping[str, Any]) -> None:
        """Add a line to the index: all of it, or nothing."""
        with self._index.open("ab") as file:
            end = file.tell()
            try:
                file.write(json_form.encoded(line) + b"\n")
                file.flush()
            except OSError:
                with suppress(OSError):
                    os.truncate(self._index, end)
                raise
        self._lines += 1

    def _write_index(self) -> None:
        about = {"names": self._classes.names, "points": self._classes.points}
        lines = [json_form.encoded(one) for one in ([about] if self._classes.names else []) + [*self._samples]]
        replace_bytes(self._index, b"".join(line + b"\n" for line in lines))
        self._lines = len(lines)

    def _describe(self) -> None:
        """Write what makes the folder a dataset."""
        if self._format == "yolo":
            if self._classes.names:
                replace_bytes(self.path / "data.yaml", data_yaml(self._classes).encode())
        else:
            replace_bytes(self._annotations, json_form.encoded(coco(self._samples, self._classes)))


def replace_label(image: Path, label: bytes, parts: Path) -> None:
    """Write the label file of an image: all of it, or nothing. Raises OSError."""
    part = (parts / image.name).with_suffix(".txt")
    try:
        part.write_bytes(label)
        part.replace(image.with_suffix(".txt"))
    except OSError:
        part.unlink(missing_ok=True)
        raise
