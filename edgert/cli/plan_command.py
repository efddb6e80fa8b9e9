"""``edgert plan``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, cast

import typer

from edgert.cli import option
from edgert.cli.output import is_stdout, write_json
from edgert.cli.table import console

if TYPE_CHECKING:
    from edgert.placement.plan_record import Objective


def plan(
    pipeline: option.PipelineArgument,
    board: Annotated[str | None, option.board("With all, every board; the pipeline's own when left out.")] = None,
    mode: Annotated[str, option.mode("With all, every mode is compared.")] = "all",
    objective: Annotated[
        str, typer.Option("--objective", metavar="NAME", help="Optimize for throughput, latency or energy.")
    ] = "throughput",
    trt: option.Trt = None,
    profiles: option.Profiles = None,
    report: option.Report = None,
    overrides: option.Set = None,
    json: option.Json = None,
    debug: option.Debug = False,
) -> None:
    """Predict what a pipeline does on a board, and which layers should run on its GPU and which on its DLA.

    For every power mode and placement: frames per second, latency, power and memory, against the file's budgets. All
    of it comes from a cost model that was fitted to published measurements; nothing is run. Exit code 1 when no board
    is within every budget.

    Examples:

        edgert plan pipeline.yaml --board orin-nx-16gb

        edgert plan pipeline.yaml --board all --report plan.html

        edgert plan pipeline.yaml --board orin-nx-16gb --mode 15W --objective energy

        edgert plan pipeline.yaml --board host --profile profile.json

        edgert plan pipeline.yaml --board orin-nx-16gb --profile from-the-board.edgert
    """
    from edgert.cli.plan_table import show_plan
    from edgert.planner import plan as plan_pipeline
    from edgert.planner.plan_page import save
    from edgert.planner.plan_text import to_json

    made = plan_pipeline(
        pipeline,
        board=board,
        mode=mode,
        objective=cast("Objective", objective),
        tensorrt=trt,
        profiles=profiles or (),
        overrides=overrides or (),
    )
    screen = console(stderr=is_stdout(json))
    show_plan(screen, made)
    if report is not None:
        save(made, report)
        screen.print(f"report written to {report}", markup=False)
    if json is not None:
        write_json(to_json(made), json)
    if made.smallest is None:
        raise typer.Exit(1)
