"""The sections of a quantization report: accuracy, speed and size; noise layer by layer; activations."""

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
from markupsafe import Markup

from edgert.report import numbers
from edgert.report.chart import Bar, Interval, Marker, bar_chart, histogram_chart, interval_chart
from edgert.report.numbers import counted, decibels, fixed, milliseconds, share, significant, times
from edgert.report.page import Cell, Chart, Column, Kind, Part, Table
from edgert.report.quantization_record import REFERENCE, AccuracyRow, LayerRow, QuantizationReport, SpeedRow, TensorRow
from edgert.report.svg import visible

# Accuracy, speed and size.

_NO_LABELS = "Without labels, FP32's own answers served as ground truth: this is agreement with FP32, not accuracy."
_STATES = {True: Cell("✓ kept", look="good"), False: Cell("✗ missed", look="bad"), None: Cell("–")}


def accuracy(report: QuantizationReport) -> Part:
    """Return table and chart of every metric; a reason where nothing was scored."""
    rows = report.accuracy
    if not rows:
        return Part(absent=report.absent.get("accuracy", "Accuracy was not measured."))
    images = {row.images for row in rows if row.images}
    several = any(row.precision != report.precision for row in rows)
    names = [f"{row.metric}, {row.precision}" if several else row.metric for row in rows]
    return Part(
        f"Scored on {counted(images.pop(), 'image')}." if len(images) == 1 else "",
        caution="" if all(row.labeled for row in rows) else _NO_LABELS,
        charts=tuple(_drops(rows, names)),
        tables=(_scores(report, names),),
    )


def _scores(report: QuantizationReport, names: Sequence[str]) -> Table:
    rows = report.accuracy
    result = report.precision if all(row.precision == report.precision for row in rows) else "Result"
    part, unit = (", %", ", points") if all(row.unit == "percent" for row in rows) else ("", "")
    # a value has its unit where the header does not have it
    scored, lost = (_bare, _bare) if unit else (numbers.score, numbers.difference)
    columns = [
        Column("Metric", names),
        Column(f"{REFERENCE}{part}", [scored(row.fp32, row.unit) for row in rows], "number"),
        Column(f"{result}{part}", [scored(row.result, row.unit) for row in rows], "number"),
        Column(f"Drop{unit}", [Cell(lost(row.drop, row.unit), look="strong") for row in rows], "number"),
    ]
    if any(row.interval for row in rows):
        ends = [[_bare(end, row.unit) for end in row.interval or ()] for row in rows]
        columns.append(Column("95 % interval", [" to ".join(both) or "–" for both in ends], "minor number"))
    if any(row.max_drop is not None for row in rows):
        budgets = ["–" if row.max_drop is None else lost(row.max_drop, row.unit) for row in rows]
        columns += [Column("Budget", budgets, "number"), Column("Verdict", [_STATES[row.kept] for row in rows])]
    if len({row.images for row in rows if row.images}) > 1:
        columns.append(Column("Images", [f"{row.images:,}" if row.images else "–" for row in rows], "number"))
    return Table("Accuracy before and after", columns)


def _bare(value: float, unit: str) -> str:
    """Return a value or difference without its unit."""
    return fixed(value * 100, 2) if unit == "percent" else fixed(value, 4)


def _drops(rows: Sequence[AccuracyRow], names: Sequence[str]) -> Iterator[Chart]:
    """Yield one chart for each unit that has an interval or a budget to compare with."""
    for unit, factor, places in (("percent", 100, 1), ("plain", 1, 3)):
        some = [(name, row) for name, row in zip(names, rows, strict=True) if row.unit == unit]
        if not any(row.interval or row.max_drop is not None for _, row in some):
            continue
        drops = [Interval(name, row.drop, row.interval, row.max_drop, row.kept is False) for name, row in some]
        lines = "Lines are 95 % confidence intervals." if any(row.interval for _, row in some) else ""
        caption = f"Drop from {REFERENCE}{', in points' if unit == 'percent' else ''}: less is better."
        drawn = interval_chart(drops, title=caption, show=partial(_axis, factor=factor, places=places))
        yield Chart(drawn, caption, remark=lines)


def _axis(value: float, factor: int, places: int) -> str:
    return fixed(value * factor, places)


