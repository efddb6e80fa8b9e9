"""Running ``edgert`` as a user does: a process of its own."""

import io
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any
from unittest.mock import patch

ROOT = Path(__file__).resolve().parents[2]


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def write_program(path: Path, code: str, variables: Mapping[str, str]) -> None:
    """Writes a program of Python code that sees this repository, with these variables of the environment."""
    head = f"#!{sys.executable}\nimport os, sys\nfrom pathlib import Path\nos.environ.update({variables!r})\n"
    path.write_text(f"{head}sys.path.insert(0, {str(ROOT)!r})\nsys.dont_write_bytecode = True\n{code}")
    path.chmod(0o755)


class ServerProcess:
    """A server in a process of its own, which can be frozen and killed."""

    process: subprocess.Popen[str] | None = None

    def serve(self, command: list[str]) -> None:
        """Starts it, with pipes; it ends with this process, and says ``ready``."""
        self.process = subprocess.Popen(
            command, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.answer()

    def answer(self) -> None:
        """Waits for its ``ready``."""
        assert self.process is not None and self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"

    def freeze(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        if self.process is not None:
            with self.process as process:
                process.kill()
            self.process = None


def with_doubles(libraries: Path, extra: Mapping[str, str], program: str, *arguments: object) -> tuple[Any, str]:
    """Run a program of tests/helpers with doubles of NVIDIA libraries and no display; return its last line and log."""
    plain = {name: value for name, value in os.environ.items() if name not in ("DISPLAY", "WAYLAND_DISPLAY")}
    ran = subprocess.run(
        [sys.executable, "-m", f"tests.helpers.{program}", *map(str, arguments)],
        env={**plain, "LD_LIBRARY_PATH": str(libraries), **extra},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout.splitlines()[-1]), ran.stderr


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    return {**os.environ, "PYTHONPATH": paths, "COLUMNS": "100", "NO_COLOR": "1", **(extra or {})}


def edgert(
    *arguments: str, cwd: Path, env: Mapping[str, str] | None = None, timeout_s: float = 120
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "edgert", *arguments],
        cwd=cwd,
        env=environment(env),
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def in_process(*arguments: str, cwd: Path, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """What :func:`edgert` gives, by a call in this process: for what is told before anything runs, without the second
    that a new process takes to import."""
    from edgert.cli import main

    out, errors, code = io.StringIO(), io.StringIO(), 0
    with _as_typed(arguments, cwd, environment(env)), redirect_stdout(out), redirect_stderr(errors):
        try:
            main()
        except SystemExit as end:
            code = int(end.code or 0)
    return subprocess.CompletedProcess(arguments, code, out.getvalue(), errors.getvalue())


@contextmanager
def _as_typed(arguments: tuple[str, ...], cwd: Path, env: Mapping[str, str]) -> Iterator[None]:
    before = Path.cwd()
    with patch.object(sys, "argv", ["edgert", *arguments]), patch.dict(os.environ, env):
        os.chdir(cwd)
        try:
            yield
        finally:
            os.chdir(before)


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
