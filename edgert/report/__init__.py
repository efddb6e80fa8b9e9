"""A quantisation's result as one HTML file: records in, text out."""

from __future__ import annotations

from edgert.report.page import render, save
from edgert.report.plain import plain_lines
from edgert.report.record import (
    AccuracyRow,
    Correction,
    Figure,
    LayerRow,
    Note,
    Part,
    Provenance,
    QuantizationReport,
    SpeedRow,
    TensorRow,
    Verdict,
)
from edgert.report.verdict import judge

__all__ = [
    "AccuracyRow",
    "Correction",
    "Figure",
    "LayerRow",
    "Note",
    "Part",
    "Provenance",
    "QuantizationReport",
    "SpeedRow",
    "TensorRow",
    "Verdict",
    "judge",
    "plain_lines",
    "render",
    "save",
]
