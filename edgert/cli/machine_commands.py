"""``edgert doctor`` and ``edgert top``: what this machine has, and what it and its pipelines are doing."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edgert.cli import option, terminal
from edgert.cli.progress import stop_on_signal, waiting
from edgert.cli.top_view import (
    History,
    Look,
    Panel,
    Row,
    camera_table,
    is_number,
    keyboard,
    pipeline_table,
    plain_number,
)
from edgert.errors import EXIT_ERROR, DeviceError
from edgert.units import format_bytes

if TYPE_CHECKING:
    from rich.console import RenderableType

    from edgert.control.client import RunningPipeline
    from edgert.meters import Reading
    from edgert.meters.all import Sample
    from edgert.meters.energy import Energy

_MARKS = {"yes": "[green]✓[/]", "optional": "[yellow]–[/]", "no": "[red]✗[/]"}
_LEAST_S, _EVERY_S, _EVERY_OF_BOARDS_S = 0.1, 0.5, 2.0
_ORDER = ("power", "gpu", "dla", "emc", "cpu", "temperature", "throttle", "memory")
_UNITS = {
    "W": ("{:.2f} W", 1.0),
    "Hz": ("{:.0f} MHz", 1e-6),
    "%": ("{:.0f} %", 1.0),
    "C": ("{:.1f} °C", 1.0),
    "cores": ("{:.2f} cores", 1.0),
}
_STYLES = {"measured": "", "modeled": "yellow", "unavailable": "dim"}
_CORES = 4
_READINGS = (
    terminal.Column("reading"),
    terminal.Column("value", is_number=True),
    terminal.Column("kind", rank=1),
    terminal.Column("source", wraps=True),
)


def doctor(json: option.Json = None) -> None:
    """Check what is on this machine, what is missing, and how to get it.

    Looks at Python, board, CPU, memory, GPU, TensorRT, DLA, codecs, GStreamer and cameras. Needs no network and changes
    nothing. Exit code 1 only when a part that edgert requires is broken.

    Example: edgert doctor --json - | jq '.findings[] | select(.state != "yes")'
    """
    from dataclasses import asdict

    from rich.table import Table

    from edgert.diagnosis import doctor as find, facts

    with waiting("looking at this machine"):
        findings = find()
    broken = [finding.name for finding in findings if finding.state == "no"]
    shown = Table.grid(padding=(0, 1))
    for column in ("mark", "name", "detail"):
        shown.add_column(column, no_wrap=column != "detail", overflow="fold")
    for one in findings:
        fix = terminal.marked(f"\n→ {one.fix}" if one.fix else "", "cyan")
        shown.add_row(_MARKS[one.state], terminal.marked(one.name, "bold"), terminal.marked(one.detail, "") + fix)
    screen = terminal.console(json)
    screen.print(shown)
    if broken:
        screen.print(f"\n[red]edgert cannot run here:[/] {', '.join(broken)}")
    else:
        screen.print("\n[green]edgert can run here.[/] – is not here and not required; → shows how to get it.")
    if json is not None:
        terminal.write_json({"ok": not broken, "machine": facts(), "findings": list(map(asdict, findings))}, json)
    if broken:
        raise typer.Exit(EXIT_ERROR)


def top(
    pipeline: Annotated[
        list[str] | None,
        typer.Argument(metavar="[URL]...", help="Live pages (sink: http) of boards, http://host:port."),
    ] = None,
    every: Annotated[
        float | None,
        typer.Option(
            "--every",
            metavar="SECONDS",
            min=_LEAST_S,
            help=f"Seconds from one sample to the next. Default: {_EVERY_S:g}, of boards {_EVERY_OF_BOARDS_S:g}.",
        ),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Show one sample, then exit.")] = False,
    json: option.Json = None,
    root: Annotated[Path, typer.Option("--root", hidden=True, help="Folder that stands for / of a Linux.")] = Path("/"),
) -> None:
    """Watch this machine and the pipelines that you run on it; or, by their live pages, the boards of a fleet.

    Here it shows power, clocks, load, heat and memory, and every edgert run and edgert.Pipeline of the same user. They
    are found without any setup. Needs no root. Where a value cannot be read, the reason is shown; an unknown value is
    never shown as 0. Sensors of Jetsons average over 0.4 s, so more than two samples a second repeat themselves.

    With addresses it shows a line for each board, the worst first. First come those that do not answer, with the
    reason. Then come those that are not ready, and those over a budget. If pages require a token, put that into
    EDGERT_TOKEN.

    On a terminal the arrow keys choose a line, Enter shows its stages, space holds the screen, and q or Ctrl-C ends.
    --json writes one line for every sample. Exit code 1 where --once gets no answer from an address.

    Examples:

        edgert top

        edgert top http://dock.local:8080 http://gate.local:8080

        edgert top --json - --every 1 | jq '.readings.power.value'

        edgert top --json - --once | jq '.pipelines[] | {name, fps: .stats.fps}'
    """
    from contextlib import ExitStack
    from functools import partial

    from rich.live import Live

    stopped, screen, have_answered = threading.Event(), terminal.console(), True
    looks = partial(_machine, root, every or _EVERY_S)
    if pipeline:
        from edgert.cli.fleet_view import watch

        for url in pipeline:
            if not url.startswith(("http://", "https://")):
                raise typer.BadParameter(f"{url!r} is no web address; expected http://host:port", param_hint="URL")
        looks = partial(watch, pipeline, every or _EVERY_OF_BOARDS_S)
    with ExitStack() as stack:
        stack.enter_context(stop_on_signal(stopped.set))
        write = stack.enter_context(terminal.json_lines(json))
        draw: Callable[[RenderableType], object] = screen.print
        read = None
        if terminal.is_stdout(json):
            draw = bool  # the lines of JSON are all there is
        elif screen.is_terminal and not once:
            live = stack.enter_context(Live(console=screen, auto_refresh=False, screen=True))
            draw, read = partial(live.update, refresh=True), stack.enter_context(keyboard())
        panel = Panel(draw, read, stopped, screen.width)
        for look in looks(stopped=stopped, wait=panel.wait, write=write, width=screen.width, once=once):
            have_answered = look.have_answered
            panel.show(look)
    if once and not have_answered:
        raise typer.Exit(EXIT_ERROR)


def _machine(
    root: Path,
    every_s: float,
    *,
    stopped: threading.Event,
    wait: Callable[[float], bool],
    write: Callable[[object], None],
    width: int,
    once: bool,
) -> Iterator[Look]:
    """Yield looks at this machine, one after each ``wait``; each sample is also a line of JSON."""
    from functools import partial

    from edgert.meters.all import Meters
    from edgert.meters.energy import Energy

    meters, energy, pipelines, history = Meters(root), Energy(), Pipelines(root), None if once else History()
    pipelines.look()
    stopped.wait(_LEAST_S if once else every_s)  # rates need a beginning and an end
    while not stopped.is_set():
        sample = meters.sample()
        energy.add(sample.at_ns, sample.power)
        rows = pipelines.look()
        if history is not None:
            history.add(rows)
        write({**sample.to_json(), "time": time.time(), "energy": _plain(energy), "pipelines": rows})
        yield Look(rows, partial(view, sample, energy, rows, width, history))
        if once or wait(every_s):
            return


def _plain(energy: Energy) -> dict[str, float]:
    return {name: getattr(energy, name) for name in ("joules", "covered_s", "modeled_s", "missing_s")}


# The pipelines of this user that run here.


class Pipelines:
    """A repeated look at pipelines.

    Args:
        root: where the files of a Linux are.
    """

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root
        self._before: dict[str, tuple[float, float]] = {}

    def look(self) -> list[Row]:
        """Return all that can be seen now."""
        from edgert.control.client import running_pipelines

        here: Sequence[RunningPipeline] = ()
        found: dict[str, Row] = {}
        try:
            here = running_pipelines() if self._root == Path("/") else ()
        except DeviceError as error:  # another user made the folder of their sockets
            found[""] = {"at": "this machine", "trouble": str(error)}
        found |= {one.key: _row(f"process {one.pid}" if one.pid else "in a container", one.state) for one in here}
        before, self._before = self._before, {}
        for key, row in found.items():
            if "trouble" in row:
                continue
            frames, seconds = row["stats"].get("frames_out"), row["stats"].get("seconds")
            row["fps_now"] = None  # where it was not seen before, or no time has passed
            if is_number(frames) and is_number(seconds):
                self._before[key] = (frames, seconds)
                then = before.get(key, self._before[key])
                if seconds > then[1]:
                    row["fps_now"] = (frames - then[0]) / (seconds - then[1])
        return list(found.values())


def _row(at: str, state: Mapping[str, Any] | str) -> Row:
    from edgert.control.client import STRANGE

    if isinstance(state, str):
        return {"at": at, "trouble": state}
    if not isinstance(state.get("stats"), dict):
        return {"at": at, "trouble": STRANGE}
    return {"at": at, **{key: state[key] for key in ("name", "file", "label", "stats") if key in state}}


def view(
    sample: Sample, energy: Energy, pipelines: Sequence[Row], width: int, history: History | None, chosen: str = ""
) -> RenderableType:
    """Return pipelines, then the machine, then a line with what cannot be read."""
    from rich.console import Group

    cameras = camera_table(pipelines, width)
    tables: list[RenderableType] = [pipeline_table(pipelines, width, history, chosen), ""]
    tables += [cameras, ""] if cameras else []
    readings = list(_ordered(sample))
    title = f"power mode {sample.mode}" if sample.mode else "this machine"
    if (recent := energy.recent_w(10.0)) is not None:
        modeled = f", {energy.modeled_s:.0f} s of them modeled" if energy.modeled_s else ""
        title += f", {recent:.2f} W over 10 s, {energy.joules:.0f} J in {energy.covered_s:.0f} s{modeled}"
    rows = [
        terminal.Row((name, describe(reading), reading.kind, reading.source), _STYLES[reading.kind])
        for name, reading in readings
        if reading.is_known
    ]
    tables.append(terminal.table(_READINGS, rows, width=width, title=title))
    if missing := ", ".join(name for name, reading in readings if not reading.is_known):
        tables.append(terminal.marked(f"unavailable: {missing}; --json has the reasons", "dim"))
    return Group(*tables, *(terminal.marked(note, "") for note in sample.notes))


def _ordered(sample: Sample) -> Iterator[tuple[str, Reading]]:
    """Yield readings by kind of device, of many cores the first few; then those that are not known."""

    def place(name: str) -> tuple[int, str]:
        group = name.partition(".")[0].rstrip("0123456789")
        return _ORDER.index(group) if group in _ORDER else len(_ORDER), name

    late = [name for name in sample.readings if name.startswith("cpu") and name[3:4].isdigit()][_CORES:]
    names = sorted(set(sample.readings).difference(late), key=place)
    for name in sorted(names, key=lambda name: not sample.readings[name].is_known):
        yield name, sample.readings[name]


def describe(reading: Reading) -> str:
    """Return a value for people; a dash for none."""
    if reading.value is None:
        return "–"
    if reading.unit == "B":
        return format_bytes(reading.value)
    if reading.unit in _UNITS:
        form, scale = _UNITS[reading.unit]
        return form.format(reading.value * scale)
    return f"{plain_number(reading.value)} {reading.unit}".rstrip()
