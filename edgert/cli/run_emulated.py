"""``edgert run --as``: a pipeline runs on this machine as a board would run it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import typer

from edgert.bundle.bundle import is_bundle
from edgert.cli import option
from edgert.cli.progress import first_time_bar, on_first_call, planning_bar
from edgert.cli.run_here import has_videos
from edgert.cli.run_view import View, run_with_view
from edgert.cli.terminal import VERDICTS, console
from edgert.config import load_pipeline
from edgert.emulation import emulate
from edgert.pipeline import pipeline_in
from edgert.units import format_bytes

_NOTICED_SLOWDOWN = 1.05  # times slower than the board


def run_emulated(
    path: Path, overrides: Sequence[str], view: View, board: str, mode: str | None, profiles: Sequence[Path]
) -> None:
    """Run a pipeline with the predicted speed and power of a board. Raises Exit where a stage was down at the end."""
    option.refuse({"--as": is_bundle(path)}, "it works with pipeline files only; a bundle already targets one board")
    file = load_pipeline(path, overrides)
    option.refuse({"--as": has_videos(file)}, "a board is emulated with one video: --set stages.NAME.source=FILE")
    with on_first_call(planning_bar, view.quiet) as bar:
        place = emulate(file, board, mode, profiles=profiles, on_progress=bar)
    typer.secho(place.environment.label, fg="yellow", err=True)
    for note in place.notes:
        typer.secho(f"note: {note}", err=True)
    with on_first_call(first_time_bar, view.quiet) as bar:
        pipe = pipeline_in(place.environment, place.file, on_progress=bar)
    ended = run_with_view(pipe, view, report=place.report, label=place.environment.label, clock=place.environment.clock)
    print_emulated(place.report(ended.summary))
    ended.check()


def print_emulated(report: Mapping[str, Any]) -> None:
    """Print the report of :meth:`edgert.emulation.Emulation.report`.

    It has the board's power, temperature and memory, whether they keep the budgets, and the slowdown of this machine.
    """
    screen, figures, degrees = console(stderr=True), report["figures"], report["temperature_c"]
    watts, energy_mj = figures["power_w"], figures["energy_mj_per_frame"]
    power = "" if watts is None or energy_mj is None else f": {watts:.1f} W, {energy_mj / 1e3:.3g} J a frame"
    heat = ": power unknown" if degrees is None else f", {degrees:.0f} °C"
    memory = format_bytes(figures["memory_bytes"])
    screen.print(f"{report['simulated']}{power}{heat}, {memory} planned", style="yellow", markup=False)
    screen.print(report["words"], style=VERDICTS[report["verdict"]], markup=False)
    if report["slower"] > _NOTICED_SLOWDOWN:
        what = f"this machine cannot emulate {figures['fps']:.3g} frames a second"
        slowed = f"{what}: slowed down {report['slower']:.1f} times; all figures are in the board's time"
        screen.print(slowed, style="yellow", markup=False)
