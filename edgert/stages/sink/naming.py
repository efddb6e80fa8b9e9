"""File names made from a pattern, and the folders they lie in."""

from __future__ import annotations

import re
from pathlib import Path

from edgert.errors import StageError, nearest

_FIELD = re.compile(r"\{([^{}:]*)(?::([^{}]*))?\}")
_WIDTH = re.compile(r"0?[1-9]?d?")
_UNSAFE = re.compile(r"[^\w.\-]|^\.")


def check_pattern(pattern: Path, fields: tuple[str, ...], where: str) -> None:
    """Raises StageError when ``pattern`` has a ``{field}`` other than ``fields``, or one it cannot format."""
    for name, spec in _FIELD.findall(str(pattern)):
        if name not in fields:
            raise StageError(
                f"{pattern} has an unknown field {{{name}}}{nearest(name, fields)}",
                where=where,
                fix="known: " + ", ".join(f"{{{field}}}" for field in fields),
            )
        if spec and (name != "frame" or not _WIDTH.fullmatch(spec)):
            raise StageError(
                f"{pattern}: cannot format {{{name}:{spec}}}", where=where, fix="write {frame:06d} or {stream}"
            )


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
        raise StageError(f"cannot make the folder {path.parent}", why=_reason(error), where=where) from error


def cannot_write(path: Path, error: OSError, where: str, kept: str = "") -> StageError:
    """The error for a file that does not take what is written to it."""
    return StageError(
        f"cannot write {path}",
        why="; ".join(filter(None, (_reason(error), kept))),
        where=where,
        fix="free some space or choose another path" if error.errno is not None else "",
    )


def _reason(error: OSError) -> str:
    return error.strerror or str(error)
