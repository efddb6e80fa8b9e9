"""The section on speed and size."""

from __future__ import annotations

from edgert.report.chart import length_bar
from edgert.report.markup import Markup, join, paragraph, tag
from edgert.report.number import milliseconds, significant, size, times
from edgert.report.record import REFERENCE, QuantizationReport, SpeedRow
from edgert.report.table import Column, table
from edgert.report.verdict import speed_base


def speed_section(report: QuantizationReport) -> Markup:
    """The time of one inference and the size of the file; a reason where no time was taken."""
    parts = [_speed(report) if report.speed else paragraph(_absent(report), "absent")]
    if report.sizes_bytes:
        parts.append(_sizes(report))
    return join(parts)


def _absent(report: QuantizationReport) -> str:
    return report.absent.get("speed", "Speed was not measured.")


def _speed(report: QuantizationReport) -> Markup:
    """What all rows share is said once, above the table."""
    rows = report.speed
    engines, machines = ({getattr(row, key) for row in rows} for key in ("engine", "machine"))
    shared = [next(iter(names)) for names in (engines, machines) if len(names) == 1]
    extra = {"engine": len(engines) > 1, "machine": len(machines) > 1}
    columns = [
        Column("Precision"),
        *(Column(key.capitalize()) for key, wanted in extra.items() if wanted),
        Column("Median", "number"),
        Column("", "wide"),
        Column(f"Against {REFERENCE}", "number"),
        *([Column("10th to 90th percentile", "number")] if any(row.spread_ms for row in rows) else []),
        Column("Runs", "number"),
    ]
    longest = max(row.median_ms for row in rows)
    body = [_row(report, row, longest, [getattr(row, key) for key, wanted in extra.items() if wanted]) for row in rows]
    where = ", ".join(filter(None, shared))
    lead = f"Time of one inference{f' on {where}' if where else ''}; shorter is better."
    return join([paragraph(lead, "lead"), table("Time of one inference", columns, body)])


def _row(report: QuantizationReport, row: SpeedRow, longest: float, extra: list[str]) -> list[object]:
    base = speed_base(report.speed, row)
    ratio = "–" if base is None or base is row else f"{times(base.median_ms / row.median_ms)} as fast"
    strong = row.precision == report.precision
    spread = [] if not any(one.spread_ms for one in report.speed) else [_spread(row)]
    return [
        row.precision,
        *extra,
        tag("b", milliseconds(row.median_ms)) if strong else milliseconds(row.median_ms),
        length_bar(row.median_ms / longest if longest > 0 else 0.0, strong=strong),
        ratio,
        *spread,
        f"{row.runs:,}",
    ]


def _spread(row: SpeedRow) -> str:
    return "–" if row.spread_ms is None else f"{significant(row.spread_ms[0])} to {milliseconds(row.spread_ms[1])}"


def _sizes(report: QuantizationReport) -> Markup:
    sizes = report.sizes_bytes
    largest = max(sizes.values())
    columns = [Column("File"), Column("Size", "number"), Column("", "wide"), Column(f"Against {REFERENCE}", "number")]
    rows = [
        (
            precision,
            size(count),
            length_bar(count / largest if largest else 0.0, strong=precision == report.precision),
            "–"
            if precision == REFERENCE or not sizes.get(REFERENCE)
            else f"{times(count / sizes[REFERENCE])} as large",
        )
        for precision, count in sizes.items()
    ]
    return table("Size of the model file", columns, rows)
