"""Build hook of Hatch that writes the commit into a wheel or sdist, for ``edgert --version``."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CommitHook(BuildHookInterface[Any]):
    """Writer of the commit to ``edgert/data/commit.txt`` of a wheel, or ``COMMIT`` of an sdist."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the file, except to an editable installation, which asks Git."""
        commit = commit_of(Path(self.root))
        if version == "editable" or not commit:
            return
        self._folder = tempfile.TemporaryDirectory()
        file = Path(self._folder.name) / "COMMIT"
        file.write_text(f"{commit}\n", encoding="ascii")
        target = "edgert/data/commit.txt" if self.target_name == "wheel" else "COMMIT"
        build_data["force_include"][str(file)] = target


def commit_of(root: Path) -> str:
    """Return the commit of a checkout or an unpacked sdist; empty for other folders."""
    if (kept := root / "COMMIT").is_file():
        return kept.read_text(encoding="ascii").strip()
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()
