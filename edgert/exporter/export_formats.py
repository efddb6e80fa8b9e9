"""Writing what leaves, format by format."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from edgert.backend.ort import Function
from edgert.board import HOST
from edgert.bundle.bundle import is_bundle
from edgert.compiler.build_target import BuildTarget
from edgert.compiler.model_forms import FLOAT, FP16, ORT
from edgert.compiler.model_job import ModelJob
from edgert.compiler.model_steps import REWRITE_TOLERANCE, random_feeds
from edgert.compiler.verification import TOLERANCE
from edgert.errors import ArtifactError, BuildError, ConfigError
from edgert.exporter.script import commands_of, dispatch_shares, script
from edgert.exporter.source import Item, Outline, Source
from edgert.exporter.triton import Device, repository_part, served_of
from edgert.files import replace_bytes
from edgert.graph.dla_rewrites import fit_model, prove, without
from edgert.graph.load import load
from edgert.graph.model import Model, to_bytes
from edgert.graph.wholeness import check_standard
from edgert.quantization.precision import half_model
from edgert.quantization.prepare import is_quantized
from edgert.zip_archive import check_paths

# A model as plain ONNX, in the form that is asked for, and the proof that the written file is that model.

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
        return _quantized(item, target)
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
    job = ModelJob(item.name, item.config, item.where, Path(), BuildTarget(None), Path(), threading.Event())
    feeds = random_feeds(job, to_bytes(first), 1)
    return prove(first, second, feeds, lambda model, feed: list(functions[id(model)](feed).values())).relative


def _quantized(item: Item, target: Target) -> Model:
    if target in item.forms:
        return load(item.forms[target])
    plain = load(item.forms[FLOAT])
    if is_quantized(plain):
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
        why="its ranges must be measured on typical images",
        where=item.where,
        fix=f"edgert quantize {item.config.onnx.name} --images FOLDER; or a pipeline with precision: int8",
    )


Format = Literal["triton", "onnx", "trtexec"]
FORMATS: tuple[Format, ...] = get_args(Format)
SCRIPT = "build.sh"


@dataclass(frozen=True, slots=True)
class Exported:
    """What was written.

    Attributes:
        files: in order.
        limitations: what the format has no words for, model by model.
    """

    files: tuple[Path, ...]
    limitations: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """What is to be written.

    Attributes:
        format: one of :data:`FORMATS`.
        output: a folder; for ``onnx`` and a single model also a file that ends in ``.onnx``.
        form: which ONNX form; what the model's precision asks for by default. trtexec decides by the TensorRT.
        target: whose INT8 form; ONNX Runtime's by default.
        device: where Triton runs the models; on a GPU where they were built for a board.
        max_batch: of requests, for Triton; see :func:`~edgert.exporter.triton.batch_of`.
    """

    format: Format
    output: Path
    form: Form | None = None
    target: Target | None = None
    device: Device | None = None
    max_batch: int | None = None


def write_export(source: Source, wanted: ExportOptions) -> Exported:
    """Writes a source's models. Files that are there already are replaced, each whole or not at all; others stay.

    Raises:
        ConfigError: an option that the format has no use for, or no TensorRT is known.
        ArtifactError: nothing can be written there; or what was written does not compute what it should.
        BuildError: the format cannot take a model.
    """
    check_export(source.outline, wanted)
    if wanted.format == "onnx":
        return _onnx(source, wanted.output, wanted.form, wanted.target)
    if wanted.format == "triton":
        return _triton(source, wanted.output, wanted.device, wanted.max_batch)
    return _trtexec(source, wanted.output)


def check_export(outline: Outline, wanted: ExportOptions) -> None:
    """Says what :func:`write_export` would refuse and can be told before anything is built.

    Raises:
        ConfigError: an option that the format has no use for, several models for one file, or no TensorRT is known.
    """
    format, output = wanted.format, wanted.output
    options = {"--form": wanted.form, "--target": wanted.target, "--device": wanted.device}
    _refuse(format, {**options, "--max-batch": wanted.max_batch})
    if format == "onnx" and output.suffix == ".onnx" and len(outline.names) > 1:
        names = ", ".join(outline.names)
        raise ConfigError(f"{len(outline.names)} models in one file?", why=names, fix="name a folder, or --model NAME")
    if format == "trtexec" and not outline.tensorrt:
        raise _no_release(outline.path)


def _no_release(path: Path) -> ConfigError:
    if is_bundle(path):
        fix = "build it for a board: edgert build PIPELINE --board NAME; edgert boards lists them"
    else:
        fix = (
            "--board NAME, or --trt 10.3"
            if path.suffix.lower() == ".onnx"
            else "--board NAME; edgert boards lists them"
        )
    why = "its options differ from release to release"
    return ConfigError("trtexec of which TensorRT?", why=why, where=str(path), fix=fix)


def _refuse(format: Format, options: Mapping[str, object]) -> None:
    takes = {"onnx": ("--form", "--target"), "triton": ("--device", "--max-batch"), "trtexec": ()}[format]
    for option, value in options.items():
        if value is not None and option not in takes:
            raise ConfigError(f"{option} says nothing for --format {format}", fix=f"leave {option} out")


def _onnx(source: Source, output: Path, form: Form | None, target: Target | None) -> Exported:
    written, limitations = [], list(source.around)
    is_file = output.suffix == ".onnx"
    for item in source.items:
        model = form_of(item, form or usual_form(item), target or "ort")
        path = output if is_file else output / f"{item.name}.onnx"
        replace_bytes(path, to_bytes(model))
        check_written(path, item, model)
        written.append(path)
        limitations += [f"{item.name}, {line}" for line in item.work]
    return Exported(tuple(written), tuple(limitations))


def _triton(source: Source, output: Path, device: Device | None, max_batch: int | None) -> Exported:
    chosen = device or ("cpu" if source.board == HOST else "gpu")
    every = [one for item in source.items for one in served_of(item, chosen, max_batch)]
    files = {name: content for one in every for name, content in repository_part(one).items()}
    limitations = (*(f"{one.name}, {line}" for one in every for line in one.limitations), *source.around)
    return Exported(_write(output, files), limitations)


def _trtexec(source: Source, output: Path) -> Exported:
    commands = [one for item in source.items for one in commands_of(item, source.tensorrt)]
    limitations = [*dict.fromkeys(line for one in commands for line in one.limitations)]
    limitations += [f"{item.name}, {line}" for item in source.items for line in (*item.work, *dispatch_shares(item))]
    limitations += source.around
    files = {name: content for one in commands for name, content in one.members.items()}
    written = _write(output, {**files, SCRIPT: script(commands, source.tensorrt, limitations).encode()})
    written[-1].chmod(0o755)
    return Exported(written, tuple(limitations))


def _write(output: Path, files: Mapping[str, bytes]) -> tuple[Path, ...]:
    """Files below a folder, in order. Raises ArtifactError."""
    check_paths(files, str(output))
    if output.exists() and not output.is_dir():
        raise ArtifactError(f"cannot write {str(output)!r}", why="it is a file", fix="name a folder")
    for name, content in files.items():
        replace_bytes(output / name, content)
    return tuple(output / name for name in files)
