"""One model through all its build steps: the forms that engines run, and its members of the bundle."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING

from edgert.bundle.manifest import ModelEntry, TensorEntry
from edgert.compiler.model_job import MODEL, ModelJob
from edgert.compiler.model_steps import CHANGES, FACTS, PORTS, load_step, rewrite_step, shapes_step
from edgert.compiler.placement_steps import PLACEMENT, placement_of, survey_step
from edgert.compiler.precision_steps import (
    CACHE,
    FP16_NODES,
    HIGHER,
    QUALITY,
    RANGES,
    Form,
    as_int8,
    calibrate_step,
    fp16_step,
    is_taken,
    lower_step,
    qdq_cache_step,
    quantize_step,
    take_apart_step,
    wants_cache,
)
from edgert.compiler.verify_step import verify_step
from edgert.errors import ArtifactError, cause
from edgert.steps import Product, Report, Runner, Step, to_json

if TYPE_CHECKING:
    from edgert.backend import Span
    from edgert.graph import Graph

FLOAT, FP16, ORT = "float", "fp16", "ort"


@dataclass(frozen=True)
class ModelForms:
    """A model in all its forms.

    Attributes:
        job: which.
        digest: of its file.
        forms: name → the product of the step that made it; ``float`` is always there.
        files: kind → content, of what else there is.
        reference: the model that its forms are held to.
        surveyed: what of it a DLA can run; None where no DLA is to.
    """

    job: ModelJob
    digest: str
    forms: Mapping[str, Product]
    reference: Product
    surveyed: Product | None
    files: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def host(self) -> str:
        """The form that ONNX Runtime runs."""
        return next(name for name in (ORT, FP16, FLOAT) if name in self.forms)

    @property
    def compiled(self) -> Product:
        """The form that a board compiles for its DLA: until TensorRT 10 the float model."""
        names = (FLOAT,) if self.job.target.takes_cache else ("dla", FP16, FLOAT)
        return self.forms[next(name for name in names if name in self.forms)]

    @cached_property
    def graph(self) -> Graph:
        """Of that form."""
        from edgert.graph import read

        return read(self.job.model(self.compiled.files[MODEL]))

    @property
    def is_static(self) -> bool:
        """Whether that form has one size; other forms than the first are always made at one."""
        return self.host != FLOAT or self.job.is_one_size


def build_forms(job: ModelJob, runner: Runner) -> ModelForms:
    """Runs the steps of a model that are not cached. Raises EdgertError, with the model's place in the file."""
    loaded = runner.do(load_step(job))
    facts = loaded.json(FACTS)
    shaped = runner.do(shapes_step(job, loaded))
    if facts["is_quantized"] and wants_cache(job):
        taken = runner.do(take_apart_step(job, shaped))
        if is_taken(taken):
            return _with_own_scales(as_int8(job), runner, facts["digest"], shaped, taken)
    rewritten = runner.do(rewrite_step(job, shaped, facts["is_quantized"]))
    forms: dict[str, Product] = {FLOAT: rewritten}
    files = {"changes": rewritten.files[CHANGES]}
    precision = "as it is" if facts["is_quantized"] else job.precision
    calibrated = None
    if precision == "int8":
        calibrated = runner.do(calibrate_step(job, rewritten))
        for form in _int8_forms(job):
            forms[form] = runner.do(quantize_step(job, form, rewritten, calibrated))
        files |= _int8_files(forms, calibrated)
    elif precision == "fp16":
        forms[FP16] = runner.do(fp16_step(job, rewritten))
        files["higher_precision"] = forms[FP16].files[HIGHER]
    surveyed = None
    if job.target.uses_dla(job.config) and job.is_one_size:
        surveyed = runner.do(survey_step(job, rewritten, forms.get("dla"), calibrated))
        if calibrated is not None and "dla" in forms and job.target.takes_cache:
            lowered = runner.do(lower_step(job, rewritten, calibrated, forms["dla"]))
            files |= _cache_files(lowered)
    return _verified(ModelForms(job, facts["digest"], forms, shaped, surveyed, files), runner)


def _with_own_scales(job: ModelJob, runner: Runner, digest: str, shaped: Product, taken: Product) -> ModelForms:
    """A Q/DQ model for a DLA with TensorRT <= 10: the float model with a cache of its scales there, and the model as
    it came for all other engines."""
    rewritten = runner.do(rewrite_step(job, taken, is_quantized=False))
    lowered = runner.do(qdq_cache_step(job, taken, rewritten))
    forms = {FLOAT: rewritten, ORT: shaped, "gpu": shaped}
    files = {"changes": rewritten.files[CHANGES], **_cache_files(lowered)}
    surveyed = runner.do(survey_step(job, rewritten, None, None, lowered))
    return _verified(ModelForms(job, digest, forms, taken, surveyed, files), runner)


def _verified(made: ModelForms, runner: Runner) -> ModelForms:
    """With its forms held to the reference, and files that describe it."""
    job = made.job
    verified = runner.do(verify_step(job, made.reference, made.forms, job.config.accuracy is not None))
    files = {**made.files, "quality": _quality(made.forms, verified)}
    if job.config.task.labels is not None:
        files["labels"] = _labels(job)
    return replace(made, files=files)


