"""What libraries take that this process has not loaded yet: measured in a child process that loads them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from edgert.errors import DeviceError

if TYPE_CHECKING:
    from edgert.memory.cuda import CudaDevice

ENGINE, VIDEO, CUDA = "onnxruntime", "av", "pycuda"
_LIMIT_S = 60.0


def library_bytes(needed: Collection[str]) -> Mapping[str, int]:
    """Library → physical memory that loading it and using it for the first time will add; 0 where that has happened.

    Starts a child process, about a second, unless nothing is left to load.

    Args:
        needed: of :data:`ENGINE`, :data:`VIDEO` and :data:`CUDA`, which is a context on the first GPU: 0 without one.

    Raises:
        DeviceError: a library cannot be loaded.
    """
    absent = [name for name in needed if name not in sys.modules]
    return dict.fromkeys(needed, 0) | (_measured(absent) if absent else {})


def _measured(names: Collection[str]) -> dict[str, int]:
    own = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, (own, os.environ.get("PYTHONPATH"))))
    done = subprocess.run(  # noqa: S603 - our own module, run by our own interpreter
        [sys.executable, "-m", "edgert.assemble.library", *names],
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
        env={**os.environ, "PYTHONPATH": path},
        check=False,
    )
    if done.returncode != 0:
        last = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        raise DeviceError(f"cannot measure what {' and '.join(names)} take", why=last[0], fix="edgert doctor")
    told: dict[str, int] = json.loads(done.stdout)
    return told


def _use_engine() -> None:
    from edgert.backend import EngineOptions, backend
    from edgert.graph.smallest import smallest

    backend("ort").compile(smallest(), EngineOptions(threads=1)).session().run()


def _use_video() -> None:
    from edgert.stages.source.decode import has_input

    has_input("mov")


def _use_cuda() -> None:
    from edgert.memory.cuda import open_device

    try:
        _OPENED.append(open_device())
    except DeviceError:
        return  # no context will be there either: engines of the GPU are skipped, or say why they cannot run


_OPENED: list[CudaDevice] = []
"""Contexts end with their devices."""
_USES: Mapping[str, Callable[[], None]] = {ENGINE: _use_engine, VIDEO: _use_video, CUDA: _use_cuda}


def _answer(names: Collection[str]) -> dict[str, int]:
    import edgert.assemble.build  # noqa: F401 - what the asking process has loaded already
    from edgert.board.memory import system_memory
    from edgert.budget.meter import rss_bytes

    found = {}
    for name in names:
        before, available = rss_bytes(), system_memory().available_bytes
        _USES[name]()
        found[name] = max(0, rss_bytes() - before)
        if name == CUDA:
            found[name] = context_bytes(_OPENED, found[name], available - system_memory().available_bytes)
    return found


def context_bytes(devices: Sequence[CudaDevice], rss: int, available: int) -> int:
    """Host memory of the contexts that were opened, none where none was.

    Args:
        rss: by which the process grew meanwhile; of a GPU with memory of its own that is all.
        available: by which that of the machine fell; on a Jetson host and GPU share it, and what the GPU maps is no
            part of the process.
    """
    if not devices:
        return 0
    return max(rss, available) if any(device.traits.integrated for device in devices) else rss


if __name__ == "__main__":
    sys.stdout.write(json.dumps(_answer(sys.argv[1:])))
