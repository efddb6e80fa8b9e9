"""All rewrites for a DLA: their order, their application, the proof of equal results, and the cut where they end.

A cut network has three pieces. The front cannot run on the accelerator and depends on inputs alone, such as an input
transposed from NHWC to NCHW. The body runs on the accelerator, from the front and the inputs. The tail is the rest: a
detector's last reshapes and its box arithmetic.
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
        graph: graph with static shapes; nodes of unknown shape stay.
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
        runs: number of sets of inputs that were run.
    """

    error: float
    largest: float
    runs: int

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
        ModelError: there are no feeds, or the outputs differ in number, shape or type.
    """
    error = largest = 0.0
    runs = 0
    for feed in feeds:
        first, second = run(before, feed), run(after, feed)
        _check_same_types(before, first, second)
        runs += 1
        for expected, actual in zip(first, second, strict=True):
            error = max(error, _largest_difference(expected, actual))
            finite = np.abs(expected[np.isfinite(expected)].astype(np.float64))
            largest = max(largest, float(finite.max(initial=0.0)))
    if not runs:
        raise ModelError(
            "cannot compare two models without inputs",
            why="no inputs were given",
            fix="give at least one set of inputs",
        )
    return Proof(error, largest, runs)


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


CanRun = Callable[[Node], bool]
"""Function that returns whether the accelerator can run a node."""


@dataclass(frozen=True, slots=True, eq=False)
class Cut:
    """Graph cut into pieces that give the same results when they run one after another.

    A piece reads inputs of the graph and tensors of earlier pieces. It returns outputs of the graph and tensors that
    later pieces read. All keep their names.

    Attributes:
        front: piece that runs before the body; None where there is none.
        body: piece that the accelerator runs.
        tail: piece that runs after the body; None where nothing is left.
    """

    front: Graph | None
    body: Graph
    tail: Graph | None

    @property
    def tensors(self) -> tuple[TensorSpec, ...]:
        """Outputs of the body."""
        return self.body.outputs


def cut_head(graph: Graph, can_run: CanRun) -> Cut:
    """Cut a graph where the accelerator can run no further, and separate the front that must run before.

    Args:
        graph: graph with known shapes where it is cut.
        can_run: function that is called once for each node that could be in the body.

    Raises:
        PlacementError: no node can run, or the shape of a cut tensor is not known.
    """
    front, body, tail = _split_nodes(graph, can_run)
    if not body:
        first = graph.nodes[0] if graph.nodes else Node("", (), ())
        raise PlacementError(
            "the model has no part that can run on the accelerator",
            why=f"no node can run, from {first.name!r} ({first.op}) on",
            fix="rewrite it (edgert.graph.dla_rewrites), or place it on the GPU: placement: gpu",
        )
    pieces = [_subgraph(graph, nodes, [*later]) for nodes, later in ((front, body + tail), (body, tail), (tail, []))]
    return Cut(pieces[0] if front else None, pieces[1], pieces[2] if tail else None)


def _split_nodes(graph: Graph, can_run: CanRun) -> tuple[list[Node], list[Node], list[Node]]:
    front, body, tail = [], [], []
    in_body: set[str] = set()
    in_tail: set[str] = set()
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
    return front, body, tail


def _subgraph(graph: Graph, nodes: Sequence[Node], later: Iterable[Node]) -> Graph:
    computed = [name for node in nodes for name in node.outputs if name]
    used = {name for node in nodes for name in node.reads} - set(computed) - set(graph.constants)
    wanted = {name for node in later for name in node.reads} | graph.output_names
    fed = [spec.name for spec in graph.inputs]
    order = [*fed, *(name for node in graph.nodes for name in node.outputs)]
    return replace(
        graph,
        nodes=tuple(nodes),
        inputs=tuple(_cut_spec(graph, name) for name in order if name in used),
        outputs=tuple(_cut_spec(graph, name) for name in computed if name in wanted),
    )


def _cut_spec(graph: Graph, name: str) -> TensorSpec:
    ends = {spec.name: spec for spec in (*graph.inputs, *graph.outputs)}
    spec = ends.get(name) or graph.spec(name)
    if spec is None or (name not in ends and not spec.is_static):
        raise PlacementError(
            f"the model cannot be cut at tensor {name!r}",
            why="its shape is not known",
            fix="give the model static input shapes",
        )
    return spec


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


def with_static_batch(model: Model, size: int = 1) -> Model:
    """Return the model with open first dimensions of its inputs set to ``size``; the model itself if none is open.

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
        shapes[spec.name] = (size, *rest)
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
