"""The end of a run as tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from edgert.cli.table import Column, Row, console, table
from edgert.units import format_bytes

if TYPE_CHECKING:
    from rich.table import Table

    from edgert.budget.footprint import Footprint, Part
    from edgert.config import PipelineFile
    from edgert.runtime import Summary


# A memory plan in the terminal.

COLUMNS = (
    Column("part"),
    Column("on", rank=1),
    Column("for", rank=2),
    Column("memory", is_number=True),
    Column("", wraps=True),
)


def show_memory(plan: Footprint, *, to_stderr: bool = False) -> None:
    """Every part, what was changed to make it fit, and whether it does."""
    screen = console(stderr=to_stderr)
    screen.print(parts_table(plan.parts, screen.width))
    for step in plan.steps:
        screen.print(f"made smaller: {step}", markup=False)
    screen.print(_verdict(plan), style="green" if plan.fits else "red", markup=False)


def parts_table(parts: Sequence[Part], width: int) -> Table:
    """A row for each part, and their sum."""
    total_bytes = sum(part.size_bytes for part in parts)
    rows = [Row((part.name, part.on, part.kind, format_bytes(part.size_bytes), part.note)) for part in parts]
    rows.append(Row(("all", "", "", format_bytes(total_bytes), "predicted peak"), "bold"))
    return table(COLUMNS, rows, width=width)


def _verdict(plan: Footprint) -> str:
    word = "fits" if plan.fits else "does not fit"
    machine = f"of the machine's {format_bytes(plan.machine_bytes)}, swap and all"
    if plan.budget_bytes is None or (plan.keeps_budget and not plan.fits):
        return f"{word}: at least {format_bytes(plan.least_bytes)} {machine if plan.machine_bytes else ''}".rstrip()
    most = f"{format_bytes(plan.most_bytes)} with {plan.error:.0%} to spare for the prediction's error"
    return f"{word}: {most}, of the budget's {format_bytes(plan.budget_bytes)}"


_MOST_EVENTS = 20  # of a governor, the last ones; the JSON has more


_COLUMNS = (
    Column("stage"),
    Column("in", is_number=True, rank=1),
    Column("out", is_number=True),
    Column("dropped", is_number=True),
    Column("busy", is_number=True),
    Column("ms each", is_number=True),
    Column("starved", is_number=True, rank=2),
    Column("blocked", is_number=True, rank=2),
)


def stage_table(summary: Summary, width: int, title: str = "") -> Table:
    """Per stage: what came in, what was lost, and what its thread did with its time."""
    rows = [
        Row(
            (
                name,
                str(stage.results_in),
                str(stage.results_out),
                str(stage.dropped) if stage.dropped else "",
                f"{stage.busy_percent:.0f} %",
                f"{stage.busy_ms_per_result:.2f}",
                f"{stage.wait_in_percent:.0f} %",
                f"{stage.wait_out_percent:.0f} %",
            )
        )
        for name, stage in summary.stages.items()
    ]
    return table(_COLUMNS, rows, width=width, title=title)


def print_summary(file: PipelineFile, summary: Summary, to_stderr: bool = False) -> None:
    """Prints the whole summary, and where the files are."""
    from rich.console import Console
    from rich.markup import escape

    console = Console(stderr=to_stderr, highlight=False)
    latency = summary.latency_ms
    console.print(stage_table(summary, console.width))
    console.print(
        f"[bold]{summary.frames_out}[/] of {summary.frames_in} frames in {summary.seconds:.1f} s: "
        f"[bold]{summary.fps:.1f} fps[/], latency p50 {latency.p50:.1f} p95 {latency.p95:.1f} p99 {latency.p99:.1f} ms"
    )
    console.print(
        f"{summary.copies_per_frame:.2f} copies ({format_bytes(summary.bytes_copied_per_frame)}) per frame, "
        f"peak memory {format_bytes(summary.peak_rss_bytes)}"
    )
    for name, engine in summary.engine.items():
        console.print(f"model {escape(name)}: {_engine_line(engine)}")
    for line in dict.fromkeys(_skipped(summary)):
        console.print(line, style="yellow", markup=False)
    for line in _governed(summary):
        console.print(line, markup=False)
    for line in _troubles(summary) + _broken_promises(file, summary):
        console.print(line, style="yellow", markup=False)
    for path in _files(file):
        console.print(f"[green]→[/] {escape(path)}")


def _skipped(summary: Summary) -> list[str]:
    """Engines of the chain that do not run, and why."""
    lines = []
    for name, engine in summary.engine.items():
        for one in engine.get("skipped", ()):
            lines.append(f"{one['engine']} skipped{f' for model {name}' if one['model'] else ''}: {one['why']}")
    return lines


def _engine_line(engine: Mapping[str, Any]) -> str:
    threads = engine.get("threads")
    facts = [f"{engine['backend']} {engine.get('version', '')}".strip()]
    facts += [f"{threads} thread{'s' if threads > 1 else ''}"] if threads else []
    return ", ".join([*facts, "from the cache" if engine.get("cached") else "compiled now"])


def _troubles(summary: Summary) -> list[str]:
    lines = []
    for name, stage in summary.stages.items():
        if stage.source and stage.source.skipped:
            lines.append(f"{name}: {stage.source.skipped} corrupt pieces skipped")
        if stage.source and stage.source.reconnects:
            lines.append(f"{name}: reconnected {stage.source.reconnects} times")
    return lines


def _governed(summary: Summary) -> list[str]:
    """What was done to keep the budgets, and why."""
    governor = summary.budgets.get("governor")
    if not governor:
        return []
    events = [f"  {event['at_s']:7.1f} s  {event['kind']}: {event['reason']}" for event in governor["events"]]
    throttled = summary.budgets["throttled"]
    seconds = sum(governor["seconds"].values()) or 1.0
    shares = sorted(governor["seconds"].items(), key=lambda one: -one[1])
    shown = ", ".join(f"{name} {share / seconds:.0%} of the time" for name, share in shares)
    frames = f"; {throttled} frames throttled" if throttled else ""
    return [
        f"budgets: {shown}{frames}",
        *_used(summary),
        *_memory(summary),
        *events[-_MOST_EVENTS:],
        *(f"  note: {note}" for note in governor["notes"]),
    ]


def _used(summary: Summary) -> list[str]:
    """Power or CPU time beside its budget."""
    used = summary.budgets.get("used")
    if used is None or used["mean"] is None:
        return []
    name = "power" if used["unit"] == "W" else "CPU time"
    each = f", {used['total'] / summary.frames_out:.3g} J a frame" if name == "power" and summary.frames_out else ""
    parts = [f"{used[f'{kind}_s']:.0f} s {kind}" for kind in ("modeled", "missing") if used[f"{kind}_s"] >= 0.5]
    doubt = f" ({', '.join(parts)})" if parts else ""
    return [f"{name}: {used['mean']:.3g} of {used['limit']:g} {used['unit']} on average{each}{doubt}"]


def _memory(summary: Summary) -> list[str]:
    """The plan beside what was measured."""
    plan = summary.budgets.get("memory")
    if plan is None:
        return []
    more, planned = plan["more_bytes"], plan["total_bytes"]
    difference = f"{format_bytes(abs(more))} {'more' if more > 0 else 'less'} than the {format_bytes(planned)} planned"
    mapped = "" if plan["nvmap_bytes"] is None else f"; mapped by GPU and DLA {format_bytes(plan['nvmap_bytes'])}"
    return [f"memory: peak {format_bytes(plan['measured_bytes'])}, {difference}{mapped}", *plan["steps"]]


def _broken_promises(file: PipelineFile, summary: Summary) -> list[str]:
    """Budgets against what was measured over the whole run."""
    budgets, lines = file.config.budgets, []
    if budgets.latency is not None and summary.latency_ms.p99 > budgets.latency * 1e3:
        p99 = summary.latency_ms.p99
        lines.append(f"over budget: latency p99 {p99:.1f} ms, promised {budgets.latency * 1e3:.0f} ms")
    used = summary.budgets.get("used")
    if used is not None and (used["mean"] or 0.0) > used["limit"]:
        name = "power" if used["unit"] == "W" else "CPU time"
        lines.append(f"over budget: {name} {used['mean']:.3g} {used['unit']}, promised {used['limit']:g}")
    if budgets.memory is not None and summary.peak_rss_bytes > budgets.memory:
        lines.append(
            f"over budget: memory {format_bytes(summary.peak_rss_bytes)}, promised {format_bytes(budgets.memory)}"
        )
    return lines


def _files(file: PipelineFile) -> list[str]:
    return [str(path) for stage in file.config.stages.values() if (path := getattr(stage, "path", None)) is not None]
