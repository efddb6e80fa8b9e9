"""``edgert inspect``: an ONNX model, what a DLA can run of it, or a bundle, as tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edgert.cli import option, progress
from edgert.cli.terminal import Column, Row, console, facts, styled, table, write_json, write_report
from edgert.units import format_bytes

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from edgert.graph import ModelSummary
    from edgert.inspect_model import Inspection, Rewritten
    from edgert.placement.dla_share import Survey

_SHOWN_OPS = 12
_SHOWN_GUESSES = 3
_OP_COLUMNS = (
    Column("operator"),
    Column("nodes", is_number=True),
    Column("MACs", is_number=True),
    Column("share", is_number=True),
    Column("weights", is_number=True, rank=1),
    Column("activations", is_number=True, rank=1),
)
_VERDICT_COLORS = {"yes": "green", "no": "red", "verify": "yellow", "folded": "dim"}
_UNSURE_VERDICTS = ("no", "verify")  # verdicts that need attention
_NODE_COLUMNS = (
    Column("node", wraps=True),
    Column("op"),
    Column("verdict"),
    Column("segment", is_number=True, rank=2),
    Column("rule", rank=1),
    Column("reason → fix", wraps=True),
)


Ops = Annotated[bool, option.flag("--ops", "Show a table of the operators with their share of the work.")]
ForDla = Annotated[
    bool, option.flag("--dla", "Check node by node what a board's DLA can run, why not, and what helps.")
]
Explain = Annotated[
    bool, option.flag("--explain", "Rewrite the model as a build would, and show what that changes (--dla).")
]
RewrittenFile = Annotated[
    Path | None, option.named("--rewritten", "FILE", "Write the rewritten model to this file (--dla).")
]
SkipRewrite = Annotated[
    list[str] | None,
    option.named("--skip-rewrite", "NAME", "Leave a rewrite out, by its name or a glob (--dla). Repeatable."),
]


def inspect(
    model: Annotated[Path, typer.Argument(metavar="MODEL.onnx", help="ONNX file, or bundle of edgert build.")],
    shapes: option.Shape = None,
    ops: Ops = False,
    dla: ForDla = False,
    board: Annotated[str | None, option.board("For --dla. Default: this machine.")] = None,
    trt: Annotated[str | None, option.trt("For --dla. Default: 10.3 for Orin, 8.5 for Xavier.")] = None,
    precision: Annotated[str | None, option.precision("For --dla. Default: int8.")] = None,
    every: option.All = False,
    report: option.Report = None,
    explain: Explain = False,
    rewritten: RewrittenFile = None,
    skipped: SkipRewrite = None,
    signers: option.Signers = None,
    json: option.Json = None,
) -> None:
    """Show what an ONNX model takes, returns and costs; with --dla, what a DLA can run of it.

    It also shows which task its outputs look like. An input that is given a second --shape begins another profile,
    which is counted by itself.

    For a bundle it checks every digest and the signature, then shows the contents. Engines that boards compiled are
    shown with time, memory and slowest layers, and where nodes run compared with the plan.

    Examples:
        edgert inspect yolox_nano.onnx --ops
        edgert inspect detector.onnx --shape images=1x3x320x320 --shape images=1x3x640x640
        edgert inspect yolox_nano.onnx --dla --board orin-nx-16gb --all --report dla.html
        edgert inspect yolox_nano.onnx --dla --board orin-nx-16gb --explain --rewritten for_dla.onnx
        edgert inspect dock.edgert --signers allowed_signers
    """
    from edgert.bundle.bundle import is_bundle
    from edgert.inspect_model import inspect as inspect_model

    screen = console(json)
    for_dla = {"--board": board, "--trt": trt, "--precision": precision, "--report": report, "--explain": explain,
               "--rewritten": rewritten, "--skip-rewrite": skipped, "--all": every}  # fmt: skip
    if not dla:
        option.refuse(for_dla, "it goes together with --dla")
    if is_bundle(model):
        option.refuse({"--shape": shapes, "--ops": ops, "--dla": dla}, f"it is for ONNX files, and {model} is a bundle")
        _inspect_bundle(screen, model, signers, json)
        return
    option.refuse({"--signers": signers}, f"it is for bundles, and {model} is none")
    with progress.show_waiting(f"checking {model.name} node by node" if dla else f"reading {model.name}"):
        found = inspect_model(
            model,
            profiles=_parse_profiles(shapes or []),
            dla=dla,
            board=board,
            tensorrt=trt,
            precision=precision or "int8",
            rewrite=explain or bool(rewritten or skipped),
            skip_rewrites=skipped or (),
        )
    show_model(screen, found, ops)
    if found.dla is not None:
        from edgert.report.dla_page import render

        survey, board_title, made = found.dla.survey, found.dla.board.title, found.dla.rewritten
        _show_survey(screen, survey, board_title)
        _show_nodes(screen, survey, every)
        if made is not None:
            _show_rewritten(screen, made)
        write_report(screen, lambda: render(survey, model.name, board_title), report)
        if rewritten is not None and made is not None:
            made.save(rewritten)
            screen.print(f"rewritten model written to {rewritten}", markup=False)
    write_json(found.to_json(), json)


def _inspect_bundle(screen: Console, path: Path, signers: Path | None, json: Path | None) -> None:
    from edgert.bundle.signature import signers_here
    from edgert.cli.bundle_tables import show_bundle
    from edgert.inspect_model import inspect_bundle

    with progress.show_waiting(f"checking {path.name}"):
        bundle = inspect_bundle(path, signers_here(signers))
    show_bundle(screen, bundle)
    write_json(bundle.to_json(), json)


def _parse_profiles(texts: list[str]) -> list[dict[str, tuple[int, ...]]]:
    """Return ``["x=1x3", "x=2x3"]`` as profiles; an input that is given again begins another one."""
    profiles: list[dict[str, tuple[int, ...]]] = []
    for name, shape in map(option.parse_shape, texts):
        if all(name in profile for profile in profiles):
            profiles.append({})
        next(profile for profile in profiles if name not in profile)[name] = shape
    return profiles


def show_model(console: Console, found: Inspection, ops: bool) -> None:
    """Print a model's inputs, outputs, likely task, and cost at every profile; with ``ops``, tables of operators."""
    notes = (("note", styled(warning, "yellow")) for warning in found.summary.warnings)
    console.print(facts((*_model_facts(found), *notes)))
    for shapes, summary in (found.profiles or [({}, found.summary)]) if ops else ():
        rows = map(Row, _op_rows(summary))
        console.print(table(_OP_COLUMNS, rows, width=console.width, title=_shapes_text(shapes)))


