"""INT8 that is right: measured ranges, where a graph is rounded, and the graph that results. Graph in, Graph out.

The records that others pass around are here, imported when first used. Each step is the function of the same name in
its own module: ``from edgert.quantize.threshold import threshold``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

_HOME = {
    "Histogram": "edgert.quantize.histogram",
    "METHODS": "edgert.quantize.threshold",
    "RangeTable": "edgert.quantize.table",
    "load_table": "edgert.quantize.table",
    "save_table": "edgert.quantize.table",
}

if TYPE_CHECKING:
    from edgert.quantize.histogram import Histogram
    from edgert.quantize.table import RangeTable, load_table, save_table
    from edgert.quantize.threshold import METHODS

__all__ = ["METHODS", "Histogram", "RangeTable", "load_table", "save_table"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'edgert.quantize' has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
