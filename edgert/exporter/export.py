"""``edgert export``: writes models for a Triton server, any ONNX runtime, or trtexec.

The written files and the returned result list everything that a format cannot express.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from edgert.backend.ort import Function
from edgert.board import HOST
from edgert.bundle.bundle import is_bundle
from edgert.compiler.model_forms import FLOAT, FP16, ORT
from edgert.compiler.model_steps import BOXES_TOLERANCE, REWRITE_TOLERANCE, TOLERANCE, boxes_apart, uniform_feeds
from edgert.errors import ArtifactError, BuildError, ConfigError, nearest
from edgert.exporter.source import Item, Source, open_source
from edgert.exporter.triton import DEVICES, Device, repository_part, served_models
from edgert.exporter.trtexec import build_script, dispatch_shares, engine_commands
from edgert.files import replace_bytes
from edgert.graph import Model, load, to_bytes
from edgert.graph.dla_rewrites.apply import fit_model, prove, remaining_rewrites
from edgert.graph.load import check_standard
from edgert.installation import pipeline_path
from edgert.quantization.conversion import fp16_model
from edgert.quantization.run import is_quantized
from edgert.reporter import OnProgress
from edgert.zip_archive import check_paths

# A model as plain ONNX in the requested form, and the check that the written file computes the same.

Form = Literal["float", "fp16", "int8-qdq", "fit"]
Target = Literal["ort", "gpu", "dla"]
FORMS: tuple[Form, ...] = get_args(Form)
TARGETS: tuple[Target, ...] = get_args(Target)
_TOLERANCE: Mapping[Form, float] = {"fp16": TOLERANCE["fp16"], "fit": REWRITE_TOLERANCE}
"""Largest accepted difference from the outputs of the float model, by form."""


def model_in_form(item: Item, form: Form, target: Target = "ort") -> Model:
    """Return a model as built (``float``), in ``fp16``, ``int8-qdq``, or ``fit``: with operators of a DLA.

    ``target`` is the runtime of Q/DQ nodes. Raises BuildError: there is no INT8 form, or the outputs of a new form
    differ from those of the float model. Raises ModelError: the form needs fixed sizes, and the model has open
    dimensions.
    """
    if form == "float":
        return load(item.forms[FLOAT])
    if form == "int8-qdq":
        return _quantized_form(item, target)
    if form == "fp16" and FP16 in item.forms:
        return load(item.forms[FP16])
    model = load(item.forms[FLOAT])
    if form == "fp16":
        converted, _ = fp16_model(model, item.config)
    else:
        converted, _ = fit_model(model, remaining_rewrites(item.config.skip_rewrites, f"{item.where}.skip_rewrites"))
    difference = boxes_apart(model, converted, uniform_feeds(model, item.config, 1))
    limit, what = BOXES_TOLERANCE["fp16" if form == "fp16" else "float"], "of the boxes have no match"
    if difference is None:
        difference, limit, what = output_distance(item, model, converted), _TOLERANCE[form], "of the largest value"
    if not difference <= limit:
        raise BuildError(
            f"the outputs of the {form} form of model {item.name!r} differ from those of the model",
            why=f"difference: {difference:.2g} {what}; at most {limit:g} is accepted",
            where=item.where,
            fix="leave out --form; please report the model",
        )
    return converted


def check_written(path: Path, item: Item, model: Model) -> None:
    """Read a written file, check it against the ONNX standard, and compare the outputs of one run with the original.

    Raises ArtifactError: an output differs. Raises ModelError: the file is not valid ONNX. Raises BuildError: ONNX
    Runtime cannot run it.
    """
    written = load(path)
    check_standard(written)
    difference = output_distance(item, model, written)
    if difference != 0:
        raise ArtifactError(
            f"the outputs of {path} differ from those of the written model",
            why=f"difference: {difference:.2g} of the largest value",
            fix="write it again; check the disk",
        )


def output_distance(item: Item, first: Model, second: Model) -> float:
    """Return the difference between two models' outputs for one random input, as a fraction of the largest value."""
    functions = {id(model): Function(model) for model in (first, second)}
    feeds = uniform_feeds(first, item.config, 1)
    return prove(first, second, feeds, lambda model, feed: list(functions[id(model)](feed).values())).relative


