"""``edgert inspect`` of a finished bundle: a table of its compiled engines, and one of the slowest layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from edgert.cli.table import UNKNOWN, Column, Row, table
from edgert.units import format_bytes

if TYPE_CHECKING:
    from rich.console import Console

    from edgert.build.compiled import EngineReport

_SLOWEST = 5
_ENGINES = (
    Column("engine"),
    Column("TensorRT", rank=2),
    Column("size", is_number=True, rank=1),
    Column("time", is_number=True),
    Column("error", is_number=True),
    Column("nodes planned → there", wraps=True),
    Column("layers", is_number=True, rank=3),
    Column("reformats", is_number=True, rank=3),
    Column("DLA segments", is_number=True, rank=3),
    Column("memory", is_number=True, rank=1),
)
_LAYERS = (
    Column("layer", wraps=True),
    Column("on"),
    Column("time", is_number=True),
    Column("share", is_number=True),
    Column("nodes", wraps=True, rank=1),
)


def show_engines(console: Console, engines: Sequence[EngineReport]) -> None:
    """Prints the engines of each machine, and the slowest layers of those that were timed."""
    for target in dict.fromkeys(one.target for one in engines):
        here = [one for one in engines if one.target == target]
        _show_table(console, here)
        for one in here:
            _show_layers(console, one)


def _show_table(console: Console, engines: Sequence[EngineReport]) -> None:
    facts = engines[0].facts
    machine = [facts.get("module", ""), facts.get("power mode", ""), facts.get("GPU", "")]
    rows = [Row(_row(one, len(engines) > 1)) for one in engines]
    title = f"compiled on {', '.join(filter(None, machine))}"
    console.print(table(_ENGINES, rows, width=console.width, title=title))
    for one in engines:
        for attempt in one.attempts:
            console.print(f"{_name(one)} was compiled otherwise than asked for: {attempt}", markup=False)
        if one.input:
            console.print(f"{_name(one)} takes {one.input}", markup=False)


def _row(one: EngineReport, has_others: bool) -> tuple[str, ...]:
    return (
        _name(one) + (f", weight {one.weight}" if has_others else ""),
        one.library.removeprefix("TensorRT "),
        format_bytes(one.size_bytes),
        f"{one.median_ms:.2f} ms" if one.median_ms is not None else "not run",
        f"{one.relative_error:.2g}" if one.relative_error is not None else UNKNOWN,
        nodes_in_words(one),
        str(one.layers) if one.source else UNKNOWN,
        str(one.reformats) if one.source else UNKNOWN,
        str(one.segments) if one.source else UNKNOWN,
        _memory(one),
    )


def nodes_in_words(one: EngineReport) -> str:
    """``dla0 12 → 10, gpu 40 → 40, 2 folded``; what is planned only, where nobody told where nodes run."""
    told = [
        f"{name} {count.planned}" + (f" → {count.actual}" if one.source else "")
        for name, count in one.nodes.items()
        if name != "folded"
    ]
    if one.source and "folded" in one.nodes:
        told.append(f"{one.nodes['folded'].actual} folded")
    return ", ".join(told) or UNKNOWN


def _memory(one: EngineReport) -> str:
    """Weights are in the plan; one context and one set of tensors besides."""
    if one.context_bytes is None or one.tensor_bytes is None:
        return UNKNOWN
    return format_bytes(one.size_bytes + one.context_bytes + one.tensor_bytes)


def _name(one: EngineReport) -> str:
    return f"{one.model}-{one.number}"


def _show_layers(console: Console, one: EngineReport) -> None:
    if not one.layer_times:
        return
    shown = one.layer_times[:_SLOWEST]
    title = f"slowest of {len(one.layer_times)} layers of {_name(one)}, medians of {one.runs} runs"
    rows = [
        Row(
            (
                layer.name,
                layer.accelerator or UNKNOWN,
                f"{layer.median_ms:.3f} ms",
                f"{100 * layer.share:.1f} %",
                ", ".join(layer.nodes),
            )
        )
        for layer in shown
    ]
    console.print(table(_LAYERS, rows, width=console.width, title=title))
