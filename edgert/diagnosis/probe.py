"""Findings, and the evidence that probes read: files of the machine, and answers of vendor packages."""

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
from edgert.board import Machine, detect, host
from edgert.files import cache_folder

State = Literal["yes", "no", "optional"]


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of checking one part of the machine.

    Attributes:
        state: ``yes``: it works; ``no``: edgert needs it and it does not work; ``optional``: it is missing or does not
            work, and edgert runs without it.
        detail: what was found, or what is wrong.
        fix: how to get or repair it, in one line; empty where nothing has to be done.
    """

    name: str
    state: State
    detail: str
    fix: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """Report of one vendor package, from a separate process; ``error`` is why an installed one does not work."""

    facts: Mapping[str, Any]
    is_absent: bool = False
    error: str = ""

    @property
    def works(self) -> bool:
        """Whether the package was imported and has answered."""
        return not self.is_absent and not self.error


@dataclass(frozen=True, slots=True)
class Evidence:
    """Evidence for probes: files under ``root``, the machine that they describe, and packages' answers by name."""

    root: Path
    machine: Machine
    answers: Mapping[str, Answer]

    @property
    def has_gpu(self) -> bool:
        """Whether the CUDA driver drives a GPU."""
        return bool(self.answers["cuda"].facts.get("gpus"))


def facts(root: str | Path = "/") -> dict[str, Any]:
    """Return what another machine needs before it sends work: versions, board, and cache with its free space."""
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


# Questions to vendor packages, each in a separate process; see :mod:`edgert.diagnosis.child`.

_CHILD = Path(__file__).with_name("child.py")
TIMEOUT_S = 30.0
"""Timeout of a question: GStreamer's first use scans all plugins, which takes many seconds on a small board."""


def ask_all(names: Iterable[str]) -> dict[str, Answer]:
    """Return name → answer of each package; they are asked in parallel. Blocks until all have answered."""
    names = tuple(names)
    with ThreadPoolExecutor(max_workers=host.core_count()) as pool:
        return dict(zip(names, pool.map(ask, names), strict=True))


def ask(name: str, timeout_s: float = TIMEOUT_S, program: Path = _CHILD) -> Answer:
    """Return a package's answer, which may be an error; raise nothing. Blocks for ``timeout_s`` at most."""
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
    try:
        facts = json.loads(done.stdout)
    except ValueError:
        return Answer({}, error="ended without an answer")
    return Answer({}, is_absent=True) if facts.get("absent") else Answer(facts)
