"""The section on activations: what values tensors have, and where they are clipped."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from edgert.report.histogram import Marker, histogram_chart
from edgert.report.markup import Markup, code, join, paragraph, tag, visible
from edgert.report.number import counted, decibels, share, significant
from edgert.report.record import QuantizationReport, TensorRow

_OPEN = 6
_NAMED = 3
_LEVELS = 127  # of int8 on each side of zero


@dataclass(frozen=True, eq=False)
class _Group:
    """Tensors with one and the same histogram, as those before and after a transposition."""

    rows: tuple[TensorRow, ...]

    @property
    def row(self) -> TensorRow:
        """The first in graph order stands for all."""
        return self.rows[0]

    @cached_property
    def sqnr_db(self) -> float:
        """See :func:`own_sqnr_db`."""
        return own_sqnr_db(self.row)


def tensor_section(report: QuantizationReport) -> Markup:
    """Histograms: those that lose most open, the others folded away in graph order."""
    if not report.tensors:
        return paragraph(report.absent.get("tensors", "No activations were counted."), "absent")
    groups = _groups(report.tensors)
    worst = sorted(groups, key=lambda group: group.sqnr_db)[:_OPEN]
    rest = [group for group in groups if group not in worst]
    rows = max(len(row.thresholds) + (row.used is not None) for row in report.tensors)
    parts = [paragraph(_lead(groups), "lead"), tag("div", *(_card(group, rows) for group in worst), class_="cards")]
    if rest:
        count = counted(sum(len(group.rows) for group in rest), "tensor")
        cards = tag("div", *(_card(group, rows) for group in rest), class_="cards")
        parts.append(tag("details", tag("summary", f"The other {count}, in graph order"), cards, class_="filtered"))
    return join(parts)


def _groups(rows: Sequence[TensorRow]) -> list[_Group]:
    found: dict[object, list[TensorRow]] = {}
    for row in rows:
        key = (row.counts.tobytes(), row.exponent, row.amax, row.threshold, *row.thresholds.items())
        found.setdefault(key, []).append(row)
    return [_Group(tuple(same)) for same in found.values()]


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


def _lead(groups: Sequence[_Group]) -> str:
    which = f"the {_OPEN} histograms that lose most of {len(groups)}" if len(groups) > _OPEN else "all histograms"
    return (
        f"How often each magnitude |x| occurred during calibration, counts on a logarithmic scale: {which}, by the "
        "noise that rounding and clipping add to the tensor itself. The solid line is the threshold in use; what lies "
        "beyond it, shaded, is clipped. Dotted lines are where other methods would clip."
    )


def _card(group: _Group, rows: int) -> Markup:
    row = group.row
    body = [tag("figcaption", code(row.name))]
    if row.amax <= 0:
        body.append(paragraph("Always zero: nothing to choose a threshold from.", "absent"))
    else:
        title = f"Histogram of {visible(row.name)}"
        body.append(histogram_chart(row.counts, _bin_width(row), row.amax, _markers(row), title=title, rows=rows))
        body.append(paragraph(_facts(group), "facts"))
    if len(group.rows) > 1:
        same = join((code(one.name) for one in group.rows[1 : _NAMED + 1]), ", ")
        more = f" and {len(group.rows) - _NAMED - 1} more" if len(group.rows) > _NAMED + 1 else ""
        body.append(paragraph(join(["the same in ", same, more]), "facts"))
    names = " ".join(visible(one.name) for one in group.rows) if len(group.rows) > _NAMED + 1 else None
    return tag("figure", *body, class_="card", data_names=names)


def _markers(row: TensorRow) -> list[Marker]:
    markers = [
        Marker(value, f"{method} {significant(value)}", method == row.chosen and row.used is None)
        for method, value in row.thresholds.items()
    ]
    if row.used is not None:
        markers.append(Marker(row.used, f"in use {significant(row.used)}", True))
    return markers


def _facts(group: _Group) -> str:
    row = group.row
    facts = [
        f"step {significant(row.threshold / _LEVELS)}",
        f"clips {share(clipped_share(row))}",
        f"SQNR {decibels(group.sqnr_db)}",
    ]
    if "minmax" not in row.thresholds:
        facts.insert(0, f"largest {significant(row.amax)}")
    if row.shared:
        facts.append(f"one scale with {counted(len(row.shared), 'other tensor')}")
    return " · ".join(facts)
