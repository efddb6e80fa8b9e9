"""The sections of a quantization report on accuracy, speed and size."""

import math
from collections.abc import Iterator, Sequence
from functools import partial

from edgert.report.chart import Interval, interval_chart, length_bar
from edgert.report.html import Column, Markup, join, paragraph, table, tag
from edgert.report.numbers import counted, difference, fixed, milliseconds, score, size, times
from edgert.report.quantization_record import REFERENCE, AccuracyRow, QuantizationReport, SpeedRow

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
    names = [f"{row.metric}, {row.precision}" if several else row.metric for row in rows]
    return join([*parts, _table(report, names), *_charts(rows, names)])


def _table(report: QuantizationReport, names: Sequence[str]) -> Markup:
    rows = report.accuracy
    result = report.precision if all(row.precision == report.precision for row in rows) else "Result"
    part, unit = (", %", ", points") if all(row.unit == "percent" for row in rows) else ("", "")
    # a value has its unit where the header does not have it
    scored, lost = (_bare, _bare) if unit else (score, difference)
    columns = [
        Column("Metric", names),
        Column(f"{REFERENCE}{part}", [scored(row.fp32, row.unit) for row in rows], "number"),
        Column(f"{result}{part}", [scored(row.result, row.unit) for row in rows], "number"),
        Column(f"Drop{unit}", [tag("b", lost(row.drop, row.unit)) for row in rows], "number"),
    ]
    if any(row.interval for row in rows):
        ends = [[_bare(end, row.unit) for end in row.interval or ()] for row in rows]
        columns.append(Column("95 % interval", [" to ".join(both) or "–" for both in ends], "minor number"))
    if any(row.max_drop is not None for row in rows):
        budgets = ["–" if row.max_drop is None else lost(row.max_drop, row.unit) for row in rows]
        verdicts = [tag("span", word, class_=kind) for word, kind in (_STATES[row.kept] for row in rows)]
        columns += [Column("Budget", budgets, "number"), Column("Verdict", verdicts)]
    if len({row.images for row in rows if row.images}) > 1:
        columns.append(Column("Images", [f"{row.images:,}" if row.images else "–" for row in rows], "number"))
    return table("Accuracy before and after", columns)


def _bare(value: float, unit: str) -> str:
    """A value or difference without its unit."""
    return fixed(value * 100, 2) if unit == "percent" else fixed(value, 4)


def _charts(rows: Sequence[AccuracyRow], names: Sequence[str]) -> Iterator[Markup]:
    """One chart for each unit that has an interval or a budget to be seen against."""
    for unit, factor, places in (("percent", 100, 1), ("plain", 1, 3)):
        some = [(name, row) for name, row in zip(names, rows, strict=True) if row.unit == unit]
        some = [(name, row) for name, row in some if math.isfinite(row.drop)]
        if not any(row.interval or row.max_drop is not None for _, row in some):
            continue
        drops = [Interval(name, row.drop, row.interval, row.max_drop, row.kept is False) for name, row in some]
        lines = " Lines are 95 % confidence intervals." if any(row.interval for _, row in some) else ""
        caption = f"Drop from {REFERENCE}{', in points' if unit == 'percent' else ''}: less is better.{lines}"
        show = partial(_axis, factor=factor, places=places)
        yield tag("figure", tag("figcaption", caption), interval_chart(drops, title=caption, show=show))


def _axis(value: float, factor: int, places: int) -> str:
    return fixed(value * factor, places)


# The section on speed and size.


def speed_base(rows: Sequence[SpeedRow], row: SpeedRow) -> SpeedRow | None:
    """What a row is compared with: FP32 on the same engine and machine; None for FP32 itself."""
    same = [
        one for one in rows if (one.engine, one.machine) == (row.engine, row.machine) and one.precision == REFERENCE
    ]
    return None if row in same[:1] else next(iter(same), None)


def speed_section(report: QuantizationReport) -> Markup:
    """The time of one inference and the size of the file; a reason where no time was taken."""
    if report.speed:
        parts = [paragraph(_lead(report.speed), "lead"), _speed(report)]
    else:
        parts = [paragraph(report.absent.get("speed", "Speed was not measured."), "absent")]
    return join([*parts, *([_sizes(report)] if report.sizes_bytes else [])])


def _lead(rows: Sequence[SpeedRow]) -> str:
    """What all rows share, for the line above the table."""
    shared = (getattr(rows[0], field) for field in ("engine", "machine") if _is_one(rows, field))
    where = ", ".join(filter(None, shared))
    runs = f", median of {counted(rows[0].runs, 'run')}" if _is_one(rows, "runs") else ""
    return f"Time of one inference{f' on {where}' if where else ''}{runs}; shorter is better."


def _is_one(rows: Sequence[SpeedRow], field: str) -> bool:
    return len({getattr(row, field) for row in rows}) == 1


def _speed(report: QuantizationReport) -> Markup:
    rows = report.speed
    longest = max(row.median_ms for row in rows) or 1.0
    result = [row.precision == report.precision for row in rows]
    bases = [speed_base(rows, row) for row in rows]
    ratios = ["–" if base is None else f"{times(base.median_ms / row.median_ms)} as fast"
              for base, row in zip(bases, rows, strict=True)]  # fmt: skip
    columns = [
        Column("Precision", [row.precision for row in rows]),
        *(Column(field.capitalize(), [getattr(row, field) for row in rows])
          for field in ("engine", "machine") if not _is_one(rows, field)),
        *_measures("Median", [milliseconds(row.median_ms) for row in rows], [row.median_ms / longest for row in rows],
                   result),
        Column(f"Against {REFERENCE}", ratios, "number"),
    ]  # fmt: skip
    if not _is_one(rows, "runs"):
        columns.append(Column("Runs", [f"{row.runs:,}" for row in rows], "number"))
    return table("Time of one inference", columns)


def _sizes(report: QuantizationReport) -> Markup:
    sizes, before = report.sizes_bytes, report.sizes_bytes.get(REFERENCE)
    largest = max(sizes.values()) or 1
    result = [name == report.precision for name in sizes]
    parts = [
        "–" if name == REFERENCE or not before else f"{100 * count / before:.0f} %" for name, count in sizes.items()
    ]
    columns = [
        Column("File", list(sizes)),
        *_measures("Size", list(map(size, sizes.values())), [count / largest for count in sizes.values()], result),
        Column(f"Of {REFERENCE}", parts, "number"),
    ]
    return table("Size of the model file", columns)


def _measures(
    header: str, texts: Sequence[str], parts: Sequence[float], result: Sequence[bool]
) -> tuple[Column, Column]:
    """Numbers, and bars that repeat them; those of the result stand out."""
    cells = [tag("b", text) if strong else text for text, strong in zip(texts, result, strict=True)]
    bars = [length_bar(part, strong=strong) for part, strong in zip(parts, result, strict=True)]
    return Column(header, cells, "number"), Column("", bars, "length")
