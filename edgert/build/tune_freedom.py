"""What a search for tactics may change of one model: what the pipeline file leaves open and this machine can run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from edgert.build.prepared import Prepared
from edgert.build.subject import MODEL
from edgert.config import InferStage, PipelineConfig, PipelineFile

if TYPE_CHECKING:
    from edgert.tune.candidate import Freedom
    from edgert.tune.tactic import Tactic

_ALWAYS = {
    "channels last on a processor": "ONNX Runtime has its own layout there, which optimization: all uses and extended "
    "leaves out",
    "denormal numbers": "ONNX Runtime decides about them once per process, so that nothing can be compared in turns",
    "CUDA graphs": "a pipeline on a GPU records its runs wherever they can be recorded",
}


def users_of(config: PipelineConfig, name: str) -> Mapping[str, InferStage]:
    """The stages that run a model."""
    stages = config.stages.items()
    return {key: stage for key, stage in stages if isinstance(stage, InferStage) and stage.infer == name}


def batching(config: PipelineConfig, name: str) -> tuple[str, ...]:
    """The stages that run a model in batches."""
    return tuple(key for key, stage in users_of(config, name).items() if stage.batch is not None)


def default_of(file: PipelineFile, one: Prepared, live: bool) -> Tactic:
    """What a pipeline runs without tuning."""
    from edgert.assemble import replicas_of, threads_of
    from edgert.backend import Tuning
    from edgert.tune.tactic import Tactic

    name, config = one.subject.name, file.config.models[one.subject.name]
    replicas = replicas_of(file.config, name, live)
    backend = "ort" if config.backend == "auto" else config.backend
    tuning, threads = Tuning(**config.tuning.model_dump()), threads_of(file.config, name) // replicas
    most, *_ = _batches(file.config, one).get(one.host, (1,))
    return Tactic(backend, one.host, replicas, threads, tuning=tuning, batch=most)


def freedom_of(file: PipelineFile, one: Prepared, live: bool) -> Freedom:
    """What may be tried."""
    from edgert.assemble import threads_of
    from edgert.board.core import core_accelerators
    from edgert.tune import absent
    from edgert.tune.candidate import ORT, Freedom, backends_of, forms_of

    name, config = one.subject.name, file.config.models[one.subject.name]
    users = users_of(file.config, name).values()
    infers = [stage for stage in file.config.stages.values() if isinstance(stage, InferStage)]
    threads = threads_of(file.config, name)
    asked = (ORT,) if file.config.engines else backends_of(config)  # the chain of a bundle names nothing else
    absences = {backend: absent.why_not(backend) for backend in asked}
    free = Freedom(
        default=default_of(file, one, live),
        backends=tuple(backend for backend, why in absences.items() if not why),
        forms=forms_of(config.precision, one.forms),
        threads=threads,
        fixed_threads=config.threads is not None,
        fixed_replicas=config.replicas is not None,
        replicated=not live and all(stage.crop is None for stage in users),
        pinned=len(infers) == 1 and len(core_accelerators()) >= threads,
        batches=_batches(file.config, one),
    )
    reasons = {backend: why for backend, why in absences.items() if why} | dict(_left_out(file, one, free, live))
    return replace(free, left_out=reasons | _ALWAYS)


def _batches(config: PipelineConfig, one: Prepared) -> Mapping[str, tuple[int, ...]]:
    """Form → frames in a run: as many as the stages ask for, where it takes them, and fewer where its batch is open."""
    from edgert.tune.candidate import batches

    stages = users_of(config, one.subject.name).values()
    sizes = {stage.batch.max if stage.batch is not None else 1 for stage in stages}
    most = max(sizes, default=1)
    if most == 1:
        return {}
    rows = {form: _rows(one, form) for form in one.forms}
    is_free = len(sizes) == 1
    free = {form: (batches(most) if is_free else (most,)) for form, count in rows.items() if count is None}
    return free | {form: (most if count >= most else 1,) for form, count in rows.items() if count is not None}


def _rows(one: Prepared, form: str) -> int | None:
    """Frames that a form takes in a run; None where that is open."""
    from edgert.graph.spec import inputs

    first = [spec.shape[0] if spec.shape else 1 for spec in inputs(one.subject.model(one.forms[form].files[MODEL]))]
    fixed = [size for size in first if isinstance(size, int)]
    return min(fixed) if fixed else None


def _left_out(file: PipelineFile, one: Prepared, free: Freedom, live: bool) -> Iterator[tuple[str, str]]:
    config = file.config.models[one.subject.name]
    if file.config.engines:
        yield "other backends", "engines: says who runs the models"
    elif config.backend != "auto":
        yield "other backends", f"the file says backend: {config.backend}"
    if config.precision != "auto":
        yield "other precisions", f"the file says precision: {config.precision}"
    elif len(one.forms) == 1:
        yield "other precisions", "the build made none; precision: auto with calibrate: makes INT8"
    if live:
        yield "replicas", "waiting for a second frame of a camera would only add latency"
    if not free.batches:
        yield "batches", "no stage says batch:"
    elif all(len(sizes) == 1 for sizes in free.batches.values()):
        yield "other batches", "the model's batch size is fixed, or its stages ask for different ones"
