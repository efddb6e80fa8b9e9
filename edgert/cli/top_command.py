"""``edgert top``."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edgert.cli import option
from edgert.cli.output import JsonLines, is_stdout
from edgert.cli.table import console

if TYPE_CHECKING:
    from rich.console import RenderableType

    from edgert.cli.top_table import Row
    from edgert.meters.all import Sample
    from edgert.meters.energy import Energy

_LEAST_S = 0.1


@dataclass(slots=True)
class Look:
    """One line of the view: the meters' readings, energy so far, and each pipeline's state or why it is not known."""

    sample: Sample
    energy: Energy
    pipelines: list[Row]

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        energy = {
            "joules": self.energy.joules,
            "covered_s": self.energy.covered_s,
            "modeled_s": self.energy.modeled_s,
            "missing_s": self.energy.missing_s,
        }
        return {**self.sample.to_json(), "time": time.time(), "energy": energy, "pipelines": self.pipelines}


def top(
    pipeline: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[URL]...", help="Live pages (sink: http) of pipelines on other machines, http://host:port."
        ),
    ] = None,
    every: Annotated[
        float, typer.Option("--every", metavar="SECONDS", min=_LEAST_S, help="Seconds from one sample to the next.")
    ] = 0.5,
    once: Annotated[bool, typer.Option("--once", help="Show one sample, then exit.")] = False,
    json: option.Json = None,
    root: Annotated[Path, typer.Option("--root", hidden=True, help="Folder that stands for / of a Linux.")] = Path("/"),
    debug: option.Debug = False,
) -> None:
    """Watch this machine: power, clocks, load, heat and memory, and the pipelines that you run on it.

    Every edgert run and edgert.Pipeline of the same user is seen, with nothing to set up; those of other machines by
    the address of their live page.

    Needs no root. For what cannot be read the reason is shown; nothing is shown as 0 that is not known. Sensors of
    Jetsons average over 0.4 s, so faster than two samples a second repeats itself. Ends with Ctrl-C.
    --json writes one line for every sample.

    Examples:

        edgert top

        edgert top http://dock.local:8080

        edgert top --json - --every 1 | jq '.readings.power.value'

        edgert top --json - --once | jq '.pipelines[] | {name, fps: .stats.fps}'
    """
    from edgert.cli.progress import stop_on_signal

    stopped = threading.Event()
    with stop_on_signal(stopped.set), JsonLines(json) as write:
        looks = _written(_looks(root, tuple(pipeline or ()), every, once, stopped), write)
        if is_stdout(json):
            for _ in looks:
                pass
        else:
            _show(looks, once)


def _written(looks: Iterator[Look], write: JsonLines) -> Iterator[Look]:
    """The same, each also written as a line of JSON."""
    for look in looks:
        write(look.to_json())
        yield look


def _looks(root: Path, urls: tuple[str, ...], every_s: float, once: bool, stopped: threading.Event) -> Iterator[Look]:
    from edgert.cli.top_table import Pipelines
    from edgert.meters.all import Meters
    from edgert.meters.energy import Energy

    meters, energy, pipelines = Meters(root), Energy(), Pipelines(urls, root)
    pipelines.look()
    stopped.wait(_LEAST_S if once else every_s)  # rates need a beginning and an end
    while not stopped.is_set():
        sample = meters.sample()
        energy.add(sample.at_ns, sample.power)
        yield Look(sample, energy, pipelines.look())
        if once or stopped.wait(every_s):
            return


def _show(looks: Iterator[Look], once: bool) -> None:
    from rich.live import Live

    screen = console()
    if once or not screen.is_terminal:
        for look in looks:
            screen.print(_view(look, screen.width))
        return
    with Live(console=screen, auto_refresh=False, screen=True) as live:
        for look in looks:
            live.update(_view(look, screen.width), refresh=True)


def _view(look: Look, width: int) -> RenderableType:
    from rich.console import Group

    from edgert.cli.top_table import view

    return Group(*view(look.sample, look.energy, look.pipelines, width))
