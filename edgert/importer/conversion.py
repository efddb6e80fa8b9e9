"""A model of another framework made an ONNX file, which is kept only when it computes the same."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from edgert.backend.ort import Function
from edgert.errors import BuildError, ModelError, cause
from edgert.files import replace_bytes
from edgert.graph import Model, TensorSpec, inspect, load, to_bytes
from edgert.importer.origin import Source, source_of
from edgert.importer.subprocess import FEEDS, MODEL, RESULTS, Array, Request, converted, read_arrays, write_arrays

# How far a converted model is from its source, output by output.

TOLERANCE = 1e-3
"""An output may differ by so much of its largest value: float32 sums in another order differ by some 1e-5 of it, a
conversion that is wrong by far more."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One output.

    Attributes:
        name: in the ONNX model.
        shape: of the example's output.
        largest: absolute value of the source's.
        absolute: the largest difference.
    """

    name: str
    shape: tuple[int, ...]
    largest: float
    absolute: float

    @property
    def relative(self) -> float:
        """Of the largest value; the absolute difference where all are 0."""
        return self.absolute / self.largest if self.largest else self.absolute

    def __str__(self) -> str:
        return f"{self.name} {list(self.shape)}: {self.absolute:.2g} at most, {self.relative:.2g} of the largest"


def compare(wanted: Mapping[str, Array], made: Mapping[str, Array], source: str) -> tuple[Difference, ...]:
    """Every output. Raises BuildError for one of another shape, or with other values that are not finite."""
    if len(wanted) != len(made):
        raise BuildError(
            f"the ONNX model of {source} has other outputs", why=f"{', '.join(wanted)} became {', '.join(made)}"
        )
    names = made if wanted.keys() == made.keys() else wanted  # by order, where the converter has renamed them
    pairs = zip(made, (wanted[name] for name in names), strict=True)
    return tuple(_compare(name, array, made[name], source) for name, array in pairs)


def check(found: tuple[Difference, ...], tolerance: float, source: str) -> None:
    """Raises BuildError, with every output that is too far off."""
    far = [one for one in found if not one.relative <= tolerance]
    if far:
        raise BuildError(
            f"the ONNX model does not compute what {source} does",
            why="; ".join(map(str, far)),
            fix=f"at most {tolerance:g} is accepted; a quantized source rounds otherwise: --tolerance NUMBER",
        )


def _compare(name: str, wanted: Array, made: Array, source: str) -> Difference:
    if wanted.shape != made.shape:
        raise BuildError(
            f"output {name!r} of {source} has another shape in ONNX",
            why=f"{list(wanted.shape)} became {list(made.shape)}",
            fix="export it again with another opset: --opset N",
        )
    first, second = wanted.astype(np.float64), made.astype(np.float64)
    finite = np.isfinite(first)
    if not np.array_equal(first[~finite], second[~finite], equal_nan=True):
        raise BuildError(f"output {name!r} of {source} is not finite", why="and ONNX Runtime computes something else")
    largest = float(np.abs(first[finite]).max(initial=0.0))
    return Difference(name, wanted.shape, largest, float(np.abs(first[finite] - second[finite]).max(initial=0.0)))


OPSET = 18
"""The oldest that PyTorch's exporter writes; TensorRT 10.3 and all later ones read it."""


@dataclass(frozen=True, slots=True)
class Imported:
    """What came of an import.

    Attributes:
        path: the ONNX file; None where none was asked for.
        model: it.
        inputs, outputs: of the model.
        opset, nodes: of the model.
        differences: from the source, on the example inputs; an entry for every output.
        tolerance: that they are within.
        versions: package → version, of what converted it.
        seconds: it took.
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


@dataclass(frozen=True, slots=True)
class Wanted:
    """How to import; see :func:`import_model`."""

    inputs: Path | None = None
    shapes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    dynamic: Mapping[str, Sequence[str | None]] = field(default_factory=dict)
    signature: str = "serving_default"
    opset: int = OPSET
    tolerance: float = TOLERANCE
    python: Path | None = None


def import_model(source: str, output: Path, wanted: Wanted = Wanted()) -> Imported:
    """Converts a model in a process of its own and compares it with its source. Blocks until done.

    Args:
        source: a PyTorch program (torch.export.save), ``module:function`` that returns an nn.Module and example
            inputs, a TensorFlow SavedModel folder, or a .tflite file.
        output: the ONNX file; written when all is well, and otherwise left as it was.
        wanted: example inputs of the user's own (.npz), shapes of those that are made up, dimensions of a module that
            stay open (input → name or None for each), the signature of a SavedModel, the opset, the tolerance, and a
            Python to convert with, which needs the framework and nothing else.

    Raises:
        ModelError: the source cannot be imported (a pickle), or cannot be read.
        DeviceError: its framework is not installed.
        BuildError: it cannot be converted, or the ONNX model computes something else.
        ArtifactError: the file cannot be written.
    """
    started = time.perf_counter()
    found = source_of(source)
    with tempfile.TemporaryDirectory(prefix="edgert-") as name:
        folder = Path(name)
        if wanted.inputs is not None:
            write_arrays(folder / FEEDS, _given(wanted.inputs))
        versions = converted(_request(found, wanted), folder, wanted.python)
        return finished(folder, found.text, versions, wanted.tolerance, started, output)


def finished(
    folder: Path, source: str, versions: Mapping[str, str], tolerance: float, started: float, output: Path | None
) -> Imported:
    """The model in a folder, compared and written. Raises BuildError, ModelError or ArtifactError."""
    loaded = load(folder / MODEL)
    model = Model(loaded.proto, output or Path(source), loaded.digest)
    made = Function(model)(read_arrays(folder / FEEDS))
    differences = compare(read_arrays(folder / RESULTS), made, source)
    check(differences, tolerance, source)
    if output is not None:
        replace_bytes(output, to_bytes(model))
    about = inspect(model)
    seconds = time.perf_counter() - started
    return Imported(
        output,
        model,
        about.inputs,
        about.outputs,
        about.opset,
        about.nodes,
        differences,
        tolerance,
        dict(versions),
        seconds,
    )


def _request(source: Source, wanted: Wanted) -> Request:
    if wanted.dynamic and source.kind != "function":
        raise ModelError(
            f"the open dimensions of {source.text} are its own",
            why="only a module is exported here, with those that are asked for",
            where="--dynamic",
            fix="leave --dynamic out, or export the source with open dimensions",
        )
    return Request(
        source.kind,
        source.text,
        str(Path.cwd()),
        wanted.opset,
        dict(wanted.shapes),
        dict(wanted.dynamic),
        wanted.signature,
    )


def _given(path: Path) -> Mapping[str, Array]:
    """The arrays of a .npz. Raises ModelError."""
    try:
        return read_arrays(path)
    except (OSError, ValueError) as error:
        raise ModelError(
            f"cannot read inputs {str(path)!r}", why=cause(error), fix="numpy.savez('inputs.npz', name=array, …)"
        ) from error
