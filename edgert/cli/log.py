"""The log of ``edgert run``: on the terminal, in systemd's journal, or as lines of text or of JSON.

The journal gets its fields by its own protocol (https://systemd.io/JOURNAL_NATIVE_PROTOCOL): a datagram for each
message, sent without waiting. So a journal that hangs cannot delay a camera. Where sending fails, the line goes to
standard error with the priority prefix of sd-daemon(3).
"""

from __future__ import annotations

import io
import json
import logging
import os
import socket
import sys
import threading
import traceback
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from contextlib import suppress
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Literal, TextIO

from edgert.errors import printable, printable_record

if TYPE_CHECKING:
    from rich.console import Console

Way = Literal["terminal", "text", "json", "journal"]
_PRIORITIES = ((logging.CRITICAL, 2), (logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6))
JOURNAL = "/run/systemd/journal/socket"
_LOGGER = "edgert"
RUN = logging.getLogger("edgert.run")
"""Of the verb itself."""


def way(wanted: str | None, stderr: TextIO) -> Way:
    """Return how the log is written: as wanted, else by what standard error is."""
    if wanted is not None:
        return "json" if wanted == "json" else "text"
    if stderr.isatty():
        return "terminal"
    with suppress(OSError, ValueError):  # no descriptor behind it
        about = os.fstat(stderr.fileno())
        if os.environ.get("JOURNAL_STREAM") == f"{about.st_dev}:{about.st_ino}":
            return "journal"
    return "text"


def begin(how: Way, console: Console, *, quiet: bool, sources: Collection[str], stages: Collection[str]) -> None:
    """Send edgert's records there from now on; all of them, or with ``quiet`` warnings and errors.

    Args:
        how: where the log goes.
        console: of the terminal, which a live view may share.
        quiet: whether only warnings and errors are sent.
        sources: of the pipeline; each is a stream.
        stages: of the pipeline, the sources too.
    """
    handler: logging.Handler
    if how == "terminal":
        from rich.logging import RichHandler

        handler = RichHandler(
            console=console, show_path=False, show_level=False, log_time_format="%H:%M:%S", markup=False
        )
    elif how == "json":
        handler = _Json(json_stderr().under, sources, stages)
    elif how == "journal":
        handler = _Journal(sys.stderr, sources, stages)
    else:
        handler = _Text(sys.stderr, sources, stages)
    handler.addFilter(printable_record)
    logger = logging.getLogger(_LOGGER)
    logger.handlers = [handler]
    logger.propagate = False
    logger.setLevel(logging.WARNING if quiet else logging.INFO)


def fields(record: logging.LogRecord, sources: Collection[str], stages: Collection[str]) -> dict[str, str]:
    """Return the fields of a record by name.

    They are ``time`` (RFC 3339), ``level``, ``logger``, ``message`` and ``code``. ``code`` is the part of edgert that
    wrote it, a name that does not change with the words. A record about a stage or stream also has ``stage`` and
    ``stream``.
    """
    message = record.getMessage()
    found = {
        "time": datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds"),
        "level": record.levelname.lower(),
        "logger": record.name,
        "message": message,
        "code": f"{record.module}.{record.funcName}",
    }
    about = message.partition(":")[0].removeprefix("stage ").strip("'")  # as messages about a stage begin
    if about in stages:
        found["stage"] = about
    if about in sources:
        found["stream"] = about
    if record.exc_info:
        found["traceback"] = printable("".join(traceback.format_exception(*record.exc_info)))
    return found


class _Lines(logging.Handler, ABC):
    """A line for each record."""

    def __init__(self, stream: TextIO, sources: Collection[str], stages: Collection[str]) -> None:
        super().__init__()
        self._stream, self._sources, self._stages = stream, sources, stages

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(OSError, ValueError):  # the reader is gone, or the stream is closed: no reason to stop a run
            self._stream.write(f"{self.line(fields(record, self._sources, self._stages), record.levelno)}\n")
            self._stream.flush()

    @abstractmethod
    def line(self, found: Mapping[str, str], level: int) -> str:
        """Return the record's line, without its end."""


class _Text(_Lines):
    def line(self, found: Mapping[str, str], level: int) -> str:
        return f"{found['time']} {found['level']} {found['message']}" + _below(found)


class _Json(_Lines):
    def line(self, found: Mapping[str, str], level: int) -> str:
        return json.dumps(found)


class _Journal(_Lines):
    """Log handler that sends datagrams to the systemd journal, or prints lines with a priority where there is none."""

    def __init__(self, stream: TextIO, sources: Collection[str], stages: Collection[str]) -> None:
        super().__init__(stream, sources, stages)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)

    def emit(self, record: logging.LogRecord) -> None:
        found = fields(record, self._sources, self._stages)
        named = {
            "MESSAGE": found["message"] + _below(found),
            "PRIORITY": str(priority(record.levelno)),
            "SYSLOG_IDENTIFIER": _LOGGER,
            "CODE_FILE": record.pathname,
            "CODE_LINE": str(record.lineno),
            "CODE_FUNC": record.funcName or "",
            **{f"EDGERT_{name.upper()}": found.get(name, "") for name in ("logger", "code", "stage", "stream")},
        }
        try:
            self._socket.sendto(entry(named), socket.MSG_DONTWAIT, JOURNAL)
        except OSError:  # too long, too many at once, or no journal there
            super().emit(record)

    def line(self, found: Mapping[str, str], level: int) -> str:
        return "\n".join(f"<{priority(level)}>{line}" for line in (found["message"] + _below(found)).splitlines())


def _below(found: Mapping[str, str]) -> str:
    return f"\n{found['traceback'].rstrip()}" if "traceback" in found else ""


def priority(level: int) -> int:
    """Return the priority of syslog(3) for a level of logging."""
    return next((number for least, number in _PRIORITIES if level >= least), 7)


def entry(named: Mapping[str, str]) -> bytes:
    """Return a message of the journal's protocol; fields without a value are left out."""
    found = bytearray()
    for name, value in named.items():
        data = value.encode("utf-8", "replace")
        if b"\n" in data:
            found += name.encode() + b"\n" + len(data).to_bytes(8, "little") + data + b"\n"
        elif data:
            found += name.encode() + b"=" + data + b"\n"
    return bytes(found)


class JsonStderr(io.TextIOBase):
    """A standard error that turns all text into lines of JSON, whichever Python code writes it.

    Attributes:
        under: the standard error below.
    """

    encoding = "utf-8"

    def __init__(self, under: TextIO) -> None:
        self.under, self._pending, self._lock = under, "", threading.RLock()

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self.under.fileno()

    def write(self, text: str) -> int:
        """Write text; text that ends with a line end is one message, however many lines it has."""
        with self._lock:
            self._pending += text
            if self._pending.endswith("\n"):
                message, self._pending = self._pending.strip(), ""
                if message:
                    self._say(message)
        return len(text)

    def flush(self) -> None:
        self.under.flush()

    def _say(self, message: str) -> None:
        level = logging.ERROR if message.startswith("error: ") else logging.INFO
        record = logging.LogRecord(_LOGGER, level, __file__, 0, printable(message), None, None, "stderr")
        found: dict[str, Any] = fields(record, (), ())
        self.under.write(json.dumps(found) + "\n")
        self.under.flush()


def json_stderr() -> JsonStderr:
    """Turn standard error into lines of JSON from now on, and return it."""
    if not isinstance(sys.stderr, JsonStderr):
        sys.stderr = JsonStderr(sys.stderr)
    return sys.stderr
