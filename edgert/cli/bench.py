"""``edgert bench``."""

from __future__ import annotations

from typing import Annotated

import typer

from edgert.cli.option import DebugOption, JsonOption, pipeline_path, write_json
from edgert.errors import EXIT_ERROR


def bench(
    target: Annotated[
        str, typer.Argument(metavar="MODEL.onnx|PIPELINE", help="A model alone, or a pipeline and edgert around it.")
    ] = "hello",
    quick: Annotated[bool, typer.Option("--quick", help="Fewer rounds.")] = False,
    json: JsonOption = None,
    debug: DebugOption = False,
) -> None:
    """Measure a model alone, or what edgert adds to it.

    Figures are medians; what is compared runs in turn. Exit code 1 when a bar is missed.

    Examples:

        edgert bench                       # edgert itself, with the demo

        edgert bench model.onnx            # the engine alone

        edgert bench pipeline.yaml --json bench.json
    """
    from rich.console import Console

    from edgert.bench.measure import machine
    from edgert.bench.suite import bench as measure

    console = Console(stderr=True, highlight=False)
    figures = []
    with console.status("measuring ..."):
        for figure in measure(pipeline_path(target), quick):
            figures.append(figure)
            bar = "" if figure.bar is None else f"   bar {'≤' if figure.better == 'lower' else '≥'} {figure.bar:g}"
            mark = "[green]✓[/]" if figure.holds else "[red]✗[/]"
            console.print(f"{mark} {figure.name:<52}{figure.value:>10.3f} {figure.unit}{bar}   n={figure.n}")
    if json is not None:
        write_json({"machine": machine(), "figures": [figure.to_json() for figure in figures]}, json)
    if not all(figure.holds for figure in figures):
        raise typer.Exit(EXIT_ERROR)
