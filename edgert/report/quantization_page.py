"""The page of a quantization report, section by section."""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
from markupsafe import Markup

from edgert.report import page, svg
from edgert.report.chart import Bar, Interval, Marker, bar_chart, histogram_chart, interval_chart
from edgert.report.numbers import bare, counted, decibels, fixed, share, significant
from edgert.report.page import Badge, Cell, Chart, Column, Part, Table
from edgert.report.quantization_record import REFERENCE, AccuracyRow, LayerRow, QuantizationReport, TensorRow, judge

# Accuracy and speed.

_NO_LABELS = "Without labels, FP32's own answers served as ground truth: this is agreement with FP32, not accuracy."


def accuracy_part(report: QuantizationReport) -> Part:
    """Return the text above the table of metrics, with charts; a reason where nothing was scored."""
    rows = report.accuracy
    if not rows:
        return Part(absent=report.absent.get("accuracy", "Accuracy was not measured."))
    images = {row.images for row in rows if row.images}
    return Part(
        f"Scored on {counted(images.pop(), 'image')}." if len(images) == 1 else "",
        caution="" if all(row.labeled for row in rows) else _NO_LABELS,
        charts=tuple(_drops(rows, metric_names(report))),
    )


def metric_names(report: QuantizationReport) -> list[str]:
    """Return a name for every row of accuracy, with the precision where rows have several."""
    several = any(row.precision != report.precision for row in report.accuracy)
    return [f"{row.metric}, {row.precision}" if several else row.metric for row in report.accuracy]


def _drops(rows: Sequence[AccuracyRow], names: Sequence[str]) -> Iterator[Chart]:
    """Yield a chart of drops for each unit that has an interval or a budget."""
    for unit, words in (("percent", ", in points"), ("plain", "")):
        some = [(name, row) for name, row in zip(names, rows, strict=True) if row.unit == unit]
        if any(row.interval or row.max_drop is not None for _, row in some):
            drops = [Interval(name, row.drop, row.interval, row.max_drop, row.kept is False) for name, row in some]
            lines = "Lines are 95 % confidence intervals." if any(row.interval for _, row in some) else ""
            caption = f"Drop from {REFERENCE}{words}: less is better."
            drawn = interval_chart(drops, title=caption, show=partial(bare, unit=unit))
            yield Chart(drawn, caption, remark=lines)


# Noise layer by layer, and layers in another precision.

_WORST = 5
_MANY = 12  # number of layers from which a list is folded
_LOUD = 9.5  # ratio of noise to signal from which it is not shown in percent
_NOT_KNOWN = -math.inf  # sorts below all measured values


def layers_part(report: QuantizationReport) -> Part:
    """Return the noise of the layers: a chart, a table of the worst, and a folded table of all."""
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
    costs = [(layer.cost, -place) for place, layer in enumerate(rows) if layer.cost is not None]
    costliest = [-place for cost, place in sorted(costs, reverse=True)[:_WORST] if cost > 0]
    ranks = Column("Rank", [Cell(rank, look="bad") for rank in range(1, len(worst) + 1)], "number")
    tables = [
        _table(report, worst, "The noisiest layers", ranks, heading="The noisiest layers"),
        # the layers to change first when a budget is missed
        _table(report, costliest, "The costliest layers", heading="The costliest layers"),
        _table(report, range(len(rows)), "All layers", folded=f"All {counted(len(rows), 'layer')} as a table"),
    ]
    return Part(f"{lead}.", charts=(_noise_chart(report, worst),), tables=[one for one in tables if one.rows])


def kept_part(report: QuantizationReport) -> Part:
    """Return the layers that compute in another precision than the result's, by reason."""
    places = [place for place, layer in enumerate(report.layers) if layer.precision != report.precision]
    if not report.layers:
        return Part(absent="Nothing is known of single layers.")
    if not places:
        return Part(f"None: all {counted(len(report.layers), 'layer')} compute in {report.precision}.")
    reasons: dict[str, list[int]] = {}
    for place in places:
        reasons.setdefault(report.layers[place].reason or "no reason given", []).append(place)
    verb = "does" if len(places) == 1 else "do"
    lead = f"{counted(len(places), 'layer')} of {len(report.layers)} {verb} not compute in {report.precision}."
    tables = (
        _table(report, some, reason, heading=reason, folded=counted(len(some), "layer") if len(some) > _MANY else "")
        for reason, some in reasons.items()
    )
    return Part(lead, tables=tuple(tables))


def _noise(sqnr_db: float) -> str:
    """Return the RMS of the noise as a part of the signal's, by the definition of the decibel."""
    ratio = 10 ** (-sqnr_db / 20)
    return f"{significant(100 * ratio, 2)}\N{NO-BREAK SPACE}%" if ratio < _LOUD else f"{significant(ratio, 2)} times"


