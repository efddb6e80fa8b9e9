"""A model in the precision that was asked for: its ranges measured, quantised within its accuracy budget, kept.

calibrate_section(config) → Calibrated ┐
                                       ├ quantize_section(config, …) → Outcome
labels and budget of the config ───────┘
in_precision(config) → the model that a pipeline runs, from the cache when nothing changed

The names are imported when first used: a pipeline that finds its model in the cache needs next to nothing of them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

_HOME = {
    "Calibrated": "edgert.precision.calibration",
    "Outcome": "edgert.precision.outcome",
    "calibrate_section": "edgert.precision.calibration",
    "in_precision": "edgert.precision.ready",
    "quantize_section": "edgert.precision.quantization",
}

if TYPE_CHECKING:
    from edgert.precision.calibration import Calibrated, calibrate_section
    from edgert.precision.outcome import Outcome
    from edgert.precision.quantization import quantize_section
    from edgert.precision.ready import in_precision

__all__ = ["Calibrated", "Outcome", "calibrate_section", "in_precision", "quantize_section"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'edgert.precision' has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value
