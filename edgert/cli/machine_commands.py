"""``edgert doctor`` and ``edgert top``: what this machine has, and what it and its pipelines are doing."""

from __future__ import annotations

import json as json_text
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeGuard

import typer

from edgert.cli import option, terminal
from edgert.cli.progress import stop_on_signal, waiting
from edgert.errors import EXIT_ERROR
from edgert.units import format_bytes, format_ms

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

    from edgert.meters import Reading
    from edgert.meters.all import Sample
    from edgert.meters.energy import Energy

_MARKS = {"yes": "[green]✓[/]", "optional": "[yellow]–[/]", "no": "[red]✗[/]"}
_LEAST_S = 0.1
_FETCH_S = 1.0
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
_FOUR_DIGITS, _LEAST = 1e4, 1e-4
_READINGS = (
    terminal.Column("reading"),
    terminal.Column("value", is_number=True),
    terminal.Column("kind", rank=1),
    terminal.Column("source", wraps=True),
)
_CAMERAS = (
    terminal.Column("camera", wraps=True),
    terminal.Column("fps", is_number=True),
    terminal.Column("dropped", is_number=True),
    terminal.Column("p50", is_number=True, rank=2),
    terminal.Column("p99", is_number=True),
    terminal.Column("state", wraps=True),
)
_PIPELINES = (
    terminal.Column("pipeline", wraps=True),
    terminal.Column("fps", is_number=True),
    terminal.Column("frames", is_number=True, rank=3),
    terminal.Column("dropped", is_number=True),
    terminal.Column("p50", is_number=True, rank=2),
    terminal.Column("p99", is_number=True),
    terminal.Column("peak memory", is_number=True, rank=1),
    terminal.Column("budgets", wraps=True),
    terminal.Column("process"),
)

Row = dict[str, Any]
"""A pipeline as plain data: ``at`` (``process 123``, or an address) and its state, with ``stats`` as a
live page gives them and ``fps_now``, since the look before; or its ``trouble``."""


def doctor(json: option.Json = None) -> None:
    """Check what is on this machine, what is missing, and how to get it.

    Looks at Python, board, CPU, memory, GPU, TensorRT, DLA, codecs, GStreamer and cameras. Needs no network and changes
    nothing. Exit code 1 only when a part that edgert requires is broken.

    Example: edgert doctor --json - | jq '.findings[] | select(.state != "yes")'
    """
    from dataclasses import asdict

    from rich.table import Table

    from edgert.diagnosis import doctor as find
    from edgert.diagnosis import facts

    with waiting("looking at this machine"):
        findings = find()
    broken = [finding.name for finding in findings if finding.state == "no"]
    shown = Table.grid(padding=(0, 1))
    for column in ("mark", "name", "detail"):
        shown.add_column(column, no_wrap=column != "detail", overflow="fold")
    for one in findings:
        fix = terminal.marked(f"\n→ {one.fix}" if one.fix else "", "cyan")
        shown.add_row(_MARKS[one.state], terminal.marked(one.name, "bold"), terminal.marked(one.detail, "") + fix)
    screen = terminal.console(json, tables=False)
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
) -> None:
    """Watch this machine: power, clocks, load, heat and memory, and the pipelines that you run on it.

    Every edgert run and edgert.Pipeline of the same user is found without any setup. Pipelines of other machines are
    found by the address of their live page. If a page requires its token, put that into EDGERT_TOKEN.

    Needs no root. Where a value cannot be read, the reason is shown; an unknown value is never shown as 0. Sensors of
    Jetsons average over 0.4 s, so more than two samples a second repeat themselves. Ends with Ctrl-C.

    --json writes one line for every sample. Exit code 1 where --once gets no answer from an address.

    Examples:

        edgert top

        edgert top http://dock.local:8080

        edgert top --json - --every 1 | jq '.readings.power.value'

        edgert top --json - --once | jq '.pipelines[] | {name, fps: .stats.fps}'
    """
    from rich.console import Group
    from rich.live import Live

    from edgert.meters.all import Meters
    from edgert.meters.energy import Energy

    urls, silent = tuple(pipeline or ()), list[Row]()
    for url in urls:
        if not url.startswith(("http://", "https://")):
            raise typer.BadParameter(f"{url!r} is no web address; expected http://host:port", param_hint="URL")
    meters, energy, pipelines = Meters(root), Energy(), Pipelines(urls, root)
    stopped, screen = threading.Event(), terminal.console()

    def looks() -> Iterator[RenderableType]:
        """Yield the view repeatedly; each sample is also a line of JSON."""
        pipelines.look()
        stopped.wait(_LEAST_S if once else every)  # rates need a beginning and an end
        while not stopped.is_set():
            sample = meters.sample()
            energy.add(sample.at_ns, sample.power)
            rows = pipelines.look()
            write({**sample.to_json(), "time": time.time(), "energy": _plain(energy), "pipelines": rows})
            yield Group(*view(sample, energy, rows, screen.width))
            silent[:] = [row for row in rows if row["at"] in urls and "trouble" in row]
            if once or stopped.wait(every):
                return

    with stop_on_signal(stopped.set), terminal.json_lines(json) as write:
        if terminal.is_stdout(json):
            for _ in looks():
                pass
        elif once or not screen.is_terminal:
            for shown in looks():
                screen.print(shown)
        else:
            with Live(console=screen, auto_refresh=False, screen=True) as live:
                for shown in looks():
                    live.update(shown, refresh=True)
    if once and silent:
        raise typer.Exit(1)


