"""Programs that are killed. Builds at random points, and what the next build makes of what they left.

What is built is a pipeline file, or a bundle, which is finished in its own place: compiled, and the engines packed.
"""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from edgert.bundle.bundle import SUFFIX
from tests.helpers.command import ROOT, environment
from tests.helpers.waiting import wait_until

BUNDLE = f"a{SUFFIX}"


@dataclass(frozen=True, slots=True)
class Kill:
    """One build that was killed, what it left in cache and bundle, and the bundle of the build after it."""

    after_s: float
    kept: int
    bundle: bytes
    left: bytes
    orphans: int


def build_command(what: str, output: Path) -> list[str]:
    """``edgert build`` of a pipeline file for a Jetson; or of the bundle at ``output``, where ``what`` is one."""
    asked = [str(output)] if what.endswith(SUFFIX) else [what, "--board", "orin-nx-16gb"]
    return [sys.executable, "-m", "edgert", "build", *asked, "-o", str(output), "--json", "-"]


def uninterrupted(what: str, folder: Path) -> tuple[bytes, float]:
    """The bundle of a build that nobody disturbs, from an empty cache, and the seconds it took."""
    _begin(what, folder)
    started = time.monotonic()
    _build(what, folder)
    return (folder / BUNDLE).read_bytes(), time.monotonic() - started


def kills(what: str, folder: Path, points: int, whole_s: float, seed: int = 0) -> Iterator[Kill]:
    """Kills builds with SIGKILL at random points, each from an empty cache, and builds again on what is left.

    A build that ends before its point, the machine being less busy than it was, does not count: the point is halved.
    """
    chance = random.Random(seed)
    for number in range(points):
        here = folder / str(number)
        after_s = chance.uniform(0.1, 1.0) * whole_s
        _begin(what, here)
        while not _killed(what, here, after_s):
            shutil.rmtree(here)
            _begin(what, here)
            after_s /= 2
        kept = len(list((here / "cache").rglob("*.bin")))
        left = (here / BUNDLE).read_bytes() if (here / BUNDLE).exists() else b""
        _build(what, here)
        yield Kill(after_s, kept, (here / BUNDLE).read_bytes(), left, _orphans(here))


def kill_when_it_says_go(program: str, path: Path) -> None:
    """Runs Python code that writes to the path, its argument, and kills it with SIGKILL once it prints ``go``."""
    command = [sys.executable, "-c", program, str(path)]
    with subprocess.Popen(command, cwd=ROOT, env=environment(), stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"go\n"
        process.kill()


def _begin(what: str, folder: Path) -> None:
    (folder / "tmp").mkdir(parents=True)
    if what.endswith(SUFFIX):
        shutil.copyfile(what, folder / BUNDLE)


def _env(folder: Path) -> dict[str, str]:
    return environment({"EDGERT_CACHE": str(folder / "cache"), "TMPDIR": str(folder / "tmp")})


def _killed(what: str, folder: Path, after_s: float) -> bool:
    process = subprocess.Popen(
        build_command(what, folder / BUNDLE),
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


def _orphans(folder: Path, patience_s: float = 20) -> int:
    """Processes that work in a folder: TensorRT's compiler has one of its own, which is to end with who started it."""
    with suppress(AssertionError):
        wait_until(lambda: not _working(folder), patience_s)
    return _working(folder)


def _working(folder: Path) -> int:
    return sum(f"{folder}/".encode() in _arguments(one) for one in Path("/proc").glob("[0-9]*"))


def _arguments(process: Path) -> bytes:
    try:
        return (process / "cmdline").read_bytes()
    except OSError:  # it has ended
        return b""


def _build(what: str, folder: Path) -> None:
    command = build_command(what, folder / BUNDLE)
    done = subprocess.run(
        command, cwd=folder, env=_env(folder), capture_output=True, text=True, check=False, timeout=240
    )
    assert done.returncode == 0, done.stderr
