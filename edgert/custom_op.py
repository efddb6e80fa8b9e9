"""Custom operators: a NumPy function and a CUDA kernel, written once for every engine that can run them.

    @edgert.op("demo::HardMishLite", cuda=KERNEL)
    def hard_mish_lite(x, *, alpha=0.5):
        return x * np.clip(x + 2, 0, 2) * alpha

ONNX Runtime's engine runs the function, on NumPy arrays, between the parts of the model. TensorRT's plugin runs the
kernel. Positional parameters are the inputs of a node, keyword-only parameters its attributes.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from edgert.errors import ConfigError, ModelError, nearest
from edgert.user_code import load_module, read_operators

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[Any]

Shape = tuple[int, ...]
ShapeRule = Callable[..., Any]
"""A function of the input shapes, and attributes by name, that returns the output's shape or a list of shapes."""
DTYPES = ("float32", "float16", "int8", "uint8", "int32", "int64", "bool")
"""NumPy's names of the element types of an operator's tensors."""
_FunctionT = TypeVar("_FunctionT", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True, eq=False)
class Operator:
    """A custom operator.

    Attributes:
        domain, name: parts of its full name, ``demo`` and ``HardMishLite``.
        function: function from input arrays to an array or a list of arrays. It must neither change nor keep its
            arguments.
        inputs, outputs: names in order.
        attributes: name → default, which is an int, a float or a text.
        dtypes: possible element types of the first input; the other inputs may have any.
        shape: rule for output shapes; None: every output has the shape of the first input.
        dtype: function from input dtypes to the output's dtype or a list of dtypes; None: that of the first input.
        cuda: CUDA C of a kernel with the function's name; empty without one.
        file: source file, which other processes load again.
    """

    domain: str
    name: str
    function: Callable[..., Any]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]
    dtypes: tuple[str, ...]
    shape: ShapeRule | None
    dtype: Callable[..., Any] | None
    cuda: str
    file: Path

    def __str__(self) -> str:
        return f"{self.domain}::{self.name}"

    def settings(self, given: Mapping[str, Any], node: str) -> dict[str, Any]:
        """Return a node's attributes with defaults filled in. Raises ModelError for an unknown one."""
        for key in given:
            if key not in self.attributes:
                known = ", ".join(self.attributes) or "none"
                raise self.misfit(node, f"no attribute {key!r}{nearest(key, self.attributes)}", f"it has: {known}")
        plain = {key: value.decode() if isinstance(value, bytes) else value for key, value in given.items()}
        return {**self.attributes, **plain}

    def shapes(self, inputs: Sequence[Shape], settings: Mapping[str, Any]) -> list[Shape]:
        """Return output shapes for input shapes."""
        if self.shape is None:
            return [tuple(inputs[0])] * len(self.outputs)
        found = self.shape(*inputs, **settings)
        many = found if isinstance(found, list) else [found]
        return [tuple(int(size) for size in shape) for shape in many]

    def result_dtypes(self, inputs: Sequence[str], node: str) -> list[str]:
        """Return output dtypes for input dtypes. Raises ModelError for a type that the operator does not take."""
        if inputs[0] not in self.dtypes:
            raise self.misfit(node, f"{inputs[0]} inputs", f"it takes {', '.join(self.dtypes)}")
        if self.dtype is None:
            return [inputs[0]] * len(self.outputs)
        found = self.dtype(*inputs)
        return list(found) if isinstance(found, (list, tuple)) else [found]

    def __call__(self, arrays: Sequence[Array], settings: Mapping[str, Any]) -> list[Array]:
        """Compute the outputs."""
        import numpy as np  # not with the pipeline file, whose operators few call

        made = self.function(*arrays, **settings)
        return [np.asarray(one) for one in (made if isinstance(made, (list, tuple)) else [made])]

    def misfit(self, node: str, what: str, why: str) -> ModelError:
        """Return the error of a node that does not fit the operator."""
        return ModelError(f"node {node!r}: {self} has {what}", why=why, where=str(self.file), fix="see edgert.op")


_KNOWN: dict[tuple[str, str], Operator] = {}
_IMPORTED: dict[str, Path] = {}
"""Digest of a file's content → its last path."""


