"""Class names from a text file."""

from __future__ import annotations

from pathlib import Path

from edgert.errors import ConfigError, cause


def read_labels(path: Path, where: str = "") -> tuple[str, ...]:
    """One name per line, in the order of the model's classes; blank lines at the end do not count.

    Raises:
        ConfigError: no such file, not text, no names, or a blank line between names (all later classes would shift).
    """
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8-sig").splitlines()]
    except FileNotFoundError as error:
        raise ConfigError(f"no such file: {path}", why="labels are read from it", where=where) from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read labels from {path}", why=cause(error), where=where) from error
    while lines and not lines[-1]:
        lines.pop()
    if not lines or "" in lines:
        why = f"line {lines.index('') + 1} is blank" if lines else "it is empty"
        raise ConfigError(f"{path} is not a list of labels", why=why, where=where, fix="write one class name a line")
    return tuple(lines)
