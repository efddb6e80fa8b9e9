"""Head of a recording: data from which a replay makes the same pipeline or names the differences."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import metadata
from typing import TYPE_CHECKING, Any

from edgert.assemble.models import replicas_of, threads_of
from edgert.config import InferStage, PipelineFile, SourceStage, file_overlay
from edgert.files import digest_of_file
from edgert.runtime.stage import Source
from edgert.stages.source.live import redact
from edgert.steps import code_version

if TYPE_CHECKING:
    from edgert.assemble.graph import Assembly

_PACKAGES = ("numpy", "onnxruntime", "opencv-python-headless", "av")
_EXACT = ("ort", "python", "null")


def recorded_about(file: PipelineFile, assembly: Assembly) -> dict[str, Any]:
    """Return the head of a recording of a pipeline, given as it was at its start, as plain data."""
    config, tasks = file.config, assembly.graph.tasks
    used = {stage.infer for stage in config.stages.values() if isinstance(stage, InferStage)}
    lives = {task.name: task.stage.live for task in tasks if isinstance(task.stage, Source)}
    models = {}
    for name in sorted(used & set(config.models)):
        info = dict(assembly.engines[name].info) if name in assembly.engines else {}
        models[name] = {
            "file": str(config.models[name].onnx),
            "sha256": digest_of_file(config.models[name].onnx),
            "threads": threads_of(config, name),
            "replicas": replicas_of(config, name, any(lives.values())),
            "engine": {key: value for key, value in info.items() if isinstance(value, str)},
            "is_exact": is_exact(info),
        }
    return {
        "run": assembly.run,
        "edgert": code_version(),
        "packages": versions(),
        "path": str(file.document.path.absolute()),
        "pipeline": written_pipeline(file),
        "models": models,
        "sources": lives,
        "tasks": [task.name for task in tasks],
    }


def written_pipeline(file: PipelineFile) -> dict[str, Any]:
    """Return a pipeline file's data as written, without secrets in addresses and variables."""
    data: dict[str, Any] = file_overlay.as_written(file.document.data, file.document.written)
    for name, stage in file.config.stages.items():
        if isinstance(stage, SourceStage) and name in data.get("stages", {}):
            data["stages"][name]["source"] = redact(str(data["stages"][name]["source"]))
    return data


def versions() -> dict[str, str]:
    """Return the versions of installed packages that results depend on."""
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def is_exact(info: Mapping[str, object]) -> bool:
    """Return whether an engine is deterministic bit for bit, as ONNX Runtime on the CPU is."""
    return "device" not in info and info.get("backend") in _EXACT
