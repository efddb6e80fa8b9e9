"""Writing what leaves, format by format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from edgert.artifact.atomic import replace_bytes
from edgert.artifact.bundle import is_bundle
from edgert.artifact.member import check_paths
from edgert.board import HOST
from edgert.errors import ArtifactError, ConfigError
from edgert.export.engine import commands_of, dealt
from edgert.export.plain import Form, Target, check_written, form_of, usual_form
from edgert.export.script import script
from edgert.export.serve import served_of
from edgert.export.source import Outline, Source
from edgert.export.triton import Device, repository_part
from edgert.graph.model import to_bytes

Format = Literal["triton", "onnx", "trtexec"]
FORMATS: tuple[Format, ...] = get_args(Format)
SCRIPT = "build.sh"


@dataclass(frozen=True, slots=True)
class Left:
    """What was written.

    Attributes:
        files: in order.
        unsaid: what the format has no words for, model by model.
    """

    files: tuple[Path, ...]
    unsaid: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to be written.

    Attributes:
        format: one of :data:`FORMATS`.
        output: a folder; for ``onnx`` and a single model also a file that ends in ``.onnx``.
        form: which ONNX form; what the model's precision asks for by default. trtexec decides by the TensorRT.
        target: whose INT8 form; ONNX Runtime's by default.
        device: where Triton runs the models; on a GPU where they were built for a board.
        max_batch: of requests, for Triton; see :func:`~edgert.export.triton.batch_of`.
    """

    format: Format
    output: Path
    form: Form | None = None
    target: Target | None = None
    device: Device | None = None
    max_batch: int | None = None


def leave(source: Source, wanted: Wanted) -> Left:
    """Writes a source's models. Files that are there already are replaced, each whole or not at all; others stay.

    Raises:
        ConfigError: an option that the format has no use for, or no TensorRT is known.
        ArtifactError: nothing can be written there; or what was written does not compute what it should.
        BuildError: the format cannot take a model.
    """
    check_leave(source.outline, wanted)
    if wanted.format == "onnx":
        return _onnx(source, wanted.output, wanted.form, wanted.target)
    if wanted.format == "triton":
        return _triton(source, wanted.output, wanted.device, wanted.max_batch)
    return _trtexec(source, wanted.output)


def check_leave(outline: Outline, wanted: Wanted) -> None:
    """Says what :func:`leave` would refuse and can be told before anything is built.

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


def _onnx(source: Source, output: Path, form: Form | None, target: Target | None) -> Left:
    written, unsaid = [], list(source.around)
    is_file = output.suffix == ".onnx"
    for item in source.items:
        model = form_of(item, form or usual_form(item), target or "ort")
        path = output if is_file else output / f"{item.name}.onnx"
        replace_bytes(path, to_bytes(model))
        check_written(path, item, model)
        written.append(path)
        unsaid += [f"{item.name}, {line}" for line in item.work]
    return Left(tuple(written), tuple(unsaid))


def _triton(source: Source, output: Path, device: Device | None, max_batch: int | None) -> Left:
    chosen = device or ("cpu" if source.board == HOST else "gpu")
    every = [one for item in source.items for one in served_of(item, chosen, max_batch)]
    files = {name: content for one in every for name, content in repository_part(one).items()}
    unsaid = (*(f"{one.name}, {line}" for one in every for line in one.unsaid), *source.around)
    return Left(_write(output, files), unsaid)


def _trtexec(source: Source, output: Path) -> Left:
    commands = [one for item in source.items for one in commands_of(item, source.tensorrt)]
    unsaid = [*dict.fromkeys(line for one in commands for line in one.unsaid)]
    unsaid += [f"{item.name}, {line}" for item in source.items for line in (*item.work, *dealt(item))]
    unsaid += source.around
    files = {name: content for one in commands for name, content in one.members.items()}
    written = _write(output, {**files, SCRIPT: script(commands, source.tensorrt, unsaid).encode()})
    written[-1].chmod(0o755)
    return Left(written, tuple(unsaid))


def _write(output: Path, files: Mapping[str, bytes]) -> tuple[Path, ...]:
    """Files below a folder, in order. Raises ArtifactError."""
    check_paths(files, str(output))
    if output.exists() and not output.is_dir():
        raise ArtifactError(f"cannot write {str(output)!r}", why="it is a file", fix="name a folder")
    for name, content in files.items():
        replace_bytes(output / name, content)
    return tuple(output / name for name in files)