def speed(report: QuantizationReport) -> Part:
    """Return the time of one inference and the size of the file; a reason where no time was measured."""
    sizes = (_sizes(report),) if report.sizes_bytes else ()
    if not report.speed:
        return Part(absent=report.absent.get("speed", "Speed was not measured."), tables=sizes)
    lead = f"Median time of one inference{f' on {report.timed_on}' if report.timed_on else ''}; shorter is better."
    return Part(lead, tables=(_times(report), *sizes))


def reference(rows: Sequence[SpeedRow]) -> SpeedRow | None:
    """Return the row that the others are compared with; None where FP32 was not timed."""
    return next((row for row in rows if row.precision == REFERENCE), None)


def _times(report: QuantizationReport) -> Table:
    rows, base = report.speed, reference(report.speed)
    texts, result = [milliseconds(row.median_ms) for row in rows], [row.precision == report.precision for row in rows]
    ratios = [f"{times(base.median_ms / row.median_ms)} as fast" if base and row is not base else "–" for row in rows]
    columns = (
        Column("Precision", [row.precision for row in rows]),
        *_measures("Median", texts, [row.median_ms for row in rows], result),
        Column(f"Against {REFERENCE}", ratios, "number"),
        Column("Runs", [f"{row.runs:,}" for row in rows], "minor number"),
    )
    return Table("Time of one inference", columns)


def _sizes(report: QuantizationReport) -> Table:
    sizes, before = report.sizes_bytes, report.sizes_bytes.get(REFERENCE)
    texts, result = [numbers.size(count) for count in sizes.values()], [name == report.precision for name in sizes]
    parts = [
        "–" if name == REFERENCE or not before else f"{100 * count / before:.0f} %" for name, count in sizes.items()
    ]
    columns = [
        Column("File", list(sizes)),
        *_measures("Size", texts, list(sizes.values()), result),
        Column(f"Of {REFERENCE}", parts, "number"),
    ]
    return Table("Size of the model file", columns)


def _measures(
    header: str, texts: Sequence[str], values: Sequence[float], result: Sequence[bool]
) -> tuple[Column, Column]:
    """Return numbers, and bars that repeat them; those of the result stand out."""
    looks, largest = ["strong" if strong else "" for strong in result], max(values) or 1.0
    cells = [Cell(text, look=look) for text, look in zip(texts, looks, strict=True)]
    bars = [Cell("", value / largest, look=look) for value, look in zip(values, looks, strict=True)]
    return Column(header, cells, "number"), Column("of the largest", bars, "length")


# Noise layer by layer, and layers in another precision.

_WORST = 5
_LOUD = 9.5  # times the signal: from here on percent stop helping
_NOT_KNOWN = -math.inf  # sorts below every measured value


def layers(report: QuantizationReport) -> Part:
    """Return noise layer by layer: a chart, the worst by name, all of them folded."""
    rows = report.layers
    known = [layer.sqnr_db for layer in rows if layer.sqnr_db is not None and not math.isnan(layer.sqnr_db)]
    if not known:
        return Part(absent=report.absent.get("layers", "The noise of single layers was not measured."))
    finite = sorted((_order(layer), place) for place, layer in enumerate(rows) if math.isfinite(_order(layer)))
    worst = [place for _, place in finite[:_WORST]]
    lead = f"Half of the layers have more than {decibels(statistics.median(known))}"
    if worst:
        low, _ = finite[0]
        lead += f"; the noisiest has {decibels(low)}, where the noise is {_noise(low)} as large as the signal"
    places = range(len(rows))
    columns = [_numbers(places), *_columns(report, places), Column("SQNR", _noises(report, places), "number")]
    folded = f"All {counted(len(rows), 'layer')} as a table"
    whole = Table("All layers in graph order", columns, head=1, sortable=True, folded=folded)
    tables = (_noisiest(report, worst), *_costliest(report), whole)
    return Part(f"{lead}.", charts=(_noise_chart(report, worst),), tables=tables)