def _noise_chart(report: QuantizationReport, worst: Sequence[int]) -> Chart:
    marks = {place: str(rank) for rank, place in enumerate(worst, 1)}
    bars = [
        Bar(
            layer.sqnr_db,
            f"{place + 1}. {svg.visible(layer.name)} ({layer.op}, {layer.precision}): {decibels(layer.sqnr_db)}",
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


def _table(
    report: QuantizationReport,
    places: Sequence[int],
    caption: str,
    first: Column | None = None,
    *,
    heading: str = "",
    folded: str = "",
) -> Table:
    """Return a table of layers, by their places in the graph; ``first`` replaces the column of numbers."""
    found = [report.layers[place] for place in places]
    costs = [Cell("–", _NOT_KNOWN) if one.cost is None else Cell(significant(one.cost), one.cost) for one in found]
    meaning = f", {report.cost_meaning}" if report.cost_meaning else ""
    noises = [Cell(decibels(layer.sqnr_db), _order(layer)) for layer in found]
    columns = [
        first or Column("Nr.", [place + 1 for place in places], "minor number"),
        Column("Layer", [layer.name for layer in found], "name"),
        Column("Op", [layer.op for layer in found]),
        Column("Type", [layer.precision for layer in found]),
        Column(f"Cost alone{meaning}", costs if any(one.cost is not None for one in found) else (), "minor number"),
        Column("SQNR", noises if any(math.isfinite(_order(one)) for one in found) else (), "number"),
    ]
    shown = [column for column in columns if column.cells]
    return Table(caption, shown, head=1, sortable=bool(folded), heading=heading, folded=folded)


def _order(layer: LayerRow) -> float:
    return _NOT_KNOWN if layer.sqnr_db is None or math.isnan(layer.sqnr_db) else layer.sqnr_db


# Activations: the values of tensors, and where they are clipped.

_OPEN = 6
_LEVELS = 127  # levels of int8 on each side of zero
_TENSOR_LEAD = (
    "How often each magnitude |x| occurred during calibration, counts on a logarithmic scale: {}, by the noise that "
    "rounding and clipping add to the tensor itself. The solid line is the threshold in use; what lies beyond it, "
    "shaded, is clipped. Dotted lines are where other methods would clip."
)


@dataclass(frozen=True, slots=True)
class Card:
    """The histogram of one tensor, or of several with the same values; empty for one that is always zero."""

    names: tuple[str, ...]
    drawn: Markup
    facts: str


def activations_part(report: QuantizationReport) -> Mapping[str, object]:
    """Return text and histograms: those that lose most are open, the others, of ``more`` tensors, are folded."""
    if not report.tensors:
        return {"about": Part(absent=report.absent.get("tensors", "No activations were counted."))}
    same: dict[object, list[TensorRow]] = {}  # tensors with the same histogram, as before and after a Transpose
    for row in report.tensors:
        key = (row.counts.tobytes(), row.exponent, row.amax, row.threshold, *row.thresholds.items())
        same.setdefault(key, []).append(row)
    groups = list(same.values())
    noise = [own_sqnr_db(group[0]) for group in groups]
    worst = sorted(range(len(groups)), key=noise.__getitem__)[:_OPEN]
    rest = [place for place in range(len(groups)) if place not in worst]
    rows = max(len(row.thresholds) + (row.used is not None) for row in report.tensors)
    which = f"the {_OPEN} histograms that lose most of {len(groups)}" if rest else "all histograms"
    opened, folded = ([_card(groups[place], noise[place], rows) for place in places] for places in (worst, rest))
    more = sum(len(card.names) for card in folded)
    return {"about": Part(_TENSOR_LEAD.format(which)), "opened": opened, "folded": folded, "more": more}


def _card(same: Sequence[TensorRow], sqnr_db: float, rows: int) -> Card:
    row, names = same[0], tuple(one.name for one in same)
    if row.amax <= 0:
        return Card(names, Markup(""), "Always zero: nothing to choose a threshold from.")
    title = f"Histogram of {svg.visible(row.name)}"
    drawn = histogram_chart(row.counts, _bin_width(row), row.amax, _markers(row), title=title, rows=rows)
    return Card(names, drawn, " · ".join(_facts(row, sqnr_db)))


def own_sqnr_db(row: TensorRow) -> float:
    """Return the SQNR in dB of rounding and clipping a tensor, by its histogram; infinite if it is always zero.

    Every value counts as the middle of its bin, but those of the first bin as zero, which most are after a ReLU.
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
    """Return the fraction of values beyond the threshold, to the precision of a bin."""
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


# The page.

_BADGES = {True: ("✓ Budget kept", "good"), False: ("✗ Budget missed", "bad"), None: ("No budget", "open")}


def render(report: QuantizationReport) -> str:
    """Return the page of a report; equal reports give equal text."""
    shown = {
        "report": report,
        "names": metric_names(report),
        "reference": REFERENCE,
        "accuracy": accuracy_part(report),
        "layers": layers_part(report),
        "kept": kept_part(report),
        "activations": activations_part(report),
    }
    return page.render("quantization.html.j2", _head(report), shown)


def _head(report: QuantizationReport) -> page.Head:
    verdict, model = judge(report), report.provenance.model
    badges = [Badge(*_BADGES[verdict.kept])]
    if warnings := sum(note.level == "warning" for note in report.notes):
        badges.append(Badge(f"⚠ {counted(warnings, 'warning')}", "warned", "#notes"))
    return page.Head(
        f"{model}: {report.precision} report",
        f"Quantization report{f' for {report.target}' if report.target else ''}",
        model,
        verdict.sentence,
        badges,
        verdict.cautions,
        verdict.figures,
    )
