"""``edgert inspect``: an ONNX model or a bundle, as tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edgert.cli import option
from edgert.cli.bundle_tables import show_bundle
from edgert.cli.dla_tables import show_dla
from edgert.cli.output import is_stdout, write_json
from edgert.cli.table import Column, Row, console, facts, marked, table
from edgert.units import format_bytes

if TYPE_CHECKING:
    from rich.console import Console

    from edgert.graph import ModelSummary, NodeCost
    from edgert.inspect_model import DlaInspection, Inspection
    from edgert.stages.decode.guess import Guess


def inspect(
    model: Annotated[Path, typer.Argument(metavar="MODEL.onnx", help="ONNX file, or bundle of edgert build.")],
    shapes: option.Shape = None,
    ops: Annotated[
        bool, typer.Option("--ops", help="Show a table of the operators with their share of the work.")
    ] = False,
    dla: Annotated[
        bool,
        typer.Option("--dla", help="Check node by node what a board's DLA can run, why not, and what helps."),
    ] = False,
    board: Annotated[str | None, option.board("For --dla; this machine when left out.")] = None,
    trt: Annotated[str | None, option.trt("For --dla; 10.3 for Orin and 8.5 for Xavier when left out.")] = None,
    precision: Annotated[str | None, option.precision("For --dla; int8 when left out.")] = None,
    every: option.All = False,
    report: option.Report = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Rewrite the model as a build would, and show what that changes (--dla).")
    ] = False,
    rewritten: Annotated[
        Path | None, typer.Option("--rewritten", metavar="FILE", help="Write the rewritten model to this file (--dla).")
    ] = None,
    skipped: Annotated[
        list[str] | None,
        typer.Option(
            "--skip-rewrite", metavar="NAME", help="Leave a rewrite out, by its name or a glob (--dla). Repeatable."
        ),
    ] = None,
    json: option.Json = None,
    debug: option.Debug = False,
) -> None:
    """Show what an ONNX model takes, returns and costs; with --dla, what a DLA can run of it.

    And which task its outputs look like. Of a bundle: what it holds, after every digest in it was checked, and of the
    engines that boards compiled: time, memory, slowest layers, and where nodes run against where they were to run.

    An input that is given a second --shape begins another profile, which is counted by itself.

    Examples:

        edgert inspect yolox_nano.onnx --ops

        edgert inspect detector.onnx --shape images=1x3x320x320 --shape images=1x3x640x640

        edgert inspect yolox_nano.onnx --dla --board orin-nx-16gb --report dla.html

        edgert inspect yolox_nano.onnx --dla --board orin-nx-16gb --explain --rewritten for_dla.onnx
    """
    from edgert.bundle.bundle import is_bundle
    from edgert.inspect_model import inspect as inspect_model

    screen = console(stderr=is_stdout(json))
    for_dla = {"--board": board, "--trt": trt, "--precision": precision, "--report": report, "--explain": explain,
               "--rewritten": rewritten, "--skip-rewrite": skipped, "--all": every}  # fmt: skip
    if not dla:
        option.refuse(for_dla, "it goes together with --dla")
    if is_bundle(model):
        option.refuse({"--shape": shapes, "--ops": ops, "--dla": dla}, f"it is for ONNX files, and {model} is a bundle")
        _inspect_bundle(screen, model, json)
        return
    found = inspect_model(
        model,
        profiles=_profiles(shapes or []),
        dla=dla,
        board=board,
        tensorrt=trt,
        precision=precision or "int8",
        rewrite=explain or bool(rewritten or skipped),
        skip_rewrites=skipped or (),
    )
    show_model(screen, found, ops)
    if found.dla is not None:
        show_dla(screen, found.dla, every)
        _write(screen, found.dla, model.name, report, rewritten)
    if json is not None:
        write_json(found.to_json(), json)


def _inspect_bundle(screen: Console, path: Path, json: Path | None) -> None:
    from edgert.inspect_model import inspect_bundle

    found = inspect_bundle(path)
    show_bundle(screen, found)
    if json is not None:
        write_json(found.to_json(), json)


def _write(screen: Console, found: DlaInspection, model: str, report: Path | None, rewritten: Path | None) -> None:
    """Writes the page and the rewritten model where they are wanted."""
    if report is not None:
        from edgert.report.dla_page import save_survey

        save_survey(found.survey, model, found.board.title, report)
        screen.print(f"report written to {report}", markup=False)
    if rewritten is not None and found.rewritten is not None:
        found.rewritten.save(rewritten)
        screen.print(f"rewritten model written to {rewritten}", markup=False)


def _profiles(texts: list[str]) -> list[dict[str, tuple[int, ...]]]:
    """``["x=1x3", "x=2x3"]`` → one profile for each round of inputs."""
    profiles: list[dict[str, tuple[int, ...]]] = []
    for text in texts:
        name, shape = option.shape_of(text)
        free = next((profile for profile in profiles if name not in profile), None)
        if free is None:
            free = {}
            profiles.append(free)
        free[name] = shape
    return profiles


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
