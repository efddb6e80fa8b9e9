"""A model made fit for a backend: the same results from fewer nodes."""

from collections.abc import Sequence

from edgert.errors import ModelError
from edgert.graph.model import Model
from edgert.graph.onnx_convert import to_graph
from edgert.graph.passes.batchnorm import FOLD_BATCHNORM, FOLD_BIAS
from edgert.graph.passes.contract import Change, Pass, run
from edgert.graph.passes.fold_constants import FOLD_CONSTANTS
from edgert.graph.passes.tidy import REMOVE_DEAD, REMOVE_NOOPS, REMOVE_UNUSED, SORT_NODES, STORE_CONSTANTS
from edgert.graph.read_write import write

PASSES: tuple[Pass, ...] = (
    SORT_NODES,
    REMOVE_DEAD,
    REMOVE_UNUSED,
    STORE_CONSTANTS,
    REMOVE_NOOPS,
    FOLD_CONSTANTS,
    FOLD_BIAS,
    FOLD_BATCHNORM,
)
"""What :func:`clean` runs, in this order; the later ones rely on the order that the first makes."""


def clean(model: Model, passes: Sequence[Pass] = PASSES) -> tuple[Model, tuple[Change, ...]]:
    """Runs passes over the model's graph, round after round, until none finds anything left to do.

    Whatever the passes, functions of the file are inlined, every node gets a name of its own, and stored tensors that
    are also listed as inputs leave that list, so that runtimes may fold them. Outputs stay the same up to rounding
    (folded weights are computed in float64 and stored in their own type). Bodies of If, Loop and Scan are left alone.
    Equal models give equal bytes. Fix dynamic shapes first, with :func:`~edgert.graph.static_shape.with_shapes`: then
    more can
    be folded.

    Returns:
        The new model (the given one when nothing changed) and every change, in order.

    Raises:
        ModelError: the graph is broken: two nodes compute one tensor, one reads what nothing makes, or a cycle.
    """
    read, normal = to_graph(model.proto)
    try:
        graph, found = run(read, passes)
    except ModelError as error:
        raise error.at(str(model.path)) from error.__cause__
    changes = (*normal, *found)
    return (write(graph, model, typed=True) if changes else model), changes