def _plain(energy: Energy) -> dict[str, float]:
    return {name: getattr(energy, name) for name in ("joules", "covered_s", "modeled_s", "missing_s")}


# The pipelines that ``edgert top`` shows: those of this user that run here, and live pages anywhere.


class Pipelines:
    """A repeated look at pipelines.

    Args:
        urls: of live pages (``sink: http``).
        root: where the files of a Linux are.
    """

    def __init__(self, urls: tuple[str, ...], root: Path = Path("/")) -> None:
        self._urls, self._root = urls, root
        self._before: dict[str, tuple[float, float]] = {}

    def look(self) -> list[Row]:
        """Return all that can be seen now; waits a second for each page that does not answer."""
        from edgert.runtime.announce import running_pipelines

        found = {
            one.key: _row(f"process {one.pid}" if one.pid else "in a container", one.state)
            for one in running_pipelines(self._root)
        }
        found |= {url: _row(url, _fetched(url)) for url in self._urls}
        before, self._before = self._before, {}
        for key, row in found.items():
            if "trouble" in row:
                continue
            frames, seconds = row["stats"].get("frames_out"), row["stats"].get("seconds")
            row["fps_now"] = None  # where it was not seen before, or no time has passed
            if _is_number(frames) and _is_number(seconds):
                self._before[key] = (frames, seconds)
                then = before.get(key, self._before[key])
                if seconds > then[1]:
                    row["fps_now"] = (frames - then[0]) / (seconds - then[1])
        return list(found.values())


def _row(at: str, state: Mapping[str, Any] | str) -> Row:
    from edgert.runtime.announce import STRANGE

    if isinstance(state, str):
        return {"at": at, "trouble": state}
    return {"at": at, **state} if isinstance(state.get("stats"), dict) else {"at": at, "trouble": STRANGE}


def _fetched(url: str) -> Mapping[str, Any] | str:
    """Return a pipeline's report of its run from its live page, or why there is none."""
    from urllib.error import URLError
    from urllib.request import Request, urlopen

    from edgert.runtime.announce import MOST_BYTES, STRANGE

    token = os.environ.get("EDGERT_TOKEN", "")
    try:
        requested = Request(f"{url.rstrip('/')}/stats.json")  # noqa: S310 - http only, above
        if token:
            requested.add_unredirected_header("Authorization", f"Bearer {token}")
        with urlopen(requested, timeout=_FETCH_S) as answer:  # noqa: S310 - as above
            state = json_text.loads(answer.read(MOST_BYTES))
    except (URLError, OSError, ValueError, RecursionError) as error:
        return str(getattr(error, "reason", error))
    return {"stats": state.get("stats")} if isinstance(state, dict) else STRANGE


def view(sample: Sample, energy: Energy, pipelines: Sequence[Row], width: int) -> Iterator[RenderableType]:
    """Yield pipelines, then the machine, then a line with what cannot be read."""
    yield pipeline_table(pipelines, width)
    yield ""
    if cameras := list(_cameras(pipelines)):
        yield terminal.table(_CAMERAS, cameras, width=width, title="cameras, last minute")
        yield ""
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
    yield terminal.table(_READINGS, rows, width=width, title=title)
    if missing := ", ".join(name for name, reading in readings if not reading.is_known):
        yield terminal.marked(f"unavailable: {missing}; --json has the reasons", "dim")
    yield from (terminal.marked(note, "") for note in sample.notes)


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
    return f"{_plain_number(reading.value)} {reading.unit}".rstrip()


