"""``edgert inspect --dla``: what of a model a board's DLA can run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from edgert.cli.table import Column, Row, facts, marked, table
from edgert.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from dla import Reason
    from edgert.board.record import Board
    from edgert.graph import Model
    from edgert.place.capability import Survey

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
    from edgert.report.capability import save_survey

    show_survey(console, survey, board.title)
    show_nodes(console, survey, asked.every)
    if asked.report is not None:
        save_survey(survey, loaded.path.name, board.title, asked.report)
        console.print(f"report written to {asked.report}", markup=False)
    plain = {"board": board.name, "cores": board.dla.cores, **survey.to_json()}
    if asked.explain or asked.rewritten is not None or asked.skipped:
        from edgert.cli.inspect_fit import explain

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
    from edgert.graph import clean, with_shapes
    from edgert.graph.fit import without
    from edgert.graph.node import read
    from edgert.place.capability import survey, target_of

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
    from edgert.report.capability import cautions, headline

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
    from edgert.report.capability import verdict_word

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
