"""Table of all rewrites that let a DLA run a model, by name, and the function that applies them."""

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

from edgert.errors import PlacementError, nearest
from edgert.graph.batchnorm import FOLD_BATCHNORM, FOLD_BIAS
from edgert.graph.clean import REMOVE_NOOPS
from edgert.graph.dla_rewrites import activations, convolutions, layout_moves, pooling, rearrange, resizing
from edgert.graph.fold_constants import FOLD_CONSTANTS
from edgert.graph.ir import Graph, Pass, Result, run

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
"""All passes by name, in the order in which they are applied."""


def fit(graph: Graph, names: Iterable[str] | None = None) -> Result:
    """Rewrite a graph for a DLA, round after round, until no rewrite finds anything left to do.

    The result computes the same, up to rounding where weights are multiplied into each other. Inputs and outputs keep
    their names, types and shapes. The same graph always gives the same result, names of new tensors included.

    Args:
        graph: of a model with static shapes; where a shape is not known nothing is rewritten.
        names: of the rewrites to use; all of :data:`REWRITES` by default, and always in its order.

    Returns:
        The new graph (the given one when nothing changed) and every change, in order.

    Raises:
        PlacementError: a name is not that of a rewrite.
    """
    wanted = set(REWRITES if names is None else names)
    for name in sorted(wanted - set(REWRITES)):
        raise _unknown(name)
    return run(graph, [rewrite for rewrite in REWRITES.values() if rewrite.name in wanted])


def without(skipped: Iterable[str], where: str = "") -> tuple[str, ...]:
    """Return the names of all rewrites that no glob matches; :func:`fit` takes them.

    Args:
        skipped: globs of the rewrites to leave out, as ``["max-pool", "fold-*"]``.
        where: the place of the globs, for errors.

    Raises:
        PlacementError: a glob matches no rewrite.
    """
    globs = tuple(skipped)
    for glob in globs:
        if not any(fnmatchcase(name, glob) for name in REWRITES):
            raise _unknown(glob, where)
    return tuple(name for name in REWRITES if not any(fnmatchcase(name, glob) for glob in globs))


def _unknown(name: str, where: str = "") -> PlacementError:
    return PlacementError(
        f"there is no rewrite {name!r}{nearest(name, REWRITES)}",
        why=f"they are {', '.join(REWRITES)}",
        where=where,
        fix="correct the name",
    )
