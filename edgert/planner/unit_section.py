"""A page's section on a model's units: their predicted times in a table, and by color in the graph."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from edgert.placement.plan_record import EngineRow, ModelRow
from edgert.placement.problem import Edge, Network
from edgert.planner import plan_text
from edgert.report import diagram, html, scatter
from edgert.report.chart import length_bar
from edgert.report.numbers import counted, share, significant, size

MOST_BOXES = 64
"""Units that one image shows; of more it shows blocks."""
_SLOWEST = 20  # units of an engine, where a page has many boards


@dataclass(frozen=True, slots=True)
class UnitRow:
    """A unit on the accelerator where an engine runs it.

    Attributes:
        number: its place in the graph, from 1.
        name: of its first node.
        on: accelerator.
        time_ms, energy_mj: of a run, alone on the board.
        part: of the time of all units, 0 to 1.
        nodes: how many of the model's.
        others_ms: accelerator → its time there.
    """

    number: int
    name: str
    on: str
    time_ms: float
    energy_mj: float
    part: float
    nodes: int
    others_ms: Mapping[str, float]


def unit_rows(network: Network, engine: EngineRow) -> tuple[UnitRow, ...]:
    """Return every unit of an engine, in the order of the graph."""
    placed = list(zip(network.units, engine.assignment, strict=True))
    total_ms = sum(unit.costs[where].time_ms for unit, where in placed) or 1.0
    return tuple(
        UnitRow(
            number,
            unit.name,
            where,
            unit.costs[where].time_ms,
            unit.costs[where].energy_mj,
            unit.costs[where].time_ms / total_ms,
            len(unit.nodes),
            {name: cost.time_ms for name, cost in unit.costs.items() if name != where},
        )
        for number, (unit, where) in enumerate(placed, 1)
    )


def half_of(rows: Sequence[UnitRow]) -> int:
    """Return how few units take half of the time of all."""
    parts = accumulate(sorted((row.part for row in rows), reverse=True))
    return next((count for count, part in enumerate(parts, 1) if part >= 0.5 - 1e-9), 0)


def model_section(model: ModelRow, name: str, *, is_whole: bool) -> html.Markup:
    """Return every engine of a model, the one with the most frames first.

    Args:
        model: the model's row of the plan.
        name: of the section, for links inside it.
        is_whole: whether every unit is drawn and listed; otherwise blocks, and the slowest units.
    """
    engines = sorted(model.engines, key=lambda engine: -engine.share)
    times = html.paragraph(
        f"{significant(model.rate_hz)} runs a second asked; one run alone takes {significant(model.latency_ms)} ms."
    )
    parts = (_engine(model, engine, f"{name}-{number}", is_whole) for number, engine in enumerate(engines))
    return html.join([times, *parts])


def _engine(model: ModelRow, engine: EngineRow, name: str, is_whole: bool) -> html.Markup:
    rows, network = unit_rows(model.network, engine), model.network
    keys = [html.tag("span", one, class_=f"key {one}") for one in engine.accelerators]
    drawn = [html.tag("p", plan_text.share_text(engine), ": ", html.tag("span", *keys), class_="legend")]
    half = half_of(rows)
    if len(rows) > 1:
        few = f"{half} of {counted(len(rows), 'unit')} {'takes' if half == 1 else 'take'} half of the time."
        drawn.append(html.paragraph(few))
    if len(rows) > MOST_BOXES:
        drawn.append(_figure(_blocks(network, engine, rows), "milliseconds of a block", name))
        if is_whole:
            whole = _figure(_units(network, engine, rows), "milliseconds of a unit", f"{name}-all")
            summary = html.tag("summary", f"All {counted(len(rows), 'unit')} drawn")
            drawn.append(html.tag("details", summary, whole, id=f"{name}-all", class_="all"))
    elif rows:
        drawn.append(_figure(_units(network, engine, rows), "milliseconds of a unit", name))
    listed = sorted(rows, key=lambda row: -row.time_ms)
    if not is_whole and len(rows) > _SLOWEST:
        drawn.append(html.paragraph(f"The {_SLOWEST} slowest; a plan of this board alone lists and draws all of them."))
        listed = listed[:_SLOWEST]
    return html.join([*drawn, _table(model.name, listed)])


@dataclass(frozen=True, slots=True)
class _Drawing:
    boxes: Sequence[diagram.Box]
    lines: Sequence[diagram.Line]
    heat: scatter.Heat
    title: str


def _figure(drawing: _Drawing, unit: str, name: str) -> html.Markup:
    image = diagram.network_image(drawing.boxes, drawing.lines, title=drawing.title)
    caption = html.tag("figcaption", scatter.heat_legend(drawing.heat, unit, significant))
    viewport = html.tag("div", image, class_="viewport", tabindex=0, role="group", aria_label=drawing.title)
    return html.tag("figure", caption, viewport, data_whole=f"{name}-all")


def _units(network: Network, engine: EngineRow, rows: Sequence[UnitRow]) -> _Drawing:
    heat = scatter.heat_of([row.time_ms for row in rows])
    groups = [n for n, block in enumerate(_grouped(rows)) for _ in range(block.first, block.end)]
    boxes = []
    for row, group in zip(rows, groups, strict=True):
        note = f"{significant(row.time_ms)} ms · {row.on}"
        boxes.append(
            diagram.Box(
                row.name, row.name.strip("/"), {row.on: 1.0}, note, "\n".join(_about(row)), heat.of(row.time_ms), group
            )
        )
    lines = [line for edge in network.edges for line in _lines(edge, engine, network.home)]
    return _Drawing(boxes, lines, heat, "units, colored by time, striped by accelerator")


def _about(row: UnitRow) -> Iterator[str]:
    yield f"on {row.on}: {row.time_ms:.3f} ms, {row.energy_mj:.2f} mJ, {share(row.part)} of the time"
    for name, time_ms in row.others_ms.items():
        yield f"{name}: {time_ms:.3f} ms"
    if not any(name.startswith("dla") for name in (row.on, *row.others_ms)):
        yield "no DLA can run it"


def _grouped(rows: Sequence[UnitRow]) -> tuple[diagram.Block, ...]:
    return diagram.blocks_of([row.name for row in rows], MOST_BOXES)


def _blocks(network: Network, engine: EngineRow, rows: Sequence[UnitRow]) -> _Drawing:
    """Return a readable number of boxes, each of the units of one block."""
    blocks = _grouped(rows)
    owner = [number for number, block in enumerate(blocks) for _ in range(block.first, block.end)]
    times = [sum(row.time_ms for row in rows[block.first : block.end]) for block in blocks]
    heat, boxes = scatter.heat_of(times), []
    for number, (block, time_ms) in enumerate(zip(blocks, times, strict=True)):
        inside = rows[block.first : block.end]
        names = dict.fromkeys(row.on for row in inside)
        parts = {name: sum(row.time_ms for row in inside if row.on == name) / (time_ms or 1.0) for name in names}
        total = share(sum(row.part for row in inside))
        detail = [f"{counted(len(inside), 'unit')}: {time_ms:.3f} ms, {total} of the time"]
        detail += [f"{name}: {sum(row.on == name for row in inside)} of them" for name in names]
        note = f"{significant(time_ms)} ms · {'+'.join(names)}"
        boxes.append(
            diagram.Box(block.label, block.label, parts, note, "\n".join(detail), heat.of(time_ms), number, True)
        )
    joined: dict[tuple[int, int], list[diagram.Line]] = {}
    for edge in network.edges:
        for line in _lines(edge, engine, network.home):
            if owner[line.start] != owner[line.end]:
                joined.setdefault((owner[line.start], owner[line.end]), []).append(line)
    lines = [
        diagram.Line(first, last, "\n".join(_first(found)), any(one.crosses for one in found))
        for (first, last), found in joined.items()
    ]
    return _Drawing(boxes, lines, heat, "blocks of units, colored by time, striped by accelerator")


def _first(lines: Sequence[diagram.Line], most: int = 4) -> Iterator[str]:
    yield from (line.detail for line in lines[:most])
    if len(lines) > most:
        yield f"and {len(lines) - most} more"


def _lines(edge: Edge, engine: EngineRow, home: str) -> Iterator[diagram.Line]:
    if edge.producer is None:
        return
    source = engine.assignment[edge.producer]
    for consumer in edge.consumers:
        target = engine.assignment[consumer]
        cost = edge.transitions.get((source, target))
        transition = f"\n{source} to {target}: {cost.time_ms:.3f} ms" if cost else ""
        detail = f"{edge.name}, {size(edge.size_bytes)}{transition}"
        yield diagram.Line(edge.producer, consumer, detail, source != target)


def _table(model: str, rows: Sequence[UnitRow]) -> html.Markup:
    """Return the table of units, the slowest first; it can be sorted and searched."""
    most = max((row.part for row in rows), default=1.0) or 1.0
    table = html.table(
        f"Units of {model}",
        [
            html.Column("Nr.", [row.number for row in rows], "minor number"),
            html.Column("Unit", [html.code(row.name) for row in rows], "name"),
            html.Column("On", [row.on for row in rows]),
            html.Column("ms", [html.Cell(significant(row.time_ms), row.time_ms) for row in rows], "number"),
            html.Column("of the time", [html.Cell(share(row.part), row.part) for row in rows], "number"),
            html.Column(
                "of the longest",
                [length_bar(row.part / most, strong=row.part > most / 2) for row in rows],
                "minor length",
            ),
            html.Column("mJ", [html.Cell(significant(row.energy_mj), row.energy_mj) for row in rows], "minor number"),
            html.Column("Elsewhere", [_elsewhere(row.others_ms.items()) for row in rows], "minor"),
        ],
        head=1,
        sortable=True,
    )
    return html.tag("div", table, class_="searchable", data_what="units")


def _elsewhere(times_ms: Iterable[tuple[str, float]]) -> str:
    return ", ".join(f"{name} {significant(time_ms)} ms" for name, time_ms in times_ms) or "–"