def _quantized_form(item: Item, target: Target) -> Model:
    if target in item.forms:
        return load(item.forms[target])
    model = load(item.forms[FLOAT])
    if is_quantized(model):
        return model
    built = [name for name in ("ort", "gpu", "dla") if name in item.forms]
    what, why = f"there is no INT8 form of model {item.name!r}", "its ranges must be measured on typical images"
    fix = f"edgert quantize {item.config.onnx.name} --images FOLDER; or use a pipeline with precision: int8"
    if built:
        what, why = f"{what} for {target}", f"it was built for {', '.join(built)}"
        fix = f"use --target {built[0]}, or build it for a board that has one"
    raise BuildError(what, why=why, where=item.where, fix=fix)


Format = Literal["triton", "onnx", "trtexec"]
FORMATS: tuple[Format, ...] = get_args(Format)
SCRIPT = "build.sh"
_OPTIONS = {"onnx": ("form", "target"), "triton": ("device", "max_batch"), "trtexec": ()}


@dataclass(frozen=True, slots=True)
class Exported:
    """Files that an export wrote.

    Attributes:
        files: paths in the order of writing.
        limitations: parts that the format cannot express, one line each.
    """

    files: tuple[Path, ...]
    limitations: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """Options of the export formats.

    Attributes:
        form: ONNX form, one of :data:`FORMS`; the default follows the model's precision.
        target: runtime of the INT8 form, one of :data:`TARGETS`; ONNX Runtime by default.
        device: device on which Triton runs the models, ``cpu`` or ``gpu``; ``gpu`` by default for models of a board.
        max_batch: largest batch of requests in Triton; see :func:`~edgert.exporter.triton.batch_of`.
    """

    form: Form | None = None
    target: Target | None = None
    device: Device | None = None
    max_batch: int | None = None


def export(
    source: str | Path,
    output: str | Path,
    *,
    format: Format,
    model: str | None = None,
    board: str | None = None,
    tensorrt: str | None = None,
    options: ExportOptions = ExportOptions(),
    overrides: Iterable[str] = (),
    on_progress: OnProgress | None = None,
) -> Exported:
    """Write models for a Triton server, any ONNX runtime, or trtexec. Blocks until done.

    A pipeline is built first, with the cached steps of earlier builds. Existing files are replaced atomically; other
    files stay.

    Args:
        source: pipeline file or name of a shipped one, ONNX file, or bundle of :func:`edgert.build`.
        output: folder; for ``onnx`` and a single model, it may be a file that ends in ``.onnx``.
        format: ``triton``, ``onnx`` or ``trtexec``.
        model: name of the only model to export; by default all.
        board: name or file of the board; by default that of the pipeline. A bundle already has one.
        tensorrt: release of TensorRT; by default that of the board's default JetPack.
        options: options of single formats.
        overrides: ``key.path=value`` for a pipeline, as with ``--set``.
        on_progress: function called with the events of the build, from several threads; an error in it ends the build.

    Raises:
        ConfigError: the format or source has no such option, or there is no such model, board or TensorRT.
        ArtifactError: a file cannot be written, or its outputs differ from those of the model.
        BuildError: the format cannot express a model.
        EdgertError: the source cannot be read or built.
    """
    path, folder = pipeline_path(str(source)), Path(output)
    _check_choices(format, options)
    with open_source(
        path,
        model=model,
        overrides=tuple(overrides),
        board=board,
        tensorrt=tensorrt,
        check=lambda names, release: _check_source(format, folder, path, names, release),
        on_progress=on_progress,
    ) as opened:
        return write_export(opened, format, folder, options)


def write_export(source: Source, format: Format, output: Path, options: ExportOptions = ExportOptions()) -> Exported:
    """Write the models of an open source. Raises as :func:`export`."""
    _check_choices(format, options)
    _check_source(format, output, source.path, source.names, source.tensorrt)
    return {"onnx": _onnx, "triton": _triton, "trtexec": _trtexec}[format](source, output, options)


