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
import re
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Literal, TextIO

from edgert.errors import printable, printable_record

if TYPE_CHECKING:
    from rich.console import Console

GetStages = Callable[[], Mapping[str, object]]
LogFormat = Literal["terminal", "text", "json", "journal"]
"""Form of the log: for people, as lines of text or JSON, or as messages of systemd's journal."""
_PRIORITIES = ((logging.CRITICAL, 2), (logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6))
JOURNAL = "/run/systemd/journal/socket"
_LOGGER = "edgert"
_ABOUT = re.compile(r"stages\.([^:.]*)|(?:stage ')?([^':]*)")
"""Beginning of a message about a stage: ``stages.NAME``, ``stage 'NAME'`` or ``NAME:``."""
RUN_LOG = logging.getLogger("edgert.run")
"""Logger of the verb's own messages."""


def log_format(wanted: str | None, stderr: TextIO) -> LogFormat:
    """Return the requested format of the log; without a request, the one that fits standard error."""
    if wanted is not None:
        return "json" if wanted == "json" else "text"
    if stderr.isatty():
        return "terminal"
    with suppress(OSError, ValueError):  # the stream has no file descriptor
        about = os.fstat(stderr.fileno())
        if os.environ.get("JOURNAL_STREAM") == f"{about.st_dev}:{about.st_ino}":
            return "journal"
    return "text"


def start_log(how: LogFormat, console: Console, *, quiet: bool, stages: GetStages) -> None:
    """Write edgert's log records in this format from now on; with ``quiet``, only warnings and errors.

    ``stages`` returns the pipeline's stages by name, as they are now: sources come and go.
    """
    if how == "terminal":
        from rich.logging import RichHandler

        handler: logging.Handler = RichHandler(
            console=console, show_path=False, show_level=False, log_time_format="%H:%M:%S", markup=False
        )
    elif how == "json":
        handler = _LineHandler(json_stderr().under, stages, json.dumps)
    elif how == "journal":
        handler = _JournalHandler(sys.stderr, stages, _prefixed)
    else:
        handler = _LineHandler(sys.stderr, stages, lambda found: f"{found['time']} {found['level']} {_whole(found)}")
    handler.addFilter(printable_record)
    logger = logging.getLogger(_LOGGER)
    logger.handlers = [handler]
    logger.propagate = False
    logger.setLevel(logging.WARNING if quiet else logging.INFO)


def record_fields(record: logging.LogRecord, stages: Mapping[str, object]) -> dict[str, str]:
    """Return the fields of a record by name.

    They are ``time`` (RFC 3339), ``level``, ``logger`` and ``message``. A record about a stage or stream also has
    ``stage`` and ``stream``. Records worth a filter have a ``code``, given at the call; docs/metrics.md lists them.
    """
    message = record.getMessage()
    found = {
        "time": datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds"),
        "level": record.levelname.lower(),
        "logger": record.name,
        "message": message,
    }
    if code := getattr(record, "code", ""):
        found["code"] = code
    about = next(filter(None, _ABOUT.match(message).groups()), "")  # type: ignore[union-attr]  # it may be empty
    if about in stages:
        found["stage"] = about
        if hasattr(stages[about], "source"):
            found["stream"] = about
    if record.exc_info:
        found["traceback"] = printable("".join(traceback.format_exception(*record.exc_info)))
    return found


class _LineHandler(logging.Handler):
    """A log handler that writes each record as a line, which ``as_line`` makes of its fields."""

    def __init__(self, stream: TextIO, stages: GetStages, as_line: Callable[[dict[str, str]], str]) -> None:
        super().__init__()
        self._stream, self._stages, self._as_line = stream, stages, as_line

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(OSError, ValueError):  # a run goes on when the log's reader is gone or its stream is closed
            self._stream.write(f"{self._as_line(record_fields(record, self._stages()))}\n")
            self._stream.flush()


class _JournalHandler(_LineHandler):
    """A log handler that sends records to systemd's journal; lines with a priority prefix where sending fails."""

    def emit(self, record: logging.LogRecord) -> None:
        found = record_fields(record, self._stages())
        named = {
            "MESSAGE": _whole(found),
            "PRIORITY": str(priority(record.levelno)),
            "SYSLOG_IDENTIFIER": _LOGGER,
            "CODE_FILE": record.pathname,
            "CODE_LINE": str(record.lineno),
            "CODE_FUNC": record.funcName or "",
            **{f"EDGERT_{name.upper()}": found.get(name, "") for name in ("logger", "code", "stage", "stream")},
        }
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as to_journal:
                to_journal.sendto(journal_message(named), socket.MSG_DONTWAIT, JOURNAL)
        except OSError:  # the message is too long, the journal's queue is full, or no journal runs
            super().emit(record)


def _whole(found: Mapping[str, str]) -> str:
    return found["message"] + (f"\n{found['traceback'].rstrip()}" if "traceback" in found else "")


def _prefixed(found: Mapping[str, str]) -> str:
    prefix = f"<{priority(getattr(logging, found['level'].upper(), 0))}>"
    return "\n".join(prefix + line for line in _whole(found).splitlines())


def priority(level: int) -> int:
    """Return the syslog(3) priority of a logging level."""
    return next((number for least, number in _PRIORITIES if level >= least), 7)


def journal_message(named: Mapping[str, str]) -> bytes:
    """Return fields as a message of the journal's protocol, without those that are empty."""
    found = bytearray()
    for name, value in named.items():
        data = value.encode("utf-8", "replace")
        if b"\n" in data:
            found += name.encode() + b"\n" + len(data).to_bytes(8, "little") + data + b"\n"
        elif data:
            found += name.encode() + b"=" + data + b"\n"
    return bytes(found)


class JsonStderr(io.TextIOBase):
    """A replacement of ``sys.stderr`` that turns all text into lines of JSON, for the stream ``under`` it."""

    encoding = "utf-8"

    def __init__(self, under: TextIO) -> None:
        self.under, self._pending, self._lock = under, "", threading.RLock()

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self.under.fileno()

    def write(self, text: str) -> int:
        """Add text to the current message; a line end at the end of the text ends the message."""
        with self._lock:
            self._pending += text
            if self._pending.endswith("\n"):
                message, self._pending = self._pending.strip(), ""
                if message:
                    self._write_message(message)
        return len(text)

    def flush(self) -> None:
        self.under.flush()

    def _write_message(self, message: str) -> None:
        level = logging.ERROR if message.startswith("error: ") else logging.INFO
        record = logging.LogRecord(_LOGGER, level, __file__, 0, printable(message), None, None, "stderr")
        found = record_fields(record, {}) | ({"code": "run.failed"} if level == logging.ERROR else {})
        self.under.write(json.dumps(found) + "\n")
        self.under.flush()


def json_stderr() -> JsonStderr:
    """Replace ``sys.stderr`` by one that writes lines of JSON, unless it is one, and return it."""
    if not isinstance(sys.stderr, JsonStderr):
        sys.stderr = JsonStderr(sys.stderr)
    return sys.stderr
