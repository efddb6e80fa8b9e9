"""The report as one HTML file that needs nothing else."""

from __future__ import annotations

from pathlib import Path

from edgert.artifact.atomic import replace_text
from edgert.report.accuracy import accuracy_section
from edgert.report.document import document
from edgert.report.layer import kept_section, layer_section
from edgert.report.markup import Markup, code, escape, join, paragraph, tag
from edgert.report.number import counted
from edgert.report.origin import correction_section, note_section, origin_section
from edgert.report.record import Figure, QuantizationReport, Verdict
from edgert.report.speed import speed_section
from edgert.report.tensor import tensor_section
from edgert.report.verdict import judge

_SECTIONS = (
    ("accuracy", "Accuracy", accuracy_section),
    ("speed", "Speed and size", speed_section),
    ("layers", "Noise, layer by layer", layer_section),
    ("kept", "Layers in higher precision", kept_section),
    ("activations", "Activations and thresholds", tensor_section),
    ("corrections", "Corrections", correction_section),
    ("notes", "Warnings and notes", note_section),
    ("origin", "Settings and provenance", origin_section),
)
_BADGES = {True: ("✓ Budget kept", "good"), False: ("✗ Budget missed", "bad"), None: ("No budget", "open")}


def render(report: QuantizationReport) -> str:
    """The report as a whole HTML document; equal reports give equal text."""
    verdict = judge(report)
    sections = tag("main", *(_section(report, *one) for one in _SECTIONS))
    body = [_header(report, verdict), tag("div", _contents(), sections, class_="columns")]
    return document(f"{report.provenance.model}: {report.precision} report", verdict.sentence, body)


def save(report: QuantizationReport, path: Path) -> None:
    """Writes the report, all of it or nothing; folders on the way are made.

    Raises:
        ArtifactError: the file cannot be written.
    """
    replace_text(path, render(report))


def _header(report: QuantizationReport, verdict: Verdict) -> Markup:
    word, kind = _BADGES[verdict.kept]
    warnings = sum(note.level == "warning" for note in report.notes)
    target = f" for {report.target}" if report.target else ""
    badges = [tag("span", word, class_=f"badge {kind}")]
    if warnings:
        badges.append(tag("a", f"⚠ {counted(warnings, 'warning')}", href="#notes", class_="badge warned"))
    return tag(
        "header",
        tag("p", f"Quantisation report{target} · ", code(report.provenance.model), class_="kicker"),
        tag("p", *badges, class_="badges"),
        tag("h1", _unbroken(verdict.sentence)),
        *(paragraph(text, "caution") for text in verdict.cautions),
        tag("dl", *map(_figure, verdict.figures), class_="figures"),
    )


def _unbroken(sentence: str) -> Markup:
    """Names of metrics have hyphens, where lines should not end."""
    words = (tag("span", word, class_="whole") if "-" in word else escape(word) for word in sentence.split(" "))
    return join(words, " ")


def _figure(figure: Figure) -> Markup:
    return tag("div", tag("dt", figure.label), tag("dd", tag("b", figure.value), tag("span", figure.detail)))


def _contents() -> Markup:
    links = [tag("li", tag("a", title, href=f"#{name}")) for name, title, _ in _SECTIONS]
    return tag("nav", tag("ul", *links), aria_label="Sections")


def _section(report: QuantizationReport, name: str, title: str, content: object) -> Markup:
    assert callable(content)
    return tag(
        "section", tag("h2", title, id=f"{name}-title"), content(report), id=name, aria_labelledby=f"{name}-title"
    )