def _check_choices(format: Format, options: ExportOptions) -> None:
    """Raise ConfigError for an unknown format or option, or an option that the format does not have."""
    known = {"format": FORMATS, "form": FORMS, "target": TARGETS, "device": DEVICES}
    values = {"format": format, "form": options.form, "target": options.target, "device": options.device}
    for name, value in values.items():
        if value is not None and value not in known[name]:
            what, fix = f"no {value!r}{nearest(value, known[name])}", f"one of {', '.join(known[name])}"
            raise ConfigError(what, where=f"--{name}", fix=fix)
    for name in ("form", "target", "device", "max_batch"):
        if getattr(options, name) is not None and name not in _OPTIONS[format]:
            option = f"--{name.replace('_', '-')}"
            raise ConfigError(f"{option} has no effect with --format {format}", fix=f"leave {option} out")


def _check_source(format: Format, output: Path, path: Path, names: Sequence[str], tensorrt: str) -> None:
    """Raise ConfigError before anything is built if one file cannot have several models, or TensorRT is unknown.

    ``tensorrt`` is the release of the board, such as ``"10.3.0"``; empty without a board.
    """
    if format == "onnx" and output.suffix == ".onnx" and len(names) > 1:
        why, fix = ", ".join(names), "name a folder, or --model NAME"
        raise ConfigError(f"cannot write {len(names)} models to one file", why=why, fix=fix)
    if format == "trtexec" and not tensorrt:
        fix = "--board NAME; edgert boards lists them"
        if is_bundle(path):
            fix = f"build it for a board: edgert build PIPELINE {fix}"
        elif path.suffix.lower() == ".onnx":
            fix = "--board NAME, or --trt 10.3"
        why = "its options differ from release to release"
        raise ConfigError("cannot tell which TensorRT the commands are for", why=why, where=str(path), fix=fix)


def _onnx(source: Source, output: Path, options: ExportOptions) -> Exported:
    written, limitations = [], list(source.other_parts)
    for item in source.items:
        default: Form = "int8-qdq" if ORT in item.forms else "fp16" if FP16 in item.forms else "float"
        model = model_in_form(item, options.form or default, options.target or "ort")
        path = output if output.suffix == ".onnx" else output / f"{item.name}.onnx"
        replace_bytes(path, to_bytes(model))
        check_written(path, item, model)
        written.append(path)
        limitations += [f"{item.name}, {line}" for line in item.processing]
    return Exported(tuple(written), tuple(limitations))


def _triton(source: Source, output: Path, options: ExportOptions) -> Exported:
    device = options.device or ("cpu" if source.board == HOST else "gpu")
    served = [one for item in source.items for one in served_models(item, device, options.max_batch)]
    files = {name: content for one in served for name, content in repository_part(one).items()}
    limitations = (*(f"{one.name}, {line}" for one in served for line in one.limitations), *source.other_parts)
    return Exported(_write(output, files), limitations)


def _trtexec(source: Source, output: Path, options: ExportOptions) -> Exported:
    commands = [one for item in source.items for one in engine_commands(item, source.tensorrt)]
    limitations = [*dict.fromkeys(line for one in commands for line in one.limitations)]
    limitations += [
        f"{item.name}, {line}" for item in source.items for line in (*item.processing, *dispatch_shares(item))
    ]
    limitations += source.other_parts
    files = {name: content for one in commands for name, content in one.members.items()}
    written = _write(output, {**files, SCRIPT: build_script(commands, source.tensorrt, limitations).encode()})
    written[-1].chmod(0o755)
    return Exported(written, tuple(limitations))


def _write(output: Path, files: Mapping[str, bytes]) -> tuple[Path, ...]:
    check_paths(files, str(output))
    if output.exists() and not output.is_dir():
        raise ArtifactError(f"cannot write {str(output)!r}", why="it is a file", fix="name a folder")
    for name, content in files.items():
        replace_bytes(output / name, content)
    return tuple(output / name for name in files)
