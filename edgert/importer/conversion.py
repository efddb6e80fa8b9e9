"""``edgert import``: converts a model of another framework to ONNX, and writes it only if its outputs are the same."""

import re
import tempfile
import time
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from edgert import engine, files, installation
from edgert.backend.ort import Function
from edgert.errors import BuildError, ConfigError, EdgertError, ModelError, raised_as
from edgert.evaluation.final_boxes import BoxAgreement, agreement, has_final_boxes
from edgert.graph import Model, TensorSpec, inspect, load, to_bytes
from edgert.importer import conversion_process as worker

# The form of a source shows its kind. A source that cannot be imported is refused with the reason.

Kind = Literal["program", "function", "named", "savedmodel", "tflite"]
_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
_NAMED = re.compile(r"(torchvision|timm):[\w.\-]+")
_KINDS = "a .pt2 program, module:function, torchvision:NAME, timm:NAME, a SavedModel folder or a .tflite file"


def kind_of(text: str) -> Kind:
    """Return the kind of source that a text names.

    It is a ``program`` (torch.export.save), a ``function`` (returns an nn.Module and example inputs), ``named`` (a
    model of torchvision or timm), ``savedmodel`` or ``tflite``. Raises ModelError if nothing can be imported from it.
    """
    path = Path(text)
    if not path.exists():
        if _NAMED.fullmatch(text):
            return "named"
        if _FUNCTION.fullmatch(text):
            return "function"
        raise ModelError(f"there is no {text!r}", why="it is no file or folder", fix=f"SOURCE is {_KINDS}")
    if path.is_dir():
        if (path / "saved_model.pb").is_file():
            return "savedmodel"
        raise ModelError(f"folder {text!r} is no SavedModel", why="it has no saved_model.pb", fix=f"SOURCE is {_KINDS}")
    if path.suffix == ".onnx":
        raise ModelError(f"{text!r} is ONNX already", fix="edgert inspect, new, run and build take it as it is")
    if not path.is_file():  # a pipe, which would block
        raise _format_error(path)
    with raised_as(ModelError, f"cannot read {text!r}", of=(OSError, zipfile.BadZipFile)):
        if path.suffix == ".tflite" or _has_tflite_mark(path):
            return "tflite"
        if zipfile.is_zipfile(path):
            return _archive_kind(path)
    raise _pickle_error(path) if path.suffix in (".pt", ".pth", ".pkl") else _format_error(path)


