"""What another machine has to know of this one before it sends it work, as plain data."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from edgert import __version__
from edgert.artifact import cache_folder
from edgert.board import detect


def facts(root: str | Path = "/") -> dict[str, Any]:
    """Version of edgert; name of the board, its power mode and releases, all empty where there are none; where the
    cache is, and the bytes that its disk has left for this user.

    Raises:
        ArtifactError: there is no home folder, and no ``EDGERT_CACHE``.
    """
    here, folder = detect(Path(root)), cache_folder().absolute()
    there = next(path for path in (folder, *folder.parents) if path.exists())
    return {
        "edgert": __version__,
        "board": here.name,
        "mode": here.mode,
        "l4t": here.l4t,
        "jetpack": here.jetpack,
        "cache": str(folder),
        "free_bytes": shutil.disk_usage(there).free,
    }
