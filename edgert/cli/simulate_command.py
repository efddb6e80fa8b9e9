"""``edgert simulate``."""

from pathlib import Path
from typing import Annotated

import typer

from edgert.cli import option
from edgert.cli.output import is_stdout, write_json
from edgert.cli.table import console


def simulate(
    pipeline: option.PipelineArgument,
    board: option.Board = None,
    mode: Annotated[str | None, option.mode("The one that edgert plan chooses when left out.")] = None,
    duration: Annotated[float, option.Duration] = 60.0,
    trace: Annotated[
        Path | None,
        typer.Option(
            "--trace", metavar="FILE", help="Replay the frames that a camera delivered, or that sink: jsonl wrote."
        ),
    ] = None,
    objects: Annotated[
        float | None,
        typer.Option(
            "--objects",
            metavar="N",
            min=0,
            help="Mean number of objects on a frame. As many as crops take at most when left out.",
        ),
    ] = None,
    stages: Annotated[
        Path | None,
        typer.Option(
            "--stages",
            metavar="FILE",
            help="Read what stages take besides their models from a summary of edgert run --json.",
        ),
    ] = None,
    jitter: Annotated[
        float,
        typer.Option(
            "--jitter", metavar="0-1", min=0, max=1, help="Jitter of the cameras, as a fraction of the frame period."
        ),
    ] = 0.0,
    ambient: Annotated[
        float, typer.Option("--ambient", metavar="CELSIUS", help="Temperature of the air around the board.")
    ] = 25.0,
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="Random seed of jitter, run times and objects.")] = 0,
    profiles: option.Profiles = None,
    report: option.Report = None,
    overrides: option.Set = None,
    json: option.Json = None,
    debug: option.Debug = False,
) -> None:
    """Simulate a pipeline on a board that you do not have: frames, latency, drops, watts and degrees, second by second.

    Sources, queues, threads, accelerators and the governor of the budgets are simulated event by event, in a second
    or two for a minute. Nothing is run. Exit code 1 when a budget of power or latency is exceeded.

    Examples:

        edgert simulate pipeline.yaml --board orin-nx-16gb --mode 15W --duration 60

        edgert simulate pipeline.yaml --board orin-nano-8gb --trace camera.jsonl --report simulated.html

        edgert simulate pipeline.yaml --board host --profile profile.json --stages run.json
    """
    from edgert.cli.simulation_table import show_simulation
    from edgert.planner.simulation import Scenario
    from edgert.planner.simulation import simulate as simulate_pipeline
    from edgert.planner.simulation_page import kept, save

    made = simulate_pipeline(
        pipeline,
        board=board,
        mode=mode,
        profiles=profiles or (),
        overrides=overrides or (),
        scenario=Scenario(duration, seed, trace, objects, jitter, stages, ambient),
    )
    screen = console(stderr=is_stdout(json))
    show_simulation(screen, made)
    if report is not None:
        save(made, report)
        screen.print(f"report written to {report}", markup=False)
    if json is not None:
        write_json(made.to_json(), json)
    if not kept(made)[0]:
        raise typer.Exit(1)
