"""Text files that are there whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from edgert.errors import ArtifactError


def replace_text(path: Path, text: str) -> None:
    """Writes a file so that a reader, and whoever comes after a crash, finds the old content or the new one.

    Missing folders are made.

    Raises:
        ArtifactError: it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
        part = Path(name)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise ArtifactError(
            f"cannot write {str(path)!r}", why=str(error), fix="free some space, or choose a folder that can be written"
        ) from error