def _int8_forms(job: ModelJob) -> tuple[Form, ...]:
    if job.target.board is None:
        return ("ort",)
    return ("ort", "gpu", "dla") if job.compiles_for_dla else ("ort", "gpu")


def _int8_files(forms: Mapping[str, Product], calibrated: Product) -> dict[str, bytes]:
    higher = {name: form.json(HIGHER) for name, form in forms.items() if HIGHER in form.files}
    return {"ranges": calibrated.files[RANGES], "higher_precision": to_json(higher)}


def _cache_files(lowered: Product) -> dict[str, bytes]:
    return {"cache": lowered.files[CACHE], "fp16_nodes": lowered.files[FP16_NODES]}


def _quality(forms: Mapping[str, Product], verified: Product) -> bytes:
    """Accuracy, noise per tensor, and the distance from the reference, form by form."""
    found = verified.json(QUALITY)
    for name, form in forms.items():
        if QUALITY in form.files:
            found["forms"][name] |= form.json(QUALITY)
    return to_json(found)


def _labels(job: ModelJob) -> bytes:
    path = job.config.task.labels
    assert path is not None  # asked by the caller
    try:
        return path.read_bytes()
    except OSError as error:
        raise ArtifactError(f"cannot read labels {str(path)!r}", why=cause(error), where=job.where) from error


def _spans(model: ModelForms) -> Mapping[str, Span]:
    """The shapes that an engine of the first form is to allow."""
    from edgert.engine import open_spans

    job = model.job
    if job.is_one_size or not job.config.input.shape.is_open:
        return {}
    return open_spans(job.model(model.forms[FLOAT].files[MODEL]), job.config)


def _image(model: ModelForms, placement: Mapping[str, str]) -> str:
    """How an engine with DLA layers will take its image on the board; one line."""
    from edgert.compiler.engine_specs import spread
    from edgert.compiler.input_layout import input_layout
    from edgert.quantization.lowering.trt_cache import parse_cache

    job = model.job
    found = input_layout(
        model.graph,
        job.config.input,
        spread(model.graph, placement),
        typed=not job.target.takes_cache,
        precision=job.precision,
        fp16_nodes=json.loads(model.files["fp16_nodes"])["nodes"] if "fp16_nodes" in model.files else (),
        scales=parse_cache(model.files["cache"].decode()).scales if "cache" in model.files else {},
    )
    return found.describe({found.tensor: found.format} if found.format is not None else {})


def _placement_step(model: ModelForms, planned: Product | None) -> Step:
    """Where a model runs and why. A step of its own, as how its image is taken needs the whole graph."""
    job = model.job
    engines = planned.json(PLACEMENT).get(job.name, []) if planned is not None else []
    texts = {kind: model.files[kind].decode() for kind in ("cache", "fp16_nodes") if kind in model.files}
    facts = {
        "engines": engines,
        "surveyed": model.surveyed.digest if model.surveyed is not None else None,
        "forms": [model.forms[FLOAT].digest, model.compiled.digest],
        "texts": texts,
        "asked": job.config.model_dump(mode="json", include={"placement", "input"}),
        "precision": job.precision,
        "pinned": job.pinned,
        "tensorrt": job.target.tensorrt,
    }

    def make(report: Report) -> Mapping[str, bytes]:
        nodes = set(model.forms[FLOAT].json(PORTS)["nodes"])
        placed = placement_of(job, engines, model.surveyed, nodes, _spans(model), partial(_image, model))
        return {PLACEMENT: placed}

    def promise(files: Mapping[str, bytes]) -> str:
        layouts = [engine["input"] for engine in Product(files).json(PLACEMENT)["engines"] if "input" in engine]
        return "; ".join(dict.fromkeys(layouts))

    return Step("placement", job.name, 1, facts, make, promise)


_ENDINGS = {"cache": "calibration.cache", "labels": "labels.txt"}


def pack_model(model: ModelForms, planned: Product | None, runner: Runner) -> tuple[ModelEntry, dict[str, bytes]]:
    """A model's entry in the manifest, and its members of the bundle."""
    job = model.job
    base = f"models/{job.name}"
    forms = {name: f"{base}/{'model' if name == FLOAT else name}.onnx" for name in model.forms}
    ports = model.forms[FLOAT].json(PORTS)
    content = dict(model.files)
    if job.target.board is not None:
        content["placement"] = runner.do(_placement_step(model, planned)).files[PLACEMENT]
    files = {kind: f"{base}/{_ENDINGS.get(kind, f'{kind}.json')}" for kind in content}

    entry = ModelEntry(
        source=job.config.onnx.name,
        digest=model.digest,
        precision=job.precision,
        inputs=[TensorEntry(**port) for port in ports["inputs"]],
        outputs=[TensorEntry(**port) for port in ports["outputs"]],
        forms=forms,
        files=files,
    )
    members = {path: model.forms[name].files[MODEL] for name, path in forms.items()}
    return entry, members | {path: content[kind] for kind, path in files.items()}
