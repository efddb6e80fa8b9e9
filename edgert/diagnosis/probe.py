"""Findings of a probe, and the system that it reads."""

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from edgert._version import __version__
from edgert.board import Machine, detect
from edgert.board.host import core_count
from edgert.files import cache_folder

State = Literal["yes", "no", "optional"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked for.

    Attributes:
        name: the thing.
        state: ``yes`` it is here and works; ``no`` edgert needs it and it does not; ``optional`` it is not here, or
            not right, and edgert runs without it.
        detail: what was found, or what is wrong.
        fix: one line on how to get it; empty when nothing is to be done.
    """

    name: str
    state: State
    detail: str
    fix: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """Report of one vendor package, from a separate process.

    Attributes:
        facts: name → value, empty unless it works.
        is_absent: it is not installed.
        error: why it is installed and does not work; empty otherwise.
    """

    facts: Mapping[str, Any]
    is_absent: bool = False
    error: str = ""

    @property
    def works(self) -> bool:
        """Whether the package could be imported and asked."""
        return not self.is_absent and not self.error


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that probes look at: files under ``root``, the machine they describe, and the packages' answers by name."""

    root: Path
    machine: Machine
    answers: Mapping[str, Answer]

    @property
    def has_gpu(self) -> bool:
        """Whether the CUDA driver drives a GPU."""
        return bool(self.answers["cuda"].facts.get("gpus"))


# What another machine has to know of this one before it sends it work, as plain data.


def facts(root: str | Path = "/") -> dict[str, Any]:
    """Return versions, board and cache of this machine, as plain data.

    The name of the board, its power mode and releases are empty where there are none; the bytes are free space of the
    cache's disk for this user.

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


# Asks vendor packages what they are, each in a separate process; see :mod:`edgert.diagnosis.child`.

_CHILD = Path(__file__).with_name("child.py")
TIMEOUT_S = 30.0
"""GStreamer scans all its plugins when first used, which takes many seconds on a small board."""


def ask_all(names: Iterable[str]) -> dict[str, Answer]:
    """Return every package's answer by name, in parallel on all cores. Blocks until the last has answered."""
    names = tuple(names)
    with ThreadPoolExecutor(max_workers=core_count()) as pool:
        return dict(zip(names, pool.map(ask, names), strict=True))


def ask(name: str, timeout_s: float = TIMEOUT_S, program: Path = _CHILD) -> Answer:
    """Return one package's answer. Never raises: an error is an answer. Blocks for ``timeout_s`` at most."""
    command = [sys.executable, str(program), name]
    try:
        done = subprocess.run(  # noqa: S603 - our own program, run by our own interpreter
            command, capture_output=True, text=True, errors="replace", timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired:
        return Answer({}, error=f"gave no answer in {timeout_s:g} s")
    except OSError as error:
        return Answer({}, error=f"could not be asked: {error}")
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"failed with exit code {done.returncode}"]
        crash = signal.Signals(-done.returncode).name if done.returncode < 0 else ""
        return Answer({}, error=f"crashed when imported ({crash})" if crash else lines[-1])  # Python's exception
    facts = json.loads(done.stdout)
    return Answer({}, is_absent=True) if facts.get("absent") else Answer(facts)
