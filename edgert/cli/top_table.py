"""Readings and pipelines as tables."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgert.cli import table
from edgert.cli.table import Column
from edgert.runtime.announce import MOST_BYTES, STRANGE, running_pipelines
from edgert.units import format_bytes

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

    from edgert.meters import Reading
    from edgert.meters.all import Sample
    from edgert.meters.energy import Energy


# The pipelines that ``edgert top`` shows: those of this user that run here, and live pages anywhere.

_FETCH_S = 1.0

Row = dict[str, Any]
"""A pipeline as plain data: ``at`` (``process 123``, or an address) and its state, with ``stats`` as a
live page gives them and ``fps_now``, since the look before; or its ``trouble``."""


class Pipelines:
    """Looks at pipelines again and again.

    Args:
        urls: of live pages (``sink: http``).
        root: where the files of a Linux are.
    """

    def __init__(self, urls: tuple[str, ...], root: Path = Path("/")) -> None:
        self._urls, self._root = urls, root
        self._before: dict[str, tuple[float, float]] = {}

    def look(self) -> list[Row]:
        """All that can be seen now. Waits a second for each that does not answer."""
        found = dict(self._found())
        now = {key: counts for key, row in found.items() if (counts := _counts(row)) is not None}
        for key, row in found.items():
            if "trouble" not in row:
                row["fps_now"] = _rate(self._before.get(key), now.get(key))
        self._before = now
        return list(found.values())

    def _found(self) -> Iterator[tuple[str, Row]]:
        for one in running_pipelines(self._root):
            yield one.key, _row(f"process {one.pid}" if one.pid else "in a container", one.state)
        for url in self._urls:
            yield url, _row(url, _fetched(url))


def _row(at: str, state: Mapping[str, Any] | str) -> Row:
    if isinstance(state, str):
        return {"at": at, "trouble": state}
    return {"at": at, **state} if isinstance(state.get("stats"), dict) else {"at": at, "trouble": STRANGE}


def _fetched(url: str) -> Mapping[str, Any] | str:
    """What a pipeline's live page reports of its run, or why nothing is known."""
    from urllib.error import URLError
    from urllib.parse import urlsplit
    from urllib.request import urlopen

    if urlsplit(url).scheme not in ("http", "https"):
        return "not a web address; expected http://host:port"
    try:
        with urlopen(f"{url.rstrip('/')}/stats.json", timeout=_FETCH_S) as answer:  # noqa: S310 - http only, above
            state = json.loads(answer.read(MOST_BYTES))
    except (URLError, OSError, ValueError) as error:
        return str(getattr(error, "reason", error))
    return {"stats": state.get("stats")} if isinstance(state, dict) else STRANGE


def _counts(row: Row) -> tuple[float, float] | None:
    """Frames so far, and seconds."""
    stats = row.get("stats", {})
    frames, seconds = stats.get("frames_out"), stats.get("seconds")
    return (frames, seconds) if isinstance(frames, (int, float)) and isinstance(seconds, (int, float)) else None


def _rate(before: tuple[float, float] | None, now: tuple[float, float] | None) -> float | None:
    """Frames per second between two looks; None where there was but one, or no time has passed."""
    if before is None or now is None or now[1] <= before[1]:
        return None
    return (now[0] - before[0]) / (now[1] - before[1])


_ORDER = ("power", "gpu", "dla", "emc", "cpu", "temperature", "throttle", "memory")
_UNITS = {"W": ("{:.2f} W", 1.0), "Hz": ("{:.0f} MHz", 1e-6), "%": ("{:.0f} %", 1.0), "C": ("{:.1f} °C", 1.0)}
_STYLES = {"measured": "", "modeled": "yellow", "unavailable": "dim"}
_CORES = 4
_READINGS = (Column("reading"), Column("value", is_number=True), Column("kind", rank=1), Column("source", wraps=True))
_PIPELINES = (
    Column("pipeline", wraps=True),
    Column("fps", is_number=True),
    Column("frames", is_number=True, rank=3),
    Column("dropped", is_number=True),
    Column("p50 ms", is_number=True, rank=2),
    Column("p99 ms", is_number=True),
    Column("peak memory", is_number=True, rank=1),
    Column("budgets", wraps=True),
    Column("process", rank=4),
)


def view(sample: Sample, energy: Energy, pipelines: Sequence[Row], width: int) -> Iterator[RenderableType]:
    """Pipelines, then the machine, then what cannot be read, in a line."""
    from rich.text import Text

    yield pipeline_table(pipelines, width)
    yield ""
    yield machine_table(sample, energy, width)
    if missing := ", ".join(name for name, reading in _rows(sample) if not reading.is_known):
        yield Text(f"unavailable: {missing}; --json has the reasons", style="dim")
    yield from (Text(note) for note in sample.notes)


