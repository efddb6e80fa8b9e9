"""The sections on layers: their noise, and which of them compute in something else."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Literal

from edgert.report.chart import Bar, bar_chart
from edgert.report.markup import Markup, code, join, paragraph, tag
from edgert.report.number import counted, decibels, fixed, significant
from edgert.report.record import LayerRow, QuantizationReport
from edgert.report.table import Cell, Column, table

_WORST = 5
_LOUD = 9.5  # times the signal: from here on percent stop helping
_NOT_KNOWN = -math.inf  # sorts below every measured value


def layer_section(report: QuantizationReport) -> Markup:
    """Noise layer by layer: chart, the worst by name, all of them on demand."""
    layers = report.layers
    known = [layer.sqnr_db for layer in layers if layer.sqnr_db is not None and not math.isnan(layer.sqnr_db)]
    if not known:
        return paragraph(report.absent.get("layers", "The noise of single layers was not measured."), "absent")
    worst = worst_layers(layers)
    return join(
        [
            paragraph(_lead(layers, known, worst), "lead"),
            _chart(report, worst),
            tag("h3", "The noisiest layers"),
            _worst_table(report, worst),
            *_costliest(report),
            tag("details", tag("summary", f"All {counted(len(layers), 'layer')} as a table"), _all_table(report)),
        ]
    )


def worst_layers(layers: Sequence[LayerRow], count: int = _WORST) -> tuple[int, ...]:
    """Positions of the layers with the lowest SQNR, the lowest first."""
    known = [(_order(layer), place) for place, layer in enumerate(layers) if math.isfinite(_order(layer))]
    return tuple(place for _, place in sorted(known)[:count])


def kept_section(report: QuantizationReport) -> Markup:
    """Layers that compute in another precision than the result's, and why."""
    kept = [place for place, layer in enumerate(report.layers) if layer.precision != report.precision]
    if not report.layers:
        return paragraph("Nothing is known of single layers.", "absent")
    if not kept:
        return paragraph(f"None: all {counted(len(report.layers), 'layer')} compute in {report.precision}.")
    reasons = [report.layers[place].reason or "no reason given" for place in kept]
    columns = [_numbers(kept), *_columns(report, kept, "minor number"), Column("Why", reasons, "prose")]
    verb = "does" if len(kept) == 1 else "do"
    lead = f"{counted(len(kept), 'layer')} of {len(report.layers)} {verb} not compute in {report.precision}."
    return join([paragraph(lead, "lead"), table("Layers in another precision", columns, head=1)])


def _lead(layers: Sequence[LayerRow], known: Sequence[float], worst: Sequence[int]) -> str:
    said = f"Half of the layers have more than {decibels(statistics.median(known))}"
    if not worst:
        return f"{said}."
    low = layers[worst[0]].sqnr_db or 0.0
    return f"{said}; the noisiest has {decibels(low)}, where the noise is {_noise(low)} as large as the signal."


def _noise(sqnr_db: float) -> str:
    """RMS of the noise as a part of the signal's, by the definition of the decibel: 20 dB is a tenth."""
    ratio = 10 ** (-sqnr_db / 20)
    return f"{significant(100 * ratio, 2)}\N{NO-BREAK SPACE}%" if ratio < _LOUD else f"{significant(ratio, 2)} times"


def _grid(sqnr_db: float) -> tuple[str, str]:
    return f"{fixed(sqnr_db, 0)} dB", _noise(sqnr_db)


def _chart(report: QuantizationReport, worst: Sequence[int]) -> Markup:
    marks = {place: str(rank) for rank, place in enumerate(worst, 1)}
    bars = [
        Bar(layer.sqnr_db, _hover(place, layer), marks.get(place, ""), layer.precision != report.precision)
        for place, layer in enumerate(report.layers)
    ]
    others = sorted({layer.precision for layer in report.layers} - {report.precision})
    key = [tag("span", "the noisiest, numbered", class_="key worst")]
    if others:
        key.append(tag("span", f"underlined: in {' or '.join(others)}", class_="key rug"))
    caption = "Signal to quantisation noise (SQNR) of every layer's output, in graph order: higher is better."
    sides = " On the left in dB; on the right the noise as a part of the signal, both root mean square."
    legend = tag("span", *key, class_="legend")
    return tag("figure", tag("figcaption", caption, sides, legend), bar_chart(bars, title=caption, grid=_grid))


def _hover(place: int, layer: LayerRow) -> str:
    return f"{place + 1}. {layer.name} ({layer.op}, {layer.precision}): {decibels(layer.sqnr_db)}"


def _worst_table(report: QuantizationReport, worst: Sequence[int]) -> Markup:
    known = [report.layers[place].sqnr_db or 0.0 for place in worst]
    columns = [
        Column("Rank", [tag("b", rank, class_="bad") for rank in range(1, len(worst) + 1)], "number"),
        *_columns(report, worst),
        Column("SQNR", [decibels(value) for value in known], "number"),
        Column("Noise", [_noise(value) for value in known], "minor number"),
    ]
    return table("The noisiest layers", columns, head=1)


def _costliest(report: QuantizationReport) -> list[Markup]:
    """The layers to look at first when a budget is missed."""
    costs = [(layer.cost, -place) for place, layer in enumerate(report.layers) if layer.cost is not None]
    places = [-place for cost, place in sorted(costs, reverse=True)[:_WORST] if cost > 0]
    if not places:
        return []
    columns = [_numbers(places), *_columns(report, places), Column("SQNR", _noises(report, places), "minor number")]
    return [tag("h3", "The costliest layers"), table("The costliest layers", columns, head=1)]


def _noises(report: QuantizationReport, places: Sequence[int]) -> list[Cell]:
    layers = [report.layers[place] for place in places]
    return [Cell(decibels(layer.sqnr_db), _order(layer)) for layer in layers]


def _all_table(report: QuantizationReport) -> Markup:
    places = range(len(report.layers))
    columns = [_numbers(places), *_columns(report, places), Column("SQNR", _noises(report, places), "number")]
    return table("All layers in graph order", columns, head=1, sortable=True)


def _numbers(places: Sequence[int]) -> Column:
    return Column("Nr.", [place + 1 for place in places], "minor number")


def _columns(
    report: QuantizationReport, places: Sequence[int], cost: Literal["number", "minor number"] = "number"
) -> list[Column]:
    """What every table tells of a layer; the name comes first."""
    layers = [report.layers[place] for place in places]
    columns = [
        Column("Layer", [code(layer.name) for layer in layers], "name"),
        Column("Op", [layer.op for layer in layers]),
        Column("Type", [layer.precision for layer in layers]),
    ]
    if any(layer.cost is not None for layer in layers):
        header = f"Cost alone{f', {report.cost_meaning}' if report.cost_meaning else ''}"
        columns.append(Column(header, [_cost(layer) for layer in layers], cost))
    return columns


def _cost(layer: LayerRow) -> Cell:
    return Cell("–", _NOT_KNOWN) if layer.cost is None else Cell(significant(layer.cost), layer.cost)


def _order(layer: LayerRow) -> float:
    return _NOT_KNOWN if layer.sqnr_db is None or math.isnan(layer.sqnr_db) else layer.sqnr_db
