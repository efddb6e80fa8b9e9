"""A quantization report as one HTML file that needs nothing else."""

from pathlib import Path

from edgert.files import replace_text
from edgert.report import html
from edgert.report.accuracy_section import accuracy_section, speed_section
from edgert.report.html import tag
from edgert.report.layer_section import kept_section, layer_section, tensor_section
from edgert.report.numbers import counted
from edgert.report.quantization_record import QuantizationReport
from edgert.report.verdict_section import correction_section, judge, note_section, origin_section

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
    verdict, model = judge(report), report.provenance.model
    word, kind = _BADGES[verdict.kept]
    badges = [tag("span", word, class_=f"badge {kind}")]
    if warnings := sum(note.level == "warning" for note in report.notes):
        badges.append(tag("a", f"⚠ {counted(warnings, 'warning')}", href="#notes", class_="badge warned"))
    # names of metrics have hyphens, where lines should not end
    words = (
        tag("span", one, class_="whole") if "-" in one else html.escape(one) for one in verdict.sentence.split(" ")
    )
    head = html.header(
        f"Quantization report{f' for {report.target}' if report.target else ''}",
        model,
        html.join(words, " "),
        *(html.paragraph(text, "caution") for text in verdict.cautions),
        html.figures(verdict.figures),
        badges=badges,
    )
    body = [head, html.columns((name, title, content(report)) for name, title, content in _SECTIONS)]
    return html.document(f"{model}: {report.precision} report", verdict.sentence, body)


def save(report: QuantizationReport, path: Path) -> None:
    """Writes the report, all of it or nothing; folders on the way are made.

    Raises:
        ArtifactError: the file cannot be written.
    """
    replace_text(path, render(report))
