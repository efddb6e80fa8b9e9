"""The section on activations: what values tensors have, and where they are clipped."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from edgert.report.chart import Marker, histogram_chart
from edgert.report.markup import Markup, code, join, paragraph, tag, visible
from edgert.report.number import counted, decibels, share, significant
from edgert.report.record import QuantizationReport, TensorRow

_OPEN = 6
_LEVELS = 127  # of int8 on each side of zero


def tensor_section(report: QuantizationReport) -> Markup:
    """Histograms: those that lose most open, the others folded away in graph order."""
    if not report.tensors:
        return paragraph(report.absent.get("tensors", "No activations were counted."), "absent")
    worst = _worst(report.tensors)
    rest = [row for row in report.tensors if id(row) not in set(map(id, worst))]
    rows = max(len(row.thresholds) + (row.used is not None) for row in report.tensors)
    folded = tag(
        "details",
        tag("summary", f"The other {counted(len(rest), 'tensor')}, in graph order"),
        tag("div", *(_card(row, rows) for row in rest), class_="cards"),
        class_="filtered",
    )
    return join(
        [
            paragraph(_lead(report.tensors, worst), "lead"),
            tag("div", *(_card(row, rows) for row in worst), class_="cards"),
            *([folded] if rest else []),
        ]
    )


def own_sqnr_db(row: TensorRow) -> float:
    """SQNR of rounding and clipping this one tensor, in dB, taken from its histogram; infinite if it is always zero.

    Every value counts as the middle of its bin, those of the first bin as zero: they round to it, and after a ReLU most
    of them are.
    """
    width = _bin_width(row)
    values = (np.arange(len(row.counts)) + 0.5) * width
    values[0] = 0.0
    step = row.threshold / _LEVELS
    rounded = np.minimum(np.rint(values / step), _LEVELS) * step
    counts = row.counts.astype(np.float64)
    signal, noise = float(counts @ values**2), float(counts @ (values - rounded) ** 2)
    return 10 * math.log10(signal / noise) if signal > 0 and noise > 0 else math.inf


def clipped_share(row: TensorRow) -> float:
    """Part of the values that lie beyond the threshold, to a bin."""
    starts = np.arange(len(row.counts)) * _bin_width(row)
    counts: npt.NDArray[np.float64] = row.counts.astype(np.float64)
    return float(counts[starts >= row.threshold].sum() / max(counts.sum(), 1.0))


def _bin_width(row: TensorRow) -> float:
    return math.ldexp(1.0, row.exponent) / len(row.counts)


def _worst(rows: Sequence[TensorRow]) -> tuple[TensorRow, ...]:
    return tuple(sorted(rows, key=own_sqnr_db)[:_OPEN])


def _lead(rows: Sequence[TensorRow], worst: Sequence[TensorRow]) -> str:
    which = f"the {len(worst)} that lose most of {counted(len(rows), 'tensor')}" if len(worst) < len(rows) else "all"
    return (
        f"How often each magnitude |x| occurred during calibration, on a logarithmic scale: {which}, by the noise that "
        "rounding and clipping add to the tensor itself. The solid line is the threshold in use: what lies beyond it, "
        "shaded, is clipped. Dotted lines are where the other methods would have clipped."
    )


def _card(row: TensorRow, rows: int) -> Markup:
    head, name = tag("figcaption", code(row.name)), visible(row.name)
    if row.amax <= 0:
        body = [paragraph("Always zero: nothing to choose a threshold from.", "absent")]
    else:
        chart = histogram_chart(
            row.counts, _bin_width(row), row.amax, _markers(row), title=f"Histogram of {name}", rows=rows
        )
        body = [chart, paragraph(_facts(row), "facts")]
    return tag("figure", head, *body, class_="card", data_name=name)


def _markers(row: TensorRow) -> list[Marker]:
    markers = [
        Marker(value, f"{method} {significant(value)}", method == row.chosen and row.used is None)
        for method, value in row.thresholds.items()
    ]
    if row.used is not None:
        markers.append(Marker(row.used, f"in use {significant(row.used)}", True))
    return markers


def _facts(row: TensorRow) -> str:
    facts = [
        f"largest {significant(row.amax)}",
        f"step {significant(row.threshold / _LEVELS)}",
        f"clips {share(clipped_share(row))}",
        decibels(own_sqnr_db(row)),
    ]
    if row.shared:
        facts.append(f"one scale with {counted(len(row.shared), 'other tensor')}")
    return " · ".join(facts)
