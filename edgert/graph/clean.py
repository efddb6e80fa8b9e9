"""A model made fit for a backend: the same results from fewer nodes."""

from __future__ import annotations

from collections.abc import Sequence

from edgert.errors import ModelError
from edgert.graph.batchnorm import FOLD_BATCHNORM
from edgert.graph.bias import FOLD_BIAS
from edgert.graph.constant import DROP_INITIALIZER_INPUTS, FORGET_GONE, REMOVE_UNUSED, STORE_CONSTANTS
from edgert.graph.fold import FOLD_CONSTANTS
from edgert.graph.model import Model
from edgert.graph.noop import REMOVE_NOOPS
from edgert.graph.rewrite import Change, Pass
from edgert.graph.tidy import INLINE_FUNCTIONS, NAME_NODES, REMOVE_DEAD, SORT_NODES

PASSES: tuple[Pass, ...] = (
    INLINE_FUNCTIONS,
    SORT_NODES,
    DROP_INITIALIZER_INPUTS,
    STORE_CONSTANTS,
    REMOVE_NOOPS,
    FOLD_CONSTANTS,
    FOLD_BIAS,
    FOLD_BATCHNORM,
    REMOVE_DEAD,
    REMOVE_UNUSED,
    FORGET_GONE,
    NAME_NODES,
)
"""What :func:`clean` runs, in this order; the later ones rely on the order and names the earlier ones made."""

_MAX_ROUNDS = 8  # real models settle in two or three; a bound so that two passes at odds cannot go on for ever


def clean(model: Model, passes: Sequence[Pass] = PASSES) -> tuple[Model, tuple[Change, ...]]:
    """Runs passes over one copy of the model, round after round, until none finds anything left to do.

    Outputs stay the same up to rounding (folded weights are computed in float64 and stored in their own type). Bodies
    of If, Loop and Scan are left alone. Equal models give equal bytes. Fix dynamic shapes first, with
    :func:`~edgert.graph.shape.with_shapes`: then more can be folded.

    Returns:
        The new model (the given one when nothing changed) and every change, in order.

    Raises:
        ModelError: the graph is broken: two nodes compute one tensor, one reads what nothing makes, or a cycle.
    """
    proto = model.copied_proto()
    changes: list[Change] = []
    try:
        for _ in range(_MAX_ROUNDS):
            found = [change for step in passes for change in step.apply(proto)]
            changes.extend(found)
            if not found:
                break
    except ModelError as error:
        raise error.at(str(model.path)) from error.__cause__
    return (model.derive(proto) if changes else model), tuple(changes)
