"""Section of a page about a model's units: predicted times in a table, and as colors in the graph."""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from edgert.placement.plan_record import EngineRow, ModelRow
from edgert.placement.problem import Edge, Network
from edgert.planner import plan_text
from edgert.report import diagram, scatter
from edgert.report.numbers import counted, share, significant, size
from edgert.report.page import Cell, Chart, Column, Table

MOST_BOXES = 64
"""Maximum number of units in one image; larger networks are drawn as blocks."""
_DETAILS = 4  # tensors named where a line stands for several
_SLOWEST = 20  # units listed for an engine where a page has many boards


@dataclass(frozen=True, slots=True)
class UnitRow:
    """A unit on the accelerator where an engine runs it.

    Attributes:
        number: position in the graph, from 1.
        name: name of its first node.
        time_ms, energy_mj: time and energy of a run, alone on the board.
        part: share of the time of all units, 0 to 1.
        others_ms: other accelerator → time there.
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
    """Return a row for every unit of an engine, in the order of the graph."""
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


def units_in_half(rows: Sequence[UnitRow]) -> int:
    """Return the minimum number of units that take half of the total time."""
    parts = accumulate(sorted((row.part for row in rows), reverse=True))
    return next((count for count, part in enumerate(parts, 1) if part >= 0.5 - 1e-9), 0)


# Blocks of consecutive units whose names begin alike.


@dataclass(frozen=True, slots=True)
class Block:
    """Consecutive units, from ``first`` up to but not including ``end``."""

    label: str
    first: int
    end: int


def blocks_of(names: Sequence[str], most: int) -> tuple[Block, ...]:
    """Return at most ``most`` blocks of consecutive units whose names begin alike.

    Names are paths, as exporters write them: ``/layers.1/blocks.0/attn/MatMul``. As many parts of the path are compared
    as give no more than ``most`` blocks. If the first part that differs gives more, neighbors are merged.
    """
    paths = [_path(name) for name in names]
    found, shown = [(0, len(names))] if names else [], 1  # parts that labels have
    for depth in range(1, max(map(len, paths), default=0) + 1):
        finer = [run for first, end in found for run in _runs(paths, first, end, depth)]
        if len(finer) > most:
            if len(found) < most // 8:
                found = [run for group in found for run in _merge_runs(_runs(paths, *group, depth), most // len(found))]
                shown = depth
            break
        if len(finer) > len(found):
            found, shown = finer, depth
    return tuple(Block(_label(paths, first, end, shown), first, end) for first, end in found)


def _path(name: str) -> tuple[str, ...]:
    """Split ``"/blocks.3/attn/MatMul"`` into ``("blocks.3", "attn", "MatMul")``; a number stays with its name."""
    parts: list[str] = []
    for part in filter(None, re.split(r"[/.]+", name)):
        if part.isdigit() and parts:
            parts[-1] += f".{part}"
        else:
            parts.append(part)
    return tuple(parts) or (name,)


def _runs(paths: Sequence[tuple[str, ...]], first: int, end: int, depth: int) -> list[tuple[int, int]]:
    """Return (first, end) of each run of neighbors whose paths begin with the same ``depth`` parts."""
    starts = [at for at in range(first, end) if at == first or paths[at][:depth] != paths[at - 1][:depth]]
    return list(pairwise([*starts, end]))


def _merge_runs(runs: Sequence[tuple[int, int]], most: int) -> list[tuple[int, int]]:
    step = math.ceil(len(runs) / max(most, 1))
    return [(runs[at][0], runs[min(at + step, len(runs)) - 1][1]) for at in range(0, len(runs), step)]


def _label(paths: Sequence[tuple[str, ...]], first: int, end: int, depth: int) -> str:
    """Return the common beginning of a block's names, or its first and last name, without the prefix of all names."""
    pairs = enumerate(zip(paths[0], paths[-1], strict=False))
    known = next((at for at, (one, other) in pairs if one != other), 0)
    head, tail = (paths[at][:depth][known:] or paths[at] for at in (first, end - 1))
    if head == tail:
        return "/".join(head)
    same = next((at for at, (one, other) in enumerate(zip(head, tail, strict=False)) if one != other), 0)
    return f"{'/'.join(head)} … {'/'.join(tail[same:])}"


# Contents of the page.


def model_section(model: ModelRow, name: str, title: str, *, is_whole: bool) -> dict[str, object]:
    """Return the section about a model: a sentence, and its engines, the one with the most frames first.

    Args:
        model: row of the model in the plan.
        name: id of the section, for links inside it.
        title: title of the section.
        is_whole: whether to draw and list every unit; otherwise only blocks and the slowest units.
    """
    engines = sorted(model.engines, key=lambda engine: -engine.share)
    about = f"{significant(model.rate_hz)} runs a second asked; one run alone takes {significant(model.latency_ms)} ms."
    shown = [_engine(model, engine, f"{name}-{number}-all", is_whole) for number, engine in enumerate(engines)]
    return {"id": name, "title": title, "about": about, "engines": shown}


