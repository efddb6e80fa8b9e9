"""The part of a network that a DLA can run, as one HTML file: summary, obstacles, segments, and every node."""

from pathlib import Path

from dla import MAX_LOADABLES, SOURCES, Reason, Verdict
from edgert.files import replace_text
from edgert.placement.dla_share import Survey
from edgert.report import html
from edgert.report.numbers import counted, share, significant, size

_STYLES = ("page.css", "capability.css")
_SCRIPTS = ("page.js", "capability.js")
_CELL_PX, _ROW = 12, 64
_ORDER = {"no": 0, "verify": 1, "yes": 2, "folded": 3}
_MARKS = {"yes": "✓ yes", "no": "✗ no", "verify": "? verify", "folded": "· folded"}


def render_survey(survey: Survey, model: str, board: str) -> str:
    """Return the survey as a whole HTML document; equal surveys give equal text.

    Args:
        survey: the verdicts on every node.
        model: name of the model, as it is shown.
        board: title of the board.
    """
    sections = (
        ("obstacles", "What stands in the way", _obstacles(survey)),
        ("segments", "Segments", _segments(survey)),
        ("nodes", "Every node", _nodes(survey)),
    )
    sentence = headline(survey, board)
    body = [_header(survey, model, sentence), html.columns(sections)]
    return html.document(f"{model}: what the DLA can run", sentence, body, styles=_STYLES, scripts=_SCRIPTS)


def save_survey(survey: Survey, model: str, board: str, path: Path) -> None:
    """Write the page atomically.

    Raises:
        ArtifactError: the page cannot be written.
    """
    replace_text(path, render_survey(survey, model, board))


def headline(survey: Survey, board: str) -> str:
    """Return one sentence."""
    found = survey.summary
    if survey.target.release.answer == "no":
        return f"Nothing of it can run on a DLA of {board}: {survey.target.release.reason}."
    work = f" with {share(found.macs_yes)} of the work" if found.macs else ""
    parts = f"in {counted(found.segments, 'segment')}" if found.segments else "in no segment"
    return f"A DLA of {board} runs {found.yes} of {counted(found.nodes, 'node')}{work}, {parts}."


def verdict_word(verdict: Verdict) -> str:
    """Return ``"folded"`` for a node that is gone before anything runs, else the answer."""
    return "folded" if verdict.is_folded else verdict.answer


def _header(survey: Survey, model: str, sentence: str) -> html.Markup:
    found, target = survey.summary, survey.target
    shown = (
        ("Nodes that run", f"{found.yes}", f"of {found.nodes}; {found.folded} more fold away"),
        ("Work that runs", share(found.macs_yes) if found.macs else "–", f"of {significant(found.macs / 1e6)} M MACs"),
        ("To be verified", f"{found.verify}", f"nodes, {share(found.macs_verify)} of the work"),
        ("Loadables", f"{found.segments}", f"a core holds {MAX_LOADABLES}; {found.segments_hoped} if all verify"),
    )
    return html.header(
        f"DLA check · TensorRT {target.tensorrt}, {target.precision.upper()}",
        model,
        sentence,
        *(html.paragraph(text, "caution") for text in cautions(survey)),
        html.figures(shown),
        _map(survey),
    )


def cautions(survey: Survey) -> list[str]:
    """Return what a reader should know before trusting the numbers."""
    found = []
    if survey.target.release.answer == "verify":
        found.append(f"{survey.target.release.reason}: {survey.target.release.fix}.")
    if not survey.summary.macs:
        found.append("The work is not counted: there is none, or shapes are open.")
    if not survey.fits_core:
        found.append(f"{survey.loadables} loadables are more than the {MAX_LOADABLES} that a core holds.")
    return found


