"""A bundle as a folder of plain files, for looking into while developing."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from edgert.artifact.atomic import written
from edgert.artifact.exchange import exchange
from edgert.artifact.manifest import NAME
from edgert.artifact.member import check_paths
from edgert.errors import ArtifactError, cause


class FolderContainer:
    """A folder's files as members.

    Raises:
        ArtifactError: it cannot be read, or holds a link or something else that is no plain file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.sizes: Mapping[str, int] = _sizes(path)
        except OSError as error:
            raise ArtifactError(f"cannot read {str(path)!r}", why=cause(error)) from error
        check_paths(self.sizes, str(path))

    def read(self, path: str) -> bytes:
        """A member's bytes. Raises ArtifactError."""
        try:
            return (self.path / path).read_bytes()
        except OSError as error:
            raise ArtifactError(f"cannot read {str(self.path / path)!r}", why=cause(error)) from error

    def close(self) -> None:
        """Nothing: no file is held open."""


def _sizes(root: Path) -> dict[str, int]:
    found = {}
    for folder, folders, files in os.walk(root):
        for name in (*folders, *files):
            path = Path(folder) / name
            if path.is_symlink() or not (path.is_dir() or path.is_file()):
                raise ArtifactError(
                    f"{root} is no bundle of edgert's",
                    why=f"{path.relative_to(root).as_posix()!r} is a link or no plain file",
                    fix="name what edgert build wrote",
                )
            if path.is_file():
                found[path.relative_to(root).as_posix()] = path.stat().st_size
    return found


def write_folder(path: Path, members: Mapping[str, bytes]) -> None:
    """Writes members as files; a folder that is there already gives way only if it is a bundle.

    Whoever looks, or comes after a kill, finds the old bundle or the new one; none for a moment on the few file systems
    that cannot exchange two folders.

    Raises:
        ArtifactError: it cannot be written, or something else is in its place.
    """
    check_paths(members)
    if path.exists() and not (path.is_dir() and ((path / NAME).is_file() or not any(path.iterdir()))):
        raise ArtifactError(
            f"cannot write {str(path)!r}", why="something else than a bundle is there", fix="name another folder"
        )
    with written(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}-") as name:
            new = Path(name) / "new"
            for member, content in members.items():
                (new / member).parent.mkdir(parents=True, exist_ok=True)
                (new / member).write_bytes(content)
            _take_place(new, path)


def _take_place(new: Path, path: Path) -> None:
    """Puts a folder where another may be, which is then beside it or where it was."""
    if path.exists() and exchange(new, path):
        return
    if path.exists():
        path.rename(new.with_name("old"))
    new.rename(path)
