"""Rewriting a whole model: static shapes and a current operator set first, then the rewrites."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from edgert.errors import ModelError
from edgert.graph.clean import clean
from edgert.graph.fit.rewrites import fit
from edgert.graph.model import Model
from edgert.graph.node import read, write
from edgert.graph.opset import raise_opset
from edgert.graph.rewrite import Change
from edgert.graph.shape import with_shapes
from edgert.graph.spec import TensorSpec, inputs

OPSET = 17
"""Where Softmax is over one axis and a Resize says where it samples; TensorRT has read it since 8.6."""


def ready(model: Model, shapes: Mapping[str, Sequence[int]] | None = None) -> Model:
    """The model as :func:`fit_model` begins with: static, clean, opset 17 or newer.

    Args:
        shapes: input name → all its dimensions. A first dimension that stays open becomes 1.

    Raises:
        ModelError: other dimensions stay open, the shapes do not fit, or an operator has no equal in opset 17.
    """
    fixed = static_batch(with_shapes(model, shapes or {}))  # exporters leave open what follows from static inputs
    cleaned, _ = clean(fixed)
    return clean(raise_opset(cleaned, OPSET))[0]


def static_batch(model: Model, size: int = 1) -> Model:
    """The model with open first dimensions of its inputs fixed; the model itself where there are none.

    Raises:
        ModelError: another dimension of an input is open.
    """
    open_ones = {spec.name: (size, *spec.shape[1:]) for spec in inputs(model) if spec.ranked and not spec.is_static}
    for spec in inputs(model):
        if spec.name in open_ones and not _has_open_batch_only(spec):
            raise ModelError(
                f"input {spec.name!r} of model {str(model.path)!r} has open dimensions: {spec}",
                why="a DLA runs one size only, and only the batch may be chosen here",
                where=str(model.path),
                fix="give its size (--shape, or input: {size: WIDTHxHEIGHT} in the pipeline file)",
            )
    shapes = {name: [dim for dim in shape if isinstance(dim, int)] for name, shape in open_ones.items()}
    return with_shapes(model, shapes) if shapes else model


def fit_model(
    model: Model, names: Iterable[str] | None = None, shapes: Mapping[str, Sequence[int]] | None = None
) -> tuple[Model, tuple[Change, ...]]:
    """The model in operators that a DLA has, as far as they can be found; see :func:`edgert.graph.fit.rewrites.fit`.

    Raises:
        ModelError: as :func:`ready`.
        PlacementError: a name is not that of a rewrite.
    """
    begun = ready(model, shapes)
    graph, changes = fit(read(begun), names)
    return (write(graph, begun) if changes else begun), changes


def _has_open_batch_only(spec: TensorSpec) -> bool:
    return not isinstance(spec.shape[0], int) and all(isinstance(dim, int) for dim in spec.shape[1:])
