"""``edgert import``: a model of another framework made an ONNX file, which is written only if it computes the same."""

import re
import tempfile
import time
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from edgert.backend.ort import Function
from edgert.engine import LoadedEngine, load_engine
from edgert.errors import BuildError, ConfigError, EdgertError, ModelError, cause
from edgert.evaluation.final_boxes import BoxAgreement, agreement, has_final_boxes
from edgert.files import replace_bytes
from edgert.graph import Model, TensorSpec, inspect, load, to_bytes
from edgert.importer import conversion_process as worker
from edgert.installation import export_first

# The source: its kind is known by its form, and what cannot be imported is refused with the reason.

Kind = Literal["program", "function", "named", "savedmodel", "tflite"]
_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
_NAMED = re.compile(r"(torchvision|timm):[\w.\-]+")
_KINDS = "a .pt2 program, module:function, torchvision:NAME, timm:NAME, a SavedModel folder or a .tflite file"


@dataclass(frozen=True, slots=True)
class Source:
    """A model of another framework.

    Attributes:
        kind: ``program`` (torch.export.save), ``function`` (returns an nn.Module and example inputs), ``named`` (a
            model of torchvision or timm), ``savedmodel``, ``tflite``.
        text: the path, absolute, or ``module:function``, ``torchvision:NAME``, ``timm:NAME``.
    """

    kind: Kind
    text: str

    @property
    def framework(self) -> str:
        """For messages."""
        return "PyTorch" if self.kind in ("program", "function", "named") else "TensorFlow"


def source_of(text: str) -> Source:
    """Return the source that a text names. Raises ModelError: no such file, or nothing that can be imported."""
    path = Path(text)
    if not path.exists():
        if _NAMED.fullmatch(text):
            return Source("named", text)
        if _FUNCTION.fullmatch(text):
            return Source("function", text)
        raise ModelError(f"there is no {text!r}", why="it is no file or folder", fix=f"SOURCE is {_KINDS}")
    if path.is_dir():
        if (path / "saved_model.pb").is_file():
            return Source("savedmodel", str(path.absolute()))
        raise ModelError(f"folder {text!r} is no SavedModel", why="it has no saved_model.pb", fix=f"SOURCE is {_KINDS}")
    if path.suffix == ".onnx":
        raise ModelError(f"{text!r} is ONNX already", fix="edgert inspect, new, run and build take it as it is")
    if path.suffix == ".tflite" or path.read_bytes()[4:8] == b"TFL3":  # the FlatBuffers identifier of TFLite
        return Source("tflite", str(path.absolute()))
    if zipfile.is_zipfile(path):
        return _archive(path)
    raise _pickled(path) if path.suffix in (".pt", ".pth", ".pkl") else _unknown(path)


def _archive(path: Path) -> Source:
    """Return the kind of PyTorch's zip file by its members, regardless of its name."""
    with zipfile.ZipFile(path) as archive:
        names = {name.partition("/")[2] or name for name in archive.namelist()}
    if "archive_format" in names or "serialized_exported_program.json" in names:
        return Source("program", str(path.absolute()))
    if "constants.pkl" in names:
        raise ModelError(
            f"{str(path)!r} is a TorchScript archive",
            why="PyTorch has dropped TorchScript, and its exporter takes modules and exported programs",
            fix="export the module it was made from: torch.export.save(torch.export.export(module, inputs), 'm.pt2'); "
            + export_first(str(path)),
        )
    raise _pickled(path) if "data.pkl" in names else _unknown(path)


def _pickled(path: Path) -> ModelError:
    return ModelError(
        f"{str(path)!r} is a pickled module or its weights",
        why="a pickle is a program: reading a module out of one runs whatever its author put there; weights alone are "
        "no model",
        fix=f"{export_first(str(path))}, a function that returns the module, its weights loaded by torch.load(…, "
        "weights_only=True), and example inputs",
    )


def _unknown(path: Path) -> ModelError:
    return ModelError(f"{str(path)!r} cannot be imported", why="its format is unknown", fix=f"SOURCE is {_KINDS}")


# How far a converted model is from its source, output by output.

SAME_BOX, BOXES_APART = 0.9, 0.05
"""Least overlap of two boxes that agree, and the largest share of boxes without a partner. Rounding decides which of
two boxes of nearly one score suppresses the other."""
TOLERANCE = 1e-3
"""Largest difference of an output, over its largest value. Float32 sums in another order differ by some 1e-5, a wrong
conversion by far more."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One output, or the boxes of a detector with all that belongs to them.

    Attributes:
        name: in the ONNX model.
        shape: of the example's output.
        largest: absolute value of the source's.
        absolute: the largest difference.
        boxes: how many boxes agree, where boxes were compared instead of numbers.
    """

    name: str
    shape: tuple[int, ...]
    largest: float
    absolute: float
    boxes: BoxAgreement | None = None

    @property
    def relative(self) -> float:
        """Of the largest value; the absolute difference where all are 0. Of boxes, the share that does not agree."""
        return self.absolute / self.largest if self.largest else self.absolute

    def __str__(self) -> str:
        if self.boxes is not None:
            return f"{self.name}: {self.boxes}"
        return f"{self.name} {list(self.shape)}: {self.absolute:.2g} at most, {self.relative:.2g} of the largest"