def machine_table(sample: Sample, energy: Energy, width: int) -> Table:
    """Every reading that there is, with where it comes from."""
    rows = [
        table.Row((name, describe(reading), reading.kind, reading.source), _STYLES[reading.kind])
        for name, reading in _rows(sample)
        if reading.is_known
    ]
    title = f"power mode {sample.mode}" if sample.mode else "this machine"
    return table.table(_READINGS, rows, width=width, title=f"{title}{_energy(energy)}")


def pipeline_table(rows: Sequence[Row], width: int) -> Table | Text:
    """How each pipeline does, and whether it keeps its budgets; or why that is not known. Without any, a line."""
    from rich.text import Text

    if not rows:
        return Text("no pipelines of this user are running", style="bold")
    shown = []
    for row in rows:
        name = " ".join(filter(None, (_text(row.get("label")), _text(row.get("name")))))
        last = row.get("trouble") or ", ".join(_promises(row))
        cells = [_text(cell) for cell in (name or row["at"], *_figures(row), last, row["at"])]
        shown.append(table.Row(cells, "yellow" if "trouble" in row else ""))
    return table.table(_PIPELINES, shown, width=width, title="pipelines")


def _figures(row: Row) -> Iterator[str]:
    """What a pipeline does, in the order of the columns. It comes from another program, and may be anything."""
    if "trouble" in row:
        yield from ("",) * 6
        return
    stats, latency = row["stats"], _part(row["stats"], "latency_ms")
    now = row.get("fps_now")
    values = (stats.get("fps") if now is None else now, stats.get("frames_out"), stats.get("dropped"))
    yield from (_number(value, "{:.4g}") for value in (*values, latency.get("p50"), latency.get("p99")))
    yield _size(stats.get("peak_rss_bytes"))


def _promises(row: Row) -> Iterator[str]:
    """What the governor does, and each budget with what is taken of it."""
    stats = row["stats"]
    budgets, promised = _part(stats, "budgets"), _part(stats, "promised")
    if governor := _part(budgets, "governor"):
        yield _text(governor.get("setting"))
        yield f"{_number(budgets.get('throttled'), '{:.0f}')} throttled"
    if used := _part(budgets, "used"):
        taken, limit = _number(used.get("mean"), "{:.3g}"), _number(used.get("limit"), "{:g}")
        yield f"{taken} of {limit} {_text(used.get('unit'))}"
    if isinstance(limit_s := promised.get("latency"), (int, float)):
        yield f"p99 {_number(_part(stats, 'latency_ms').get('p99'), '{:.0f}')} of {1e3 * limit_s:g} ms"
    if "memory" in promised:
        yield f"{_size(stats.get('peak_rss_bytes'))} of {_size(promised['memory'])}"


def _part(of: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = of.get(key)
    return found if isinstance(found, dict) else {}


def _number(value: object, form: str) -> str:
    return form.format(value) if isinstance(value, (int, float)) else "?"


def _size(value: object) -> str:
    return format_bytes(value) if isinstance(value, int) else "?"


def _text(value: object) -> str:
    """Without what would steer the terminal."""
    return "".join(filter(str.isprintable, value)) if isinstance(value, str) else ""


def describe(reading: Reading) -> str:
    """A value for people; a dash for none."""
    if reading.value is None:
        return "–"
    if reading.unit == "B":
        return format_bytes(reading.value)
    form, scale = _UNITS.get(reading.unit, ("{:.4g} " + reading.unit, 1.0))
    return form.format(reading.value * scale).rstrip()


def _rows(sample: Sample) -> Iterator[tuple[str, Reading]]:
    """By kind of thing; of many cores the first few."""
    late = [name for name in sample.readings if name.startswith("cpu") and name[3:4].isdigit()][_CORES:]
    names = sorted(set(sample.readings).difference(late), key=lambda name: (_place(name), name))
    for wanted in (True, False):
        for name in names:
            if sample.readings[name].is_known == wanted:
                yield name, sample.readings[name]


def _place(name: str) -> int:
    group = name.partition(".")[0].rstrip("0123456789")
    return _ORDER.index(group) if group in _ORDER else len(_ORDER)


def _energy(energy: Energy) -> str:
    recent = energy.recent_w(10.0)
    if recent is None:
        return ""
    modeled = f", {energy.modeled_s:.0f} s of them modeled" if energy.modeled_s else ""
    return f", {recent:.2f} W over 10 s, {energy.joules:.0f} J in {energy.covered_s:.0f} s{modeled}"
