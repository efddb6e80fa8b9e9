"""A model as plain ONNX, in the form that is asked for, and the proof that the written file is that model."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal, get_args

from edgert.backend.ort import Function
from edgert.build.model_steps import REWRITE_TOLERANCE, random_feeds
from edgert.build.prepared import FLOAT, FP16, ORT
from edgert.build.subject import Subject
from edgert.build.target import BuildTarget
from edgert.build.verify_step import TOLERANCE
from edgert.errors import ArtifactError, BuildError
from edgert.export.source import Item
from edgert.graph.check import check_standard
from edgert.graph.fit import fit_model, prove, without
from edgert.graph.load import load
from edgert.graph.model import Model, to_bytes
from edgert.precision.half import half_model
from edgert.quantize.prepare import is_quantised

Form = Literal["float", "fp16", "int8-qdq", "fit"]
Target = Literal["ort", "gpu", "dla"]
FORMS: tuple[Form, ...] = get_args(Form)
TARGETS: tuple[Target, ...] = get_args(Target)
_TOLERANCE: Mapping[Form, float] = {"fp16": TOLERANCE["fp16"], "fit": REWRITE_TOLERANCE}
"""Form that is made here → how far its outputs may be from the float model's."""


def usual_form(item: Item) -> Form:
    """The form that the model's precision asks for."""
    return "int8-qdq" if ORT in item.forms else "fp16" if FP16 in item.forms else "float"


def form_of(item: Item, form: Form, target: Target = "ort") -> Model:
    """A model in one of the forms.

    Args:
        form: ``float``: as it was built; ``fp16``; ``int8-qdq``: INT8 with Q/DQ nodes; ``fit``: in operators that a DLA
            has.
        target: whose Q/DQ nodes: those for ONNX Runtime, or for TensorRT on a GPU or a DLA.

    Raises:
        BuildError: there is no INT8 form, or what is made here does not compute what the float model does.
        ModelError: dimensions stay open, where the form needs a size.
    """
    if form == "float":
        return load(item.forms[FLOAT])
    if form == "int8-qdq":
        return _quantised(item, target)
    if form == "fp16" and FP16 in item.forms:
        return load(item.forms[FP16])
    model = load(item.forms[FLOAT])
    make: Mapping[Form, Callable[[], Model]] = {
        "fp16": lambda: half_model(model, item.config).model,
        "fit": lambda: fit_model(model, without(item.config.skip_rewrites, f"{item.where}.skip_rewrites"))[0],
    }
    made = make[form]()
    apart = distance(item, model, made)
    if not apart <= _TOLERANCE[form]:
        raise BuildError(
            f"the {form} form of model {item.name!r} does not compute what the model does",
            why=f"outputs are {apart:.2g} of the largest apart, at most {_TOLERANCE[form]:g} is accepted",
            where=item.where,
            fix="leave out --form; please report the model",
        )
    return made


def check_written(path: Path, item: Item, model: Model) -> None:
    """Reads a file back, holds it to the ONNX standard, and runs it once beside what was to be written.

    Raises:
        ArtifactError: its outputs differ in anything.
        ModelError: it is not valid ONNX.
        BuildError: ONNX Runtime cannot run it.
    """
    written = load(path)
    check_standard(written)
    apart = distance(item, model, written)
    if apart != 0:
        raise ArtifactError(
            f"{path} does not compute what was written",
            why=f"outputs are {apart:.2g} of the largest apart",
            fix="write it again; check the disk",
        )


def distance(item: Item, first: Model, second: Model) -> float:
    """How far the outputs of two models are apart on one made-up input, as a part of the largest."""
    functions = {id(model): Function(model) for model in (first, second)}
    subject = Subject(item.name, item.config, item.where, Path(), BuildTarget(None), Path(), threading.Event())
    feeds = random_feeds(subject, to_bytes(first), 1)
    return prove(first, second, feeds, lambda model, feed: list(functions[id(model)](feed).values())).relative


def _quantised(item: Item, target: Target) -> Model:
    if target in item.forms:
        return load(item.forms[target])
    plain = load(item.forms[FLOAT])
    if is_quantised(plain):
        return plain
    known = [name for name in ("ort", "gpu", "dla") if name in item.forms]
    if known:
        raise BuildError(
            f"there is no INT8 form of model {item.name!r} for {target}",
            why=f"it was built for {', '.join(known)}",
            where=item.where,
            fix=f"--target {known[0]}, or build it for a board that has one",
        )
    raise BuildError(
        f"there is no INT8 form of model {item.name!r}",
        why="its ranges must be measured on typical pictures",
        where=item.where,
        fix=f"edgert quantize {item.config.onnx.name} --images FOLDER; or a pipeline with precision: int8",
    )
