"""Build of a pipeline for a board: every step that any machine can do, and one file with all results.

No x86 machine can build a Jetson's engines. A TensorRT engine belongs to the GPU, the TensorRT and the operating system
that it was made on, and a DLA's loadable needs the DLA. So the board compiles, once, from what is in the bundle.
"""

import json
import shutil
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edgert.board.host import core_count, free_bytes
from edgert.bundle.bundle import save_bundle
from edgert.bundle.manifest import Manifest, ModelEntry
from edgert.compiler.build_target import BuildTarget, ModelJob, batching_stages, build_target, engines_of
from edgert.compiler.model_forms import PLAN, ModelForms, build_forms, pack_model, plan_step
from edgert.config import InferStage, PipelineConfig, PipelineFile, SinkStage, SourceStage, load_pipeline
from edgert.config.file_overlay import as_written
from edgert.config.pipeline_file import CODE_PREFIX, PipelineSource
from edgert.errors import ArtifactError, ConfigError, raised_as, shown
from edgert.files import cache_folder, total_bytes
from edgert.quantization.precision import check_precision
from edgert.reporter import OnProgress, Progress, reporter_of
from edgert.stages.kinds import tracking_of
from edgert.steps import Product, Runner, StepCache, run_in_parallel
from edgert.user_code import code_name
from edgert.yaml_nodes import to_yaml
from edgert.zip_archive import member_of

# User code of a pipeline, which is packed with it.


def code_files(config: PipelineConfig, directory: Path) -> dict[str, bytes]:
    """Return member → content of the user's modules and packages, beside the pipeline file or in folders it names.

    Names of members do not contain these folders. Installed modules are left out.

    Raises:
        ArtifactError: a file cannot be read.
    """
    found: dict[str, bytes] = {}
    for spec in config.code.values():
        code = code_name(spec, "", directory)
        found |= {path.relative_to(code.folder or path).as_posix(): _read(path) for path in code.files}
    return found | {name: _read(path) for path, name in operator_members(config, directory).items()}


def operator_members(config: PipelineConfig, directory: Path) -> dict[Path, str]:
    """Return file of operators → member: its path relative to the pipeline file if it lies beside it, else its name."""
    beside = directory.absolute()
    return {
        path: path.absolute().relative_to(beside).as_posix() if path.absolute().is_relative_to(beside) else path.name
        for path in config.ops
    }


def _read(path: Path) -> bytes:
    with raised_as(ArtifactError, f"cannot read {str(path)!r}", fix="check its permissions"):
        return path.read_bytes()


# The pipeline file of a bundle: the same stages, with the models inside the bundle, runnable by ONNX Runtime.
# Texts with ``${NAME}`` are packed as written, so no password is packed.

_APPLIED_KEYS = ("precision", "calibrate", "accuracy", "quantize")
"""Keys of a model's section that the build has already applied to the packed model."""


