"""Builds that are killed at random points, and what the next build makes of what they left."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.helpers.command import environment


@dataclass(frozen=True, slots=True)
class Kill:
    """One build that was killed, and the one after it.

    Attributes:
        after_s: when it was killed.
        kept: entries that it left in the cache.
        bundle: what the build after it wrote.
        left: the bundle that the killed one left; empty if none.
    """

    after_s: float
    kept: int
    bundle: bytes
    left: bytes


def build_command(pipeline: str, output: Path) -> list[str]:
    """``edgert build`` for a Jetson."""
    return [sys.executable, "-m", "edgert", "build", pipeline, "--board", "orin-nx-16gb", "-o", str(output), "--json"]


def uninterrupted(pipeline: str, folder: Path) -> tuple[bytes, float]:
    """The bundle of a build that nobody disturbs, from an empty cache, and the seconds it took."""
    folder.mkdir()
    started = time.monotonic()
    _build(pipeline, folder)
    return (folder / "a.edgert").read_bytes(), time.monotonic() - started


def kills(pipeline: str, folder: Path, points: int, whole_s: float, seed: int = 0) -> Iterator[Kill]:
    """Kills builds with SIGKILL at random points, each from an empty cache, and builds again on what is left.

    A build that ends before its point, the machine being less busy than it was, does not count: the point is halved.
    """
    chance = random.Random(seed)
    for number in range(points):
        here = folder / str(number)
        after_s = chance.uniform(0.1, 1.0) * whole_s
        here.mkdir(parents=True)
        while not _killed(pipeline, here, after_s):
            shutil.rmtree(here)
            here.mkdir()
            after_s /= 2
        kept = len(list((here / "cache").rglob("*.bin")))
        left = (here / "a.edgert").read_bytes() if (here / "a.edgert").exists() else b""
        _build(pipeline, here)
        yield Kill(after_s, kept, (here / "a.edgert").read_bytes(), left)


def _env(folder: Path) -> dict[str, str]:
    return environment({"EDGERT_CACHE": str(folder / "cache"), "TMPDIR": str(folder.parent)})


def _killed(pipeline: str, folder: Path, after_s: float) -> bool:
    """Whether the build still ran when it was killed."""
    command = build_command(pipeline, folder / "a.edgert")
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=_env(folder),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        process.wait(after_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return True
    return False


def _build(pipeline: str, folder: Path) -> None:
    command = build_command(pipeline, folder / "a.edgert")
    done = subprocess.run(
        command, cwd=folder, env=_env(folder), capture_output=True, text=True, check=False, timeout=240
    )
    assert done.returncode == 0, done.stderr
