"""``edgert inspect --dla``: what of a model a board's DLA can run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from edgert.cli.table import Column, Row, facts, marked, table
from edgert.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

    from dla import Reason
    from edgert.board.record import Board
    from edgert.graph import Change, Graph, Model
    from edgert.graph.dla_rewrites import Cut, Proof
    from edgert.placement.dla_share import Difference, Survey


# ``edgert inspect --dla --explain``: what rewrites bring onto a DLA, shown before and after.


def explain(
    console: Console,
    loaded: Model,
    shapes: Mapping[str, Sequence[int]],
    before: Survey,
    save: Path | None,
    skipped: Sequence[str] = (),
) -> dict[str, Any]:
    """Rewrites the model as a build would, prints what that changes, and returns it as plain data.

    Original and rewritten model both run once on noise, and how far apart they are is printed.

    Args:
        before: the survey of the model as it is.
        save: where the rewritten model goes; None: nowhere.
        skipped: rewrites that are left out, by name or glob.

    Raises:
        ModelError: a dimension other than the batch is open, or an operator has no equal in opset 17.
        PlacementError: there is no such rewrite.
    """
    from edgert.graph import read
    from edgert.graph.dla_rewrites import fit_model, ready, without
    from edgert.placement.dla_share import compare, survey

    begun = ready(loaded, shapes)
    made, changes = fit_model(begun, without(skipped, "--skip-rewrite") if skipped else None)
    graph = read(made)
    after = survey(graph, before.target)
    rows = compare(before, after)
    console.print("[bold]Rewritten for the DLA[/]")
    _show_changes(console, rows)
    proof = _proof(begun, made) if changes else None
    cut = _cut(graph, after)
    _show(console, changes, proof, cut)
    if save is not None:
        _save(made, save)
        console.print(f"rewritten model written to {save}", markup=False)
    return {
        "changes": [asdict(change) for change in changes],
        "compared": [asdict(row) for row in rows],
        "proof": None if proof is None else asdict(proof),
        "cut": [str(spec) for spec in cut.tensors] if cut else [],
        "after": after.to_json(),
    }


def _show_changes(console: Console, rows: Iterable[Difference]) -> None:
    """Prints what differs between two surveys."""
    columns = (Column(""), Column("before", is_number=True), Column("after", is_number=True))
    styles = {True: "green", False: "red", None: ""}
    shown = [Row((row.what, row.before, marked(row.after, styles[row.is_better]))) for row in rows]
    console.print(table(columns, shown, width=console.width))


def _show(console: Console, changes: Sequence[Change], proof: Proof | None, cut: Cut | None) -> None:
    from edgert.graph.dla_rewrites import REWRITES

    for name, count in Counter(change.rule for change in changes).items():
        does = f": {REWRITES[name].does}" if name in REWRITES else ""
        console.print(f"{name}, {count} ×{does}", markup=False)
    if not changes:
        console.print("no rewrite applies")
    if proof is not None:
        distance = f"on noise its outputs differ by at most {proof.error:.2g}, of up to {proof.largest:.3g}"
        console.print(f"both were run: {distance}", markup=False)
    if cut is not None and cut.tail is not None:
        names = ", ".join(spec.name for spec in cut.tensors)
        console.print(
            f"{len(cut.body.nodes)} nodes can run as one piece; cut off behind {names}: {len(cut.tail.nodes)} nodes of "
            "post-processing",
            markup=False,
        )


def _proof(before: Model, after: Model) -> Proof:
    import numpy as np

    from edgert.backend.ort import Function
    from edgert.graph import inputs
    from edgert.graph.dla_rewrites import prove

    random = np.random.default_rng(0)
    feed = {}
    for spec in inputs(before):
        shape = tuple(dim for dim in spec.shape if isinstance(dim, int))
        feed[spec.name] = random.standard_normal(shape, np.float32).astype(spec.dtype)
    return prove(before, after, [feed], lambda model, feeds: list(Function(model)(feeds).values()))


def _cut(graph: Graph, found: Survey) -> Cut | None:
    """Where the network would be cut; None where nothing of it can run."""
    from edgert.graph.dla_rewrites import cut_head

    allowed = found.allowed
    return cut_head(graph, lambda node: node.name in allowed) if allowed else None


def _save(model: Model, path: Path) -> None:
    from edgert.files import replace_bytes
    from edgert.graph import to_bytes

    replace_bytes(path, to_bytes(model))


_COLORS = {"yes": "green", "no": "red", "verify": "yellow", "folded": "dim"}
_OPEN = ("no", "verify")  # what somebody has to look at
_NODES = (
    Column("node", wraps=True),
    Column("op"),
    Column("verdict"),
    Column("segment", is_number=True, rank=2),
    Column("rule", rank=1),
    Column("reason → fix", wraps=True),
)


@dataclass(frozen=True, slots=True)
class Asked:
    """What the options say; None where they say nothing."""

    board: str | None
    tensorrt: str | None
    precision: str | None
    report: Path | None
    explain: bool = False
    rewritten: Path | None = None
    skipped: tuple[str, ...] = ()
    every: bool = False

    def refuse(self) -> None:
        """Says that these options need ``--dla``. Raises a usage error."""
        given = (("--board", self.board), ("--trt", self.tensorrt), ("--precision", self.precision))
        more = (("--report", self.report), ("--explain", self.explain or None), ("--rewritten", self.rewritten))
        for option, value in (*given, *more, ("--skip-rewrite", self.skipped or None), ("--all", self.every or None)):
            if value is not None:
                raise typer.BadParameter("it goes together with --dla", param_hint=option)


def tell(
    console: Console,
    loaded: Model,
    shapes: Mapping[str, Sequence[int]],
    asked: Asked,
    board: Board,
    survey: Survey,
) -> dict[str, Any]:
    """Prints a survey, writes its page and the rewritten model if they are wanted; returns it as plain data.

    Args:
        shapes: of dynamic inputs.
        board, survey: of :func:`survey_model`.

    Raises:
        EdgertError: a file cannot be written, or the model cannot be rewritten.
    """
    from edgert.report.dla_page import save_survey

    show_survey(console, survey, board.title)
    show_nodes(console, survey, asked.every)
    if asked.report is not None:
        save_survey(survey, loaded.path.name, board.title, asked.report)
        console.print(f"report written to {asked.report}", markup=False)
    plain = {"board": board.name, "cores": board.dla.cores, **survey.to_json()}
    if asked.explain or asked.rewritten is not None or asked.skipped:
        plain["rewritten"] = explain(console, loaded, shapes, survey, asked.rewritten, asked.skipped)
    return plain


def survey_model(loaded: Model, shapes: Mapping[str, Sequence[int]], asked: Asked) -> tuple[Board, Survey]:
    """The board that is asked about, and the survey of the model as a build would see it: cleaned.

    Raises:
        ConfigError: no board, one without a DLA, or no such target.
        ModelError: the shapes do not fit.
        PlacementError: there is no such rewrite.
    """
    from dla import ORIN, USUAL_RELEASE
    from edgert.graph import clean, read, with_shapes
    from edgert.graph.dla_rewrites import without
    from edgert.placement.dla_share import survey, target_of

    board = board_with_dla(asked.board)
    without(asked.skipped, "--skip-rewrite")  # refuses names that there are not
    generation = board.dla.generation
    tensorrt = asked.tensorrt or USUAL_RELEASE[generation or ORIN]
    target = target_of(generation, tensorrt, asked.precision or "int8")
    model, _ = clean(with_shapes(loaded, shapes) if shapes else loaded)
    return board, survey(read(model), target)


def board_with_dla(name: str | None) -> Board:
    """The board of that name, this machine's if none is named. Raises ConfigError for one without a DLA."""
    from edgert.board.detect import detect
    from edgert.board.record import boards, find_board

    board = detect().board if name is None else find_board(name)
    having = ", ".join(one.name for one in boards() if one.dla.cores)
    if board is None:
        why = "this machine is no Jetson that edgert knows, and --dla checks against a board's DLA"
        raise ConfigError("which board?", why=why, fix=f"--board NAME, one of {having}")
    if not board.dla.cores:
        raise ConfigError(f"{board.title} has no DLA", where="--board", fix=f"--board NAME, one of {having}")
    return board


