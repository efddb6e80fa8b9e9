"""All rewrites that let a model onto a DLA, by name, and the function that applies them."""

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

from edgert.errors import PlacementError, nearest
from edgert.graph.batchnorm import FOLD_BATCHNORM, FOLD_BIAS
from edgert.graph.clean import REMOVE_NOOPS
from edgert.graph.dla_rewrites import activations, convolutions, layout_moves, rearrange, resizing
from edgert.graph.dla_rewrites import pooling as average_pool
from edgert.graph.dla_rewrites import pooling as max_pool
from edgert.graph.fold_constants import FOLD_CONSTANTS
from edgert.graph.ir import Graph, Pass, Result, run

_ALL = (
    FOLD_CONSTANTS,
    REMOVE_NOOPS,
    FOLD_BATCHNORM,
    FOLD_BIAS,
    Pass(
        "space-to-depth",
        "blocks of pixels laid into channels (Focus, SpaceToDepth) become a Conv whose stride is its kernel",
        "a DLA slices with stride 1 only and has no SpaceToDepth",
        rearrange.fold_space,
    ),
    Pass(
        "depth-to-space",
        "channels laid into blocks of pixels become a ConvTranspose whose stride is its kernel",
        "a DLA has no DepthToSpace and no five-dimensional tensors",
        rearrange.unfold_space,
        grows=True,
    ),
    Pass(
        "channel-shuffle",
        "channels put in another order (ShuffleNet) or picked out by Gather become a 1x1 Conv or a Slice",
        "a DLA has no five-dimensional tensors, no Gather, and no Reshape beside a Slice or Concat",
        rearrange.choose_channels,
        grows=True,
    ),
    Pass(
        "merge-rearrangement",
        "a Conv that only rearranges is merged into the Conv behind it, where that takes no more multiply-adds",
        "one layer takes less time and memory traffic than two",
        rearrange.merge_rearrangements,
    ),
    Pass(
        "pad",
        "Pad becomes the padding of the Conv, AveragePool or MaxPool behind it",
        "a DLA has padding inside other layers only",
        convolutions.fold_pad,
    ),
    Pass(
        "dense",
        "Gemm and MatMul with stored weights become Conv",
        "a DLA multiplies by stored matrices only as a convolution, in four dimensions",
        convolutions.convolve_products,
        grows=True,
    ),
    Pass(
        "view",
        "Reshape, Flatten and Transpose move behind what does not mind them, and merge",
        "a DLA works on four dimensions, and a Reshape between two layers cuts the graph",
        layout_moves.move_views,
    ),
    Pass(
        "global-mean",
        "GlobalAveragePool and ReduceMean become AveragePools with windows up to 8, or a Conv per channel",
        "a DLA has no global average, and pools over 8 pixels a side at most",
        average_pool.pool_mean,
        grows=True,
    ),
    Pass(
        "average-pool",
        "an AveragePool with a window above 8 becomes several small ones or a Conv per channel",
        "a DLA pools over 8 pixels a side at most",
        average_pool.split_average_pool,
        grows=True,
    ),
    Pass(
        "reduce-sum",
        "ReduceSum becomes AveragePools and a Mul, or a Conv",
        "a DLA reduces to the maximum only",
        average_pool.pool_sum,
        grows=True,
    ),
    Pass(
        "global-max",
        "GlobalMaxPool and ReduceMax over the image become MaxPool",
        "a DLA has them only on Orin and since TensorRT 8.6.12",
        max_pool.pool_global_max,
        grows=True,
    ),
    Pass(
        "max-pool",
        "a MaxPool with a window above 8 becomes several small ones in a row",
        "a DLA pools over 8 pixels a side at most",
        max_pool.split_max_pool,
        grows=True,
    ),
    Pass(
        "resize",
        "Resize gets whole scales and a mode that a DLA has; by one half it becomes a pooling",
        "a DLA enlarges by whole numbers only, and knows a few modes",
        resizing.write_resize,
        grows=True,
    ),
    Pass(
        "spread",
        "a number per channel that is multiplied or added to an image is enlarged to its size first",
        "whether a DLA spreads one operand over another is not known",
        activations.spread_operands,
        grows=True,
    ),
    Pass(
        "hard-swish",
        "HardSwish becomes Add, Clip and Mul",
        "a DLA has no HardSwish",
        activations.write_hard_swish,
        grows=True,
    ),
    Pass(
        "hard-sigmoid",
        "HardSigmoid becomes Add, Clip and Mul",
        "a DLA has no HardSigmoid",
        activations.write_hard_sigmoid,
        grows=True,
    ),
    Pass(
        "clip",
        "Clip between any two numbers becomes Clip from 0, or Relu",
        "a DLA clips from 0 to between 1 and 127 only",
        activations.write_clip,
        grows=True,
    ),
    Pass(
        "conv-parts",
        "a Conv whose channels are sliced apart becomes one Conv for each part",
        "whether a DLA slices INT8 tensors is not known, and a Reshape beside a Slice is refused",
        convolutions.part_convolutions,
        grows=True,
    ),
    Pass(
        "split", "Split becomes one Slice for each part", "a DLA has Slice only", rearrange.split_to_slices, grows=True
    ),
    Pass("neg", "Neg becomes Mul by -1", "a DLA has no Neg", activations.negate),
    Pass(
        "sub",
        "Sub with a constant becomes Add",
        "with a constant a DLA scales and shifts",
        activations.subtract,
        grows=True,
    ),
    Pass("div", "Div by a constant becomes Mul", "a DLA has Div since TensorRT 8.6.12 only", activations.divide),
    Pass("sum", "Sum becomes Adds of two", "a DLA adds two tensors at a time", activations.add_up, grows=True),
    Pass(
        "prelu-slope", "the slope of a PRelu gets four dimensions", "a DLA wants the input's", activations.raise_slope
    ),
)

REWRITES: Mapping[str, Pass] = {rewrite.name: rewrite for rewrite in _ALL}
"""Name → pass, in the order in which they are applied."""


def fit(graph: Graph, names: Iterable[str] | None = None) -> Result:
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
    return run(graph, _chosen(names))


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


def _chosen(names: Iterable[str] | None) -> list[Pass]:
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
