"""``edgert simulate``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from edgert.cli import option, progress, terminal
from edgert.units import format_ms

if TYPE_CHECKING:
    from edgert.planner.simulation import Simulation
    from edgert.simulator import Moment

_SHOWN_ROWS = 12
_COLUMNS = (
    terminal.Column("second", is_number=True),
    terminal.Column("fps", is_number=True),
    terminal.Column("p50 ms", is_number=True, rank=3),
    terminal.Column("p99 ms", is_number=True),
    terminal.Column("dropped", is_number=True),
    terminal.Column("W", is_number=True),
    terminal.Column("J/frame", is_number=True, rank=2),
    terminal.Column("°C", is_number=True),
)


def simulate(
    pipeline: option.PipelineArgument,
    board: option.Board = None,
    mode: Annotated[str | None, option.mode("Default: the one that edgert plan chooses.")] = None,
    duration: Annotated[float, option.Duration] = 60.0,
    profiles: option.Profiles = None,
    report: option.Report = None,
    overrides: option.Set = None,
    json: option.Json = None,
) -> None:
    """Simulate a pipeline on a board that you do not have: frames, latency, drops, watts and degrees, second by second.

    Sources, queues, threads, accelerators and the governor of the budgets are simulated event by event. A minute takes
    a second or two. Nothing is run. Exit code 1 unless rate, memory and every budget are sure to be kept.

    Recorded frames, objects, jitter, measured stages and the temperature of the air are for edgert.simulate in Python.

    Examples:
        edgert simulate pipeline.yaml --board orin-nx-16gb --mode 15W --duration 60
        edgert simulate pipeline.yaml --board orin-nano-8gb --report simulated.html
        edgert simulate pipeline.yaml --board host --profile profile.json --set stages.camera.fps=60
    """
    from edgert.planner.simulation import Scenario, simulate as simulate_pipeline
    from edgert.planner.simulation_page import render

    with progress.on_first_call(progress.planning_bar) as bar:
        made = simulate_pipeline(
            pipeline,
            board=board,
            mode=mode,
            profiles=profiles or (),
            overrides=overrides or (),
            scenario=Scenario(duration),
            on_progress=bar,
        )
    screen = terminal.console(json)
    show_simulation(screen, made)
    terminal.write_report(screen, lambda: render(made), report)
    terminal.write_json(made.to_json(), json)
    if made.verdict != "kept":
        raise typer.Exit(1)


def show_simulation(console: terminal.Console, simulation: Simulation) -> None:
    """Print the verdict, figures over time, drops of each stage, the governor's actions, and the assumptions."""
    from edgert.planner.simulation_page import simulation_headline, verdict_text
    from edgert.report.page import VERDICTS

    style = terminal.VERDICTS[simulation.verdict]
    console.print(simulation_headline(simulation), style=f"bold {style}", markup=False)
    if budgets := verdict_text(simulation):
        console.print(f"{VERDICTS[simulation.verdict][0]} {budgets}", style=style, markup=False)
    played = simulation.played
    if played.moments:
        _show_moments(console, played.moments)
    latency = played.latency_ms
    console.print(
        f"{played.frames_out} of {played.frames_in} frames, {played.dropped} dropped, "
        f"latency p50 {format_ms(latency.p50)} p95 {format_ms(latency.p95)} p99 {format_ms(latency.p99)}"
    )
    lost = [f"{name} {one.dropped}" for name, one in played.stages.items() if one.dropped]
    if lost:
        console.print(f"dropped before: {', '.join(lost)}", markup=False)
    if played.energy_j_per_frame is not None:
        console.print(f"{played.energy_j_per_frame:.3g} J a frame, at most {played.temperature_c:.0f} °C")
    for event in played.governed.events if played.governed else ():
        console.print(f"{event.at_s:.1f} s: {event.kind}: {event.reason}", style="yellow", markup=False)
    console.print(f"simulated: {simulation.basis}", style="dim", markup=False)
    for note in simulation.notes:
        console.print(f"note: {note}", style="dim", markup=False)


def _show_moments(console: terminal.Console, moments: Sequence[Moment]) -> None:
    """Print every n-th moment, so that the table stays short; the JSON and the page have all."""
    step = -(-len(moments) // _SHOWN_ROWS)
    names = list(dict.fromkeys(name for moment in moments for name in moment.busy))
    rows = []
    for one in moments[step - 1 :: step]:
        values = (one.p50_ms, one.p99_ms, float(one.dropped), one.power_w, one.energy_j_per_frame, one.temperature_c)
        known = (terminal.NONE if value is None else f"{value:.3g}" for value in values)
        busy = (f"{one.busy.get(name, 0.0):.0%}" for name in names)
        rows.append(terminal.Row((f"{one.at_s:.0f}", f"{one.fps:.3g}", *known, *busy)))
    columns = (*_COLUMNS, *(terminal.Column(name, is_number=True, rank=1) for name in names))
    console.print(terminal.table(columns, rows, width=console.width))
