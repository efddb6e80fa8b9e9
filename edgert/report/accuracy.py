"""The section on accuracy."""

from __future__ import annotations

from collections.abc import Sequence

from edgert.report.chart import Interval, interval_chart
from edgert.report.markup import Markup, join, paragraph, tag
from edgert.report.number import counted, difference, fixed, score
from edgert.report.record import AccuracyRow, QuantizationReport
from edgert.report.table import Column, table
from edgert.report.verdict import judge

_NO_LABELS = "Without labels, FP32's own answers stood in for the truth: this is agreement with FP32, not accuracy."
_STATES = {True: ("✓ kept", "good"), False: ("✗ missed", "bad"), None: ("–", "")}


def accuracy_section(report: QuantizationReport) -> Markup:
    """Table and chart of every metric; a reason where nothing was scored."""
    rows = report.accuracy
    if not rows:
        return paragraph(report.absent.get("accuracy", "Accuracy was not measured."), "absent")
    images = {row.images for row in rows if row.images}
    scored = f"Scored on {counted(images.pop(), 'image')}." if len(images) == 1 else ""
    notes = [*judge(report).cautions, *([] if all(row.labelled for row in rows) else [_NO_LABELS])]
    return join(
        [
            *([paragraph(scored, "lead")] if scored else []),
            *(paragraph(note, "caution") for note in notes),
            _table(rows, report.precision, one_count=bool(scored)),
            *_charts(rows, report.precision),
        ]
    )


def _table(rows: Sequence[AccuracyRow], precision: str, one_count: bool) -> Markup:
    several = any(row.precision != precision for row in rows)
    columns = [
        Column("Metric"),
        Column("FP32", "number"),
        Column("Result" if several else precision, "number"),
        Column("Drop", "number"),
        Column("95 % interval", "number"),
        Column("Budget", "number"),
        Column("Verdict"),
    ]
    if not one_count:
        columns.append(Column("Images", "number"))
    return table("Accuracy before and after", columns, (_row(row, several, one_count) for row in rows))


def _row(row: AccuracyRow, several: bool, one_count: bool) -> list[object]:
    word, kind = _STATES[row.kept]
    name = f"{row.metric}, {row.precision}" if several else row.metric
    low, high = row.interval or (0.0, 0.0)
    cells: list[object] = [
        name if row.labelled else f"{name} (agreement)",
        score(row.fp32, row.unit),
        score(row.result, row.unit),
        tag("b", difference(row.drop, row.unit)),
        f"{_bare(low, row.unit)} to {_bare(high, row.unit)}" if row.interval else "–",
        "–" if row.max_drop is None else difference(row.max_drop, row.unit),
        tag("span", word, class_=kind or None),
    ]
    return cells if one_count else [*cells, f"{row.images:,}" if row.images else "–"]


def _charts(rows: Sequence[AccuracyRow], precision: str) -> list[Markup]:
    """One chart for each unit, of the rows that have an interval or a budget to be seen against."""
    found = []
    for unit in ("percent", "plain"):
        shown = [row for row in rows if row.unit == unit and (row.interval or row.max_drop is not None)]
        if shown:
            found.append(_chart(shown, unit, precision))
    return found


def _chart(rows: Sequence[AccuracyRow], unit: str, precision: str) -> Markup:
    intervals = [
        Interval(
            row.metric if row.precision == precision else f"{row.metric}, {row.precision}",
            row.drop,
            row.interval,
            row.max_drop,
        )
        for row in rows
    ]
    several = "points" if unit == "percent" else "the metric's own unit"
    caption = f"Drop from FP32, in {several}: less is better. Lines are 95 % confidence intervals."
    chart = interval_chart(intervals, title=caption, show=lambda value: _axis(value, unit))
    return tag("figure", tag("figcaption", caption), chart)


def _axis(value: float, unit: str) -> str:
    return fixed(value * 100, 1) if unit == "percent" else fixed(value, 3)


def _bare(value: float, unit: str) -> str:
    return fixed(value * 100, 2) if unit == "percent" else fixed(value, 4)
