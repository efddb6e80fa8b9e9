"""A model's summary as tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from edgert.cli.table import Column, Row, facts, marked, table
from edgert.units import format_bytes

if TYPE_CHECKING:
    from rich.console import Console

    from edgert.graph import ModelSummary, NodeCost
    from edgert.inspection import Inspection
    from edgert.stages.decode.guess import Guess

_SHOWN_OPS = 12
_SHOWN_GUESSES = 3
_OPS = (
    Column("operator"),
    Column("nodes", is_number=True),
    Column("MACs", is_number=True),
    Column("share", is_number=True),
    Column("weights", is_number=True, rank=1),
    Column("activations", is_number=True, rank=1),
)


def show_model(console: Console, found: Inspection, ops: bool) -> None:
    """Prints what a model takes, returns, costs and looks like, and what it costs at every profile.

    Args:
        ops: whether a table of operators is shown, too.
    """
    notes = (("note", marked(warning, "yellow")) for warning in found.summary.warnings)
    console.print(facts((*_rows(found.summary, found.profiles, found.guesses), *notes)))
    if ops:
        show_ops(console, found.profiles or [({}, found.summary)])


def show_ops(console: Console, counted: Iterable[tuple[Mapping[str, Sequence[int]], ModelSummary]]) -> None:
    """Prints a table of operators per profile, those with the most work first; counts only where shapes are open."""
    for shapes, summary in counted:
        rows = map(Row, _op_rows(summary))
        console.print(table(_OPS, rows, width=console.width, title=_sizes(shapes)))


def _rows(
    summary: ModelSummary,
    counted: Iterable[tuple[Mapping[str, Sequence[int]], ModelSummary]],
    guesses: Sequence[Guess],
) -> Iterable[tuple[str, str]]:
    made = f", by {summary.producer}" if summary.producer else ""
    yield "model", f"{summary.path}, {format_bytes(summary.size_bytes)}, opset {summary.opset}{made}"
    for label, specs in (("input", summary.inputs), ("output", summary.outputs)):
        yield from ((label, str(spec)) for spec in specs)
    yield "nodes", f"{summary.nodes}: {_histogram(summary.ops)}"
    yield "weights", f"{_count(summary.params)} parameters, {format_bytes(summary.weight_bytes)}"
    profiles = list(counted)
    if not profiles:
        yield "work", _work(summary)
    for shapes, one in profiles:
        yield "work", f"at {_sizes(shapes)}: {_work(one)}"
    for rank, reading in enumerate(guesses[:_SHOWN_GUESSES]):
        yield ("or" if rank else "looks like"), f"{reading} — {reading.reason}"
    if not guesses:
        yield "looks like", "nothing edgert knows; task: {python: module:function} reads any output"


def _sizes(shapes: Mapping[str, Sequence[int]]) -> str:
    return ", ".join(f"{name} {'x'.join(map(str, shape))}" for name, shape in shapes.items())


def _work(summary: ModelSummary) -> str:
    if summary.macs is None:
        return f"not counted: {summary.uncounted}"
    moved = format_bytes(summary.activation_bytes or 0)
    return f"{_count(summary.macs)} MACs, {moved} of activations read and written"


def _histogram(ops: Mapping[str, int]) -> str:
    shown = [f"{name} {count}" for name, count in list(ops.items())[:_SHOWN_OPS]]
    return ", ".join(shown) + (f", {len(ops) - _SHOWN_OPS} other kinds" if len(ops) > _SHOWN_OPS else "")


def _op_rows(summary: ModelSummary) -> Iterable[tuple[str, ...]]:
    if not summary.costs:
        for name, count in summary.ops.items():
            yield name, str(count), "?", "", "", ""
        return
    macs = _sums(summary.costs, "macs")
    weights, moved = _sums(summary.costs, "weight_bytes"), _sums(summary.costs, "activation_bytes")
    total = max(1, sum(macs.values()))
    for name in sorted(summary.ops, key=lambda op: (-macs[op], -moved[op])):
        share = f"{100 * macs[name] / total:.1f} %" if macs[name] else ""
        work = _count(macs[name]) if macs[name] else ""
        yield name, str(summary.ops[name]), work, share, format_bytes(weights[name]), format_bytes(moved[name])


def _sums(costs: Iterable[NodeCost], what: str) -> Counter[str]:
    sums: Counter[str] = Counter()
    for cost in costs:
        sums[cost.op] += getattr(cost, what)
    return sums


def _count(number: int) -> str:
    """1234567 → ``"1.23 M"``."""
    for size, unit in ((10**9, " G"), (10**6, " M"), (10**3, " k")):
        if number >= size:
            return f"{number / size:.2f}{unit}"
    return str(number)