def _model_facts(found: Inspection) -> Iterator[tuple[str, str]]:
    summary = found.summary
    made = f", by {summary.producer}" if summary.producer else ""
    yield "model", f"{summary.path}, {format_bytes(summary.size_bytes)}, opset {summary.opset}{made}"
    for label, specs in (("input", summary.inputs), ("output", summary.outputs)):
        yield from ((label, str(spec)) for spec in specs)
    ops = [f"{name} {count}" for name, count in summary.ops.items()]
    more = [f"{len(ops) - _SHOWN_OPS} other kinds"] if len(ops) > _SHOWN_OPS else []
    yield "nodes", f"{summary.nodes}: {', '.join([*ops[:_SHOWN_OPS], *more])}"
    yield "weights", f"{_short_number(summary.params)} parameters, {format_bytes(summary.weight_bytes)}"
    if not found.profiles:
        yield "work", _work_text(summary)
    for shapes, one in found.profiles:
        yield "work", f"at {_shapes_text(shapes)}: {_work_text(one)}"
    for rank, reading in enumerate(found.guesses[:_SHOWN_GUESSES]):
        yield ("or" if rank else "looks like"), f"{reading} — {reading.reason}"
    if not found.guesses:
        yield "looks like", "nothing edgert knows; task: {python: module:function} reads any output"


def _shapes_text(shapes: Mapping[str, Sequence[int]]) -> str:
    return ", ".join(f"{name} {'x'.join(map(str, shape))}" for name, shape in shapes.items())


def _work_text(summary: ModelSummary) -> str:
    if summary.macs is None:
        return f"not counted: {summary.uncounted}"
    moved = format_bytes(summary.activation_bytes or 0)
    return f"{_short_number(summary.macs)} MACs, {moved} of activations read and written"


def _op_rows(summary: ModelSummary) -> Iterator[tuple[str, ...]]:
    """Yield the cells of each operator; only its count where shapes are dynamic."""
    if not summary.costs:
        for name, count in summary.ops.items():
            yield name, str(count), "?", "", "", ""
        return
    macs, weights, moved = Counter[str](), Counter[str](), Counter[str]()
    for cost in summary.costs:
        macs[cost.op] += cost.macs
        weights[cost.op] += cost.weight_bytes
        moved[cost.op] += cost.activation_bytes
    total = max(1, sum(macs.values()))
    for name in sorted(summary.ops, key=lambda op: (-macs[op], -moved[op])):
        share = f"{100 * macs[name] / total:.1f} %" if macs[name] else ""
        work = _short_number(macs[name]) if macs[name] else ""
        yield name, str(summary.ops[name]), work, share, format_bytes(weights[name]), format_bytes(moved[name])


