"""Every error edgert raises on purpose.

They form a tree::

    EdgertError
    ├── ConfigError        the pipeline file
    ├── ModelError         the ONNX model
    ├── CalibrationError   ranges for INT8
    ├── PlacementError     layers to accelerators
    ├── BuildError         compiling an engine
    ├── ArtifactError      bundles and caches on disk
    ├── BudgetError        power, memory, latency promises
    ├── DeviceError        a camera, GPU or other device
    └── StageError         a stage of a running pipeline

An error states what happened, why, where, and how to fix it. It has a code, which is stable: that of its class, or one
of its own where ``explanations.md`` has a page about it. A refusal that is normal is a value, not an error.
Anything else that escapes edgert is a bug in edgert.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from logging import LogRecord
from typing import Any
from urllib.parse import quote

EXIT_OK, EXIT_ERROR, EXIT_BUG, EXIT_INTERRUPTED = 0, 1, 70, 130

_HIDDEN_FROM = 4  # characters; hiding shorter values would make nonsense of the text around them
_hidden: dict[str, str] = {}


def hide(value: str, name: str) -> None:
    """Show ``${name}`` in place of that environment variable's value in :func:`printable`, from now on."""
    if len(value) >= _HIDDEN_FROM:
        quoted = (quote(value, safe, errors="surrogateescape") for safe in ("/", ""))
        _hidden.update(dict.fromkeys((value, repr(value)[1:-1], shown(value), *quoted), name))


CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]|\r(?!\n)")
"""Characters that a terminal obeys instead of showing them; a tab and the ends of lines are none. Those that turn the
direction of text let it read as another: https://trojansource.codes."""


def shown(name: str) -> str:
    """Return a file's name as text: a byte that is no UTF-8 (PEP 383: a surrogate) becomes x and two hex digits."""
    return re.sub(r"[\ud800-\udfff]", lambda found: f"\\x{ord(found[0]) & 0xFF:02x}", name)


def printable(text: str) -> str:
    """Return text for a terminal, log or file: without values of :func:`hide`, control characters escaped."""
    text = CONTROL.sub(lambda found: repr(found[0])[1:-1], shown(text))
    for value, name in sorted(_hidden.items(), key=lambda item: -len(item[0])):
        text = text.replace(value, f"${{{name}}}")
    return text


def printable_record(record: LogRecord) -> bool:
    """Make a log record :func:`printable`; a filter of logging that rejects nothing."""
    if _hidden or CONTROL.search(record.getMessage()):
        record.msg, record.args = printable(record.getMessage()), None
    return True


class EdgertError(Exception):
    """Base class of all errors; ``str(error)`` is the complete message, ready to print.

    Args:
        what: one line, what went wrong, with the name of the file, node or stage.
        why: the cause, as far as it is known.
        where: ``file:line key.path`` or the stage or node it belongs to.
        fix: something the reader can do next.
        others: further errors found in the same pass, printed after this one.
        code: of an error with a page of its own, such as ``E103``; default: that of the class. It never changes.
    """

    code = "E000"

    def __init__(
        self,
        what: str,
        *,
        why: str = "",
        where: str = "",
        fix: str = "",
        others: Iterable[EdgertError] = (),
        code: str = "",
    ) -> None:
        self.what, self.why, self.where, self.fix = map(printable, (what, why, where, fix))
        super().__init__(self.what)
        self.others = tuple(others)
        self.code = code or self.code

    def __str__(self) -> str:
        more = "" if self.code == type(self).code else f"edgert explain {self.code}"
        notes = (("why", self.why), ("where", self.where), ("fix", self.fix), ("more", more))
        lines = [self.what, *(f"  {name + ':':<7}{text}" for name, text in notes if text)]
        return "\n".join([printable("\n".join(lines)), *map(str, self.others)])

    def at(self, where: str) -> EdgertError:
        """Return this error with its place filled in, unless it already has a closer one."""
        self.where = self.where or where
        return self

    def caused_by(self, error: BaseException) -> EdgertError:
        """Return this error with another as its cause, as ``raise ... from`` sets it."""
        self.__cause__ = error
        return self

    def again(self) -> EdgertError:
        """Return a copy without cause and traceback, which hold the objects of its origin."""
        other = type(self).__new__(type(self), *self.args)
        other.__dict__.update(self.__dict__, others=tuple(one.again() for one in self.others))
        return other

    def to_json(self) -> dict[str, Any]:
        """Return plain data for another process; :func:`error_of` reads it."""
        texts = {"what": self.what, "why": self.why, "where": self.where, "fix": self.fix}
        parts = {name: printable(text) for name, text in texts.items()}
        return {
            "code": self.code,
            "class": type(self).__name__,
            **parts,
            "others": [one.to_json() for one in self.others],
        }


class ConfigError(EdgertError):
    """The pipeline file has a mistake."""

    code = "E100"


class ModelError(EdgertError):
    """The ONNX model is missing, broken, or unsuitable for this use."""

    code = "E200"


class CalibrationError(EdgertError):
    """Ranges for INT8 could not be measured."""

    code = "E300"


class PlacementError(EdgertError):
    """Layers cannot run on the accelerators that the file names."""

    code = "E400"


class BuildError(EdgertError):
    """An engine could not be compiled."""

    code = "E500"


class ArtifactError(EdgertError):
    """A bundle or cache entry is damaged, of other software or out of date."""

    code = "E600"


class BudgetError(EdgertError):
    """A budget cannot be kept."""

    code = "E700"


class DeviceError(EdgertError):
    """A device is absent, busy, or failed."""

    code = "E800"


class StageError(EdgertError):
    """A stage of a running pipeline failed."""

    code = "E900"


def error_of(plain: Mapping[str, Any]) -> EdgertError:
    """Return an error from another process's plain data, in its class; an unknown class becomes EdgertError."""
    kind = {one.__name__: one for one in _subclasses(EdgertError)}.get(plain["class"], EdgertError)
    parts = {name: plain[name] for name in ("code", "why", "where", "fix")}
    return kind(plain["what"], **parts, others=[error_of(one) for one in plain["others"]])


def _subclasses(kind: type[EdgertError]) -> Iterator[type[EdgertError]]:
    yield kind
    for one in kind.__subclasses__():
        yield from _subclasses(one)


def cause(error: Exception) -> str:
    """Return another library's message, without the number and the path that an OSError repeats."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


class raised_as:  # noqa: N801 - reads as contextlib's
    """Raise an error of edgert in place of errors ``of`` some kind in the block; by default their cause is ``why``.

    A class, as the frames of a generator would keep the error, and all that the block uses, until a collection.
    """

    def __init__(
        self,
        kind: type[EdgertError],
        what: str,
        *,
        of: type[Exception] | tuple[type[Exception], ...] = OSError,
        why: str = "",
        where: str = "",
        fix: str = "",
    ) -> None:
        self._kind, self._of, self._texts = kind, of, (what, why, where, fix)

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, self._of):
            what, why, where, fix = self._texts
            raise self._kind(what, why=why or cause(error), where=where, fix=fix) from error


@contextmanager
def located_at(where: str) -> Iterator[None]:
    """Fill in the place of an error of edgert in the block, unless it already has a closer one."""
    try:
        yield
    except EdgertError as error:
        error.at(where)
        raise


def nearest(word: str, known: Iterable[str]) -> str:
    """Return ``"; did you mean 'x'?"`` for the closest known word, or an empty string."""
    match = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"; did you mean {match[0]!r}?" if match else ""