def pipeline_text(
    file: PipelineFile,
    models: Mapping[str, str],
    labels: Mapping[str, str],
    target: BuildTarget,
    static: Collection[str] = (),
) -> str:
    """Return the text of the bundle's pipeline file.

    Args:
        file: the loaded pipeline.
        models: model → member that ONNX Runtime runs.
        labels: model → member with its labels, for models with labels.
        target: board and releases that the bundle is built for.
        static: models whose member has one size, to which ``input: shape`` was applied.
    """
    data = {"name": file.config.name, **as_written(file.document.data, file.document.written)}  # by default the file's
    if file.config.ops:
        data["ops"] = list(operator_members(file.config, file.document.path.parent).values())
    for loc, spec in file.config.code.items():
        name = (CODE_PREFIX if loc[-1] == "source" else "") + spec.rpartition("/")[2]
        data = as_written(data, {loc: name})
    for name, section in data.get("models", {}).items():
        section["onnx"] = models[name]
        if name in static and "input" in section:
            section["input"].pop("shape", None)
        if name in labels:
            section["task"]["labels"] = labels[name]
        for key in (*_APPLIED_KEYS, *(("placement",) if target.board is not None else ())):
            section.pop(key, None)
    if target.board is not None:
        data.pop("board", None)
    try:
        json.dumps(data, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        near = shown(error.object[max(0, error.start - 20) : error.end + 20])
        fix = "rename the file, or write ${NAME} in its place and set that where the bundle runs"
        raise ConfigError(f"a bundle cannot contain {near!r}", why="it is no UTF-8 text", fix=fix) from error
    return to_yaml(data)


PIPELINE = "pipeline.yaml"
_FREE_BYTES = 64 * 2**20
"""Space that must be free on the disk before a build begins."""
_BASE_BYTES, _PER_MODEL_BYTE = 400 * 2**20, 12
"""Memory for the steps of one model: a base for the libraries, and bytes per byte of the model. It is held as bytes,
message, arrays and session before and after a step."""


@dataclass(frozen=True, slots=True)
class Built:
    """The result of a build.

    Attributes:
        path: path of the bundle.
        manifest: manifest of the bundle.
        written: whether it was written; False if the same bundle existed already.
        size_bytes: size of the bundle.
        seconds: duration of the build.
        without_edgert: reason why edgert cannot run it on the board; empty if it can.
    """

    path: Path
    manifest: Manifest
    written: bool
    size_bytes: int
    seconds: float
    without_edgert: str = field(default="", kw_only=True)


def build(
    pipeline: PipelineSource,
    output: str | Path,
    *,
    board: str | None = None,
    mode: str | None = None,
    tensorrt: str | None = None,
    tune: bool = False,
    cache: Path | None = None,
    overrides: Iterable[str] = (),
    on_progress: OnProgress | None = None,
) -> Built:
    """Build a bundle.

    Blocks until done. Finished steps are cached, so that the next build resumes. Equal inputs give equal bytes.

    Args:
        pipeline: a pipeline as for :func:`edgert.load_pipeline`, or its result.
        output: path of the bundle.
        board: name or file of the board; by default that of the pipeline. ``host``: any machine with ONNX Runtime.
        mode: power mode; by default the one that the board boots into.
        tensorrt: release on the board; by default that of its usual JetPack.
        tune: whether to search for the fastest settings of each model on this machine, whose times the bundle then has.
        cache: folder of finished steps; by default that of the user.
        overrides: ``key.path=value``, as given to ``--set``.
        on_progress: function called for every event, from several threads; if it raises, the build ends before its next
            step.

    Raises:
        ConfigError: the board, mode or release does not exist, or the pipeline has no model.
        EdgertError: a step failed, or its result did not pass its check.
        ArtifactError: the bundle cannot be written.
    """
    started = time.perf_counter()
    file, output = load_pipeline(pipeline, overrides), Path(output)
    target = build_target(file, board, mode, tensorrt)
    if not file.config.models:
        raise ConfigError("this pipeline has no model to build", where=file.where("models"))
    for name, config in file.config.models.items():
        with file.locating():
            check_precision(config, f"models.{name}")  # reports missing images and labels before minutes of work
    if tune:
        from edgert.compiler.tuning_step import check_tune

        check_tune(target)
    cache = cache or cache_folder() / "build"
    _check_space(output)
    report = reporter_of(on_progress)
    with report.ends():
        return _build_steps(file, output, target, tune, Runner(StepCache(cache), report, report.stop), started)


def _build_steps(
    file: PipelineFile,
    output: Path,
    target: BuildTarget,
    tune: bool,
    runner: Runner,
    started: float,
) -> Built:
    directory, jobs, stop = file.document.path.parent, dict[str, ModelJob](), runner.stop
    how: dict[str, Any] = {"target": target, "state": runner.cache.folder / "state", "stop": stop}
    for name, config in file.config.models.items():
        where, batched = file.where("models", name), bool(batching_stages(file.config, name))
        tracking = tracking_of(file.config, name)
        jobs[name] = ModelJob(name, config, where, directory, tracking, batched=batched, **how)
    ready = run_in_parallel(lambda name: build_forms(jobs[name], runner), jobs, _workers(jobs), stop)
    planned, without = None, target.board.without_edgert if target.board is not None else ""
    if target.board is not None:
        if any(isinstance(stage, InferStage) for stage in file.config.stages.values()):
            planned = runner.do(plan_step(file, target, {name: one.digest for name, one in ready.items()}))
        there = without or f"the board compiles the bundle once, with its TensorRT {target.tensorrt}"
        left = f"not here: no x86 machine can build an engine for {target.name}; {there}"
        runner.on_progress(Progress("compile", "", "skipped", detail=left))
    if tune:
        from edgert.compiler.tuning_step import tuned

        ready = tuned(file, ready, runner)
    manifest, members = _make_bundle(file, target, ready, planned, runner)
    began = time.perf_counter()
    written = save_bundle(output, manifest, members)
    detail = f"{len(members)} members" if written else "nothing has changed"
    runner.on_progress(Progress("bundle", "", "done" if written else "cached", time.perf_counter() - began, detail))
    seconds = time.perf_counter() - started
    return Built(output, manifest, written, output.stat().st_size, seconds, without_edgert=without)


def _workers(jobs: Mapping[str, ModelJob]) -> int:
    free = free_bytes()
    largest = max((total_bytes([one.config.onnx]) for one in jobs.values()), default=0)
    fitting = free // (_BASE_BYTES + _PER_MODEL_BYTE * largest) if free else 1
    return max(1, min(len(jobs), core_count(), fitting))


def _check_space(output: Path) -> None:
    """Raise ArtifactError if the disk is full, before minutes of work."""
    there = next(folder for folder in (output.absolute(), *output.absolute().parents) if folder.exists())
    free = shutil.disk_usage(there).free
    if free < _FREE_BYTES:
        raise ArtifactError(
            f"the disk of {str(output)!r} is full",
            why=f"{free // 2**20} MiB are free, {_FREE_BYTES // 2**20} are needed at least",
            fix="free some space, or name a file on another disk: -o FILE",
        )


def _make_bundle(
    file: PipelineFile,
    target: BuildTarget,
    ready: Mapping[str, ModelForms],
    planned: Product | None,
    runner: Runner,
) -> tuple[Manifest, dict[str, bytes]]:
    models: dict[str, ModelEntry] = {}
    members = code_files(file.config, file.document.path.parent)
    for name, one in ready.items():
        models[name], files = pack_model(one, planned, runner)
        members |= files
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
        sources={name: _source_kind(stage.source) for name, stage in stages.items() if isinstance(stage, SourceStage)},
        sinks={name: stage.sink for name, stage in stages.items() if isinstance(stage, SinkStage)},
        models=models,
        members={path: member_of(content) for path, content in sorted(members.items())},
    )
    return manifest, members


def _source_kind(source: str) -> str:
    """Return the scheme of an address, whose rest may contain a password; ``api`` or ``file`` for other sources."""
    scheme, colon, _ = source.partition(":")
    return scheme if colon and len(scheme) > 1 else source if source == "api" else "file"
