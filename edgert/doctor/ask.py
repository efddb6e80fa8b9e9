"""Asks vendor packages what they are, each in a process of its own; see :mod:`edgert.doctor.child`."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from edgert.board.host import core_count
from edgert.doctor.finding import Answer

_CHILD = Path(__file__).with_name("child.py")
TIMEOUT_S = 30.0
"""GStreamer scans all its plugins when first used, which takes many seconds on a small board."""


def ask_all(names: Iterable[str]) -> dict[str, Answer]:
    """Every package's answer by name, as many at a time as there are cores. Blocks until the last has answered."""
    names = tuple(names)
    with ThreadPoolExecutor(max_workers=core_count()) as pool:
        return dict(zip(names, pool.map(ask, names), strict=True))


def ask(name: str, timeout_s: float = TIMEOUT_S, program: Path = _CHILD) -> Answer:
    """One package's answer. Never raises: whatever goes wrong is the answer. Blocks for ``timeout_s`` at most."""
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
        return Answer({}, error=_reason(done.returncode, done.stderr))
    facts = json.loads(done.stdout)
    return Answer({}, is_absent=True) if facts.get("absent") else Answer(facts)


def _reason(code: int, stderr: str) -> str:
    """Why a process failed: the signal that ended it, else the last line it wrote, which is Python's exception."""
    if code < 0:
        return f"crashed when imported ({signal.Signals(-code).name})"
    lines = stderr.strip().splitlines()
    return lines[-1] if lines else f"failed with exit code {code}"
