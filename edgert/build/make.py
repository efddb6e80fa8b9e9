"""A pipeline built for a board: every step that any machine can do, and one file with all that came of it.

No x86 machine can build a Jetson's engines: a TensorRT engine belongs to the GPU, the TensorRT and the operating system
that it was made on, and a DLA's loadable needs the DLA. So the board compiles, once, from what stands in the bundle.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from edgert.artifact import cache_folder
from edgert.artifact.bundle import save_bundle
from edgert.artifact.manifest import Manifest, ModelEntry
from edgert.artifact.member import member_of
from edgert.board.host import core_count
from edgert.board.memory import free_bytes
from edgert.build.code import code_files
from edgert.build.pipeline_text import pipeline_text
from edgert.build.place_step import PLAN, plan_step
from edgert.build.prepared import Prepared, packed, prepare
from edgert.build.subject import Subject
from edgert.build.target import BuildTarget, build_target, engines_of
from edgert.build.tune_freedom import batching
from edgert.build.tune_step import check_tune, tuned
from edgert.compiler import Event, Product, Tell
from edgert.compiler.build import Runner, side_by_side
from edgert.compiler.cache import StepCache
from edgert.config import InferStage, ModelConfig, PipelineFile, SinkStage, SourceStage
from edgert.errors import ArtifactError, ConfigError, EdgertError
from edgert.precision.ready import check_precision

PIPELINE = "pipeline.yaml"
_FREE_BYTES = 64 * 2**20
"""Space a build wants on the disk at least, before it begins."""
_BASE_BYTES, _PER_MODEL_BYTE = 400 * 2**20, 12
"""Memory for the steps of one model: the libraries' tensors, and what the model's size is multiplied by at most, as it
is held as bytes, message, arrays and session before and after a step."""


@dataclass(frozen=True, slots=True)
class Built:
    """What came of a build.

    Attributes:
        path: the bundle.
        manifest: what is in it.
        written: whether it was written; False where the same bundle was there already.
        size_bytes: of the file.
        seconds: it took.
    """

    path: Path
    manifest: Manifest
    written: bool
    size_bytes: int
    seconds: float


def build(
    file: PipelineFile,
    output: Path,
    *,
    board: str | None = None,
    mode: str | None = None,
    tensorrt: str | None = None,
    folder: bool = False,
    tune: bool = False,
    cache: Path | None = None,
    tell: Tell | None = None,
    stop: threading.Event | None = None,
) -> Built:
    """Builds a bundle. Blocks until done; what finished steps made is kept, so that the next build goes on from there.

    Equal inputs give equal bytes.

    Args:
        output: the file to write; with ``folder`` a folder of plain files.
        board: name or file; the pipeline's own by default. ``host`` is for any machine with ONNX Runtime.
        mode: power mode; the one that the board boots into by default.
        tensorrt: release on the board; that of its usual JetPack by default.
        tune: searches for what runs each model fastest on this machine; the bundle is then of this machine's times.
        cache: folder of finished steps; the user's own by default.
        tell: told of everything that happens, from several threads.
        stop: ends the build when set.

    Raises:
        ConfigError: no such board, mode or release; or the pipeline has no model.
        EdgertError: a step failed, or its promise is not kept.
        ArtifactError: the bundle cannot be written.
    """
    started = time.perf_counter()
    target = build_target(file, board, mode, tensorrt)
    if not file.config.models:
        raise ConfigError("this pipeline has no model to build", where=file.where("models"))
    _check_precision(file)
    if tune:
        check_tune(target)
    cache = cache or cache_folder() / "build"
    _check_space(output)
    stop = stop or threading.Event()
    tell = tell or (lambda event: None)
    runner = Runner(StepCache(cache), tell, stop)
    subjects = _subjects(file, target, cache / "state", stop)
    ready = side_by_side(lambda name: prepare(subjects[name], runner), subjects, _workers(subjects), stop)
    planned = (
        runner.do(plan_step(file, target, {name: one.digest for name, one in ready.items()}))
        if (target.board is not None and _runs_models(file))
        else None
    )
    if target.board is not None:
        tell(Event("compile", "", "skipped", detail=compile_note(target)))
    if tune:
        ready = tuned(file, ready, runner)
    manifest, members = _bundle(file, target, ready, planned, runner)
    began = time.perf_counter()
    written = save_bundle(output, manifest, members, folder=folder)
    size_bytes = sum(map(len, members.values())) if folder else output.stat().st_size
    detail = f"{len(members)} members" if written else "nothing has changed"
    tell(Event("bundle", "", "done" if written else "cached", time.perf_counter() - began, detail))
    return Built(output, manifest, written, size_bytes, time.perf_counter() - started)


def _check_precision(file: PipelineFile) -> None:
    """Raises EdgertError for pictures and labels that are not there, before minutes of work."""
    for name, config in file.config.models.items():
        try:
            check_precision(config, f"models.{name}")
        except EdgertError as error:
            raise file.located(error)  # noqa: B904 - the same error, with its line


def compile_note(target: BuildTarget) -> str:
    """What is left to the board, in one line."""
    return (
        f"not here: no x86 machine can build an engine for {target.name}; the board compiles the bundle once, "
        f"with its TensorRT {target.tensorrt}"
    )


def _subjects(file: PipelineFile, target: BuildTarget, state: Path, stop: threading.Event) -> dict[str, Subject]:
    directory = file.document.path.parent
    return {
        name: Subject(
            name, config, file.where("models", name), directory, target, state, stop, bool(batching(file.config, name))
        )
        for name, config in file.config.models.items()
    }


def _workers(subjects: Mapping[str, Subject]) -> int:
    """Models at a time: as many as there are cores, and memory for."""
    free = free_bytes()
    largest = max((_size(one.config) for one in subjects.values()), default=0)
    fitting = free // (_BASE_BYTES + _PER_MODEL_BYTE * largest) if free else 1
    return max(1, min(len(subjects), core_count(), fitting))


def _size(config: ModelConfig) -> int:
    return config.onnx.stat().st_size if config.onnx.is_file() else 0


def _check_space(output: Path) -> None:
    """Raises ArtifactError on a disk that is full already, before minutes of work."""
    there = next(folder for folder in (output.absolute(), *output.absolute().parents) if folder.exists())
    free = shutil.disk_usage(there).free
    if free < _FREE_BYTES:
        raise ArtifactError(
            f"the disk of {str(output)!r} is full",
            why=f"{free // 2**20} MiB are free, {_FREE_BYTES // 2**20} are wanted at least",
            fix="free some space, or name a file on another disk: -o FILE",
        )


def _runs_models(file: PipelineFile) -> bool:
    return any(isinstance(stage, InferStage) for stage in file.config.stages.values())


def _bundle(
    file: PipelineFile,
    target: BuildTarget,
    ready: Mapping[str, Prepared],
    planned: Product | None,
    runner: Runner,
) -> tuple[Manifest, dict[str, bytes]]:
    models: dict[str, ModelEntry] = {}
    members = code_files(file.config, file.document.path.parent)
    for name, one in ready.items():
        part = packed(one, planned, runner)
        models[name] = part.entry
        members |= part.members
    onnx = {name: entry.forms[ready[name].host] for name, entry in models.items()}
    labels = {name: entry.files["labels"] for name, entry in models.items() if "labels" in entry.files}
    static = [name for name, one in ready.items() if one.is_static]
    members[PIPELINE] = pipeline_text(file, onnx, labels, target, static).encode()
    if planned is not None:
        members[PLAN] = planned.files[PLAN]
    stages = file.config.stages
    manifest = Manifest(
        name=file.config.name,
        board=target.name,
        mode=target.mode,
        tensorrt=target.tensorrt,
        engines=engines_of(target, list(file.config.models.values()), file.config.engines),
        pipeline=PIPELINE,
        sources={name: _kind(stage.source) for name, stage in stages.items() if isinstance(stage, SourceStage)},
        sinks={name: stage.sink for name, stage in stages.items() if isinstance(stage, SinkStage)},
        models=models,
        members={path: member_of(content) for path, content in sorted(members.items())},
    )
    return manifest, members


def _kind(source: str) -> str:
    """``rtsp`` of an address, which may hold a password; ``file`` of a path."""
    scheme, colon, _ = source.partition(":")
    return scheme if colon and len(scheme) > 1 else source if source == "api" else "file"
