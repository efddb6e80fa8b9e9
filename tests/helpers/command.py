"""Running ``edgert`` as a user does: a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DATA = Path(os.environ.get("EDGERT_DATA", ROOT / ".." / "shared" / "data")).resolve()


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's environment, with edgert importable from anywhere."""
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    return {**os.environ, "PYTHONPATH": paths, "COLUMNS": "100", "NO_COLOR": "1", **(extra or {})}


def edgert(
    *arguments: str, cwd: Path, env: Mapping[str, str] | None = None, timeout_s: float = 120
) -> subprocess.CompletedProcess[str]:
    """Runs ``edgert ARGUMENTS`` to its end."""
    return subprocess.run(
        [sys.executable, "-m", "edgert", *arguments],
        cwd=cwd,
        env=environment(env),
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def start(*arguments: str, cwd: Path) -> subprocess.Popen[str]:
    """Starts ``edgert ARGUMENTS``; the caller ends it."""
    return subprocess.Popen(
        [sys.executable, "-m", "edgert", *arguments],
        cwd=cwd,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
