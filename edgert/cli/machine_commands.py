"""``edgert doctor`` and ``edgert top``: what this machine has, and what it and its pipelines are doing."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edgert.cli import option, progress, terminal, top_view
from edgert.cli.top_view import History, Row, Snapshot
from edgert.errors import EXIT_ERROR, DeviceError
from edgert.units import format_bytes

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from edgert.control.client import RunningPipeline
    from edgert.meters import Reading
    from edgert.meters.all import Sample
    from edgert.meters.energy import Energy

_MARKS = {"yes": "[green]✓[/]", "optional": "[yellow]–[/]", "no": "[red]✗[/]"}
_MIN_INTERVAL_S, _MACHINE_INTERVAL_S, _FLEET_INTERVAL_S = 0.1, 0.5, 2.0
_GROUP_ORDER = ("power", "gpu", "dla", "emc", "cpu", "temperature", "throttle", "memory")
_UNIT_FORMATS = {
    "W": ("{:.2f} W", 1.0),
    "Hz": ("{:.0f} MHz", 1e-6),
    "%": ("{:.0f} %", 1.0),
    "C": ("{:.1f} °C", 1.0),
    "cores": ("{:.2f} cores", 1.0),
}
_STYLES = {"measured": "", "modeled": "yellow", "unavailable": "dim"}
_SHOWN_CORES = 4
_READING_COLUMNS = (
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

    with progress.show_waiting("looking at this machine"):
        findings = find()
    broken = [finding.name for finding in findings if finding.state == "no"]
    shown = Table.grid(padding=(0, 1))
    for column in ("mark", "name", "detail"):
        shown.add_column(column, no_wrap=column != "detail", overflow="fold")
    for one in findings:
        fix = terminal.styled(f"\n→ {one.fix}" if one.fix else "", "cyan")
        shown.add_row(_MARKS[one.state], terminal.styled(one.name, "bold"), terminal.styled(one.detail, "") + fix)
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
        option.named(
            "--every",
            "SECONDS",
            f"Seconds from sample to sample. Default: {_MACHINE_INTERVAL_S:g}, of boards {_FLEET_INTERVAL_S:g}.",
            min=_MIN_INTERVAL_S,
        ),
    ] = None,
    once: Annotated[bool, option.flag("--once", "Show one sample, then exit.")] = False,
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
    from rich.live import Live

    stopped, screen, have_answered = threading.Event(), terminal.console(), True
    every_s, looks = every or _MACHINE_INTERVAL_S, partial(_watch_machine, root)
    if pipeline:
        from edgert.cli.fleet_view import watch_boards

        for url in pipeline:
            if not url.startswith(("http://", "https://")):
                raise typer.BadParameter(f"{url!r} is not a web address; expected http://host:port", param_hint="URL")
        every_s, looks = every or _FLEET_INTERVAL_S, partial(watch_boards, pipeline)
    with ExitStack() as stack:
        stack.enter_context(progress.stop_on_signal(stopped.set))
        write = stack.enter_context(terminal.json_lines(json))
        draw: Callable[[RenderableType], object] = screen.print
        read = None
        if terminal.is_stdout(json):
            draw = bool  # draws nothing: standard output has the lines of JSON
        elif screen.is_terminal and not once:
            live = stack.enter_context(Live(console=screen, auto_refresh=False, screen=True))
            draw, read = partial(live.update, refresh=True), stack.enter_context(top_view.keyboard())
        panel = top_view.Panel(draw, read, stopped, screen)
        for look in looks(every_s, stopped, screen, once):
            have_answered = look.have_answered
            write(look.data)
            panel.show(look)
            if once or panel.wait(every_s):
                break
    if once and not have_answered:
        raise typer.Exit(EXIT_ERROR)


def _watch_machine(
    root: Path, every_s: float, stopped: threading.Event, screen: Console, once: bool
) -> Iterator[Snapshot]:
    """Yield snapshots of this machine until stopped; rates of the first one are those of ``every_s`` seconds."""
    from edgert.meters.all import Meters
    from edgert.meters.energy import Energy

    meters, energy, pipelines, history = Meters(root), Energy(), Pipelines(root), None if once else History()
    pipelines.read()
    stopped.wait(_MIN_INTERVAL_S if once else every_s)  # a rate needs two samples
    while not stopped.is_set():
        sample = meters.sample()
        energy.add(sample.at_ns, sample.power)
        rows = pipelines.read()
        if history is not None:
            history.add(rows)
        spent = {name: getattr(energy, name) for name in ("joules", "covered_s", "modeled_s", "missing_s")}
        data = {**sample.to_json(), "time": time.time(), "energy": spent, "pipelines": rows}
        yield Snapshot(rows, partial(machine_view, sample, energy, rows, screen.width, history), data)


class Pipelines:
    """This user's pipelines that run on this machine, with rates between readings; none where ``root`` is not ``/``."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root
        self._before: dict[str, tuple[float, float]] = {}

    def read(self) -> list[Row]:
        """Return a row for each pipeline; ``fps_now`` is its rate since the previous reading."""
        from edgert.control.client import NOT_EDGERT, running_pipelines

        here: Sequence[RunningPipeline] = ()
        found: dict[str, Row] = {}
        try:
            here = running_pipelines() if self._root == Path("/") else ()
        except DeviceError as error:  # the folder of their sockets belongs to another user
            found[""] = {"at": "this machine", "trouble": f"{error.what}: {error.why}"}
        for one in here:
            row: Row = {"at": f"process {one.pid}" if one.pid else "in a container"}
            if isinstance(one.state, str) or not isinstance(one.state.get("stats"), dict):
                row["trouble"] = one.state if isinstance(one.state, str) else NOT_EDGERT
            else:
                row |= {key: one.state[key] for key in ("name", "file", "label", "stats") if key in one.state}
            found[one.key] = row
        before, self._before = self._before, {}
        for key, row in found.items():
            if "trouble" in row:
                continue
            frames, seconds = row["stats"].get("frames_out"), row["stats"].get("seconds")
            row["fps_now"] = None  # at the first reading, or when no time has passed
            if top_view.is_number(frames) and top_view.is_number(seconds):
                self._before[key] = (frames, seconds)
                then = before.get(key, self._before[key])
                if seconds > then[1]:
                    row["fps_now"] = (frames - then[0]) / (seconds - then[1])
        return list(found.values())


