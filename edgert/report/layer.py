"""The sections on layers: their noise, and which of them compute in something else."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from edgert.report.chart import Bar, bar_chart
from edgert.report.markup import Markup, code, join, paragraph, tag
from edgert.report.number import counted, decibels, significant
from edgert.report.record import LayerRow, QuantizationReport
from edgert.report.table import Cell, Column, table

_WORST = 5
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
            tag("details", tag("summary", f"All {counted(len(layers), 'layer')} as a table"), _all_table(report)),
        ]
    )


def worst_layers(layers: Sequence[LayerRow], count: int = _WORST) -> tuple[int, ...]:
    """Positions of the layers with the lowest SQNR, the lowest first."""
    known = [(_order(layer), place) for place, layer in enumerate(layers) if math.isfinite(_order(layer))]
    return tuple(place for _, place in sorted(known)[:count])


def kept_section(report: QuantizationReport) -> Markup:
    """Layers that compute in another precision than the result's, and why."""
    kept = [(place, layer) for place, layer in enumerate(report.layers) if layer.precision != report.precision]
    if not report.layers:
        return paragraph("Nothing is known of single layers.", "absent")
    if not kept:
        return paragraph(f"None: all {counted(len(report.layers), 'layer')} compute in {report.precision}.")
    columns = [Column("Nr.", "number"), Column("Layer", "name"), Column("Op"), Column("Computes in")]
    columns += [*_cost_columns(report), Column("Why", "wide")]
    rows = [
        [
            *_head(place, layer),
            layer.op,
            layer.precision,
            *_cost_cells(report, layer),
            layer.reason or "no reason given",
        ]
        for place, layer in kept
    ]
    lead = f"{counted(len(kept), 'layer')} of {len(report.layers)} {'does' if len(kept) == 1 else 'do'} not compute in"
    return join([paragraph(f"{lead} {report.precision}."), table("Layers in another precision", columns, rows, head=1)])


def _lead(layers: Sequence[LayerRow], known: Sequence[float], worst: Sequence[int]) -> str:
    said = f"Half of the layers have more than {decibels(statistics.median(known))}"
    if not worst:
        return f"{said}."
    low = layers[worst[0]].sqnr_db or 0.0
    return f"{said}; the noisiest has {decibels(low)}, where the noise is {_noise(low)} as large as the signal."


def _noise(sqnr_db: float) -> str:
    """RMS of the noise as a part of the signal's, by the definition of the decibel: 20 dB is a tenth."""
    ratio = 10 ** (-sqnr_db / 20)
    return f"{significant(100 * ratio, 2)}\N{NO-BREAK SPACE}%" if ratio < 1 else f"{significant(ratio, 2)} times"


def _grid(sqnr_db: float) -> str:
    return f"{significant(sqnr_db)} dB · noise {_noise(sqnr_db)} of signal" if sqnr_db > 0 else f"{sqnr_db:.0f} dB"


def _chart(report: QuantizationReport, worst: Sequence[int]) -> Markup:
    marks = {place: str(rank) for rank, place in enumerate(worst, 1)}
    bars = [
        Bar(layer.sqnr_db, _hover(place, layer), marks.get(place, ""), layer.precision != report.precision)
        for place, layer in enumerate(report.layers)
    ]
    others = sorted({layer.precision for layer in report.layers} - {report.precision})
    key = [tag("span", "the noisiest, numbered", class_="key worst")]
    if others:
        key.append(tag("span", f"underlined: computes in {' or '.join(others)}", class_="key rug"))
    caption = "Signal to quantisation noise (SQNR) of every layer's output, in graph order: higher is better."
    legend = tag("span", *key, class_="legend")
    return tag("figure", tag("figcaption", caption, " ", legend), bar_chart(bars, title=caption, grid=_grid))


def _hover(place: int, layer: LayerRow) -> str:
    return f"{place + 1}  {layer.name}\n{layer.op} · {layer.precision} · {decibels(layer.sqnr_db)}"


def _worst_table(report: QuantizationReport, worst: Sequence[int]) -> Markup:
    columns = [Column("Rank", "number"), Column("Layer", "name"), Column("Op"), Column("Computes in")]
    columns += [*_cost_columns(report), Column("SQNR", "number"), Column("Noise", "number")]
    rows = []
    for rank, place in enumerate(worst, 1):
        layer = report.layers[place]
        cells = [rank, code(layer.name), layer.op, layer.precision, *_cost_cells(report, layer)]
        rows.append([*cells, decibels(layer.sqnr_db), _noise(layer.sqnr_db or 0.0)])
    return table("The noisiest layers", columns, rows, head=1)


def _all_table(report: QuantizationReport) -> Markup:
    columns = [Column("Nr.", "number"), Column("Layer", "name"), Column("Op"), Column("Computes in")]
    columns += [*_cost_columns(report), Column("SQNR", "number")]
    rows = [
        [*_head(place, layer), layer.op, layer.precision, *_cost_cells(report, layer),
         Cell(decibels(layer.sqnr_db), _order(layer))]
        for place, layer in enumerate(report.layers)
    ]  # fmt: skip
    return table("All layers in graph order", columns, rows, head=1, sortable=True)


def _head(place: int, layer: LayerRow) -> tuple[object, object]:
    return place + 1, code(layer.name)


def _order(layer: LayerRow) -> float:
    return _NOT_KNOWN if layer.sqnr_db is None or math.isnan(layer.sqnr_db) else layer.sqnr_db


def _cost_columns(report: QuantizationReport) -> list[Column]:
    costs = any(layer.cost is not None for layer in report.layers)
    return [Column(f"Cost alone{f', {report.cost_meaning}' if report.cost_meaning else ''}", "number")] if costs else []


def _cost_cells(report: QuantizationReport, layer: LayerRow) -> list[object]:
    if not _cost_columns(report):
        return []
    return [Cell("–", _NOT_KNOWN) if layer.cost is None else Cell(significant(layer.cost), layer.cost)]
