"""The report as one HTML file that needs nothing else."""

from __future__ import annotations

from pathlib import Path

from edgert.artifact.atomic import replace_text
from edgert.report.accuracy import accuracy_section
from edgert.report.document import columns, document, figures
from edgert.report.layer import kept_section, layer_section
from edgert.report.markup import Markup, code, escape, join, paragraph, tag
from edgert.report.number import counted
from edgert.report.origin import correction_section, note_section, origin_section
from edgert.report.record import QuantizationReport, Verdict
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
    body = [_header(report, verdict), columns((name, title, content(report)) for name, title, content in _SECTIONS)]
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
        figures((one.label, one.value, one.detail) for one in verdict.figures),
    )


def _unbroken(sentence: str) -> Markup:
    """Names of metrics have hyphens, where lines should not end."""
    words = (tag("span", word, class_="whole") if "-" in word else escape(word) for word in sentence.split(" "))
    return join(words, " ")
