"""Builder of one engine in this process: ``python -m edgert.backend.tensorrt.builder PIPE LIBRARY``.

PIPE is the descriptor of a pipe: it brings the request, and takes every step and line of the log, and in the end the
result or the error. LIBRARY is ``auto``, ``tensorrt`` or ``tensorrt_rtx``. The build is canceled when the other end of
the pipe is closed, or anything follows the request. A crash of the compiler ends this process only.
"""

import faulthandler
import sys
import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import cast

from edgert.backend.tensorrt import build_process as process, library as api, network as networks
from edgert.backend.tensorrt.build_request import BuildRequest
from edgert.backend.tensorrt.dialects import dialect_of
from edgert.backend.tensorrt.log import LogRecord, create_logger, foreign_ends, requested_bytes, tail
from edgert.backend.tensorrt.plugin import check_plugins, register_operators
from edgert.board.devices import cuda_driver, gpu_free_bytes
from edgert.board.host import free_bytes
from edgert.custom_op import load_operators
from edgert.errors import EXIT_ERROR, EXIT_OK, BuildError, EdgertError
from edgert.units import format_bytes

_NO_INT8 = "CHECK(dtype == myelinType"
"""Part of TensorRT-RTX 1.4's log about INT8 convolutions, which 1.7 supports."""
_NEEDS_DQ = "You might want to add a DQ node"
"""Part of TensorRT-RTX 1.4's log about an int8 input without a DequantizeLinear, which 1.7 supports."""

Report = Callable[[LogRecord], object]

Step = Callable[[process.Progress], bool]
"""Function called with each step; it returns False to cancel the build."""


def compile_engine(library: api.Library, request: BuildRequest, report: Report, step: Step) -> process.BuildResult:
    """Build an engine. Blocks until it is built.

    ``report`` gets each retained line of the log, from the builder's threads. Raises BuildError: TensorRT cannot build
    the engine; the error names the nodes if TensorRT does. Raises DeviceError: the requested DLA core is missing.
    """
    started = time.perf_counter()
    dialect = dialect_of(library)
    dialect.check(request)
    check_plugins(request, library)
    if request.operators:
        load_operators(map(Path, request.operators), request.title)
        register_operators(library.trt)
    log: list[LogRecord] = []

    def add_record(record: LogRecord) -> None:
        log.append(record)
        report(record)

    trt: api.Trt = library.trt
    logger: api.ILogger = create_logger(trt, add_record)
    builder: api.Builder = trt.Builder(logger)
    networks.check_core(builder, request)
    config: api.IBuilderConfig = builder.create_builder_config()
    network: api.INetworkDefinition = dialect.create_network(builder)
    dialect.set_target(config, request)
    parser: api.OnnxParser = trt.OnnxParser(network, logger)
    dialect.set_parser(parser, config, request)
    networks.parse(parser, network, request)
    layers = networks.network_layers(network)
    networks.set_formats(trt, network, request)
    networks.add_profiles(builder, network, config, request)
    _configure(trt, config, request)
    if request.pools.workspace_bytes is None and (max_bytes := shared_workspace_bytes()):
        config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, max_bytes)
        text = f"workspace at most {format_bytes(max_bytes)}: the GPU shares the memory of the host"
        add_record(LogRecord("INFO", text))
    if not dialect.set_timing_cache(config, request.timing_cache):
        add_record(LogRecord("WARNING", "the timing cache is of another TensorRT or GPU: measuring again"))
    parts = networks.correspond(layers, request.nodes)
    dialect.set_precision(network, config, request, layers, parts)
    refused = networks.place_layers(trt, network, config, request, parts)
    canceled: list[process.Progress] = []

    def on_progress(progress: process.Progress) -> bool:
        if not step(progress):
            canceled.append(progress)
        return not canceled

    if hasattr(config, "progress_monitor"):  # since 10.0
        config.progress_monitor = create_monitor(trt, on_progress)
    serialized: api.IHostMemory = builder.build_serialized_network(network, config)
    if serialized is None:
        raise build_failure(request, log, canceled=bool(canceled))
    plan = bytes(memoryview(serialized))
    seconds = round(time.perf_counter() - started, 3)
    cache = dialect.timing_cache(config)
    inspector = inspect_engine(trt, logger, plan, request) if _has_gpu() else ""
    return process.BuildResult(plan, cache, tuple(log), inspector, layers, refused, library.title, seconds)


