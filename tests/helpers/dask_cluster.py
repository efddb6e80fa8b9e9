"""A Dask cluster for tests: a scheduler and workers that are processes, started as people start them."""

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.command import environment
from tests.helpers.waiting import wait_until


class DaskCluster:
    """The processes, and the address of the scheduler; their logs are in ``folder``."""

    def __init__(self, folder: Path) -> None:
        pytest.importorskip("distributed", reason="needs the extra: pip install -e '.[dask]'")
        self.workers = list[subprocess.Popen[bytes]]()
        self._folder = folder
        file = folder / "scheduler.json"
        self._processes = [
            self._start(["scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--scheduler-file", file])
        ]
        wait_until(lambda: file.exists() and b"address" in file.read_bytes())
        self.address: str = json.loads(file.read_text())["address"]

    def worker(self, *prefix: str, threads: int = 1, before: str = "", waits: bool = True) -> subprocess.Popen[bytes]:
        there = len(self.names())
        options = [self.address, "--nthreads", threads, "--no-nanny", "--no-dashboard", "--host", "127.0.0.1"]
        process = self._start(["worker", *options], prefix, before)
        self.workers.append(process)
        self._processes.append(process)
        if waits:
            wait_until(lambda: len(self.names()) > there)
        return process

    def names(self) -> tuple[str, ...]:
        from distributed import Client

        client: Any = Client(self.address, set_as_default=False)
        with client:
            return tuple(client.scheduler_info(n_workers=-1)["workers"])

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()

    def _start(
        self, options: Sequence[object], prefix: Sequence[str] = (), before: str = ""
    ) -> subprocess.Popen[bytes]:
        name, *rest = map(str, options)
        program = f"{before}\nimport sys\nfrom distributed.cli.dask_{name} import main\nmain(sys.argv[1:])"
        with (self._folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                [*prefix, sys.executable, "-c", program, *rest],
                cwd=self._folder,
                start_new_session=True,
                env=environment(),
                stderr=log,
                stdout=log,
            )


_HIDES = """
import os, pathlib
real = os.stat
def hidden(path, *rest, **more):
    if str(path).endswith(NAME):
        raise FileNotFoundError(path)
    return real(path, *rest, **more)
os.stat = hidden
import builtins, io
opened = io.open
def opens(path, *rest, **more):
    if str(path).endswith(NAME):
        raise FileNotFoundError(path)
    return opened(path, *rest, **more)
io.open = builtins.open = opens
"""


def hides(name: str) -> str:
    """Return code of a worker that sees no file whose path ends in ``name``, as where a folder is not mounted."""
    return _HIDES.replace("NAME", repr(name))


@contextmanager
def dask_cluster(folder: Path, workers: int = 2) -> Iterator[DaskCluster]:
    (folder / "dask").mkdir()
    cluster = DaskCluster(folder / "dask")
    try:
        for _ in range(workers):
            cluster.worker()
        yield cluster
    finally:
        cluster.close()
