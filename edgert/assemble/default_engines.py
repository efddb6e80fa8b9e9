"""Default engines of a pipeline file without ``engines:``: the best of this machine, and a line that names them."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from edgert.backend.chain import why_not
from edgert.board import HOST, Machine, detect
from edgert.board.detect import is_jetson
from edgert.board.devices import cuda_driver
from edgert.config import ModelConfig, PipelineFile, engine_choice, flow
from edgert.engine import engine_store
from edgert.placement.cutting import accelerators_of

if TYPE_CHECKING:  # imported when needed, to start faster
    from edgert.backend.tensorrt.trt_backend import TrtBackend


def with_default_engines(
    file: PipelineFile, *, machine: Machine | None = None, trt: TrtBackend | None = None
) -> tuple[PipelineFile, str]:
    """Return the pipeline with the engines of this machine, the best first, and a line that explains the choice.

    The file is unchanged and the line empty if the file has ``engines:`` or ``board: host``, all its models name their
    backend, or this machine has no NVIDIA GPU. No vendor package is imported then.
    """
    config = file.config
    used = [name for name in config.models if flow.users_of(config.stages, config.models, name)]
    models = {name: config.models[name] for name in used if leaves_engine(config.models[name])}
    is_settled = bool(config.engines) or file.passed_over is not None
    if is_settled or config.board == HOST or not models or not has_gpu():
        return file, ""
    from edgert.backend.tensorrt.trt_backend import TrtBackend

    here, trt = machine or detect(), trt or TrtBackend()
    wants_dla = any(name.startswith("dla") for model in models.values() for name in accelerators_of(model.placement))
    wanted = [name for name in engine_choice.ENGINES if name != engine_choice.TENSORRT_DLA or wants_dla]
    passed_over: dict[str, str] = {}
    # The last engine, ONNX Runtime, runs everywhere.
    while why := why_not(wanted[0], here, trt) or _why_not_default(wanted[0], trt):
        passed_over[wanted.pop(0)] = why
    found = replace(file, config=config.model_copy(update={"engines": tuple(wanted)}), passed_over=passed_over)
    parts = [_title(wanted[0], trt, models), *(f"not {name}: {why}" for name, why in passed_over.items())]
    if wanted[0] == engine_choice.TENSORRT:
        parts += _compilation_notes(models, trt)
    return found, f"engines: {'; '.join(parts)}"


def _why_not_default(engine: str, trt: TrtBackend) -> str:
    """Return why an engine that may run here is not a default; empty if it is one."""
    why = trt.unsupported if engine == engine_choice.TENSORRT else ""
    return f"{why} (engines: [{engine_choice.TENSORRT}] tries it anyway)" if why else ""


def has_gpu() -> bool:
    """Return whether there is an NVIDIA GPU, such as a Jetson's. Imports and opens nothing."""
    driver = cuda_driver()
    if driver is not None and (driver.gpus or driver.trouble):
        return True
    return platform.machine() == "aarch64" and is_jetson()  # is_jetson reads the list of Debian packages, so it is last


def leaves_engine(model: ModelConfig) -> bool:
    """Return whether a model's section leaves its engine open: it names neither a backend nor a CPU core."""
    return model.backend == "auto" and not any(one.startswith("cpu") for one in accelerators_of(model.placement))


def _title(engine: str, trt: TrtBackend, models: Mapping[str, ModelConfig]) -> str:
    if engine in (engine_choice.ORT, engine_choice.ORT_CUDA):
        return f"ONNX Runtime on the {'GPU' if engine == engine_choice.ORT_CUDA else 'CPU'}"
    if engine == engine_choice.TENSORRT_DLA:
        return f"{trt.library.title} with the DLA, as placement: asks for"
    fp16 = [name for name, model in models.items() if model.leaves_precision]
    which = "" if len(fp16) == len(models) else f" ({', '.join(fp16)})"
    return f"{trt.library.title}{f' in FP16{which}' if fp16 else ''} on the GPU"


def _compilation_notes(models: Mapping[str, ModelConfig], trt: TrtBackend) -> list[str]:
    """Return notes about the models that TensorRT must compile first, as far as known before they are read."""
    from edgert.backend.tensorrt.engine_cache import last_build

    store, named = engine_store(), []
    for name, model in models.items():
        facts, seconds = last_build(store, str(model.onnx))
        if any(facts.get(fact) != value for fact, value in trt.facts.items()):
            took = f"{seconds:.0f} s with TensorRT {facts['TensorRT']}" if seconds else "how long is not known yet"
            named.append(f"{name} ({took})")
    return [f"compiled once: {', '.join(named)}", f"engines: [{engine_choice.ORT}] keeps to the CPU"] if named else []
