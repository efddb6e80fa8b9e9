"""Memory of this process and of the libraries that a pipeline loads, measured in a child process."""

import json
import logging
import os
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from edgert import installation
from edgert.backend.chain import why_not
from edgert.backend.ort.cuda import OrtCudaEngine
from edgert.board.detect import detect
from edgert.budget.footprint import Part
from edgert.config import InferStage, PipelineFile, SinkStage, SourceStage
from edgert.config.engine_choice import ORT, ORT_CUDA
from edgert.config.flow import users_of
from edgert.errors import BuildError, DeviceError
from edgert.memory.cuda import CudaDevice
from edgert.meters import rss_bytes
from edgert.stages.source.kinds import kind_of
from edgert.units import format_bytes

_LOG = logging.getLogger(__name__)
ENGINE, VIDEO, CUDA, CUDA_ENGINE = "onnxruntime", "av", "pycuda", "onnxruntime-cuda"
_LIMIT_S = 60.0
_PROVIDER = "libonnxruntime_providers_cuda.so"


@dataclass(frozen=True, slots=True)
class LibraryMemory:
    """Memory that a library takes. ``gpu_bytes`` are those of a discrete GPU."""

    host_bytes: int = 0
    gpu_bytes: int = 0


def library_memory(needed: Sequence[str]) -> Mapping[str, LibraryMemory]:
    """Return the memory that loading and first using each library adds; 0 for libraries that are loaded already.

    Starts a child process for about a second, or three with :data:`CUDA_ENGINE`, unless all libraries are loaded.

    Args:
        needed: some of :data:`ENGINE`, :data:`VIDEO`, :data:`CUDA` (a context on the first GPU) and
            :data:`CUDA_ENGINE`. The last two take nothing if they are not available. Each counts only what it adds to
            the libraries named before.

    Raises:
        DeviceError: a library cannot be loaded, or the child process does not answer.
    """
    maps = Path("/proc/self/maps")
    loaded = {name for name in needed if name in sys.modules}
    if maps.is_file() and _PROVIDER in maps.read_text():  # not a Python module: ONNX Runtime opens the library
        loaded.add(CUDA_ENGINE)
    absent = set(needed) - loaded
    found = _measure_in_child(needed) if absent else {}
    return {name: found[name] if name in absent else LibraryMemory() for name in needed}