def _has_tflite_mark(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(8)[4:] == b"TFL3"


def _archive_kind(path: Path) -> Kind:
    """Return the kind of source in a zip file of PyTorch, which its members show."""
    with zipfile.ZipFile(path) as archive:
        names = {name.partition("/")[2] or name for name in archive.namelist()}
    if "archive_format" in names or "serialized_exported_program.json" in names:
        return "program"
    if "constants.pkl" in names:
        raise ModelError(
            f"{str(path)!r} is a TorchScript archive",
            why="PyTorch has dropped TorchScript, and its exporter takes modules and exported programs",
            fix="export the module it was made from: torch.export.save(torch.export.export(module, inputs), 'm.pt2'); "
            + installation.export_first(str(path)),
        )
    raise _pickle_error(path) if "data.pkl" in names else _format_error(path)


def _pickle_error(path: Path) -> ModelError:
    return ModelError(
        f"{str(path)!r} is a pickled module or its weights",
        why="a pickle is a program: reading a module out of one runs whatever its author put there; weights alone are "
        "no model",
        fix=f"{installation.export_first(str(path))}, a function that returns the module, its weights loaded by "
        "torch.load(…, weights_only=True), and example inputs",
    )


def _format_error(path: Path) -> ModelError:
    return ModelError(f"{str(path)!r} cannot be imported", why="its format is unknown", fix=f"SOURCE is {_KINDS}")


# The difference between a converted model and its source, for each output.

SAME_BOX, BOXES_APART = 0.9, 0.05
"""Smallest overlap of two matching boxes, and the largest accepted share of boxes without a match. Of two boxes with
nearly the same score, rounding decides which one suppresses the other."""
TOLERANCE = 1e-3
"""Largest accepted difference of an output, as a fraction of its largest value. Float32 sums in another order differ by
about 1e-5, a wrong conversion by far more."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Difference of one output, or of all outputs of a detector together.

    Attributes:
        name: name in the ONNX model.
        shape: shape of the output for the example inputs.
        largest: largest absolute value of the source's output.
        absolute: largest absolute difference.
        boxes: number of matching boxes; None if numbers were compared.
    """

    name: str
    shape: tuple[int, ...]
    largest: float
    absolute: float
    boxes: BoxAgreement | None = None

    @property
    def relative(self) -> float:
        """Difference as a fraction of the largest value; the absolute difference if all values are 0.

        For boxes, the share without a match.
        """
        return self.absolute / self.largest if self.largest else self.absolute

    def __str__(self) -> str:
        if self.boxes is not None:
            return f"{self.name}: {self.boxes}"
        return f"{self.name} {list(self.shape)}: {self.absolute:.2g} at most, {self.relative:.2g} of the largest"


def compare(
    wanted: Mapping[str, worker.Array], made: Mapping[str, worker.Array], source: str
) -> tuple[Difference, ...]:
    """Compare all outputs. Raises BuildError if shapes, or infinite values and NaNs, differ."""
    if len(wanted) != len(made):
        raise BuildError(
            f"the ONNX model of {source} has other outputs", why=f"{', '.join(wanted)} became {', '.join(made)}"
        )
    names = made if wanted.keys() == made.keys() else wanted  # by order if the converter renamed them
    paired = dict(zip(made, (wanted[name] for name in names), strict=True))
    if has_final_boxes(paired) and (boxes := agreement(paired, made, SAME_BOX)) is not None:
        first = next(iter(paired.values()))
        return (Difference(", ".join(made), first.shape, 1.0, 1 - boxes.share, boxes),)
    return tuple(_compare_output(name, array, made[name], source) for name, array in paired.items())


def check(found: tuple[Difference, ...], tolerance: float, source: str) -> None:
    """Raise BuildError that names every output whose difference is too large."""
    too_far = [one for one in found if not one.relative <= (tolerance if one.boxes is None else BOXES_APART)]
    if too_far:
        what = f"the ONNX model does not compute what {source} does"
        if too_far[0].boxes is not None:
            fix = f"at least {1 - BOXES_APART:.0%} must agree; give an image with clear objects: --inputs FILE.npz"
            raise BuildError(what, why=str(too_far[0]), fix=fix)
        raise BuildError(
            what,
            why="; ".join(map(str, too_far)),
            fix=f"at most {tolerance:g} is accepted; a quantized source rounds otherwise: --tolerance NUMBER",
        )


def _compare_output(name: str, wanted: worker.Array, made: worker.Array, source: str) -> Difference:
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
"""Oldest opset that PyTorch's exporter writes; TensorRT 10.3 and later read it."""


@dataclass(frozen=True, slots=True)
class Imported:
    """The result of an import.

    Attributes:
        path: path of the ONNX file; None if it was not written.
        model: ONNX model.
        inputs, outputs: inputs and outputs of the model.
        opset, nodes: opset and number of nodes of the model.
        differences: difference from the source for each output, on the example inputs.
        tolerance: largest accepted difference.
        versions: versions of the packages that converted it, by package.
        seconds: duration of the import.
        exporter: PyTorch exporter that wrote it, and why the default one failed; empty for TensorFlow.
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
        output: path of the ONNX file, which is written on success only.
        inputs: .npz file of example inputs by name; those of the source, or random ones, by default.
        shapes: shapes of random examples by input.
        dynamic: names of open dimensions by parameter of a module; None for a dimension of fixed size.
        signature: signature of a SavedModel.
        opset: version of the ONNX operators, 13 or later.
        tolerance: largest accepted difference of an output, as a fraction of its largest value.
        python: interpreter for the conversion, which needs only the framework; this one by default.
        weights: weights of a model by name: a set that its package downloads, or ``random``.
        size: width and height of the example image of a model by name; the model's default if None.

    Returns:
        The model, with the difference of each of its outputs.

    Raises:
        ModelError: the source cannot be read, or its form cannot be imported, such as a pickle.
        DeviceError: its framework is not installed.
        BuildError: the source cannot be converted, or the outputs of the ONNX model differ.
        ArtifactError: the file cannot be written.
    """
    started = time.perf_counter()
    kind = kind_of(source)
    text = source if kind in ("function", "named") else str(Path(source).absolute())
    if dynamic and kind not in ("function", "named"):
        raise ModelError(
            f"--dynamic cannot change the open dimensions of {text}",
            why="only a module is exported here; the source has its own open dimensions",
            where="--dynamic",
            fix="leave --dynamic out, or export the source with open dimensions",
        )
    sizes, dims = dict(shapes or {}), dict(dynamic or {})
    request = worker.Request(kind, text, str(Path.cwd()), opset, sizes, dims, signature, weights, size)
    with tempfile.TemporaryDirectory(prefix="edgert-") as name:
        folder = Path(name)
        if inputs is not None:
            what, fix = f"cannot read inputs {str(inputs)!r}", "numpy.savez('inputs.npz', name=array, …)"
            with raised_as(ModelError, what, of=(OSError, ValueError, EOFError, zipfile.BadZipFile), fix=fix):
                worker.write_arrays(folder / worker.FEEDS, worker.read_arrays(inputs))
        answer = worker.convert_in_process(request, folder, python)
        return compare_and_write(folder, text, answer, tolerance, started, Path(output))


def compare_and_write(
    folder: Path, source: str, answer: worker.Answer, tolerance: float, started: float, output: Path | None
) -> Imported:
    """Compare the model in a folder with its source and write it. Raises BuildError, ModelError or ArtifactError."""
    loaded = load(folder / worker.MODEL)
    model = Model(loaded.proto, output or Path(source), loaded.digest)
    function, exporter = Function(model), answer.get("exporter", "")
    made = function(worker.read_arrays(folder / worker.FEEDS))
    differences = compare(worker.read_arrays(folder / worker.RESULTS), made, source)
    check(differences, tolerance, source)
    if (folder / worker.OTHER_FEEDS).exists():
        _compare_second_run(function, folder, tolerance, source, exporter)
    if output is not None:
        files.replace_bytes(output, to_bytes(model))
    about, seconds = inspect(model), time.perf_counter() - started
    ends, versions = (about.inputs, about.outputs), answer["versions"]
    return Imported(output, model, *ends, about.opset, about.nodes, differences, tolerance, versions, seconds, exporter)


def _compare_second_run(function: Function, folder: Path, tolerance: float, source: str, exporter: str) -> None:
    """Raise BuildError if a model that was traced on one run differs from its source on a second input."""
    try:
        made = function(worker.read_arrays(folder / worker.OTHER_FEEDS))
        check(compare(worker.read_arrays(folder / worker.OTHER_RESULTS), made, source), tolerance, source)
    except EdgertError as error:
        raise BuildError(
            f"PyTorch cannot export {source}",
            why=f"{exporter}; the model traced on one run differs on a second input: {error.why or error.what}",
            fix="remove branches that depend on values of the input; "
            "torch.export.export(module, inputs) alone shows more",
        ) from error


# ``edgert.from_torch(...)``: compiles a PyTorch module for this machine.


def from_torch(
    module: object,
    *,
    example_inputs: Any,
    output: str | Path | None = None,
    dynamic: Mapping[str, Sequence[str | None]] | None = None,
    opset: int = OPSET,
    tolerance: float = TOLERANCE,
    threads: int | None = None,
) -> engine.LoadedEngine:
    """Export a PyTorch module to ONNX, compare the two, and compile it for this machine. Blocks until done.

    The module is exported in this process, as it could only reach another process as a pickle.

    Args:
        module: ``nn.Module``, which is exported in evaluation mode, or an exported program.
        example_inputs: tensor, tuple of tensors, or dict by parameter; both models are run on them.
        output: path of the ONNX file, for pipelines; None does not write one.
        dynamic: names of open dimensions by parameter; None for a dimension of fixed size.
        opset: version of the ONNX operators, 13 or later.
        tolerance: largest accepted difference of an output, as a fraction of its largest value.
        threads: number of CPU threads of the engine; by default all available cores.

    Raises:
        ConfigError: example inputs are missing, or do not match the parameters.
        DeviceError: PyTorch's exporter is not installed.
        BuildError: the module cannot be exported or compiled, or the outputs of the ONNX model differ.
    """
    from edgert.importer.torch_model import convert_object

    title = type(module).__name__
    if example_inputs is None:
        raise ConfigError(f"{title} needs example inputs", fix="edgert.from_torch(module, example_inputs=(tensor,))")
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="edgert-") as name:
        folder = Path(name)
        request = worker.Request("function", title, opset=opset, dynamic=dynamic or {})
        answer = convert_object(module, example_inputs, request, folder)
        path = Path(output) if output is not None else None
        made = compare_and_write(folder, title, answer, tolerance, started, path)
    return engine.load_engine(made.model, threads=threads)