def build_failure(request: BuildRequest, log: Sequence[LogRecord], *, canceled: bool = False) -> BuildError:
    """Return the error of a build without engine, by its log: an unsupported region, memory, or the last errors."""
    if canceled:
        return request.refusal("the build was canceled", "a stop was requested")
    kinds = {record.kind: record for record in log if record.severity in ("ERROR", "INTERNAL_ERROR")}
    if "implementation" in kinds:
        layer = kinds["implementation"].layer
        ends = " to ".join(repr(name) for name in foreign_ends(layer)) or repr(layer)
        what, fix = (
            f"TensorRT has no implementation for {ends}",
            "allow more workspace, or place these nodes on the GPU",
        )
    elif "memory" in kinds:
        what, fix = "TensorRT ran out of memory", "stop other programs, or limit the workspace"
        needed, free = requested_bytes(log), gpu_free_bytes() or free_bytes()  # right after the failure
        requested = f"{format_bytes(needed)} were needed" if needed else "it did not report how much it needed"
        why = f"{requested}, {format_bytes(free)} were free: {tail(log)}"
        return process.CompileError(what, why=why, where=request.title, fix=fix)
    elif request.explicit and any(_NO_INT8 in record.text for record in log):
        what = "TensorRT has no INT8 kernel for a layer of this model"
        fix = "use precision: fp16, or a later TensorRT-RTX"
    elif any(_NEEDS_DQ in record.text for record in log):
        what = "TensorRT supports int8 inputs only if a DequantizeLinear reads them"
        fix = "add a DequantizeLinear after each int8 input, or use inputs of another type, or a later TensorRT-RTX"
    else:
        what, fix = "TensorRT built no engine", ""
    return process.CompileError(what, why=tail(log) or "it gave no reason", where=request.title, fix=fix)


def _configure(trt: api.Trt, config: api.IBuilderConfig, request: BuildRequest) -> None:
    """Set the options that all versions have in common."""
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
    for name, size_bytes in request.pools.named_limits():
        config.set_memory_pool_limit(getattr(trt.MemoryPoolType, name), size_bytes)
    if request.optimization_level is not None:
        config.builder_optimization_level = request.optimization_level
    if request.version_compatible:
        config.set_flag(trt.BuilderFlag.VERSION_COMPATIBLE)
    if request.sparse:
        config.set_flag(trt.BuilderFlag.SPARSE_WEIGHTS)
    if request.profiles and hasattr(trt.PreviewFeature, "PROFILE_SHARING_0806"):  # always on since 10.0
        config.set_preview_feature(trt.PreviewFeature.PROFILE_SHARING_0806, True)


def inspect_engine(trt: api.Trt, logger: api.ILogger, plan: bytes, request: BuildRequest) -> str:
    """Return the engine inspector's JSON; empty if this machine cannot open the engine, such as one for other GPUs."""
    runtime: api.Runtime = trt.Runtime(logger)
    if request.dla_core is not None:
        runtime.DLA_core = request.dla_core
    if request.version_compatible:
        runtime.engine_host_code_allowed = True
    engine: api.ICudaEngine = runtime.deserialize_cuda_engine(plan)
    if engine is None:
        return ""
    inspector: api.EngineInspector = engine.create_engine_inspector()
    return str(inspector.get_engine_information(trt.LayerInformationFormat.JSON))


def shared_workspace_bytes() -> int:
    """Return the default limit of scratch memory in bytes; 0 is TensorRT's own default.

    It is half of the free memory if a GPU shares the host's memory, as TensorRT would use all of it.
    """
    driver = cuda_driver()
    is_shared = driver is not None and any(gpu.integrated for gpu in driver.gpus)
    return free_bytes() // 2 if is_shared else 0


def _has_gpu() -> bool:
    driver = cuda_driver()
    return driver is not None and bool(driver.gpus)


def create_monitor(trt: api.Trt, progress: Callable[[process.Progress], bool]) -> api.IProgressMonitor:
    """Return a monitor that calls ``progress`` at the start, every step and the end of a phase.

    TensorRT's threads call it. The build is canceled when it returns False.
    """

    class Monitor(trt.IProgressMonitor):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.IProgressMonitor.__init__(self)
            self._phases: dict[str, tuple[str, int]] = {}

        def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
            self._phases[phase_name] = (parent_phase or "", num_steps)
            self._report(phase_name, 0)

        def step_complete(self, phase_name: str, step: int) -> bool:
            return self._report(phase_name, step + 1)

        def phase_finish(self, phase_name: str) -> None:
            self._report(phase_name, self._phases.get(phase_name, ("", 0))[1])

        def _report(self, phase: str, step: int) -> bool:
            parent, steps = self._phases.get(phase, ("", 0))
            return progress(process.Progress(phase, parent, step, steps))

    return Monitor()


def main(descriptor: int, wanted: api.Wanted) -> int:
    """Build an engine; return the exit code."""
    faulthandler.enable()  # a crash of the compiler prints the Python stack
    pipe, lock = Connection(descriptor), threading.Lock()  # TensorRT's threads call send

    def send(event: object) -> bool:
        """Send an event; return False if the build is canceled."""
        with lock:
            try:
                pipe.send(event)
                return not pipe.poll()
            except OSError:  # the other end is closed
                return False

    try:
        request, library = pipe.recv(), api.load(wanted)
        send(compile_engine(library, request, send, send))
    except EdgertError as error:
        send(error.to_json())
        return EXIT_ERROR
    return EXIT_OK


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), cast(api.Wanted, sys.argv[2])))
