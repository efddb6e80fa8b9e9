"""The steps of a build, in this process. :mod:`edgert.backend.trt.worker` runs them where a crash does no harm."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from edgert.backend.trt.dialect import Dialect, dialect_of
from edgert.backend.trt.failure import CompileError
from edgert.backend.trt.library import Library
from edgert.backend.trt.listen import logger_to
from edgert.backend.trt.log import LogRecord, foreign_ends, tail
from edgert.backend.trt.mapping import correspond, network_layers
from edgert.backend.trt.monitor import monitor_to
from edgert.backend.trt.network import add_profiles, parse, set_formats
from edgert.backend.trt.place import check_core, place
from edgert.backend.trt.request import BuildRequest
from edgert.backend.trt.result import BuildResult, Progress
from edgert.backend.trt.vendor import (
    Builder,
    EngineInspector,
    IBuilderConfig,
    ICudaEngine,
    IHostMemory,
    ILogger,
    INetworkDefinition,
    OnnxParser,
    Runtime,
    Trt,
)
from edgert.board.cuda import cuda_driver
from edgert.errors import BuildError

Tell = Callable[[LogRecord], object]
Step = Callable[[Progress], bool]
"""Called with each step; False cancels."""


def compile_engine(library: Library, request: BuildRequest, tell: Tell, step: Step) -> BuildResult:
    """Builds an engine. Blocks until done.

    Args:
        tell: called with each line of the log that is kept.
        step: called with each step of the builder, from its threads.

    Raises:
        BuildError: TensorRT cannot build it; the nodes are named where it tells.
        DeviceError: a DLA core is asked for that is not there.
    """
    started = time.perf_counter()
    log: list[LogRecord] = []

    def note(record: LogRecord) -> None:
        log.append(record)
        tell(record)

    trt: Trt = library.trt
    dialect = dialect_of(library)
    dialect.check(request)
    logger = logger_to(trt, note)
    builder: Builder = trt.Builder(logger)
    check_core(builder, request)
    config: IBuilderConfig = builder.create_builder_config()
    network: INetworkDefinition = dialect.create_network(builder)
    dialect.set_target(config, request)
    parser: OnnxParser = trt.OnnxParser(network, logger)
    dialect.set_parser(parser, config, request)
    parse(parser, network, request)
    layers = network_layers(network)
    parts = correspond(layers, request.nodes)
    set_formats(trt, network, request)
    add_profiles(builder, network, config, request)
    _configure(trt, config, request)
    if not dialect.set_timing_cache(config, request.timing_cache):
        note(LogRecord("WARNING", "the timing cache is of another TensorRT or GPU: measuring again"))
    dialect.set_precision(network, config, request, layers, parts)
    refused = place(trt, network, config, request, parts)
    cancelled = _watch(trt, config, step)
    plan: IHostMemory = builder.build_serialized_network(network, config)
    if plan is None:
        raise failure(request, log, cancelled=bool(cancelled))
    made = BuildResult(bytes(memoryview(plan)), b"", (), "", layers, refused, library.title, 0.0)
    return _finished(library, logger, dialect, config, request, made, log, started)


def failure(request: BuildRequest, log: list[LogRecord], *, cancelled: bool = False) -> BuildError:
    """Why there is no engine, from the log: the region that nothing could run, or memory, or the last errors."""
    if cancelled:
        return request.refusal("the build was cancelled", "it was asked to stop")
    kinds = {record.kind: record for record in log if record.severity in ("ERROR", "INTERNAL_ERROR")}
    if "implementation" in kinds:
        layer = kinds["implementation"].layer
        ends = " to ".join(repr(name) for name in foreign_ends(layer)) or repr(layer)
        what, fix = f"TensorRT has no implementation for {ends}", "more workspace, or these nodes on the GPU"
    elif "memory" in kinds:
        what, fix = "TensorRT ran out of memory", "stop other programs, or limit the workspace"
    else:
        what, fix = "TensorRT built no engine", ""
    return CompileError(what, why=tail(log) or "it told no reason", where=request.title, fix=fix)


def _configure(trt: Trt, config: IBuilderConfig, request: BuildRequest) -> None:
    """What all versions are told in the same way."""
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
    for name, size_bytes in request.pools.named():
        config.set_memory_pool_limit(getattr(trt.MemoryPoolType, name), size_bytes)
    if request.optimization_level is not None:
        config.builder_optimization_level = request.optimization_level
    if request.version_compatible:
        config.set_flag(trt.BuilderFlag.VERSION_COMPATIBLE)
    if request.refit:
        config.set_flag(trt.BuilderFlag.REFIT)
    if request.strip:
        if not hasattr(trt.BuilderFlag, "STRIP_PLAN"):
            raise request.refusal("this TensorRT cannot leave weights out", "STRIP_PLAN came with 10.0")
        config.set_flag(trt.BuilderFlag.STRIP_PLAN)
    if request.direct_io and hasattr(trt.BuilderFlag, "DIRECT_IO"):
        config.set_flag(trt.BuilderFlag.DIRECT_IO)


def _watch(trt: Trt, config: IBuilderConfig, step: Step) -> list[Progress]:
    """Sets a progress monitor where there are any (from 10.0); the list gets the step that cancelled the build."""
    cancelled: list[Progress] = []

    def on(progress: Progress) -> bool:
        if step(progress):
            return True
        cancelled.append(progress)
        return False

    if hasattr(config, "progress_monitor"):
        config.progress_monitor = monitor_to(trt, on)
    return cancelled


def _finished(
    library: Library,
    logger: ILogger,
    dialect: Dialect,
    config: IBuilderConfig,
    request: BuildRequest,
    made: BuildResult,
    log: list[LogRecord],
    started: float,
) -> BuildResult:
    seconds = time.perf_counter() - started
    inspector = inspection(library.trt, logger, made.plan, request.dla_core) if _has_gpu() else ""
    cache = dialect.timing_cache(config)
    return replace(made, timing_cache=cache, inspector=inspector, log=tuple(log), seconds=round(seconds, 3))


def inspection(trt: Trt, logger: ILogger, plan: bytes, core: int | None) -> str:
    """The engine inspector's JSON; empty where the engine cannot be opened on this machine, as one for other GPUs."""
    runtime: Runtime = trt.Runtime(logger)
    if core is not None:
        runtime.DLA_core = core
    engine: ICudaEngine = runtime.deserialize_cuda_engine(plan)
    if engine is None:
        return ""
    inspector: EngineInspector = engine.create_engine_inspector()
    return str(inspector.get_engine_information(trt.LayerInformationFormat.JSON))


def _has_gpu() -> bool:
    driver = cuda_driver()
    return driver is not None and bool(driver.gpus)
