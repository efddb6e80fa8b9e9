"""One model through all its steps, and what of it goes into the bundle."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING

from edgert.bundle.manifest import ModelEntry, TensorEntry
from edgert.compiler.model_state import MODEL, Subject
from edgert.compiler.model_steps import CHANGES, FACTS, PORTS, load_step, rewrite_step, shapes_step
from edgert.compiler.placement_steps import PLACEMENT, placement_of, survey_step
from edgert.compiler.precision_steps import (
    CACHE,
    EVIDENCE,
    EXCEPTIONS,
    KEPT,
    RANGES,
    Form,
    calibrate_step,
    half_step,
    lower_step,
    quantize_step,
)
from edgert.compiler.qdq_steps import as_int8, is_taken, qdq_cache_step, take_apart_step, wants_cache
from edgert.compiler.verification import verify_step
from edgert.errors import ArtifactError, cause
from edgert.steps import Product, Report, Runner, Step, to_json

if TYPE_CHECKING:
    from edgert.backend import Span
    from edgert.graph.operations import Graph

FLOAT, FP16, ORT = "float", "fp16", "ort"


@dataclass(frozen=True)
class Prepared:
    """A model, made ready.

    Attributes:
        subject: which.
        digest: of its file.
        forms: who is to run it → the step that made its form; ``float`` is always there.
        files: what else there is → its content.
        reference: the model that its forms are held to.
        surveyed: what of it a DLA can run; None where none is asked.
    """

    subject: Subject
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
        names = (FLOAT,) if self.subject.target.takes_cache else ("dla", FP16, FLOAT)
        return self.forms[next(name for name in names if name in self.forms)]

    @cached_property
    def graph(self) -> Graph:
        """Of that form."""
        from edgert.graph.operations import read

        return read(self.subject.model(self.compiled.files[MODEL]))

    @property
    def is_static(self) -> bool:
        """Whether that form has one size; other forms than the first are always made at one."""
        return self.host != FLOAT or self.subject.is_one_size


def prepare(subject: Subject, runner: Runner) -> Prepared:
    """Does a model's steps, those of the cache excepted. Raises EdgertError, with the model's place in the file."""
    loaded = runner.do(load_step(subject))
    facts = loaded.json(FACTS)
    shaped = runner.do(shapes_step(subject, loaded))
    if facts["is_quantized"] and wants_cache(subject):
        taken = runner.do(take_apart_step(subject, shaped))
        if is_taken(taken):
            return _with_own_scales(as_int8(subject), runner, facts["digest"], shaped, taken)
    rewritten = runner.do(rewrite_step(subject, shaped, facts["is_quantized"]))
    forms: dict[str, Product] = {FLOAT: rewritten}
    files = {"changes": rewritten.files[CHANGES]}
    precision = "as it is" if facts["is_quantized"] else subject.precision
    calibrated = None
    if precision == "int8":
        calibrated = runner.do(calibrate_step(subject, rewritten))
        for form in _int8_forms(subject):
            forms[form] = runner.do(quantize_step(subject, form, rewritten, calibrated))
        files |= _int8_files(forms, calibrated)
    elif precision == "fp16":
        forms[FP16] = runner.do(half_step(subject, rewritten))
        files["kept"] = forms[FP16].files[KEPT]
    surveyed = None
    if subject.target.uses_dla(subject.config) and subject.is_one_size:
        surveyed = runner.do(survey_step(subject, rewritten, forms.get("dla"), calibrated))
        if calibrated is not None and "dla" in forms and subject.target.takes_cache:
            lowered = runner.do(lower_step(subject, rewritten, calibrated, forms["dla"]))
            files |= _cache_files(lowered)
    return _verified(Prepared(subject, facts["digest"], forms, shaped, surveyed, files), runner)


def _with_own_scales(subject: Subject, runner: Runner, digest: str, shaped: Product, taken: Product) -> Prepared:
    """A Q/DQ model for a DLA with TensorRT up to 10: the float model with a cache of its scales there, and the model as
    it came for everyone else."""
    rewritten = runner.do(rewrite_step(subject, taken, is_quantized=False))
    lowered = runner.do(qdq_cache_step(subject, taken, rewritten))
    forms = {FLOAT: rewritten, ORT: shaped, "gpu": shaped}
    files = {"changes": rewritten.files[CHANGES], **_cache_files(lowered)}
    surveyed = runner.do(survey_step(subject, rewritten, None, None, lowered))
    return _verified(Prepared(subject, digest, forms, taken, surveyed, files), runner)


def _verified(made: Prepared, runner: Runner) -> Prepared:
    """With its forms held to the reference, and what is there to read about it."""
    subject = made.subject
    verified = runner.do(verify_step(subject, made.reference, made.forms, subject.config.accuracy is not None))
    files = {**made.files, "evidence": _evidence(made.forms, verified)}
    if subject.config.task.labels is not None:
        files["labels"] = _labels(subject)
    return replace(made, files=files)


def _int8_forms(subject: Subject) -> tuple[Form, ...]:
    if subject.target.board is None:
        return ("ort",)
    runs_dla = subject.target.uses_dla(subject.config) and subject.target.dla.release.answer != "no"
    return ("ort", "gpu", "dla") if runs_dla else ("ort", "gpu")


def _int8_files(forms: Mapping[str, Product], calibrated: Product) -> dict[str, bytes]:
    kept = {name: form.json(KEPT) for name, form in forms.items() if KEPT in form.files}
    return {"ranges": calibrated.files[RANGES], "kept": to_json(kept)}


def _cache_files(lowered: Product) -> dict[str, bytes]:
    return {"cache": lowered.files[CACHE], "exceptions": lowered.files[EXCEPTIONS]}


def _evidence(forms: Mapping[str, Product], verified: Product) -> bytes:
    """Accuracy, noise per tensor, and the distance from the reference, form by form."""
    found = verified.json(EVIDENCE)
    for name, form in forms.items():
        if EVIDENCE in form.files:
            found["forms"][name] |= form.json(EVIDENCE)
    return to_json(found)


def _labels(subject: Subject) -> bytes:
    path = subject.config.task.labels
    assert path is not None  # asked by the caller
    try:
        return path.read_bytes()
    except OSError as error:
        raise ArtifactError(f"cannot read labels {str(path)!r}", why=cause(error), where=subject.where) from error


@dataclass(frozen=True)
class Packed:
    """A model's part of a bundle."""

    entry: ModelEntry
    members: Mapping[str, bytes]


