"""A box, which is a root file system with an identity, and commands in it."""

from __future__ import annotations

import fcntl
import os
import re
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from edgert.errors import DeviceError
from tools.box.identity import BARE

INSIDE = Path(__file__).with_name("inside.sh")
HOME, VENV = "/root/edgert", "/root/edgert/.venv"
TIMED_OUT = -1


@dataclass(frozen=True, slots=True)
class Step:
    """A command on the board, and patterns that must be in its output. ``at`` is ``box``, ``here`` for this machine,
    where ``board`` is the box's name for ssh, or ``booted``."""

    title: str
    command: str
    expects: Sequence[str] = ()
    code: int = 0
    proc: str = BARE
    variables: tuple[tuple[str, str], ...] = ()
    timeout_s: float = 1800.0
    at: Literal["box", "here", "booted"] = "box"

    @property
    def typed(self) -> str:
        return " ".join([*(f"{name}={value}" for name, value in self.variables), self.command])


@dataclass(frozen=True, slots=True)
class Done:
    """Result of a step: command, exit code, seconds, output, and what is wrong."""

    title: str
    command: str
    code: int
    seconds: float
    printed: str
    wrong: str = ""


@dataclass(frozen=True, slots=True)
class Box:
    """A root file system with an identity, and the base and wheels that all boxes share."""

    folder: Path
    base: Path
    wheels: Path

    @property
    def upper(self) -> Path:
        return self.folder / "upper"

    def command(self, words: Sequence[str], proc: str = BARE, variables: Mapping[str, str] | None = None) -> list[str]:
        """Return the command line that runs a command in the box; its mounts and processes end with it."""
        environment = {
            "HOME": "/root",
            "PATH": f"{VENV}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "LANG": "C.UTF-8",
            "QEMU_LD_PREFIX": proc,
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": "/wheels",
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "PIP_NO_COMPILE": "1",  # Python compiles what it imports; an emulator takes minutes for all
            "PIP_ROOT_USER_ACTION": "ignore",
            "NO_COLOR": "1",
            "COLUMNS": "120",
            **(variables or {}),
        }
        pairs = [f"{name}={value}" for name, value in environment.items()]
        space = ["setpriv", "--pdeathsig", "KILL"]  # or it would go on in the box when this process is killed
        space += ["unshare", "--mount", "--pid", "--uts", "--fork", "--kill-child", "--propagation", "private"]
        return [*space, str(INSIDE), *map(str, (self.base, self.folder, self.wheels)), "env", "-i", *pairs, *words]

    def do(self, step: Step) -> Done:
        words = ["sh", "-c", f"cd {HOME} 2>/dev/null; {step.command}"]
        with self.alone():
            return outcome(step, self.command(words, step.proc, dict(step.variables)))

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Raise DeviceError if another process uses this box, as two overlays must not share an upper folder."""
        lock = os.open(self.folder / "lock", os.O_CREAT | os.O_RDWR)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(lock)
            raise DeviceError(
                f"{self.folder.name} is in use", why="another process runs in it", fix="wait for it, or end it"
            ) from error
        try:
            yield
        finally:
            os.close(lock)


def outcome(step: Step, words: Sequence[str], **settings: Any) -> Done:
    """Run the command of a step, and return the judged result."""
    started = time.monotonic()
    try:
        done = subprocess.run(
            words,
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=step.timeout_s,
            **settings,
        )
        code, printed = done.returncode, done.stdout.decode(errors="replace")
    except subprocess.TimeoutExpired as error:
        code, printed = TIMED_OUT, (error.stdout or b"").decode(errors="replace")
    seconds = round(time.monotonic() - started, 1)
    return Done(step.title, step.typed, code, seconds, printed, judge(step, code, printed))


def judge(step: Step, code: int, printed: str) -> str:
    """Return what is wrong with the result of a step; empty if nothing is."""
    if code == TIMED_OUT:
        return f"not done after {step.timeout_s:.0f} s"
    if code != step.code:
        return f"exit code {code} instead of {step.code}"
    missing = [pattern for pattern in step.expects if not re.search(pattern, printed)]
    return f"nothing printed matches {missing[0]!r}" if missing else ""