def _plain_number(value: float) -> str:
    """Return four digits, and of large numbers all of them: never an exponent."""
    return f"{value:,.0f}" if abs(value) >= _FOUR_DIGITS else f"{value:.4g}" if abs(value) >= _LEAST else "0"


def pipeline_table(rows: Sequence[Row], width: int) -> Table | Text:
    """Return a table of each pipeline's rates and budgets, or why they are not known; a line without pipelines."""
    if not rows:
        return terminal.marked("no pipelines of this user are running", "bold")
    shown = []
    for row in rows:
        name = " ".join(filter(None, (_text(row.get("label")), _text(row.get("name")))))
        last = row.get("trouble") or ", ".join(_promises(row))
        cells = [_text(cell) for cell in (name or row["at"], *_figures(row), last, row["at"])]
        shown.append(terminal.Row(cells, "yellow" if "trouble" in row else ""))
    return terminal.table(_PIPELINES, shown, width=width, title="pipelines, last minute")


def _cameras(pipelines: Sequence[Row]) -> Iterator[terminal.Row]:
    """Yield a row for each source that can go down and come back."""
    for row in pipelines:
        stats = _part(row, "stats")
        for name, stage in _part(stats, "stages").items():
            source = _part(stage, "source") if isinstance(stage, dict) else {}
            if not isinstance(up := source.get("up"), bool):
                continue
            streams = _part(_part(stats, "recent"), "streams")
            share = _part(streams, name) or ({"fps": 0} if streams else {})
            reason = _text(source.get("reason"))
            state = (
                f"{'up' if up else 'down'} for {_number(source.get('state_s'), '{:.0f}')} s{reason and f': {reason}'}"
            )
            cells = (f"{_text(row.get('name'))} {_text(name)}".strip(), *_shares(share), state)
            yield terminal.Row(cells, "" if up else "yellow")


def _shares(share: Mapping[str, Any]) -> Iterator[str]:
    """Yield frames a second, dropped results, and latencies of the last minute."""
    latency, dropped = _part(share, "latency_ms"), _part(share, "dropped").values()
    yield _number(share.get("fps"), _plain_number)
    yield _number(sum(filter(_is_number, dropped)), "{:.0f}") if share else "?"
    yield from (_number(latency.get(place), format_ms) for place in ("p50", "p99"))


def _figures(row: Row) -> Iterator[str]:
    """Yield a pipeline's figures, in the order of the columns; another program wrote them, so they may be anything."""
    if "trouble" in row:
        yield from ("",) * 6
        return
    stats, now = row["stats"], row.get("fps_now")
    yield _number(stats.get("fps") if now is None else now, _plain_number)
    yield _number(stats.get("frames_out"), _plain_number)
    _, *last_minute = _shares(_part(stats, "recent"))
    yield from last_minute
    yield _size(stats.get("peak_rss_bytes"))


def _promises(row: Row) -> Iterator[str]:
    """Yield what the governor does, and each budget with the part of it that is used."""
    stats = row["stats"]
    budgets, promised = _part(stats, "budgets"), _part(stats, "promised")
    if governor := _part(budgets, "governor"):
        yield _text(governor.get("setting"))
        yield f"{_number(budgets.get('throttled'), '{:.0f}')} throttled"
    if used := _part(budgets, "used"):
        taken, limit = _number(used.get("mean"), "{:.3g}"), _number(used.get("limit"), "{:g}")
        yield f"{taken} of {limit} {_text(used.get('unit'))}"
    if _is_number(limit_s := promised.get("latency")):
        latency = _part(_part(stats, "recent"), "latency_ms")
        yield f"p99 {_number(latency.get('p99'), format_ms)} of {format_ms(1e3 * float(limit_s))}"
    if "memory" in promised:
        yield f"{_size(stats.get('peak_rss_bytes'))} of {_size(promised['memory'])}"


def _part(of: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = of.get(key)
    return found if isinstance(found, dict) else {}


_MOST = 2**63
"""Largest number that is taken from another program: Python's integers have no limit, and its floats have one."""


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and -_MOST <= value <= _MOST


def _number(value: object, form: str | Callable[[float], str]) -> str:
    if not _is_number(value):
        return "?"
    return form.format(value) if isinstance(form, str) else form(value)


def _size(value: object) -> str:
    return format_bytes(value) if isinstance(value, int) and _is_number(value) else "?"


def _text(value: object) -> str:
    """Return the text without control characters, which would steer the terminal."""
    return "".join(filter(str.isprintable, value)) if isinstance(value, str) else ""
