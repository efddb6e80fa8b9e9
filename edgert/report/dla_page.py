"""The page about the part of a network that a DLA can run: obstacles, segments, and every node."""

from collections.abc import Sequence

from markupsafe import Markup

from dla import MAX_LOADABLES, SOURCES, Reason, Verdict
from edgert.placement.dla_share import Survey
from edgert.report import page
from edgert.report.numbers import counted, share, significant, size
from edgert.report.page import Cell, Column, Figure, Part, Table
from edgert.report.svg import element

_CELL_PX, _ROW = 12, 64
_ORDER = {"no": 0, "verify": 1, "yes": 2, "folded": 3}
_MARKS = {"yes": "✓ yes", "no": "✗ no", "verify": "? verify", "folded": "· folded"}


def render(survey: Survey, model: str, board: str) -> str:
    """Return the page of a survey of a model on a board; equal surveys give equal text."""
    words = [verdict_word(verdict) for verdict in survey.verdicts]
    shown = {
        "obstacles": _obstacles(survey),
        "segments": _segments(survey),
        "nodes": _nodes(survey, words),
        "image": _map(survey, words),
        "legend": [(mark, f"verdict {word}") for word, mark in _MARKS.items()],
        "counts": " ".join(f"{word}:{words.count(word)}" for word in _MARKS),
    }
    return page.render("dla.html.j2", _head(survey, model, board), shown)


def headline(survey: Survey, board: str) -> str:
    """Return the result of a survey in one sentence."""
    found = survey.summary
    if survey.target.release.answer == "no":
        return f"Nothing of it can run on a DLA of {board}: {survey.target.release.reason}."
    work = f" with {share(found.macs_yes)} of the work" if found.macs else ""
    parts = f"in {counted(found.segments, 'segment')}" if found.segments else "in no segment"
    return f"A DLA of {board} runs {found.yes} of {counted(found.nodes, 'node')}{work}, {parts}."


def verdict_word(verdict: Verdict) -> str:
    """Return ``"folded"`` for a node that is folded at build time, else the verdict's answer."""
    return "folded" if verdict.is_folded else verdict.answer


def _head(survey: Survey, model: str, board: str) -> page.Head:
    found, target = survey.summary, survey.target
    work = f"of {significant(found.macs / 1e6)} M MACs"
    figures = (
        Figure("Nodes that run", f"{found.yes}", f"of {found.nodes}; {found.folded} more fold away"),
        Figure("Work that runs", share(found.macs_yes) if found.macs else "–", work),
        Figure("To be verified", f"{found.verify}", f"nodes, {share(found.macs_verify)} of the work"),
        Figure("Loadables", f"{found.segments}", f"a core holds {MAX_LOADABLES}; {found.segments_hoped} if all verify"),
    )
    return page.Head(
        f"{model}: what the DLA can run",
        f"DLA check · TensorRT {target.tensorrt}, {target.precision.upper()}",
        model,
        headline(survey, board),
        cautions=cautions(survey),
        figures=figures,
    )


def cautions(survey: Survey) -> list[str]:
    """Return what limits the certainty of the numbers, in sentences."""
    found = []
    if survey.target.release.answer == "verify":
        found.append(f"{survey.target.release.reason}: {survey.target.release.fix}.")
    if not survey.summary.macs:
        found.append("The work is not counted: there is none, or shapes are open.")
    if not survey.fits_core:
        found.append(f"{survey.loadables} loadables are more than the {MAX_LOADABLES} that a core holds.")
    return found


def _map(survey: Survey, words: Sequence[str]) -> Markup:
    """Return an image of all nodes in graph order, as squares in the color of their verdicts."""
    cells = []
    for place, (node, word) in enumerate(zip(survey.nodes, words, strict=True)):
        x, y = place % _ROW * _CELL_PX, place // _ROW * _CELL_PX
        square = element("rect", x=x, y=y, width=_CELL_PX - 2, height=_CELL_PX - 2, rx=2)
        cells.append(element("g", element("title", f"{node.name} ({node.op}): {word}"), square, class_=f"node {word}"))
    rows = max(-(-len(survey.nodes) // _ROW), 1)
    box = f"0 0 {_ROW * _CELL_PX} {rows * _CELL_PX}"
    title = element("title", "Verdict of every node in order")
    return element("svg", title, *cells, class_="map", viewBox=box, role="img")


def _obstacles(survey: Survey) -> Part:
    summary = survey.summary
    reasons = [("no", reason) for reason in summary.refusals] + [("verify", reason) for reason in summary.doubts]
    if not reasons:
        return Part("None: every node that needs a layer has one.")
    found = [reason for _, reason in reasons]
    columns = (
        Column("Rule", [_rule(reason.rule) for reason in found]),
        Column("Verdict", [_mark(word) for word, _ in reasons]),
        Column("Nodes", [reason.nodes for reason in found], "number"),
        Column("Work", [_work(survey, reason.macs) for reason in found], "number"),
        Column("Why, and what helps", [_why(reason) for reason in found], "prose"),
        Column("For example", [reason.example for reason in found], "minor name"),
    )
    lead = "Those with most work first. A doubt is a limit that public sources leave open; the device settles it."
    return Part(lead, tables=(Table("Rules that objected", columns, sortable=True, stacked=True),))


def _segments(survey: Survey) -> Part:
    if not survey.regions:
        return Part(absent="None: no node is sure to run.")
    found, total = survey.regions, survey.summary.macs
    columns = (
        Column("Segment", list(range(1, len(found) + 1)), "number"),
        Column("Nodes", [len(region.places) for region in found], "number"),
        Column("Work", [_work(survey, region.macs / total if total else 0.0) for region in found], "number"),
        Column("Weights", [Cell(size(region.weight_bytes), region.weight_bytes) for region in found], "number"),
        Column("Inner tensors", [Cell(size(region.inner_bytes), region.inner_bytes) for region in found], "number"),
        Column("From", [survey.nodes[region.places[0]].name for region in found], "name"),
        Column("Reads", [len(region.inputs) for region in found], "number"),
        Column("Writes", [len(region.outputs) for region in found], "number"),
    )
    lead = "Each is one loadable. Tensors at its ends are reformatted between GPU and DLA."
    return Part(lead, tables=(Table("Segments", columns, sortable=True, stacked=True),))


def _nodes(survey: Survey, words: Sequence[str]) -> Table:
    segments = [survey.segment_of(place) for place in range(len(survey.nodes))]
    total = survey.summary.macs or 1
    columns = (
        Column("#", list(range(len(survey.nodes))), "number"),
        Column("Node", [node.name for node in survey.nodes], "name"),
        Column("Operator", [node.op for node in survey.nodes]),
        Column("Verdict", [_mark(word) for word in words]),
        Column("Segment", [Cell(number or "", number or 0) for number in segments], "number"),
        Column("Work", [Cell(share(one / total) if one else "", one) for one in survey.macs], "number"),
        Column("Rule", [_rule(verdict.rule) for verdict in survey.verdicts]),
        Column("Why, and what helps", [_why(verdict) for verdict in survey.verdicts], "prose"),
    )
    return Table("Every node", columns, head=1, sortable=True, stacked=True)


def _why(reason: Reason | Verdict) -> Cell:
    return Cell(reason.reason, below=f"→ {reason.fix}" if reason.fix else "")


def _work(survey: Survey, part: float) -> Cell:
    return Cell(share(part) if survey.summary.macs else "–", part)


def _rule(name: str) -> Cell:
    return Cell(name, link=SOURCES.get(name, ""))


def _mark(word: str) -> Cell:
    return Cell(_MARKS[word], _ORDER[word], look=f"verdict {word}")
