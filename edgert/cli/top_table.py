"""Readings and pipelines as tables."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from edgert.units import format_bytes

if TYPE_CHECKING:
    from rich.table import Table

    from edgert.budget.meter import Reading
    from edgert.budget.meter.energy import Energy
    from edgert.budget.meter.sample import Sample

_ORDER = ("power", "gpu", "dla", "emc", "cpu", "temperature", "throttle", "memory")
_UNITS = {"W": ("{:.2f} W", 1.0), "Hz": ("{:.0f} MHz", 1e-6), "%": ("{:.0f} %", 1.0), "C": ("{:.1f} °C", 1.0)}
_STYLES = {"measured": "", "modelled": "yellow", "unavailable": "dim"}
_CORES = 4


def machine_table(sample: Sample, energy: Energy) -> Table:
    """Every reading with where it comes from; what is not there last, in one line each."""
    from rich.markup import escape
    from rich.table import Table

    title = f"power mode {sample.mode}" if sample.mode else "this machine"
    table = Table(title=f"{title}{_energy(energy)}", title_justify="left", title_style="bold")
    for heading, justify in (("", "left"), ("value", "right"), ("", "left"), ("source", "left")):
        table.add_column(heading, justify=justify, overflow="fold")  # type: ignore[arg-type]
    for name, reading in _rows(sample):
        remark = f"{reading.source}: {reading.why}" if reading.why else reading.source
        table.add_row(name, describe(reading), reading.kind, escape(remark), style=_STYLES[reading.kind])
    return table


def pipeline_table(url: str, state: dict[str, Any] | str) -> Table:
    """How a pipeline does, from its live page; or why that is not known."""
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=escape(url), title_justify="left", title_style="bold")
    if isinstance(state, str):
        table.add_column("no answer")
        table.add_row(escape(state))
        return table
    latency = state.get("latency_ms") or {}
    cells = {
        "fps": state.get("fps"),
        "frames": state.get("frames_out"),
        "dropped": state.get("dropped"),
        "p50 ms": latency.get("p50"),
        "p99 ms": latency.get("p99"),
    }
    for heading in cells:
        table.add_column(heading, justify="right")
    table.add_row(*("?" if value is None else f"{value:.4g}" for value in cells.values()))
    return table


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
    modelled = f", {energy.modelled_s:.0f} s of them modelled" if energy.modelled_s else ""
    return f", {recent:.2f} W over 10 s, {energy.joules:.0f} J in {energy.covered_s:.0f} s{modelled}"