def compare(
    wanted: Mapping[str, worker.Array], made: Mapping[str, worker.Array], source: str
) -> tuple[Difference, ...]:
    """Compare every output. Raises BuildError for another shape, or for other values that are not finite."""
    if len(wanted) != len(made):
        raise BuildError(
            f"the ONNX model of {source} has other outputs", why=f"{', '.join(wanted)} became {', '.join(made)}"
        )
    names = made if wanted.keys() == made.keys() else wanted  # by order, where the converter has renamed them
    paired = dict(zip(made, (wanted[name] for name in names), strict=True))
    if has_final_boxes(paired) and (boxes := agreement(paired, made, SAME_BOX)) is not None:
        first = next(iter(paired.values()))
        return (Difference(", ".join(made), first.shape, 1.0, 1 - boxes.share, boxes),)
    return tuple(_compare(name, array, made[name], source) for name, array in paired.items())


def check(found: tuple[Difference, ...], tolerance: float, source: str) -> None:
    """Raise BuildError, with every output whose difference is too large."""
    far = [one for one in found if not one.relative <= (tolerance if one.boxes is None else BOXES_APART)]
    if far:
        what = f"the ONNX model does not compute what {source} does"
        if far[0].boxes is not None:
            fix = f"at least {1 - BOXES_APART:.0%} must agree; give an image with clear objects: --inputs FILE.npz"
            raise BuildError(what, why=str(far[0]), fix=fix)
        raise BuildError(
            what,
            why="; ".join(map(str, far)),
            fix=f"at most {tolerance:g} is accepted; a quantized source rounds otherwise: --tolerance NUMBER",
        )


def _compare(name: str, wanted: worker.Array, made: worker.Array, source: str) -> Difference:
    if wanted.shape != made.shape:
        raise BuildError(
            f"output {name!r} of {source} has another shape in ONNX",
            why=f"{list(wanted.shape)} became {list(made.shape)}",
            fix="export it again with another opset: --opset N",
        )
    first, second = wanted.astype(np.float64), made.astype(np.float64)
    finite = np.isfinite(first)
    if not np.array_equal(first[~finite], second[~finite], equal_nan=True):
        raise BuildError(f"output {name!r} of {source} is not finite", why="ONNX Runtime computes other values")
    largest = float(np.abs(first[finite]).max(initial=0.0))
    return Difference(name, wanted.shape, largest, float(np.abs(first[finite] - second[finite]).max(initial=0.0)))


OPSET = 18
"""The oldest opset of PyTorch's exporter; TensorRT 10.3 and later read it."""


@dataclass(frozen=True, slots=True)
class Imported:
    """The result of an import.

    Attributes:
        path: the ONNX file; None where none was asked for.
        model: it.
        inputs, outputs: of the model.
        opset, nodes: of the model.
        differences: from the source, on the example inputs; an entry for every output.
        tolerance: that they are within.
        versions: package → version, of what converted it.
        seconds: it took.
        exporter: which of PyTorch's exporters made it, and why the usual one did not; empty for TensorFlow.
    """

    path: Path | None
    model: Model
    inputs: Sequence[TensorSpec]
    outputs: Sequence[TensorSpec]
    opset: int
    nodes: int
    differences: tuple[Difference, ...]
    tolerance: float
    versions: Mapping[str, str]
    seconds: float
    exporter: str = ""


