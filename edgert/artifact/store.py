"""Files that are expensive to make, kept between runs: written atomically, checked when read."""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import tempfile
from pathlib import Path

from edgert.errors import ArtifactError

log = logging.getLogger("edgert.artifact")


def cache_folder() -> Path:
    """``$EDGERT_CACHE``, else ``$XDG_CACHE_HOME/edgert``, else ``~/.cache/edgert``."""
    own = os.environ.get("EDGERT_CACHE")
    if own:
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "edgert"


class FileStore:
    """A folder of checksummed files, the least recently used going first when it grows too large.

    Args:
        folder: made when first written to.
        limit_bytes: size the folder is kept under.
    """

    def __init__(self, folder: Path, limit_bytes: int = 2 * 2**30) -> None:
        self.folder, self.limit_bytes = folder, limit_bytes

    def get(self, key: str) -> Path | None:
        """The file kept under ``key``; None if there is none. A damaged one is removed, and said so."""
        path = self.folder / f"{key}.bin"
        try:
            expected = path.with_suffix(".sha256").read_text().strip()
            if _digest(path) == expected:
                os.utime(path)
                return path
        except FileNotFoundError:
            return None
        except OSError as error:
            log.warning("cannot read the cache (%s); compiling afresh", error)
            return None
        log.warning("cache entry %s is damaged; compiling afresh", path)
        self._remove(path)
        return None

    def put(self, key: str, content: Path) -> Path:
        """Moves ``content`` into the store. A reader sees all of it or nothing. Raises ArtifactError if it cannot."""
        path = self.folder / f"{key}.bin"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=self.folder, prefix=".new-") as folder:
                body, digest = Path(folder) / "body", Path(folder) / "digest"
                shutil.copyfile(content, body)
                digest.write_text(_digest(body))
                os.replace(digest, path.with_suffix(".sha256"))
                os.replace(body, path)
            self._prune(keep=path)
        except OSError as error:
            raise ArtifactError(
                f"cannot write to the cache {self.folder}",
                why=str(error),
                fix="free some space, or point EDGERT_CACHE at a folder that can be written",
            ) from error
        return path

    def _prune(self, keep: Path) -> None:
        files = sorted(self.folder.glob("*.bin"), key=lambda path: path.stat().st_mtime)
        total = sum(path.stat().st_size for path in files)
        for path in files:
            if total <= self.limit_bytes:
                return
            if path != keep:
                total -= path.stat().st_size
                self._remove(path)

    @staticmethod
    def _remove(path: Path) -> None:
        path.unlink(missing_ok=True)
        path.with_suffix(".sha256").unlink(missing_ok=True)


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
