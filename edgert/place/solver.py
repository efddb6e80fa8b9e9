"""The one door to SciPy: flows, linear programs and integer programs, imported when first needed."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import numpy.typing as npt

from edgert import install
from edgert.errors import PlacementError

I32 = npt.NDArray[np.int32]


def optional(module: str) -> Any:
    """A module of SciPy.

    Raises:
        PlacementError: SciPy is not installed; names the extra that brings it.
    """
    try:
        return importlib.import_module(f"scipy.{module}")
    except ModuleNotFoundError as missing:
        raise PlacementError(
            "placement needs SciPy",
            why=str(missing),
            fix=install.command("plan"),
        ) from missing


def sink_side(capacity: I32, head: I32, rows: I32, source: int, sink: int) -> npt.NDArray[np.bool_]:
    """Which nodes a maximum flow leaves out of the source's reach: the sink's side of a minimum cut.

    Args:
        capacity, head, rows: the arcs as a CSR matrix with sorted columns, every arc's reverse among them.
        source, sink: nodes.
    """
    sparse, graph = optional("sparse"), optional("sparse.csgraph")
    shape = (len(rows) - 1,) * 2
    flow = graph.maximum_flow(sparse.csr_array((capacity, head, rows), shape=shape), source, sink).flow
    left = capacity - flow.data > 0
    starts = np.concatenate(([0], np.cumsum(left, dtype=np.int32)))[rows]
    open_arcs = sparse.csr_array((np.ones(int(starts[-1]), np.int32), head[left], starts), shape=shape)
    reached = graph.breadth_first_order(open_arcs, source, return_predecessors=False)
    beyond = np.ones(len(rows) - 1, bool)
    beyond[reached] = False
    return beyond
