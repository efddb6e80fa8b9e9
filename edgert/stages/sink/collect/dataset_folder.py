"""The folder of a collected dataset, which is readable at any moment and stays within its limits.

An image is added in this order: a line in the index ``collected.jsonl``, the label, the image under its name, the
annotation file. It is removed in the opposite order. So a process that is killed only leaves lines without an image,
which the next run removes.
"""

import errno
import json
import os
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, cast

from edgert.files import is_file, replace_bytes
from edgert.runtime import json_form
from edgert.stages.sink import output_file, retention
from edgert.stages.sink.collect.label_formats import Classes, Sample, coco, data_yaml, yolo_rows
from edgert.units import format_bytes

Format = Literal["yolo", "coco"]
_SPARE_LINES = 64
"""Superfluous lines, beyond half the number of images, from which the index is written again."""
_LONGEST_INDEX_BYTES = 1 << 30


class DatasetFolder:
    """A dataset to which one thread adds images.

    The folder may be moved away for labeling at any time: the next image begins a new one.

    Args:
        format: ``yolo``: data.yaml, images and labels; ``coco``: images, and annotations/instances_collected.json.
        count, size, age: maximum number of images, bytes on the disk, and age in seconds.
        free: bytes that stay free on the disk.
    """

    def __init__(self, path: Path, format: Format, where: str, *, count: int, size: int, age: float, free: int) -> None:
        self.path, self._format, self._where = path, format, where
        self._most, self._most_bytes, self._age_s, self._free_bytes = count, size, age, free
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
        """Size of the images and their labels."""
        return self._size_bytes

    def has(self, name: str) -> bool:
        """Return whether the dataset has an image of a name."""
        return name in self._names

    def open(self) -> None:
        """Create the folder, or read the dataset of an earlier run.

        Raises:
            OSError: it cannot be read or written.
            StageError: another process, or another stage, writes it.
        """
        for folder in (self._images, self._parts, self._annotations.parent if self._format == "coco" else self._labels):
            folder.mkdir(parents=True, exist_ok=True)
        self._lock = output_file.lock_folder(self._parts, self._where)
        self._samples.clear()
        self._classes = Classes()
        for line in self._index_lines():
            self._restore(line)
        self._names = {one["image"] for one in self._samples}
        self._size_bytes = sum(one.get("bytes", 0) for one in self._samples)
        self._write_index()
        self._write_description()

    def close(self) -> None:
        """Release the folder."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1
            with suppress(OSError):
                self._parts.rmdir()

    def add(self, image: memoryview, sample: Sample, found: Any) -> None:
        """Add an image, and remove the oldest ones beyond the limits.

        Args:
            image: content of the image file.
            sample: description of the image; its labels are added to it.
            found: detections in it.

        Raises:
            OSError: the disk is full, or fails. Nothing was added then.
            StageError: another process writes the folder by now.
        """
        self._reopen_if_moved()
        if self._classes.take(found):
            self._append({"names": self._classes.names, "points": self._classes.points})
            if self._format == "yolo":
                self._write_description()
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
        self.remove_excess(sample["time_s"], has_new=True)

    def remove_excess(self, now_s: float, has_new: bool = False) -> None:
        """Remove the oldest images beyond the limits, at a time in seconds of the epoch. Raises OSError."""
        gone = []
        while self._samples and (
            len(self._samples) > self._most
            or self._size_bytes > self._most_bytes
            or retention.CLOCK_WAS_SET < self._samples[0]["time_s"] < now_s - self._age_s
        ):
            old = self._samples.popleft()
            self._names.discard(old["image"])
            self._size_bytes -= old.get("bytes", 0)
            gone.append(old)
        try:
            if self._format == "coco" and (gone or has_new):
                self._write_description()
        finally:  # also on a full disk, because this makes room
            for old in gone:
                (self._images / old["image"]).unlink(missing_ok=True)
                self._label_file(old).unlink(missing_ok=True)
        if self._lines > 1.5 * len(self._samples) + _SPARE_LINES:
            self._write_index()

    def _reopen_if_moved(self) -> None:
        """Begin a new folder if this one was moved away or removed."""
        with suppress(FileNotFoundError):
            if self._lock >= 0 and os.path.samestat(self._parts.stat(), os.fstat(self._lock)):
                return
        self.close()
        self.open()

    def _check_room(self, more_bytes: int) -> None:
        """Raise OSError for an image that does not fit."""
        disk = os.statvfs(self.path)
        free_bytes, left = disk.f_bavail * disk.f_frsize - more_bytes, format_bytes(self._free_bytes)
        if free_bytes < self._free_bytes:
            why = f"{format_bytes(max(free_bytes, 0))} are free, and keep: free leaves {left}"
            raise OSError(errno.ENOSPC, why, str(self.path))
        if more_bytes > self._most_bytes:
            why = f"an image takes {format_bytes(more_bytes)}, more than keep: size"
            raise OSError(errno.EFBIG, why, str(self.path))

    def _index_lines(self) -> list[dict[str, Any]]:
        """Return the lines of the index, without damaged ones."""
        try:
            with self._index.open("rb") as file:
                lines = file.read(_LONGEST_INDEX_BYTES).splitlines()
        except FileNotFoundError:
            return []
        found = []
        for line in lines:
            with suppress(ValueError, RecursionError):  # a power cut may leave an incomplete line
                found.append(json.loads(line))
        return [one for one in found if isinstance(one, dict)]

    def _restore(self, line: dict[str, Any]) -> None:
        """Take the classes or the sample of a line, if its image exists; ignore incomplete lines."""
        if isinstance(names := line.get("names"), list) and isinstance(points := line.get("points"), int):
            self._classes.names, self._classes.points = [str(one) for one in names], points
            return
        sample = cast("Sample", line)
        try:
            coco([sample], self._classes)  # raises for missing parts
            float(sample["time_s"]), int(sample["bytes"])
            image = self._images / sample["image"]
            if image.parent == self._images and is_file(image):
                self._samples.append(sample)
            else:
                with suppress(OSError):  # the name may be longer than any file's
                    self._label_file(sample).unlink(missing_ok=True)
        except (KeyError, TypeError, ValueError, OverflowError):
            return

    def _label_file(self, sample: Sample) -> Path:
        return (self._labels / Path(sample["image"]).name).with_suffix(".txt")

    def _append(self, line: Mapping[str, Any]) -> None:
        """Add a line to the index, completely or not at all. Raises OSError."""
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

    def _write_description(self) -> None:
        """Write ``data.yaml``, or the annotation file of COCO."""
        if self._format == "yolo":
            if self._classes.names:
                replace_bytes(self.path / "data.yaml", data_yaml(self._classes).encode())
        else:
            replace_bytes(self._annotations, json_form.encoded(coco(self._samples, self._classes)))


def replace_label(image: Path, label: bytes, parts: Path) -> None:
    """Write the label file of an image, completely or not at all. Raises OSError."""
    part = (parts / image.name).with_suffix(".txt")
    try:
        part.write_bytes(label)
        part.replace(image.with_suffix(".txt"))
    except OSError:
        part.unlink(missing_ok=True)
        raise
