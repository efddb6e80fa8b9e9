"""What libraries take that this process has not loaded yet: measured in a child process that loads them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from edgert.errors import BuildError, DeviceError

if TYPE_CHECKING:
    from edgert.backend.ort.cuda_engine import OrtCudaEngine
    from edgert.memory.cuda import CudaDevice

ENGINE, VIDEO, CUDA, CUDA_ENGINE = "onnxruntime", "av", "pycuda", "onnxruntime-cuda"
_LIMIT_S = 60.0
_PROVIDER = "libonnxruntime_providers_cuda.so"


@dataclass(frozen=True, slots=True)
class Taken:
    """Memory that a library takes.

    Attributes:
        host_bytes: physical memory of the machine.
        gpu_bytes: of a GPU that has memory of its own.
    """

    host_bytes: int = 0
    gpu_bytes: int = 0


def library_memory(needed: Sequence[str]) -> Mapping[str, Taken]:
    """Library → memory that loading it and using it for the first time will add; none where that has happened.

    Starts a child process, about a second, or three with :data:`CUDA_ENGINE`, unless nothing is left to load.

    Args:
        needed: of :data:`ENGINE`, :data:`VIDEO`, :data:`CUDA`, which is a context on the first GPU, and
            :data:`CUDA_ENGINE`; of the last two, nothing where they cannot be had. What comes later uses what is
            before it, and tells only what it adds.

    Raises:
        DeviceError: a library cannot be loaded.
    """
    absent = {name for name in needed if not _is_loaded(name)}
    found = _measured(needed) if absent else {}
    return {name: found[name] if name in absent else Taken() for name in needed}


def _is_loaded(name: str) -> bool:
    """CUDA's provider is no module of Python, but a library that ONNX Runtime opens."""
    maps = Path("/proc/self/maps")
    return name in sys.modules or (name == CUDA_ENGINE and maps.is_file() and _PROVIDER in maps.read_text())


def _measured(names: Collection[str]) -> dict[str, Taken]:
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
    told: dict[str, tuple[int, int]] = json.loads(done.stdout)
    return {name: Taken(*sizes) for name, sizes in told.items()}


def _use_engine() -> None:
    from edgert.backend import EngineOptions, backend
    from edgert.graph.smallest import smallest

    backend("ort").compile(smallest(), EngineOptions(threads=1)).session().run()


def _use_cuda_engine() -> None:
    from edgert.backend import EngineOptions
    from edgert.backend.ort.cuda import OrtCudaBackend
    from edgert.graph.smallest import smallest

    for device in _OPENED:
        try:
            _ENGINES.append(OrtCudaBackend(device).compile(smallest(), EngineOptions(threads=1)))
            _ENGINES[-1].session().run()
        except (DeviceError, BuildError):
            return  # no model will run there, and who tries says why


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
_ENGINES: list[OrtCudaEngine] = []
_USES: Mapping[str, Callable[[], None]] = {
    ENGINE: _use_engine,
    VIDEO: _use_video,
    CUDA: _use_cuda,
    CUDA_ENGINE: _use_cuda_engine,
}


def _answer(names: Collection[str]) -> dict[str, tuple[int, int]]:
    import edgert.assemble.build  # noqa: F401 - what the asking process has loaded already
    from edgert.board.memory import system_memory
    from edgert.budget.meter import rss_bytes

    found = {}
    for name in names:
        before, available, free = rss_bytes(), system_memory().available_bytes, _free_bytes()
        _USES[name]()
        grown = max(0, rss_bytes() - before)
        if name in (CUDA, CUDA_ENGINE):
            grown = host_bytes(_OPENED, grown, available - system_memory().available_bytes)
        found[name] = grown, own_bytes(_OPENED) if name == CUDA else free - _free_bytes()
    return found


def host_bytes(devices: Sequence[CudaDevice], rss: int, available: int) -> int:
    """Host memory of what was opened on GPUs, none where there is none.

    Args:
        rss: by which the process grew meanwhile; of a GPU with memory of its own that is all.
        available: by which that of the machine fell; on a Jetson host and GPU share it, and what the GPU maps is no
            part of the process.
    """
    if not devices:
        return 0
    return max(rss, available) if any(device.traits.integrated for device in devices) else rss


def own_bytes(devices: Sequence[CudaDevice]) -> int:
    """Memory of GPUs with memory of their own that the contexts take; 0 where there is no room for one more."""
    try:
        return sum(device.context_bytes() for device in devices if not device.traits.integrated)
    except DeviceError:
        return 0  # it is only told; a model that does not fit says so when it is opened


def _free_bytes() -> int:
    """Of GPUs with memory of their own whose contexts are open."""
    return sum(device.free_bytes()[0] for device in _OPENED if not device.traits.integrated)


if __name__ == "__main__":
    sys.stdout.write(json.dumps(_answer(sys.argv[1:])))
