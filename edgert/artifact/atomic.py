"""Files that are there whole or not at all."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from edgert.errors import ArtifactError, cause


def replace_text(path: Path, text: str) -> None:
    """Writes a text file in UTF-8; see :func:`replace_bytes`."""
    replace_bytes(path, text.encode("utf-8"))


def replace_bytes(path: Path, content: bytes) -> None:
    """Writes a file so that a reader, and whoever comes after a crash, finds the old content or the new one.

    Missing folders are made; the new file has the old one's permissions.

    Raises:
        ArtifactError: it cannot be written.
    """
    with replacing(path) as file:
        file.write(content)


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """An empty file to write and read, which takes the place of the one at ``path`` when the block ends without error.

    Folders, permissions and errors are as with :func:`replace_bytes`.
    """
    with written(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{path.name}-{uuid.uuid4().hex}")
        try:
            with part.open("x+b") as file:  # not a temporary file, which nobody else may read
                yield file
            if path.exists():
                part.chmod(path.stat().st_mode & 0o777)
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)


@contextmanager
def written(path: Path) -> Iterator[None]:
    """Turns what goes wrong with files in the block into an ArtifactError: ``path`` cannot be written."""
    try:
        yield
    except OSError as error:
        raise ArtifactError(
            f"cannot write {str(path)!r}",
            why=cause(error),
            fix="free some space, or choose a folder that can be written",
        ) from error
