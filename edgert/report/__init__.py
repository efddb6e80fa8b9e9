"""HTML reports: pages, tables and charts, and a quantization's result as records in and one file out."""

from edgert.report.quantization_page import render, save
from edgert.report.quantization_record import (
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
from edgert.report.verdict_section import judge

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
    "render",
    "save",
]