def _short_number(number: int) -> str:
    """Return 1234567 as ``"1.23 M"``."""
    for size, unit in ((10**9, " G"), (10**6, " M"), (10**3, " k")):
        if number >= size:
            return f"{number / size:.2f}{unit}"
    return str(number)


# What a DLA can run, and what a rewrite brings onto it.


def _show_survey(console: Console, survey: Survey, board: str) -> None:
    """Print how much of a model a DLA runs, in how many segments, and what prevents the rest."""
    from edgert.report.dla_page import cautions, headline

    found, target = survey.summary, survey.target
    rows: list[tuple[str, str | Text]] = [
        ("DLA", headline(survey, board).replace("\N{NO-BREAK SPACE}", " ")),
        ("against", f"TensorRT {target.tensorrt}, {target.precision.upper()}"),
        ("nodes", f"{found.yes} yes, {found.verify} verify, {found.no} no; {found.folded} more fold away"),
    ]
    if found.macs:
        work = f"{100 * found.macs_yes:.1f} % yes, {100 * found.macs_verify:.1f} % verify"
        rows.append(("work", f"{work}, of {found.macs / 1e6:.1f} M MACs"))
    hoped = f"; {found.segments_hoped} if all that is to verify runs" if found.verify else ""
    rows.append(("loadables", f"{found.segments}{hoped}; a core holds 16, over all engines"))
    rows += [("note", styled(text, "yellow")) for text in cautions(survey)]
    for word, style, reasons in (("refused", "red", found.refusals), ("to verify", "yellow", found.doubts)):
        for one in reasons:
            count = f"{one.nodes} node{'s' if one.nodes > 1 else ''}"
            count += f", {100 * one.macs:.1f} % of the work" if one.macs else ""
            fix = f" → {one.fix}" if one.fix else ""
            rows.append((word, styled(f"{one.rule} ({count}), like {one.example}: {one.reason}{fix}", style)))
    console.print(facts(rows))


def _show_nodes(console: Console, survey: Survey, every: bool) -> None:
    """Print refused nodes and those to verify, or every node, each with its verdict, rule, reason and fix."""
    from edgert.report.dla_page import verdict_word

    rows = []
    for place, (node, verdict) in enumerate(zip(survey.nodes, survey.verdicts, strict=True)):
        word = verdict_word(verdict)
        if every or word in _UNSURE_VERDICTS:
            reason = f"{verdict.reason} → {verdict.fix}" if verdict.fix else verdict.reason
            segment = str(survey.segment_of(place) or "")
            rows.append(Row((node.name, node.op, styled(word, _VERDICT_COLORS[word]), segment, verdict.rule, reason)))
    hidden = len(survey.nodes) - len(rows)
    caption = f"{hidden} more nodes run there or fold away: --all" if hidden else ""
    if rows:
        console.print(table(_NODE_COLUMNS, rows, width=console.width, caption=caption))
    elif caption:
        console.print(caption, style="dim")


def _show_rewritten(console: Console, made: Rewritten) -> None:
    from edgert.graph.dla_rewrites.apply import REWRITES

    console.print("[bold]Rewritten for the DLA[/]")
    columns = (Column(""), Column("before", is_number=True), Column("after", is_number=True))
    styles = {True: "green", False: "red", None: ""}
    rows = [Row((row.what, row.before, styled(row.after, styles[row.is_better]))) for row in made.compared]
    console.print(table(columns, rows, width=console.width))
    for name, count in Counter(change.rule for change in made.changes).items():
        does = f": {REWRITES[name].does}" if name in REWRITES else ""
        console.print(f"{name}, {count} ×{does}", markup=False)
    if not made.changes:
        console.print("no rewrite applies")
    if made.proof is not None:
        distance = f"on noise its outputs differ by at most {made.proof.error:.2g}, of up to {made.proof.largest:.3g}"
        console.print(f"both were run: {distance}", markup=False)
    if made.cut.body and made.cut.tail:
        names = ", ".join(spec.name for spec in made.cut.tensors)
        console.print(
            f"{len(made.cut.body)} nodes can run as one piece; cut off behind {names}: "
            f"{len(made.cut.tail)} nodes of post-processing",
            markup=False,
        )