def _map(survey: Survey) -> html.Markup:
    """Return every node as a square in graph order, colored by its verdict; hovering names it."""
    rows = -(-len(survey.nodes) // _ROW)
    cells = []
    for place, (node, verdict) in enumerate(zip(survey.nodes, survey.verdicts, strict=True)):
        word = verdict_word(verdict)
        x, y = place % _ROW * _CELL_PX, place // _ROW * _CELL_PX
        square = html.shape("rect", x=x, y=y, width=_CELL_PX - 2, height=_CELL_PX - 2, rx=2)
        title = html.tag("title", f"{node.name} ({node.op}): {word}")
        cells.append(html.tag("g", title, square, class_=f"node {word}"))
    box = f"0 0 {_ROW * _CELL_PX} {max(rows, 1) * _CELL_PX}"
    image = html.tag("svg", *cells, class_="map", viewBox=box, role="img", aria_label="Verdict of every node in order")
    keys = [html.tag("span", mark, class_=f"verdict {word}") for word, mark in _MARKS.items()]
    return html.tag("figure", html.tag("figcaption", "Every node in order: ", html.join(keys, " ")), image)


def _obstacles(survey: Survey) -> html.Markup:
    summary = survey.summary
    reasons = [("no", reason) for reason in summary.refusals] + [("verify", reason) for reason in summary.doubts]
    if not reasons:
        return html.paragraph("Nothing: every node that needs a layer has one.", "lead")
    lead = "Those with most work first. A doubt is a limit that public sources do not settle; the device does."
    found = [reason for _, reason in reasons]
    columns = [
        html.Column("Rule", [_rule(reason.rule) for reason in found]),
        html.Column("Verdict", [_mark(word) for word, _ in reasons]),
        html.Column("Nodes", [reason.nodes for reason in found], "minor number"),
        html.Column("Work", [_work(survey, reason.macs) for reason in found], "minor number"),
        html.Column("Why, and what helps", [_why(reason) for reason in found], "prose"),
        html.Column("For example", [html.code(reason.example) for reason in found], "minor name"),
    ]
    return html.join([html.paragraph(lead, "lead"), html.table("Rules that objected", columns, sortable=True)])


def _why(reason: Reason | Verdict) -> html.Markup:
    fix = [html.tag("br"), html.tag("span", f"→ {reason.fix}", class_="fix")] if reason.fix else []
    return html.join([reason.reason, *fix])


def _work(survey: Survey, part: float) -> html.Cell:
    return html.Cell(share(part) if survey.summary.macs else "–", part)


def _rule(name: str) -> object:
    """Return a rule's name, linked to the page that states it."""
    return html.tag("a", name, href=SOURCES[name]) if name in SOURCES else name


def _mark(word: str) -> html.Cell:
    return html.Cell(html.tag("span", _MARKS[word], class_=f"verdict {word}"), _ORDER[word])


def _segments(survey: Survey) -> html.Markup:
    if not survey.regions:
        return html.paragraph("None: no node is sure to run.", "absent")
    lead = "Each is one loadable. Tensors at its ends are reformatted between GPU and DLA."
    found, total = survey.regions, survey.summary.macs
    columns = [
        html.Column("Segment", list(range(1, len(found) + 1)), "number"),
        html.Column("Nodes", [len(region.places) for region in found], "number"),
        html.Column("Work", [_work(survey, region.macs / total if total else 0.0) for region in found], "number"),
        html.Column("Weights", [html.Cell(size(region.weight_bytes), region.weight_bytes) for region in found],
               "minor number"),
        html.Column("Inner tensors", [html.Cell(size(region.inner_bytes), region.inner_bytes) for region in found],
               "minor number"),
        html.Column("From", [html.code(survey.nodes[region.places[0]].name) for region in found], "name"),
        html.Column("Reads", [len(region.inputs) for region in found], "minor number"),
        html.Column("Writes", [len(region.outputs) for region in found], "minor number"),
    ]  # fmt: skip
    return html.join([html.paragraph(lead, "lead"), html.table("Segments", columns, sortable=True)])


def _nodes(survey: Survey) -> html.Markup:
    words = [verdict_word(verdict) for verdict in survey.verdicts]
    segments = [survey.segment_of(place) for place in range(len(survey.nodes))]
    total = survey.summary.macs or 1
    columns = [
        html.Column("#", list(range(len(survey.nodes))), "minor number"),
        html.Column("Node", [html.code(node.name) for node in survey.nodes], "name"),
        html.Column("Operator", [node.op for node in survey.nodes], "minor"),
        html.Column("Verdict", [_mark(word) for word in words]),
        html.Column("Segment", [html.Cell(number or "", number or 0) for number in segments], "minor number"),
        html.Column("Work", [html.Cell(share(one / total) if one else "", one) for one in survey.macs], "minor number"),
        html.Column("Rule", [_rule(verdict.rule) for verdict in survey.verdicts], "minor"),
        html.Column("Why, and what helps", [_why(verdict) for verdict in survey.verdicts], "prose"),
    ]
    counts = " ".join(f"{word}:{words.count(word)}" for word in _MARKS)
    return html.tag("div", html.table("Every node", columns, sortable=True), class_="nodes", data_counts=counts)
