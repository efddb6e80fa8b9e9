"""The section on speed and size."""

from __future__ import annotations

from collections.abc import Sequence

from edgert.report.chart import length_bar
from edgert.report.markup import Markup, join, paragraph, tag
from edgert.report.number import counted, milliseconds, significant, size, times
from edgert.report.record import REFERENCE, QuantizationReport, SpeedRow
from edgert.report.table import Column, table
from edgert.report.verdict import speed_base


def speed_section(report: QuantizationReport) -> Markup:
    """The time of one inference and the size of the file; a reason where no time was taken."""
    if report.speed:
        parts = [paragraph(_lead(report.speed), "lead"), _speed(report)]
    else:
        parts = [paragraph(report.absent.get("speed", "Speed was not measured."), "absent")]
    return join([*parts, *([_sizes(report)] if report.sizes_bytes else [])])


def _lead(rows: Sequence[SpeedRow]) -> str:
    """What all rows share is said once, above the table."""
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
