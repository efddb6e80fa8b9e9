"""``edgert inspect --dla`` as tables: what of a model a board's DLA can run, and what a rewrite brings onto it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from edgert.cli.table import Column, Row, facts, marked, table

if TYPE_CHECKING:
    from rich.console import Console

    from dla import Reason
    from edgert.graph import Change
    from edgert.inspect_model import DlaInspection, Rewritten
    from edgert.placement.dla_share import Survey

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


def show_dla(console: Console, found: DlaInspection, every: bool) -> None:
    """Prints a survey, its nodes, and the rewritten model's numbers where it was rewritten.

    Args:
        every: whether nodes that run there are shown, too.
    """
    show_survey(console, found.survey, found.board.title)
    show_nodes(console, found.survey, every)
    if found.rewritten is not None:
        _show_rewritten(console, found.rewritten)


def _show_rewritten(console: Console, made: Rewritten) -> None:
    console.print("[bold]Rewritten for the DLA[/]")
    columns = (Column(""), Column("before", is_number=True), Column("after", is_number=True))
    styles = {True: "green", False: "red", None: ""}
    rows = [Row((row.what, row.before, marked(row.after, styles[row.is_better]))) for row in made.compared]
    console.print(table(columns, rows, width=console.width))
    _show_changes(console, made.changes)
    if made.proof is not None:
        distance = f"on noise its outputs differ by at most {made.proof.error:.2g}, of up to {made.proof.largest:.3g}"
        console.print(f"both were run: {distance}", markup=False)
    if made.cut is not None and made.cut.tail is not None:
        names = ", ".join(spec.name for spec in made.cut.tensors)
        console.print(
            f"{len(made.cut.body.nodes)} nodes can run as one piece; cut off behind {names}: "
            f"{len(made.cut.tail.nodes)} nodes of post-processing",
            markup=False,
        )


def _show_changes(console: Console, changes: Sequence[Change]) -> None:
    from edgert.graph.dla_rewrites import REWRITES

    for name, count in Counter(change.rule for change in changes).items():
        does = f": {REWRITES[name].does}" if name in REWRITES else ""
        console.print(f"{name}, {count} ×{does}", markup=False)
    if not changes:
        console.print("no rewrite applies")


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
