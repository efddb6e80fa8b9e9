"""The section on accuracy."""

from __future__ import annotations

import math
from collections.abc import Sequence

from edgert.report.chart import Interval, interval_chart
from edgert.report.markup import Markup, join, paragraph, tag
from edgert.report.number import counted, difference, fixed, score
from edgert.report.record import REFERENCE, AccuracyRow, QuantizationReport
from edgert.report.table import Column, table

_NO_LABELS = "Without labels, FP32's own answers stood in for the truth: this is agreement with FP32, not accuracy."
_STATES = {True: ("✓ kept", "good"), False: ("✗ missed", "bad"), None: ("–", None)}


def accuracy_section(report: QuantizationReport) -> Markup:
    """Table and chart of every metric; a reason where nothing was scored."""
    rows = report.accuracy
    if not rows:
        return paragraph(report.absent.get("accuracy", "Accuracy was not measured."), "absent")
    images = {row.images for row in rows if row.images}
    parts = []
    if len(images) == 1:
        parts.append(paragraph(f"Scored on {counted(images.pop(), 'image')}.", "lead"))
    if not all(row.labelled for row in rows):
        parts.append(paragraph(_NO_LABELS, "caution"))
    several = any(row.precision != report.precision for row in rows)
    shown = [Shown(row, several) for row in rows]
    return join([*parts, _table(report, shown, with_images=len(images) > 0), *_charts(shown)])


class Shown:
    """A row's cells as text."""

    def __init__(self, row: AccuracyRow, several: bool) -> None:
        self.row = row
        self.name = f"{row.metric}, {row.precision}" if several else row.metric

    def bare(self, value: float) -> str:
        """A value or difference without its unit."""
        return fixed(value * 100, 2) if self.row.unit == "percent" else fixed(value, 4)

    @property
    def interval(self) -> str:
        """``0.08 to 0.79``."""
        return " to ".join(map(self.bare, self.row.interval)) if self.row.interval else "–"

    @property
    def state(self) -> Markup:
        """Whether the budget was kept."""
        word, kind = _STATES[self.row.kept]
        return tag("span", word, class_=kind)


def _table(report: QuantizationReport, shown: Sequence[Shown], with_images: bool) -> Markup:
    rows = [one.row for one in shown]
    result = report.precision if all(row.precision == report.precision for row in rows) else "Result"
    part, unit = (", %", ", points") if all(row.unit == "percent" for row in rows) else ("", "")
    columns = [
        Column("Metric", [one.name for one in shown]),
        Column(f"{REFERENCE}{part}", [_score(one, row.fp32, unit) for one, row in _pairs(shown)], "number"),
        Column(f"{result}{part}", [_score(one, row.result, unit) for one, row in _pairs(shown)], "number"),
        Column(f"Drop{unit}", [tag("b", _amount(one, row.drop, unit)) for one, row in _pairs(shown)], "number"),
    ]
    if any(row.interval for row in rows):
        columns.append(Column("95 % interval", [one.interval for one in shown], "minor number"))
    if any(row.max_drop is not None for row in rows):
        budgets = ["–" if row.max_drop is None else _amount(one, row.max_drop, unit) for one, row in _pairs(shown)]
        columns += [Column("Budget", budgets, "number"), Column("Verdict", [one.state for one in shown])]
    if with_images:
        columns.append(Column("Images", [f"{row.images:,}" if row.images else "–" for row in rows], "number"))
    return table("Accuracy before and after", columns)


def _pairs(shown: Sequence[Shown]) -> list[tuple[Shown, AccuracyRow]]:
    return [(one, one.row) for one in shown]


def _score(one: Shown, value: float, unit: str) -> str:
    """A metric's value, with its unit where the header does not have it."""
    return one.bare(value) if unit else score(value, one.row.unit)


def _amount(one: Shown, value: float, unit: str) -> str:
    """A difference, with its unit where the header does not have it."""
    return one.bare(value) if unit else difference(value, one.row.unit)


def _charts(shown: Sequence[Shown]) -> list[Markup]:
    """One chart for each unit, of the rows that have an interval or a budget to be seen against."""
    found = []
    for unit in ("percent", "plain"):
        of_unit = [one for one in shown if one.row.unit == unit and math.isfinite(one.row.drop)]
        if any(one.row.interval or one.row.max_drop is not None for one in of_unit):
            found.append(_chart(of_unit, unit))
    return found


def _chart(shown: Sequence[Shown], unit: str) -> Markup:
    intervals = [
        Interval(one.name, row.drop, row.interval, row.max_drop, row.kept is False) for one, row in _pairs(shown)
    ]
    lines = " Lines are 95 % confidence intervals." if any(one.row.interval for one in shown) else ""
    caption = f"Drop from {REFERENCE}{', in points' if unit == 'percent' else ''}: less is better.{lines}"
    chart = interval_chart(intervals, title=caption, show=lambda value: _axis(value, unit))
    return tag("figure", tag("figcaption", caption), chart)


def _axis(value: float, unit: str) -> str:
    return fixed(value * 100, 1) if unit == "percent" else fixed(value, 3)