def _measure_in_child(names: Collection[str]) -> dict[str, LibraryMemory]:
    what, fix = f"cannot measure what {' and '.join(names)} take", "edgert doctor"
    try:
        done = subprocess.run(  # noqa: S603 - this module, run by this interpreter
            [sys.executable, "-m", "edgert.assemble.process_memory", *names],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_LIMIT_S,
            env={**os.environ, "PYTHONPATH": installation.python_path()},
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:  # too little memory for a process, or a busy machine
        raise DeviceError(what, why=str(error), fix=fix) from error
    if done.returncode != 0:
        last = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        raise DeviceError(what, why=last[0], fix=fix)
    # The answer is the last line, as libraries may also write to standard output.
    sizes: dict[str, tuple[int, int]] = json.loads(done.stdout.splitlines()[-1])
    return {name: LibraryMemory(*pair) for name, pair in sizes.items()}


_OPEN_DEVICES: list[CudaDevice] = []
"""Open devices, kept because contexts end with them."""
_OPEN_ENGINES: list[OrtCudaEngine] = []


def _use_library(name: str) -> None:
    """Use a library for the first time. Ignore errors of a GPU library, as opening a model raises them."""
    from edgert.backend import EngineOptions, backend
    from edgert.graph.model import smallest

    options = EngineOptions(threads=1)
    if name == ENGINE:
        backend("ort").compile(smallest(), options).session().run()
    elif name == VIDEO:
        from edgert.stages.source.ffmpeg import load_library

        load_library()
    elif name == CUDA:
        from edgert.memory.cuda import open_device

        with suppress(DeviceError):
            _OPEN_DEVICES.append(open_device())
    else:
        from edgert.backend.ort.cuda import OrtCudaBackend

        with suppress(DeviceError, BuildError):
            for device in _OPEN_DEVICES:
                _OPEN_ENGINES.append(OrtCudaBackend(device).compile(smallest(), options))
                _OPEN_ENGINES[-1].session().run()


def _measure(names: Collection[str]) -> dict[str, tuple[int, int]]:
    import edgert.assemble.graph  # noqa: F401 - the parent process has loaded it already
    from edgert.board.host import system_memory
    from edgert.meters import rss_bytes

    found = {}
    for name in names:
        before, available, free = rss_bytes(), system_memory().available_bytes, _free_bytes()
        _use_library(name)
        grown = max(0, rss_bytes() - before)
        if name in (CUDA, CUDA_ENGINE):
            grown = host_bytes(_OPEN_DEVICES, grown, available - system_memory().available_bytes)
        found[name] = grown, own_bytes(_OPEN_DEVICES) if name == CUDA else free - _free_bytes()
    return found


def host_bytes(devices: Sequence[CudaDevice], rss: int, available: int) -> int:
    """Return the host memory taken by opening GPUs; 0 without GPUs.

    ``rss`` is the growth of the process's memory, which is the result for a discrete GPU; ``available`` is the decrease
    of the machine's free memory. On a Jetson, host and GPU share memory, and what the GPU maps does not count for the
    process.
    """
    if not devices:
        return 0
    return max(rss, available) if any(device.traits.integrated for device in devices) else rss


def own_bytes(devices: Sequence[CudaDevice]) -> int:
    """Return the memory of discrete GPUs that their contexts take; 0 if there is no room for another context."""
    try:
        return sum(device.context_bytes() for device in devices if not device.traits.integrated)
    except DeviceError:
        return 0  # only informs: a model that does not fit fails when it is opened


def _free_bytes() -> int:
    """Return the free memory of discrete GPUs with an open context."""
    return sum(device.free_bytes()[0] for device in _OPEN_DEVICES if not device.traits.integrated)


_TITLES: Mapping[str, tuple[str, str]] = {
    CUDA: ("CUDA", "opens a context"),
    CUDA_ENGINE: (CUDA_ENGINE, "runs a small model on the GPU"),
}
CUDNN_BYTES = 270 * 2**20
"""Host memory of kernels that a network's layers load, beyond those of the small model.

Measured on an H200 with driver 580.159.04, ONNX Runtime 1.31.1 and cuDNN 9. A detector with 83 nodes took 268 MiB more
than a plan without this. ResNet-50 took 148 MiB more, and 115 MiB were hidden by its weights, which are held 2.8 times
and not four."""


def process_parts(file: PipelineFile) -> Iterator[Part]:
    """Yield the memory of this process and of libraries. Takes a second, for a child process that measures them.

    A failed measurement is left out with a warning, as a run does not depend on the estimate and opening a missing
    library raises the reason.
    """
    yield Part("process", "cpu", "runtime", rss_bytes(), "measured: this process as it stands")
    found: Mapping[str, LibraryMemory] = {}
    try:
        found = library_memory(_needed_libraries(file))
    except DeviceError as error:
        _LOG.warning("%s: %s; the memory plan leaves this out", error.what, error.why)
    for name, taken in found.items():
        title, does = _TITLES.get(name, (name, "loads it"))
        own = f"; {format_bytes(taken.gpu_bytes)} more of the GPU's own" if taken.gpu_bytes else ""
        if taken.host_bytes or name not in _TITLES:
            yield Part(title, "cpu", "runtime", taken.host_bytes, f"measured in a process that {does}{own}")
        if taken.host_bytes and name == CUDA_ENGINE:
            yield Part("cuDNN", "cpu", "runtime", CUDNN_BYTES, "kernels of a network's layers: as on an H200")


def _needed_libraries(file: PipelineFile) -> list[str]:
    """Return the libraries that a pipeline needs, in the order in which they are loaded."""
    config, stages = file.config, file.config.stages.values()
    backends = {one.backend for name, one in config.models.items() if users_of(config.stages, config.models, name)}
    sources = [stage for stage in stages if isinstance(stage, SourceStage)]
    kinds = {kind_of(stage.source, file.document.path.parent) for stage in sources}
    writes_video = any(isinstance(stage, SinkStage) and stage.sink == "video" for stage in stages)
    chained = bool(backends) and any(name != ORT for name in config.engines)
    wants_gpu = chained or bool(backends & {"tensorrt", ORT_CUDA}) or any(one.decode == "gpu" for one in sources)
    takes_ort_cuda = ORT_CUDA in backends
    if not takes_ort_cuda and "auto" in backends and ORT_CUDA in config.engines:  # unless an earlier engine can
        from edgert.backend.tensorrt.trt_backend import TrtBackend

        before = config.engines[: config.engines.index(ORT_CUDA)]
        takes_ort_cuda = all(why_not(name, detect(), TrtBackend()) for name in before)
    wanted = {
        ENGINE: any(isinstance(stage, InferStage) for stage in stages),
        VIDEO: writes_video or not kinds.isdisjoint(("file", "videos", "network", "camera")),
        CUDA: wants_gpu,
        CUDA_ENGINE: takes_ort_cuda,
    }
    return [name for name, is_wanted in wanted.items() if is_wanted]


if __name__ == "__main__":
    sys.stdout.write("\n" + json.dumps(_measure(sys.argv[1:])))
