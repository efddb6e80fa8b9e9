"""All rewrites for a DLA: their order, their application, the proof of equal results, and the cut where they end.

A front is, for example, an input transposed from NHWC to NCHW; a tail is a detector's last reshapes and box arithmetic.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

import numpy as np

from edgert.errors import ModelError, PlacementError, nearest
from edgert.graph.batchnorm import FOLD_BATCHNORM, FOLD_BIAS
from edgert.graph.clean import REMOVE_NOOPS, clean
from edgert.graph.dla_rewrites import activations, convolutions, layout_moves, pooling, rearrange, resizing
from edgert.graph.fold_constants import FOLD_CONSTANTS
from edgert.graph.ir import Change, Graph, Node, Pass, Result, run
from edgert.graph.model import Array, Model, TensorSpec, inputs
from edgert.graph.onnx_convert import write
from edgert.graph.opset import raise_opset
from edgert.graph.static_shape import read, with_shapes

_ALL = (
    FOLD_CONSTANTS,
    REMOVE_NOOPS,
    FOLD_BATCHNORM,
    FOLD_BIAS,
    rearrange.SPACE_TO_DEPTH,
    rearrange.DEPTH_TO_SPACE,
    rearrange.CHANNEL_SHUFFLE,
    rearrange.MERGE_REARRANGEMENT,
    convolutions.PAD,
    convolutions.DENSE,
    layout_moves.VIEW,
    pooling.GLOBAL_MEAN,
    pooling.AVERAGE_POOL,
    pooling.REDUCE_SUM,
    pooling.GLOBAL_MAX,
    pooling.MAX_POOL,
    resizing.RESIZE,
    activations.SPREAD,
    activations.HARD_SWISH,
    activations.HARD_SIGMOID,
    activations.CLIP,
    convolutions.CONV_PARTS,
    rearrange.SPLIT,
    activations.NEG,
    activations.SUB,
    activations.DIV,
    activations.SUM,
    activations.PRELU_SLOPE,
)

REWRITES: Mapping[str, Pass] = {rewrite.name: rewrite for rewrite in _ALL}
"""All rewrites by name, in the order in which they are applied."""


def fit(graph: Graph, names: Iterable[str] | None = None) -> Result:
    """Rewrite a graph for a DLA, round after round, until no rewrite finds anything left to do.

    The result computes the same, up to rounding where weights are multiplied into each other. Inputs and outputs keep
    their names, types and shapes. Equal graphs give equal results, names of new tensors included.

    Args:
        graph: graph of opset 17 or newer with static shapes; nodes of unknown shape stay.
        names: names of the rewrites to use; None for all of :data:`REWRITES`. The order is always that of the table.

    Returns:
        The new graph (the given one when nothing changed) and every change, in order.

    Raises:
        PlacementError: there is no rewrite of a given name.
    """
    wanted = set(REWRITES if names is None else names)
    for name in sorted(wanted - set(REWRITES)):
        raise _unknown_rewrite(name)
    return run(graph, [rewrite for rewrite in REWRITES.values() if rewrite.name in wanted])


def remaining_rewrites(skipped: Iterable[str], where: str = "") -> tuple[str, ...]:
    """Return the names of all rewrites that no glob matches; :func:`fit` takes them.

    Args:
        skipped: globs of the rewrites to leave out, as ``["max-pool", "fold-*"]``.
        where: place of the globs, for errors.

    Raises:
        PlacementError: a glob matches no rewrite.
    """
    globs = tuple(skipped)
    for glob in globs:
        if not any(fnmatchcase(name, glob) for name in REWRITES):
            raise _unknown_rewrite(glob, where)
    return tuple(name for name in REWRITES if not any(fnmatchcase(name, glob) for glob in globs))


def _unknown_rewrite(name: str, where: str = "") -> PlacementError:
    return PlacementError(
        f"there is no rewrite {name!r}{nearest(name, REWRITES)}",
        why=f"they are {', '.join(REWRITES)}",
        where=where,
        fix="correct the name",
    )


Run = Callable[[Model, Mapping[str, Array]], Sequence[Array]]
"""Function that runs a model on one set of inputs and returns its outputs in order."""


@dataclass(frozen=True, slots=True)
class Proof:
    """Difference between the outputs of two models.

    Attributes:
        error: largest absolute difference between any two outputs.
        largest: largest absolute output, to compare the error with.
    """

    error: float
    largest: float

    @property
    def relative(self) -> float:
        """Error divided by the largest output; the error itself where all outputs are 0."""
        return self.error / self.largest if self.largest else self.error


def prove(before: Model, after: Model, feeds: Iterable[Mapping[str, Array]], run: Run) -> Proof:
    """Run two models on the same inputs and compare all outputs; equal infinities and NaNs do not differ.

    Args:
        before: original model.
        after: rewritten model.
        feeds: sets of inputs, each with arrays by input name.
        run: function that runs a model.

    Raises:
        ModelError: the outputs differ in number, shape or type.
    """
    error = largest = 0.0
    for feed in feeds:
        first, second = run(before, feed), run(after, feed)
        _check_same_types(before, first, second)
        for expected, actual in zip(first, second, strict=True):
            error = max(error, _largest_difference(expected, actual))
            finite = np.abs(expected[np.isfinite(expected)].astype(np.float64))
            largest = max(largest, float(finite.max(initial=0.0)))
    return Proof(error, largest)


def _check_same_types(model: Model, first: Sequence[Array], second: Sequence[Array]) -> None:
    types = [[(item.shape, item.dtype.name) for item in found] for found in (first, second)]
    if types[0] != types[1]:
        raise ModelError(
            f"the rewritten model {str(model.path)!r} gives other outputs",
            why=f"{types[0]} before, {types[1]} after",
            fix="leave out the rewrite that causes it (skip_rewrites), and report the model",
        )


def _largest_difference(first: Array, second: Array) -> float:
    differs = (first != second) & ~((first != first) & (second != second))
    with np.errstate(invalid="ignore"):
        gaps = np.abs(first[differs].astype(np.float64) - second[differs].astype(np.float64))
    return float(np.nan_to_num(gaps, nan=np.inf).max(initial=0.0))


@dataclass(frozen=True, slots=True)
class Cut:
    """Nodes of a network before, in and behind the part that an accelerator runs as one piece.

    Attributes:
        front: nodes that cannot run there and depend on inputs alone.
        body: nodes that run there, from the front and the inputs on.
        tail: the rest.
        tensors: outputs of the body that the tail reads or the network returns.
    """

    front: tuple[Node, ...]
    body: tuple[Node, ...]
    tail: tuple[Node, ...]
    tensors: tuple[TensorSpec, ...]


def cut_head(graph: Graph, can_run: Callable[[Node], bool]) -> Cut:
    """Cut a graph of known shapes where an accelerator can run no further; the body is empty where it runs nothing."""
    front, body, tail = list[Node](), list[Node](), list[Node]()
    in_body, in_tail = set[str](), set[str]()
    for node in graph.nodes:
        waits = not in_tail.isdisjoint(node.reads)
        if not waits and can_run(node):
            body.append(node)
            in_body.update(node.outputs)
        elif waits or not in_body.isdisjoint(node.reads):
            tail.append(node)
            in_tail.update(node.outputs)
        else:
            front.append(node)
    wanted = graph.output_names.union(*(node.reads for node in tail))
    specs = (graph.spec(name) for node in body for name in node.outputs if name in wanted)
    return Cut(tuple(front), tuple(body), tuple(tail), tuple(spec for spec in specs if spec is not None))


OPSET = 17
"""Opset in which Softmax is over one axis and Resize defines its sample positions; TensorRT reads it since 8.6."""


def prepare_for_dla(model: Model, shapes: Mapping[str, Sequence[int]] | None = None) -> Model:
    """Return the model that :func:`fit_model` rewrites: static, clean, of opset 17 or newer.

    Args:
        model: model to copy.
        shapes: all dimensions of inputs, by name. A first dimension that stays open becomes 1.

    Raises:
        ModelError: other dimensions stay open, the shapes do not fit, or an operator has no equivalent in opset 17.
    """
    fixed = with_static_batch(with_shapes(model, shapes or {}))  # exporters leave shapes open that follow from inputs
    cleaned, _ = clean(fixed)
    return clean(raise_opset(cleaned, OPSET))[0]


def with_static_batch(model: Model) -> Model:
    """Return the model with open first dimensions of its inputs set to 1; the model itself if none is open.

    Raises:
        ModelError: another dimension of an input is open.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    for spec in inputs(model):
        if not spec.ranked or spec.is_static:
            continue
        rest = replace(spec, shape=spec.shape[1:]).sizes
        if isinstance(spec.shape[0], int) or rest is None:
            raise ModelError(
                f"input {spec.name!r} of model {str(model.path)!r} has open dimensions: {spec}",
                why="a DLA runs one size only, and edgert chooses a size for the batch dimension alone",
                where=str(model.path),
                fix="give its size (--shape, or input: {size: WIDTHxHEIGHT} in the pipeline file)",
            )
        shapes[spec.name] = (1, *rest)
    return with_shapes(model, shapes) if shapes else model


def fit_model(model: Model, names: Iterable[str] | None = None) -> tuple[Model, tuple[Change, ...]]:
    """Return the model rewritten, as far as possible, into operators that a DLA supports, and the changes.

    Arguments are those of :func:`fit` and :func:`prepare_for_dla`.

    Raises:
        ModelError: the model cannot be prepared.
        PlacementError: there is no rewrite of a given name.
    """
    prepared = prepare_for_dla(model)
    graph, changes = fit(read(prepared), names)
    return (write(graph, prepared) if changes else prepared), changes
