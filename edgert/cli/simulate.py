"""``edgert simulate``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from edgert.cli.option import (
    DebugOption,
    JsonOption,
    PageOption,
    PipelineArgument,
    ProfilesOption,
    SetOption,
    pipeline_path,
    write_json,
)

_WIDTH = 120  # of tables that no terminal shows


def simulate(
    pipeline: PipelineArgument,
    board: Annotated[
        str | None,
        typer.Option("--board", "-b", metavar="BOARD", help="A board's name or file; the pipeline's own if left out."),
    ] = None,
    mode: Annotated[
        str | None, typer.Option("--mode", metavar="MODE", help="A power mode; what edgert plan chooses if left out.")
    ] = None,
    seconds: Annotated[float, typer.Option("--seconds", metavar="S", help="Simulated time.")] = 60.0,
    trace: Annotated[
        Path | None,
        typer.Option("--trace", metavar="FILE", help="What a camera delivered, or what sink: jsonl wrote."),
    ] = None,
    objects: Annotated[
        float | None,
        typer.Option("--objects", metavar="N", min=0, help="Mean on a frame; the most that crops take if left out."),
    ] = None,
    stages: Annotated[
        Path | None,
        typer.Option("--stages", metavar="FILE", help="A run's summary: what stages take besides their models."),
    ] = None,
    jitter: Annotated[
        float, typer.Option("--jitter", metavar="PART", min=0, max=1, help="Of cameras, as a part of the period.")
    ] = 0.0,
    ambient: Annotated[float, typer.Option("--ambient", metavar="C", help="Degrees around the board.")] = 25.0,
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="Of all chance.")] = 0,
    profiles: ProfilesOption = None,
    report: PageOption = None,
    overrides: SetOption = None,
    json: JsonOption = None,
    debug: DebugOption = False,
) -> None:
    """Play a pipeline on a board that you do not have: frames, latency, drops, watts and degrees, second by second.

    Sources, queues, threads, accelerators and the governor of the budgets are played event by event, in a second or
    two for a minute. Nothing is run. Exit code 1 when a budget of power or latency is not kept.

    Examples:

        edgert simulate pipeline.yaml --board orin-nx-16gb --mode 15W --seconds 60

        edgert simulate pipeline.yaml --board orin-nano-8gb --trace camera.jsonl --report simulated.html

        edgert simulate pipeline.yaml --board host --profile profile.json --stages run.json
    """
    from rich.console import Console

    from edgert.cli.simulation_table import show_simulation
    from edgert.config import load_pipeline
    from edgert.plan.simulation import Circumstances, simulate_pipeline
    from edgert.plan.simulation_page import save
    from edgert.plan.simulation_words import kept

    made = simulate_pipeline(
        load_pipeline(pipeline_path(pipeline), overrides or ()),
        board=board,
        mode=mode,
        profiles=profiles or (),
        given=Circumstances(seconds, seed, trace, objects, jitter, stages, ambient),
    )
    console = Console(stderr=str(json) == "-", highlight=False)
    if not console.is_terminal:
        console.width = _WIDTH
    show_simulation(console, made)
    if report is not None:
        save(made, report)
        console.print(f"page written to {report}", markup=False)
    if json is not None:
        write_json(made.to_json(), json)
    if not kept(made)[0]:
        raise typer.Exit(1)
