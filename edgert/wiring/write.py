"""Writing a pipeline file where there was none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from edgert.config import load_pipeline
from edgert.errors import ConfigError, cause


def refuse_existing(path: Path, force: bool) -> None:
    """Raises ConfigError when there is a file already and it is not to be replaced."""
    if path.exists() and (not force or path.is_dir()):
        fix = "choose another --output" if path.is_dir() else "--force replaces it, or choose another --output"
        raise ConfigError(f"{str(path)!r} exists already", why="nothing was written", fix=fix)


def write_pipeline(text: str, path: Path, force: bool) -> None:
    """Writes a pipeline file whole or not at all, and checks that it loads.

    Raises:
        ConfigError: the file exists, or cannot be written.
    """
    refuse_existing(path, force)
    part = path.with_name(f"{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(text, encoding="utf-8")
        load_pipeline(part, env=_AnyValue())
        part.replace(path)
    except OSError as error:
        raise ConfigError(f"cannot write {str(path)!r}", why=cause(error)) from error
    finally:
        part.unlink(missing_ok=True)


class _AnyValue(dict[str, str]):
    """An environment where every variable is set: a source may name one that only the target machine has."""

    def get(self, key: str, default: Any = None) -> str:
        return key if default is None else str(default)