def _engine(model: ModelRow, engine: EngineRow, name: str, is_whole: bool) -> dict[str, object]:
    """Return the contents about an engine; ``name`` is the id of the drawing of all units, where blocks come first."""
    rows, network = unit_rows(model.network, engine), model.network
    is_large = len(rows) > MOST_BOXES
    half = units_in_half(rows)
    few = f"{half} of {counted(len(rows), 'unit')} {'takes' if half == 1 else 'take'} half of the time."
    listed, remark = sorted(rows, key=lambda row: -row.time_ms), ""
    if not is_whole and len(rows) > _SLOWEST:
        remark = f"The {_SLOWEST} slowest; a plan of this board alone lists and draws all of them."
        listed = listed[:_SLOWEST]
    return {
        "id": name,
        "share": plan_text.share_text(engine),
        "accelerators": engine.accelerators,
        "few": few if len(rows) > 1 else "",
        "main": _blocks(network, engine, rows) if is_large else _units(network, engine, rows) if rows else None,
        "whole": _units(network, engine, rows) if is_large and is_whole else None,
        "remark": remark,
        "table": _table(model.name, listed, _unit_blocks(rows) if is_large else ()),
    }


def _units(network: Network, engine: EngineRow, rows: Sequence[UnitRow]) -> Chart:
    heat = scatter.heat_of([row.time_ms for row in rows])
    groups = [n for n, block in enumerate(_unit_blocks(rows)) for _ in range(block.first, block.end)]
    boxes = []
    for row, group in zip(rows, groups, strict=True):
        note = f"{significant(row.time_ms)} ms · {row.on}"
        boxes.append(
            diagram.Box(
                row.name, row.name.strip("/"), {row.on: 1.0}, note, "\n".join(_about(row)), heat.of(row.time_ms), group
            )
        )
    lines = [line for edge in network.edges for line in _lines(edge, engine)]
    return _draw(boxes, lines, heat, "unit")


def _draw(boxes: Sequence[diagram.Box], lines: Sequence[diagram.Line], heat: scatter.Heat, what: str) -> Chart:
    title = f"{what}s of the network, colored by time, striped by accelerator"
    image = diagram.network_image(boxes, lines, title=title)
    return Chart(image, title, heat.keys(significant), f"milliseconds of a {what}")


def _about(row: UnitRow) -> Iterator[str]:
    yield f"on {row.on}: {row.time_ms:.3f} ms, {row.energy_mj:.2f} mJ, {share(row.part)} of the time"
    for name, time_ms in row.others_ms.items():
        yield f"{name}: {time_ms:.3f} ms"
    if not any(name.startswith("dla") for name in (row.on, *row.others_ms)):
        yield "no DLA can run it"


def _unit_blocks(rows: Sequence[UnitRow]) -> tuple[Block, ...]:
    return blocks_of([row.name for row in rows], MOST_BOXES)


def _blocks(network: Network, engine: EngineRow, rows: Sequence[UnitRow]) -> Chart:
    blocks = _unit_blocks(rows)
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
    by_blocks: dict[tuple[int, int], list[diagram.Line]] = {}
    for edge in network.edges:
        for line in _lines(edge, engine):
            if owner[line.start] != owner[line.end]:
                by_blocks.setdefault((owner[line.start], owner[line.end]), []).append(line)
    lines = [
        diagram.Line(first, last, "\n".join(_first_details(found)), any(one.crosses for one in found))
        for (first, last), found in by_blocks.items()
    ]
    return _draw(boxes, lines, heat, "block")


def _first_details(lines: Sequence[diagram.Line]) -> Iterator[str]:
    yield from (line.detail for line in lines[:_DETAILS])
    if len(lines) > _DETAILS:
        yield f"and {len(lines) - _DETAILS} more"


def _lines(edge: Edge, engine: EngineRow) -> Iterator[diagram.Line]:
    if edge.producer is None:
        return
    source = engine.assignment[edge.producer]
    for consumer in edge.consumers:
        target = engine.assignment[consumer]
        cost = edge.transitions.get((source, target))
        transition = f"\n{source} to {target}: {cost.time_ms:.3f} ms" if cost else ""
        detail = f"{edge.name}, {size(edge.size_bytes)}{transition}"
        yield diagram.Line(edge.producer, consumer, detail, source != target)


def _table(model: str, rows: Sequence[UnitRow], blocks: Sequence[Block]) -> Table:
    most = max((row.part for row in rows), default=1.0) or 1.0
    lengths = [Cell("", row.part / most, look="strong" if row.part > most / 2 else "") for row in rows]
    columns = (
        Column("Nr.", [row.number for row in rows], "minor number"),
        Column("Unit", [row.name for row in rows], "name"),
        *([Column("Block", _blocks_of(rows, blocks), "minor name")] if blocks else []),
        Column("On", [row.on for row in rows]),
        Column("ms", [Cell(significant(row.time_ms), row.time_ms) for row in rows], "number"),
        Column("of the time", [Cell(share(row.part), row.part) for row in rows], "number"),
        Column("of the longest", lengths, "minor length"),
        Column("mJ", [Cell(significant(row.energy_mj), row.energy_mj) for row in rows], "minor number"),
        Column("Elsewhere", [_elsewhere(row.others_ms.items()) for row in rows], "minor"),
    )
    return Table(f"Units of {model}", columns, head=1, sortable=True)


def _blocks_of(rows: Sequence[UnitRow], blocks: Sequence[Block]) -> list[Cell]:
    owners = [(number, block) for number, block in enumerate(blocks) for _ in range(block.first, block.end)]
    return [Cell(block.label, number) for number, block in (owners[row.number - 1] for row in rows)]


def _elsewhere(times_ms: Iterable[tuple[str, float]]) -> str:
    return ", ".join(f"{name} {significant(time_ms)} ms" for name, time_ms in times_ms) or "–"
