"""Reports to render: made up, of any size, with names as hostile as asked for."""

import math
from dataclasses import replace

import numpy as np

from edgert.report.quantization_record import (
    AccuracyRow,
    LayerRow,
    Note,
    Provenance,
    QuantizationReport,
    SpeedRow,
    TensorRow,
)

BINS = 2048
EMPTY = QuantizationReport(Provenance("empty.onnx"))


def tensor_row(name: str, seed: int = 0, largest: float = 6.0) -> TensorRow:
    """A tensor of 100,000 values that fall off exponentially up to ``largest``."""
    exponent = math.frexp(largest)[1]
    values = np.random.default_rng(seed).exponential(largest / 9, 100_000).clip(0, largest)
    counts, _ = np.histogram(values, BINS, (0.0, 2.0**exponent))
    thresholds = {"minmax": largest, "percentile": largest * 0.8, "entropy": largest * 0.6, "mse": largest * 0.7}
    return TensorRow(name, counts, exponent, largest, thresholds, "mse")


def full_report(layers: int = 12, tensors: int = 9, prefix: str = "layer") -> QuantizationReport:
    """Every part filled; layer 3 stays in FP16 and layer 5 is the noisiest."""
    rows = [LayerRow(f"{prefix}/{number}", "Conv", 30.0 + number % 7, cost=number / 1e4) for number in range(layers)]
    rows[3] = replace(rows[3], precision="FP16", reason="alone it costs 0.4 points")
    rows[5] = replace(rows[5], sqnr_db=12.0)
    return QuantizationReport(
        Provenance(
            "model.onnx", "ab" * 32, 256, "calib/", "mse", "edgert quantize model.onnx --images calib/",
            {"edgert": "0.2.0"}, "two cores", "2026-01-02 03:04 UTC",
        ),
        target="ONNX Runtime",
        accuracy=(
            AccuracyRow("top-1", 0.702, 0.6978, interval=(0.001, 0.0075), max_drop=0.01, images=500),
            AccuracyRow("top-5", 0.901, 0.902, images=500),
        ),
        speed=(SpeedRow("FP32", 12.3, 100), SpeedRow("INT8", 6.8, 100)),
        timed_on="ONNX Runtime 1.31.1, two cores",
        sizes_bytes={"FP32": 4_928_307, "INT8": 1_363_149},
        layers=tuple(rows),
        cost_meaning="1 − cosine",
        tensors=tuple(tensor_row(f"{prefix}/{number}:0", number, 1.5 + number) for number in range(tensors)),
        notes=(Note("Early stop after 192 images.", level="note"), Note(f"{prefix}/7:0 is always zero.")),
        settings={"method": "mse", "max_drop": "0.01"},
    )  # fmt: skip
