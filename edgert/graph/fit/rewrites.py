"""All rewrites that let a model onto a DLA, by name, and the function that applies them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from edgert.errors import PlacementError, nearest
from edgert.graph.fit import (
    arithmetic,
    dense,
    hard,
    known,
    max_pool,
    mean,
    merge,
    pad,
    part,
    rearrange,
    resize,
    sink,
    split,
    spread,
)
from edgert.graph.fit.draft import Result
from edgert.graph.node import Graph
from edgert.graph.rewrite import Change

_MAX_ROUNDS = 64  # the deepest chain of rewrites in real models takes six; a bound in case two are at odds


@dataclass(frozen=True, slots=True)
class Rewrite:
    """One way to say the same in operators that a DLA has.

    Attributes:
        name: to choose it by; changes are filed under it.
        does: what becomes of which nodes.
        because: the limit of the DLA that it gets around.
        apply: graph → graph and changes; the very same graph where there is nothing to do.
    """

    name: str
    does: str
    because: str
    apply: Callable[[Graph], Result]


_ALL = (
    Rewrite(
        "fold-constants",
        "Shape, Gather and other nodes whose result is known beforehand become stored tensors",
        "a DLA computes no shapes, and a node that is left over cuts the graph",
        known.fold_constants,
    ),
    Rewrite(
        "remove-noops",
        "Identity, idle Dropout and Transposes that undo each other go",
        "a DLA has none of them",
        known.remove_noops,
    ),
    Rewrite(
        "fold-batchnorm",
        "BatchNormalization is multiplied into the weights beside it",
        "it is a layer of its own otherwise, with its own memory traffic",
        known.fold_batchnorm,
    ),
    Rewrite(
        "fold-bias",
        "a constant per channel behind a layer is added to the layer's bias",
        "it is a layer of its own otherwise",
        known.fold_bias,
    ),
    Rewrite(
        "space-to-depth",
        "blocks of pixels laid into channels (Focus, SpaceToDepth) become a Conv whose stride is its kernel",
        "a DLA slices with stride 1 only and has no SpaceToDepth",
        rearrange.fold_space,
    ),
    Rewrite(
        "depth-to-space",
        "channels laid into blocks of pixels become a ConvTranspose whose stride is its kernel",
        "a DLA has no DepthToSpace and no five-dimensional tensors",
        rearrange.unfold_space,
    ),
    Rewrite(
        "channel-shuffle",
        "channels put in another order (ShuffleNet) or picked out by Gather become a 1x1 Conv or a Slice",
        "a DLA has no five-dimensional tensors, no Gather, and no Reshape beside a Slice or Concat",
        rearrange.choose_channels,
    ),
    Rewrite(
        "merge-rearrangement",
        "a Conv that only rearranges is merged into the Conv behind it, where that takes no more multiply-adds",
        "one layer takes less time and memory traffic than two",
        merge.merge_rearrangements,
    ),
    Rewrite(
        "pad",
        "Pad becomes the padding of the Conv, AveragePool or MaxPool behind it",
        "a DLA has padding inside other layers only",
        pad.fold_pad,
    ),
    Rewrite(
        "dense",
        "Gemm and MatMul with stored weights become Conv",
        "a DLA multiplies by stored matrices only as a convolution, in four dimensions",
        dense.convolve_products,
    ),
    Rewrite(
        "view",
        "Reshape, Flatten and Transpose move behind what does not mind them, and merge",
        "a DLA works on four dimensions, and a Reshape between two layers cuts the graph",
        sink.sink_views,
    ),
    Rewrite(
        "global-mean",
        "GlobalAveragePool and ReduceMean become AveragePools with windows up to 8, or a Conv per channel",
        "a DLA has no global average, and pools over 8 pixels a side at most",
        mean.pool_mean,
    ),
    Rewrite(
        "average-pool",
        "an AveragePool with a window above 8 becomes several small ones or a Conv per channel",
        "a DLA pools over 8 pixels a side at most",
        mean.split_average_pool,
    ),
    Rewrite(
        "reduce-sum",
        "ReduceSum becomes AveragePools and a Mul, or a Conv",
        "a DLA reduces to the maximum only",
        mean.pool_sum,
    ),
    Rewrite(
        "global-max",
        "GlobalMaxPool and ReduceMax over the image become MaxPool",
        "a DLA has them only on Orin and since TensorRT 8.6.12",
        max_pool.pool_global_max,
    ),
    Rewrite(
        "max-pool",
        "a MaxPool with a window above 8 becomes several small ones in a row",
        "a DLA pools over 8 pixels a side at most",
        max_pool.split_max_pool,
    ),
    Rewrite(
        "resize",
        "Resize gets whole scales and a mode that a DLA has; by one half it becomes a pooling",
        "a DLA enlarges by whole numbers only, and knows a few modes",
        resize.write_resize,
    ),
    Rewrite(
        "spread",
        "a number per channel that is multiplied or added to an image is enlarged to its size first",
        "whether a DLA spreads one operand over another is not known",
        spread.spread_operands,
    ),
    Rewrite("hard-swish", "HardSwish becomes Add, Clip and Mul", "a DLA has no HardSwish", hard.write_hard_swish),
    Rewrite(
        "hard-sigmoid", "HardSigmoid becomes Add, Clip and Mul", "a DLA has no HardSigmoid", hard.write_hard_sigmoid
    ),
    Rewrite(
        "clip",
        "Clip between any two numbers becomes Clip from 0, or Relu",
        "a DLA clips from 0 to between 1 and 127 only",
        hard.write_clip,
    ),
    Rewrite(
        "conv-parts",
        "a Conv whose channels are sliced apart becomes one Conv for each part",
        "whether a DLA slices INT8 tensors is not known, and a Reshape beside a Slice is refused",
        part.part_convolutions,
    ),
    Rewrite("split", "Split becomes one Slice for each part", "a DLA has Slice only", split.split_to_slices),
    Rewrite("neg", "Neg becomes Mul by -1", "a DLA has no Neg", arithmetic.negate),
    Rewrite("sub", "Sub with a constant becomes Add", "with a constant a DLA scales and shifts", arithmetic.subtract),
    Rewrite("div", "Div by a constant becomes Mul", "a DLA has Div since TensorRT 8.6.12 only", arithmetic.divide),
    Rewrite("sum", "Sum becomes Adds of two", "a DLA adds two tensors at a time", arithmetic.add_up),
    Rewrite(
        "prelu-slope", "the slope of a PRelu gets four dimensions", "a DLA wants the input's", arithmetic.raise_slope
    ),
)

REWRITES: Mapping[str, Rewrite] = {rewrite.name: rewrite for rewrite in _ALL}
"""Name → rewrite, in the order in which they are applied."""


def fit(graph: Graph, names: Iterable[str] | None = None) -> tuple[Graph, tuple[Change, ...]]:
    """Rewrites a graph, round after round, until no rewrite finds anything left to do.

    The result computes the same, up to rounding where weights are multiplied into each other; inputs and outputs keep
    their names, types and shapes. The same graph always gives the same result, names of new tensors included.

    Args:
        graph: of a model with static shapes; where a shape is not known nothing is rewritten.
        names: of the rewrites to use; all of :data:`REWRITES` by default, and in its order whatever order they have.

    Returns:
        The new graph (the given one when nothing changed) and every change, in order.

    Raises:
        PlacementError: a name is not that of a rewrite.
    """
    chosen = _chosen(names)
    changes: list[Change] = []
    for _ in range(_MAX_ROUNDS):
        before = graph
        for rewrite in chosen:
            graph, found = rewrite.apply(graph)
            changes.extend(found)
        if graph is before:
            break
    return graph, tuple(changes)


def without(skipped: Iterable[str], where: str = "") -> tuple[str, ...]:
    """The names of all rewrites but those that globs fit, ``["max-pool", "fold-*"]``; what :func:`fit` takes.

    Args:
        where: the place of the globs, for errors.

    Raises:
        PlacementError: a glob fits no rewrite.
    """
    globs = tuple(skipped)
    for glob in globs:
        if not any(fnmatchcase(name, glob) for name in REWRITES):
            raise _unknown(glob, where)
    return tuple(name for name in REWRITES if not any(fnmatchcase(name, glob) for glob in globs))


def _chosen(names: Iterable[str] | None) -> list[Rewrite]:
    if names is None:
        return list(REWRITES.values())
    wanted = set(names)
    for name in sorted(wanted - set(REWRITES)):
        raise _unknown(name)
    return [rewrite for rewrite in REWRITES.values() if rewrite.name in wanted]


def _unknown(name: str, where: str = "") -> PlacementError:
    return PlacementError(
        f"there is no rewrite {name!r}{nearest(name, REWRITES)}",
        why=f"they are {', '.join(REWRITES)}",
        where=where,
        fix="correct the name",
    )
