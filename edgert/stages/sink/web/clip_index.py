"""Recordings of events that the live page plays: only files in the index of a ``record`` sink."""

import json
import re
from collections import OrderedDict
from http import HTTPStatus
from pathlib import Path

from edgert.stages.sink.web.http_exchange import Response

_REMEMBERED = 1000
_READ_BYTES = 1 << 22  # the end of the index that is read; older lines are of events that are no longer shown
PART_BYTES = 1 << 22
"""Maximum size of one answer; players then ask for the next part."""
RANGE = re.compile(r"bytes=(?!-$)(\d{0,15})-(\d{0,15})")
_TYPES = {".mp4": "video/mp4", ".mov": "video/quicktime", ".mkv": "video/x-matroska"}


class ClipIndex:
    """The files of an index, by event. Not thread-safe.

    Args:
        index: path of the index, which need not exist yet.

    Attributes:
        count: number of lines read so far.
    """

    def __init__(self, index: Path) -> None:
        self._index, self._read_bytes = index, 0
        self._paths = OrderedDict[str, Path]()
        self.count = 0

    def refresh(self) -> None:
        """Read the lines that were added to the index."""
        try:
            with self._index.open("rb") as file:
                size = file.seek(0, 2)
                if size < self._read_bytes:  # it was replaced
                    self._read_bytes = 0
                begin = file.seek(max(self._read_bytes, size - _READ_BYTES))
                new = file.read(_READ_BYTES)
        except OSError:  # nothing is recorded yet, or the disk is gone
            return
        complete = new[: new.rfind(b"\n") + 1]
        self._read_bytes = begin + len(complete)
        for line in complete.splitlines():
            self._add(line)

    def _add(self, line: bytes) -> None:
        try:
            row = json.loads(line)
            path, ids = self._index.parent / row["path"], [str(event["id"]) for event in row.get("events") or ()]
            is_inside = path.resolve().is_relative_to(self._index.parent.resolve())
        except (ValueError, KeyError, TypeError, OSError, RuntimeError):
            return  # a part of a line, because reading began inside it or a power cut ended it; or noise
        self.count += 1
        if is_inside and path.suffix in _TYPES:
            for event in ids:
                if event not in self._paths or row.get("annotated"):
                    self._paths[event] = path
        while len(self._paths) > _REMEMBERED:
            self._paths.popitem(last=False)

    def address(self, event: str) -> str:
        """Return the path on the page of an event's recording; empty where there is none."""
        path = self._paths.get(event)
        return f"/clips/{event}{path.suffix}" if path is not None and path.is_file() else ""

    def part(self, address: str, wanted: str) -> Response | None:
        """Return the part of a recording that a ``Range`` header requests (RFC 9110, section 14), else the first part.

        Args:
            address: path on the page.
            wanted: ``Range`` header; empty without one.

        Returns:
            The answer; None where there is no such recording.
        """
        found = re.fullmatch(r"/clips/([0-9a-f]{1,64})(\.\w+)", address)
        path = self._paths.get(found[1]) if found else None
        if path is None or found is None or path.suffix != found[2]:
            return None
        begin, end = part.groups() if (part := RANGE.fullmatch(wanted)) else ("0", "")
        try:
            with path.open("rb") as file:
                size = file.seek(0, 2)
                first = int(begin) if begin else max(0, size - int(end))
                last = min(int(end) if begin and end else size - 1, size - 1, first + PART_BYTES - 1)
                if first > last:
                    about = {"Content-Range": f"bytes */{size}"}
                    return Response(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, "text/plain", b"", about)
                file.seek(first)
                content = file.read(last - first + 1)
        except OSError:  # it was removed in the meantime
            return None
        about = {"Content-Range": f"bytes {first}-{first + len(content) - 1}/{size}", "Accept-Ranges": "bytes"}
        return Response(HTTPStatus.PARTIAL_CONTENT, _TYPES[path.suffix], content, about)
