"""A model in the precision that was asked for: its ranges measured, quantised within its accuracy budget, kept.

calibrate_section(config) → Calibrated ┐
                                       ├ quantize_section(config, …) → Outcome
labels and budget of the config ───────┘
in_precision(model, config) → the model that a pipeline runs, from the cache when nothing changed
"""

from edgert.precision.calibration import Calibrated, calibrate_section
from edgert.precision.outcome import Outcome
from edgert.precision.quantization import quantize_section
from edgert.precision.ready import in_precision

__all__ = ["Calibrated", "Outcome", "calibrate_section", "in_precision", "quantize_section"]
