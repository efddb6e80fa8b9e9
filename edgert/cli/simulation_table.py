"""A simulation in the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from edgert.cli.table import NONE, Column, Row, table
from edgert.planner.simulation_page import kept, simulation_headline

if TYPE_CHECKING:
    from rich.console import Console

    from edgert.planner.simulation import Simulation
    from edgert.simulator import Moment

_MOST_ROWS = 12
_COLUMNS = (
    Column("second", is_number=True),
    Column("fps", is_number=True),
    Column("p50 ms", is_number=True, rank=3),
    Column("p99 ms", is_number=True),
    Column("dropped", is_number=True),
    Column("W", is_number=True),
    Column("J/frame", is_number=True, rank=2),
    Column("°C", is_number=True),
)


def show_simulation(console: Console, simulation: Simulation) -> None:
    """Verdict, what happened over time, what was lost where, what the governor did, and what was assumed."""
    from rich.markup import escape

    is_kept, budgets = kept(simulation)
    console.print(f"[bold {'green' if is_kept else 'red'}]{escape(simulation_headline(simulation))}[/]")
    if budgets:
        console.print(f"[{'green' if is_kept else 'red'}]{escape(budgets)}[/]")
    played = simulation.played
    if played.moments:
        _table(console, _merged(played.moments))
    latency = played.latency_ms
    console.print(
        f"{played.frames_out} of {played.frames_in} frames, {played.dropped} dropped, "
        f"latency p50 {latency.p50:.1f} p95 {latency.p95:.1f} p99 {latency.p99:.1f} ms"
    )
    lost = [f"{name} {one.dropped}" for name, one in played.stages.items() if one.dropped]
    if lost:
        console.print(escape(f"dropped before: {', '.join(lost)}"))
    if played.energy_j_per_frame is not None:
        console.print(f"{played.energy_j_per_frame:.3g} J a frame, at most {played.temperature_c:.0f} °C")
    for event in played.governed.events if played.governed else ():
        console.print(escape(f"{event.at_s:.1f} s: {event.kind}: {event.reason}"), style="yellow")
    console.print(f"[dim]simulated: {escape(simulation.basis)}[/]")
    for note in simulation.notes:
        console.print(f"[dim]note: {escape(note)}[/]")


def _merged(moments: Sequence[Moment]) -> Sequence[Moment]:
    """Every n-th, so that a table stays readable; the JSON and the page have all."""
    step = -(-len(moments) // _MOST_ROWS) if moments else 1
    return moments[step - 1 :: step]


def _table(console: Console, moments: Sequence[Moment]) -> None:
    names = list(dict.fromkeys(name for moment in moments for name in moment.busy))
    busy = (Column(name, is_number=True, rank=1) for name in names)
    rows = [Row((*_numbers(one), *(f"{one.busy.get(name, 0.0):.0%}" for name in names))) for one in moments]
    console.print(table((*_COLUMNS, *busy), rows, width=console.width))


def _numbers(one: Moment) -> Iterator[str]:
    yield f"{one.at_s:.0f}"
    yield f"{one.fps:.3g}"
    values = (one.p50_ms, one.p99_ms, float(one.dropped), one.power_w, one.energy_j_per_frame, one.temperature_c)
    yield from (NONE if value is None else f"{value:.3g}" for value in values)