def _spans(model: Prepared) -> Mapping[str, Span]:
    """The shapes that an engine of the first form is to allow."""
    from edgert.prepared_model import open_spans

    subject = model.subject
    if subject.is_one_size or not subject.config.input.shape.is_open:
        return {}
    return open_spans(subject.model(model.forms[FLOAT].files[MODEL]), subject.config)


def _image(model: Prepared, placement: Mapping[str, str]) -> str:
    """How the board's TensorRT will be asked to take the image of an engine with DLA layers, in words."""
    from edgert.compiler.layouts import input_layout
    from edgert.compiler.order import spread
    from edgert.quantization.lowering.trt_cache import parse_cache

    subject = model.subject
    found = input_layout(
        model.graph,
        subject.config.input,
        spread(model.graph, placement),
        typed=not subject.target.takes_cache,
        precision=subject.precision,
        half=json.loads(model.files["exceptions"])["half"] if "exceptions" in model.files else (),
        scales=parse_cache(model.files["cache"].decode()).scales if "cache" in model.files else {},
    )
    return found.in_words({found.tensor: found.format} if found.format is not None else {})


def _placement_step(model: Prepared, planned: Product | None) -> Step:
    """Writes down where a model runs and why; how its image is taken needs the whole graph, so that it is kept."""
    subject = model.subject
    engines = planned.json(PLACEMENT).get(subject.name, []) if planned is not None else []
    texts = {kind: model.files[kind].decode() for kind in ("cache", "exceptions") if kind in model.files}
    facts = {
        "engines": engines,
        "surveyed": model.surveyed.digest if model.surveyed is not None else None,
        "forms": [model.forms[FLOAT].digest, model.compiled.digest],
        "texts": texts,
        "asked": subject.config.model_dump(mode="json", include={"placement", "input"}),
        "precision": subject.precision,
        "pinned": subject.pinned,
        "tensorrt": subject.target.tensorrt,
    }

    def make(report: Report) -> Mapping[str, bytes]:
        nodes = set(model.forms[FLOAT].json(PORTS)["nodes"])
        placed = placement_of(subject, engines, model.surveyed, nodes, _spans(model), partial(_image, model))
        return {PLACEMENT: placed}

    def promise(files: Mapping[str, bytes]) -> str:
        told = [engine["input"] for engine in Product(files).json(PLACEMENT)["engines"] if "input" in engine]
        return "; ".join(dict.fromkeys(told))

    return Step("placement", subject.name, 1, facts, make, promise)


_ENDINGS = {"cache": "calibration.cache", "labels": "labels.txt"}


def packed(model: Prepared, planned: Product | None, runner: Runner) -> Packed:
    """The members of a model and its entry in the manifest."""
    subject = model.subject
    base = f"models/{subject.name}"
    forms = {name: f"{base}/{'model' if name == FLOAT else name}.onnx" for name in model.forms}
    ports = model.forms[FLOAT].json(PORTS)
    content = dict(model.files)
    if subject.target.board is not None:
        content["placement"] = runner.do(_placement_step(model, planned)).files[PLACEMENT]
    files = {kind: f"{base}/{_ENDINGS.get(kind, f'{kind}.json')}" for kind in content}

    made = ModelEntry(
        source=subject.config.onnx.name,
        digest=model.digest,
        precision=subject.precision,
        inputs=[TensorEntry(**port) for port in ports["inputs"]],
        outputs=[TensorEntry(**port) for port in ports["outputs"]],
        forms=forms,
        files=files,
    )
    members = {path: model.forms[name].files[MODEL] for name, path in forms.items()}
    return Packed(made, {**members, **{path: content[kind] for kind, path in files.items()}})