def op(
    name: str,
    *,
    outputs: Iterable[str] = ("y",),
    dtypes: Iterable[str] = ("float32",),
    shape: ShapeRule | None = None,
    dtype: Callable[..., Any] | None = None,
    cuda: str = "",
) -> Callable[[_FunctionT], _FunctionT]:
    """Register the function below as an operator; the function itself is unchanged.

    Args:
        name: ``domain::Name``, as in the model's nodes.
        outputs: names of the outputs in order.
        dtypes: possible element types of the first input; the other inputs may have any.
        shape: rule for output shapes, see :data:`ShapeRule`; None: every output has the shape of the first input.
        dtype: function from input dtypes to the output's dtype or a list of dtypes; None: that of the first input.
        cuda: CUDA C of a kernel with the function's name; empty without one.

    Raises:
        ConfigError: the name, a type or the function is not suitable, or a function of another file has the name.
    """
    domain, _, short = name.partition("::")
    types = tuple(dtypes)
    if not domain or not short or domain in ("ai.onnx", "com.microsoft"):
        why, fix = "it needs a domain of your own", "demo::Name, as in the model"
        raise ConfigError(f"{name!r} is no name for an operator", why=why, fix=fix)
    for each in types:
        if each not in DTYPES:
            raise ConfigError(f"{name} cannot take {each!r}{nearest(each, DTYPES)}", fix=f"types: {', '.join(DTYPES)}")

    def register(function: _FunctionT) -> _FunctionT:
        inputs, attributes = _parameters(name, function)
        file = Path(inspect.getfile(function))
        made = Operator(domain, short, function, inputs, tuple(outputs), attributes, types, shape, dtype, cuda, file)
        known = _KNOWN.setdefault((domain, short), made)
        if known.file != file:
            why = f"{known.file} has one, {file} another"
            raise ConfigError(f"operator {made} is registered twice", why=why, fix="rename one")
        _KNOWN[domain, short] = made
        return function

    return register


def operator(domain: str, name: str) -> Operator | None:
    """Return the registered operator of that name; None without one."""
    return _KNOWN.get((domain, name))


def operators() -> tuple[Operator, ...]:
    """Return all registered operators."""
    return tuple(_KNOWN.values())


def source_files(some: Iterable[Operator]) -> tuple[str, ...]:
    """Return the distinct source files of operators."""
    return tuple(sorted({str(one.file) for one in some}))


def source_digests() -> dict[str, str]:
    """Return operator → SHA-256 of its file, a part of the keys of caches."""
    return {str(one): hashlib.sha256(one.file.read_bytes()).hexdigest() for _, one in sorted(_KNOWN.items())}


def load_operators(files: Iterable[Path], where: str = "") -> None:
    """Import files that register operators, unless the same content was imported before, for example from a bundle.

    Raises:
        ConfigError: a file cannot be read, fails, or has the name of another module.
    """
    for file in files:
        digest = hashlib.sha256(read_operators(file, where)).hexdigest()
        if digest not in _IMPORTED:
            load_module(file.stem, where, file.parent)
        for key, one in _KNOWN.items():
            if one.file == _IMPORTED.get(digest):
                _KNOWN[key] = replace(one, file=file)  # its last path, as the folder of a bundle is temporary
        _IMPORTED[digest] = file


def _parameters(name: str, function: Callable[..., Any]) -> tuple[tuple[str, ...], dict[str, Any]]:
    """Return the names of inputs, and attributes with their defaults. Raises ConfigError."""
    found = inspect.signature(function).parameters.values()
    inputs = tuple(item.name for item in found if item.kind in (item.POSITIONAL_ONLY, item.POSITIONAL_OR_KEYWORD))
    attributes = {item.name: item.default for item in found if item.kind is item.KEYWORD_ONLY}
    wrong = [key for key, value in attributes.items() if not isinstance(value, (int, float, str))]
    if not inputs or wrong or len(inputs) + len(attributes) < len(found):
        raise ConfigError(
            f"the function of {name} cannot be an operator",
            why=f"attribute {wrong[0]!r} has no number or text as its default" if wrong else "its inputs must be named",
            fix="def function(x, *, alpha=0.5): inputs first, attributes with defaults behind the *",
        )
    return inputs, attributes