def machine_view(
    sample: Sample, energy: Energy, pipelines: Sequence[Row], width: int, history: History | None, chosen: str = ""
) -> RenderableType:
    """Return what the screen shows: pipelines, cameras, the machine's readings, and which cannot be read."""
    from rich.console import Group

    tables: list[RenderableType] = [terminal.styled("no pipelines of this user are running", "bold")]
    if pipelines:
        tables = [top_view.row_table(pipelines, width, "pipelines, last minute", history, chosen)]
    cameras = top_view.camera_table(pipelines, width)
    tables += ["", cameras, ""] if cameras else [""]
    readings = list(_sorted_readings(sample))
    title = f"power mode {sample.mode}" if sample.mode else "this machine"
    if (recent := energy.recent_w(10.0)) is not None:
        modeled = f", {energy.modeled_s:.0f} s of them modeled" if energy.modeled_s else ""
        title += f", {recent:.2f} W over 10 s, {energy.joules:.0f} J in {energy.covered_s:.0f} s{modeled}"
    rows = [
        terminal.Row((name, format_reading(reading), reading.kind, reading.source), _STYLES[reading.kind])
        for name, reading in readings
        if reading.is_known
    ]
    tables.append(terminal.table(_READING_COLUMNS, rows, width=width, title=title))
    if missing := ", ".join(name for name, reading in readings if not reading.is_known):
        tables.append(terminal.styled(f"unavailable: {missing}; --json has the reasons", "dim"))
    return Group(*tables, *(terminal.styled(note, "") for note in sample.notes))


def _sorted_readings(sample: Sample) -> Iterator[tuple[str, Reading]]:
    """Yield names and readings by kind of device, of CPU cores only the first few; unknown readings come last."""

    def place(name: str) -> tuple[int, str]:
        group = name.partition(".")[0].rstrip("0123456789")
        return _GROUP_ORDER.index(group) if group in _GROUP_ORDER else len(_GROUP_ORDER), name

    late = [name for name in sample.readings if name.startswith("cpu") and name[3:4].isdigit()][_SHOWN_CORES:]
    names = sorted(set(sample.readings).difference(late), key=place)
    for name in sorted(names, key=lambda name: not sample.readings[name].is_known):
        yield name, sample.readings[name]


def format_reading(reading: Reading) -> str:
    """Return a reading's value and unit for people; a dash for an unknown value."""
    if reading.value is None:
        return "–"
    if reading.unit == "B":
        return format_bytes(reading.value)
    if reading.unit in _UNIT_FORMATS:
        form, scale = _UNIT_FORMATS[reading.unit]
        return form.format(reading.value * scale)
    return f"{top_view.plain_number(reading.value)} {reading.unit}".rstrip()