def import_model(
    source: str,
    output: str | Path,
    *,
    inputs: Path | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    dynamic: Mapping[str, Sequence[str | None]] | None = None,
    signature: str = "serving_default",
    opset: int = OPSET,
    tolerance: float = TOLERANCE,
    python: Path | None = None,
    weights: str = "DEFAULT",
    size: tuple[int, int] | None = None,
) -> Imported:
    """Convert a model in a separate process and compare it with its source. Blocks until done.

    Args:
        source: a PyTorch program (torch.export.save), ``module:function`` that returns an nn.Module and example inputs,
            ``torchvision:NAME``, ``timm:NAME``, a TensorFlow SavedModel folder, or a .tflite file.
        output: the ONNX file; written on success only.
        inputs: an .npz file of example inputs by name; random, or those of the source, by default.
        shapes: input → shape of a random example.
        dynamic: parameter of a module → a name, or None for a fixed size, for each of its dimensions.
        signature: of a SavedModel.
        opset: version of the ONNX operators, 13 or later.
        tolerance: largest accepted difference of an output, as a fraction of its largest value.
        python: an interpreter for the conversion, which needs only the framework; this one by default.
        weights: of a model by name: those that its package downloads, or ``random``.
        size: width and height of the example image of a model by name; its own by default.

    Returns:
        The model, with the difference of each of its outputs.

    Raises:
        ModelError: the source cannot be imported (a pickle), or cannot be read.
        DeviceError: its framework is not installed.
        BuildError: it cannot be converted, or the ONNX model computes something else.
        ArtifactError: the file cannot be written.
    """
    started = time.perf_counter()
    found = source_of(source)
    if dynamic and found.kind not in ("function", "named"):
        raise ModelError(
            f"--dynamic cannot change the open dimensions of {found.text}",
            why="only a module is exported here; the source has its own open dimensions",
            where="--dynamic",
            fix="leave --dynamic out, or export the source with open dimensions",
        )
    sizes, dims = dict(shapes or {}), dict(dynamic or {})
    request = worker.Request(found.kind, found.text, str(Path.cwd()), opset, sizes, dims, signature, weights, size)
    with tempfile.TemporaryDirectory(prefix="edgert-") as name:
        folder = Path(name)
        if inputs is not None:
            try:
                worker.write_arrays(folder / worker.FEEDS, worker.read_arrays(inputs))
            except (OSError, ValueError) as error:
                what, fix = f"cannot read inputs {str(inputs)!r}", "numpy.savez('inputs.npz', name=array, …)"
                raise ModelError(what, why=cause(error), fix=fix) from error
        versions = worker.converted(request, folder, python)
        return finished(folder, found.text, versions, tolerance, started, Path(output))


def finished(
    folder: Path, source: str, versions: Mapping[str, str], tolerance: float, started: float, output: Path | None
) -> Imported:
    """Return the model in a folder, compared and written. Raises BuildError, ModelError or ArtifactError."""
    loaded = load(folder / worker.MODEL)
    model = Model(loaded.proto, output or Path(source), loaded.digest)
    function, exporter = Function(model), worker.read_exporter(folder)
    made = function(worker.read_arrays(folder / worker.FEEDS))
    differences = compare(worker.read_arrays(folder / worker.RESULTS), made, source)
    check(differences, tolerance, source)
    if (folder / worker.OTHER_FEEDS).exists():
        _check_other(function, folder, tolerance, source, exporter)
    if output is not None:
        replace_bytes(output, to_bytes(model))
    about, seconds = inspect(model), time.perf_counter() - started
    ends = about.inputs, about.outputs
    return Imported(
        output, model, *ends, about.opset, about.nodes, differences, tolerance, dict(versions), seconds, exporter
    )


def _check_other(function: Function, folder: Path, tolerance: float, source: str, exporter: str) -> None:
    """Raise BuildError unless the record of one run computes the same as its source on a second input."""
    try:
        made = function(worker.read_arrays(folder / worker.OTHER_FEEDS))
        check(compare(worker.read_arrays(folder / worker.OTHER_RESULTS), made, source), tolerance, source)
    except EdgertError as error:
        raise BuildError(
            f"PyTorch cannot export {source}",
            why=f"{exporter}; the record of one run differs on a second input: {error.why or error.what}",
            fix="take out branches that depend on values of the input; "
            "torch.export.export(module, inputs) alone shows more",
        ) from error


# ``edgert.from_torch(...)``: a PyTorch module made an engine of this machine.


def from_torch(
    module: object,
    *,
    example_inputs: Any,
    output: str | Path | None = None,
    dynamic: Mapping[str, Sequence[str | None]] | None = None,
    opset: int = OPSET,
    tolerance: float = TOLERANCE,
    threads: int | None = None,
) -> LoadedEngine:
    """Export a PyTorch module to ONNX, compare the two, and compile it for this machine. Blocks until done.

    It is exported in this process: another one could get the module as a pickle only.

    Args:
        module: an ``nn.Module``, which is exported in evaluation mode, or an exported program.
        example_inputs: a tensor, a tuple of them, or a dict by parameter; both models are run on them.
        output: path of the ONNX file, for pipelines; None: it is not kept.
        dynamic: parameter → a name, or None for a fixed size, for each of its dimensions.
        opset: version of the ONNX operators, 13 or later.
        tolerance: largest accepted difference of an output, as a fraction of its largest value.
        threads: CPU threads of the engine; all available cores by default.

    Raises:
        ConfigError: example inputs are missing, or do not match the parameters.
        DeviceError: PyTorch's exporter is not installed.
        BuildError: the module cannot be exported or compiled, or computes something else as ONNX.
    """
    from edgert.importer.torch_model import convert_object

    title = type(module).__name__
    if example_inputs is None:
        raise ConfigError(f"{title} needs example inputs", fix="edgert.from_torch(module, example_inputs=(tensor,))")
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="edgert-") as name:
        folder = Path(name)
        request = worker.Request("function", title, opset=opset, dynamic=dynamic or {})
        convert_object(module, example_inputs, request, folder)
        versions = worker.read_versions(folder) or {}
        made = finished(folder, title, versions, tolerance, started, Path(output) if output is not None else None)
    return load_engine(made.model, threads=threads)
