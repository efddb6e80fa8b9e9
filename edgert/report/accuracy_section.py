"""The sections of a quantization report on accuracy, speed and size."""

import math
from collections.abc import Sequence

from edgert.report.chart import Interval, interval_chart, length_bar
from edgert.report.html import Column, Markup, join, paragraph, table, tag
from edgert.report.numbers import counted, difference, fixed, milliseconds, score, significant, size, times
from edgert.report.quantization_record import REFERENCE, AccuracyRow, QuantizationReport, SpeedRow
from edgert.report.verdict_section import speed_base

_NO_LABELS = "Without labels, FP32's own answers served as ground truth: this is agreement with FP32, not accuracy."
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
    if not all(row.labeled for row in rows):
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


# The section on speed and size.


def speed_section(report: QuantizationReport) -> Markup:
    """The time of one inference and the size of the file; a reason where no time was taken."""
    if report.speed:
        parts = [paragraph(_lead(report.speed), "lead"), _speed(report)]
    else:
        parts = [paragraph(report.absent.get("speed", "Speed was not measured."), "absent")]
    return join([*parts, *([_sizes(report)] if report.sizes_bytes else [])])


def _lead(rows: Sequence[SpeedRow]) -> str:
    """What all rows share, for the line above the table."""
    shared = [rows[0].engine if _is_one(rows, "engine") else "", rows[0].machine if _is_one(rows, "machine") else ""]
    where = ", ".join(filter(None, shared))
    runs = f", median of {counted(rows[0].runs, 'run')}" if _is_one(rows, "runs") else ""
    return f"Time of one inference{f' on {where}' if where else ''}{runs}; shorter is better."


def _is_one(rows: Sequence[SpeedRow], field: str) -> bool:
    return len({getattr(row, field) for row in rows}) == 1


def _speed(report: QuantizationReport) -> Markup:
    rows = report.speed
    longest = max(row.median_ms for row in rows) or 1.0
    result = [row.precision == report.precision for row in rows]
    medians = [milliseconds(row.median_ms) for row in rows]
    columns = [
        Column("Precision", [row.precision for row in rows]),
        *(_extra(rows, field) for field in ("engine", "machine") if not _is_one(rows, field)),
        Column("Median", [_strong(text, strong) for text, strong in zip(medians, result, strict=True)], "number"),
        Column("", [length_bar(row.median_ms / longest, strong=row.precision == report.precision) for row in rows],
               "length"),
        Column(f"Against {REFERENCE}", [_ratio(rows, row) for row in rows], "number"),
    ]  # fmt: skip
    if any(row.spread_ms for row in rows):
        columns.append(Column("10th to 90th percentile", [_spread(row) for row in rows], "minor number"))
    if not _is_one(rows, "runs"):
        columns.append(Column("Runs", [f"{row.runs:,}" for row in rows], "number"))
    return table("Time of one inference", columns)


def _extra(rows: Sequence[SpeedRow], field: str) -> Column:
    return Column(field.capitalize(), [getattr(row, field) for row in rows])


def _strong(text: str, strong: bool) -> Markup | str:
    return tag("b", text) if strong else text


def _ratio(rows: Sequence[SpeedRow], row: SpeedRow) -> str:
    base = speed_base(rows, row)
    return "–" if base is None or base is row else f"{times(base.median_ms / row.median_ms)} as fast"


def _spread(row: SpeedRow) -> str:
    return "–" if row.spread_ms is None else f"{significant(row.spread_ms[0])} to {milliseconds(row.spread_ms[1])}"


def _sizes(report: QuantizationReport) -> Markup:
    sizes, before = report.sizes_bytes, report.sizes_bytes.get(REFERENCE)
    largest = max(sizes.values()) or 1
    bars = [length_bar(count / largest, strong=name == report.precision) for name, count in sizes.items()]
    parts = [
        "–" if name == REFERENCE or not before else f"{100 * count / before:.0f} %" for name, count in sizes.items()
    ]
    columns = [
        Column("File", list(sizes)),
        Column("Size", [_strong(size(count), name == report.precision) for name, count in sizes.items()], "number"),
        Column("", bars, "length"),
        Column(f"Of {REFERENCE}", parts, "number"),
    ]
    return table("Size of the model file", columns)