def kept(report: QuantizationReport) -> Part:
    """Return layers that compute in another precision than the result's, and why."""
    places = [place for place, layer in enumerate(report.layers) if layer.precision != report.precision]
    if not report.layers:
        return Part(absent="Nothing is known of single layers.")
    if not places:
        return Part(f"None: all {counted(len(report.layers), 'layer')} compute in {report.precision}.")
    reasons = [report.layers[place].reason or "no reason given" for place in places]
    columns = [_numbers(places), *_columns(report, places, "minor number"), Column("Why", reasons, "prose")]
    verb = "does" if len(places) == 1 else "do"
    lead = f"{counted(len(places), 'layer')} of {len(report.layers)} {verb} not compute in {report.precision}."
    return Part(lead, tables=(Table("Layers in another precision", columns, head=1, stacked=True),))


def _noise(sqnr_db: float) -> str:
    """Return the RMS of the noise as a part of the signal's, by the definition of the decibel: 20 dB is a tenth."""
    ratio = 10 ** (-sqnr_db / 20)
    return f"{significant(100 * ratio, 2)}\N{NO-BREAK SPACE}%" if ratio < _LOUD else f"{significant(ratio, 2)} times"


def _noise_chart(report: QuantizationReport, worst: Sequence[int]) -> Chart:
    marks = {place: str(rank) for rank, place in enumerate(worst, 1)}
    bars = [
        Bar(
            layer.sqnr_db,
            f"{place + 1}. {visible(layer.name)} ({layer.op}, {layer.precision}): {decibels(layer.sqnr_db)}",
            marks.get(place, ""),
            layer.precision != report.precision,
        )
        for place, layer in enumerate(report.layers)
    ]
    others = sorted({layer.precision for layer in report.layers} - {report.precision})
    keys = [("the noisiest, numbered", "worst")]
    if others:
        keys.append((f"underlined: in {' or '.join(others)}", "rug"))
    title = "Signal to quantization noise (SQNR) of every layer's output, in graph order: higher is better."
    sides = "On the left in dB; on the right the noise as a part of the signal, both root mean square."
    drawn = bar_chart(bars, title=title, left=lambda value: f"{fixed(value, 0)} dB", right=_noise)
    return Chart(drawn, title, tuple(keys), remark=sides)


def _noisiest(report: QuantizationReport, worst: Sequence[int]) -> Table:
    known = [report.layers[place].sqnr_db or 0.0 for place in worst]
    columns = [
        Column("Rank", [Cell(rank, look="bad") for rank in range(1, len(worst) + 1)], "number"),
        *_columns(report, worst),
        Column("SQNR", [decibels(value) for value in known], "number"),
        Column("Noise", [_noise(value) for value in known], "minor number"),
    ]
    return Table("The noisiest layers", columns, head=1, heading="The noisiest layers")


def _costliest(report: QuantizationReport) -> Iterator[Table]:
    """Yield the layers to look at first when a budget is missed."""
    costs = [(layer.cost, -place) for place, layer in enumerate(report.layers) if layer.cost is not None]
    places = [-place for cost, place in sorted(costs, reverse=True)[:_WORST] if cost > 0]
    if places:
        columns = [_numbers(places), *_columns(report, places), Column("SQNR", _noises(report, places), "minor number")]
        yield Table("The costliest layers", columns, head=1, heading="The costliest layers")


def _noises(report: QuantizationReport, places: Sequence[int]) -> list[Cell]:
    found = [report.layers[place] for place in places]
    return [Cell(decibels(layer.sqnr_db), _order(layer)) for layer in found]


def _numbers(places: Sequence[int]) -> Column:
    return Column("Nr.", [place + 1 for place in places], "minor number")


def _columns(report: QuantizationReport, places: Sequence[int], cost: Kind = "number") -> list[Column]:
    """Return the columns that every table has for a layer; the name comes first."""
    found = [report.layers[place] for place in places]
    columns = [
        Column("Layer", [layer.name for layer in found], "name"),
        Column("Op", [layer.op for layer in found]),
        Column("Type", [layer.precision for layer in found]),
    ]
    if any(layer.cost is not None for layer in found):
        header = f"Cost alone{f', {report.cost_meaning}' if report.cost_meaning else ''}"
        known = [Cell("–", _NOT_KNOWN) if one.cost is None else Cell(significant(one.cost), one.cost) for one in found]
        columns.append(Column(header, known, cost))
    return columns


def _order(layer: LayerRow) -> float:
    return _NOT_KNOWN if layer.sqnr_db is None or math.isnan(layer.sqnr_db) else layer.sqnr_db