def show_survey(console: Console, survey: Survey, board: str) -> None:
    """Prints the summary: how much runs, in how many segments, and what stands in the way."""
    from edgert.report.dla_page import cautions, headline

    found = survey.summary
    reasons = (("refused", "red", found.refusals), ("to verify", "yellow", found.doubts))
    console.print(
        facts(
            (
                ("DLA", headline(survey, board).replace("\N{NO-BREAK SPACE}", " ")),
                *_rows(survey),
                *(("note", marked(text, "yellow")) for text in cautions(survey)),
                *((word, marked(_reason(one), style)) for word, style, every in reasons for one in every),
            )
        )
    )


def show_nodes(console: Console, survey: Survey, every: bool) -> None:
    """Prints the nodes that are refused or to verify, or every one: with its verdict, the rule behind it, the reason
    and what would help."""
    from edgert.report.dla_page import verdict_word

    rows = []
    for place, (node, verdict) in enumerate(zip(survey.nodes, survey.verdicts, strict=True)):
        word = verdict_word(verdict)
        if every or word in _OPEN:
            reason = f"{verdict.reason} → {verdict.fix}" if verdict.fix else verdict.reason
            segment = str(survey.segment_of(place) or "")
            rows.append(Row((node.name, node.op, marked(word, _COLORS[word]), segment, verdict.rule, reason)))
    hidden = len(survey.nodes) - len(rows)
    caption = f"{hidden} more nodes run there or fold away: --all" if hidden else ""
    if rows:
        console.print(table(_NODES, rows, width=console.width, caption=caption))
    elif caption:
        console.print(caption, style="dim")


def _rows(survey: Survey) -> Iterable[tuple[str, str]]:
    found, target = survey.summary, survey.target
    yield "against", f"TensorRT {target.tensorrt}, {target.precision.upper()}"
    yield "nodes", f"{found.yes} yes, {found.verify} verify, {found.no} no; {found.folded} more fold away"
    if found.macs:
        work = f"{100 * found.macs_yes:.1f} % yes, {100 * found.macs_verify:.1f} % verify"
        yield "work", f"{work}, of {found.macs / 1e6:.1f} M MACs"
    hoped = f"; {found.segments_hoped} if all that is to verify runs" if found.verify else ""
    yield "loadables", f"{found.segments}{hoped}; a core holds 16, over all engines"


def _reason(reason: Reason) -> str:
    count = f"{reason.nodes} node{'s' if reason.nodes > 1 else ''}"
    count += f", {100 * reason.macs:.1f} % of the work" if reason.macs else ""
    fix = f" → {reason.fix}" if reason.fix else ""
    return f"{reason.rule} ({count}), like {reason.example}: {reason.reason}{fix}"