# The section on activations: what values tensors have, and where they are clipped.

_OPEN = 6
_LEVELS = 127  # of int8 on each side of zero
_TENSOR_LEAD = (
    "How often each magnitude |x| occurred during calibration, counts on a logarithmic scale: {}, by the noise that "
    "rounding and clipping add to the tensor itself. The solid line is the threshold in use; what lies beyond it, "
    "shaded, is clipped. Dotted lines are where other methods would clip."
)


@dataclass(frozen=True, slots=True)
class Card:
    """The histogram of one tensor, or of several that have the same.

    Attributes:
        names: of the tensors; the first represents all.
        drawn: SVG; empty for a tensor that is always zero.
        facts: in one line.
    """

    names: tuple[str, ...]
    drawn: Markup
    facts: str


@dataclass(frozen=True, slots=True)
class Activations:
    """The section: histograms that are open, and those that are folded, of ``more`` tensors."""

    about: Part
    opened: tuple[Card, ...] = ()
    folded: tuple[Card, ...] = ()
    more: int = 0


def activations(report: QuantizationReport) -> Activations:
    """Return histograms: those that lose most are open, the others folded in graph order."""
    if not report.tensors:
        return Activations(Part(absent=report.absent.get("tensors", "No activations were counted.")))
    same: dict[object, list[TensorRow]] = {}  # with one and the same histogram, as before and after a transposition
    for row in report.tensors:
        key = (row.counts.tobytes(), row.exponent, row.amax, row.threshold, *row.thresholds.items())
        same.setdefault(key, []).append(row)
    groups = list(same.values())
    noise = [own_sqnr_db(group[0]) for group in groups]
    worst = sorted(range(len(groups)), key=noise.__getitem__)[:_OPEN]
    rest = [place for place in range(len(groups)) if place not in worst]
    rows = max(len(row.thresholds) + (row.used is not None) for row in report.tensors)
    which = f"the {_OPEN} histograms that lose most of {len(groups)}" if rest else "all histograms"
    opened, folded = (tuple(_card(groups[place], noise[place], rows) for place in places) for places in (worst, rest))
    return Activations(Part(_TENSOR_LEAD.format(which)), opened, folded, sum(len(card.names) for card in folded))


def _card(same: Sequence[TensorRow], sqnr_db: float, rows: int) -> Card:
    row, names = same[0], tuple(one.name for one in same)
    if row.amax <= 0:
        return Card(names, Markup(""), "Always zero: nothing to choose a threshold from.")
    title = f"Histogram of {visible(row.name)}"
    drawn = histogram_chart(row.counts, _bin_width(row), row.amax, _markers(row), title=title, rows=rows)
    return Card(names, drawn, " · ".join(_facts(row, sqnr_db)))


def own_sqnr_db(row: TensorRow) -> float:
    """Return the SQNR of rounding and clipping this tensor, in dB, from its histogram; infinite if it is always zero.

    Every value counts as the middle of its bin. Those of the first bin count as zero: they round to it, and after a
    ReLU most of them are.
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
    """Return the share of values that lie beyond the threshold, to the precision of a bin."""
    starts = np.arange(len(row.counts)) * _bin_width(row)
    counts: npt.NDArray[np.float64] = row.counts.astype(np.float64)
    return float(counts[starts >= row.threshold].sum() / max(counts.sum(), 1.0))


def _bin_width(row: TensorRow) -> float:
    return math.ldexp(1.0, row.exponent) / len(row.counts)


def _markers(row: TensorRow) -> list[Marker]:
    markers = [
        Marker(value, f"{method} {significant(value)}", method == row.chosen and row.used is None)
        for method, value in row.thresholds.items()
    ]
    if row.used is not None:
        markers.append(Marker(row.used, f"in use {significant(row.used)}", True))
    return markers


def _facts(row: TensorRow, sqnr_db: float) -> Iterator[str]:
    if "minmax" not in row.thresholds:
        yield f"largest {significant(row.amax)}"
    yield f"step {significant(row.threshold / _LEVELS)}"
    yield f"clips {share(clipped_share(row))}"
    yield f"SQNR {decibels(sqnr_db)}"
    if row.shared:
        yield f"one scale with {counted(len(row.shared), 'other tensor')}"
