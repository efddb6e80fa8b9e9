"""A quantization report as one HTML file that needs nothing else, and as lines of plain text."""

from collections.abc import Sequence
from pathlib import Path

from edgert.files import replace_text
from edgert.report.accuracy_section import accuracy_section, speed_section
from edgert.report.html import Markup, columns, document, escape, figures, header, join, paragraph, tag, visible
from edgert.report.layer_section import kept_section, layer_section, tensor_section, worst_layers
from edgert.report.numbers import counted, decibels, difference, milliseconds, score
from edgert.report.quantization_record import REFERENCE, AccuracyRow, QuantizationReport, SpeedRow, Verdict
from edgert.report.verdict_section import correction_section, judge, note_section, origin_section

# As lines of plain text, for terminals and logs.

_WORST = 3
_STATES = {True: "kept", False: "MISSED", None: ""}


def plain_lines(report: QuantizationReport) -> tuple[str, ...]:
    """Verdict, scores, times, the noisiest layers, those in another precision, warnings; names may be any text."""
    verdict = judge(report)
    noisy = [report.layers[place] for place in worst_layers(report.layers, _WORST)]
    kept = [layer for layer in report.layers if layer.precision != report.precision]
    warnings = [note for note in report.notes if note.level == "warning"]
    lines = (
        verdict.sentence,
        *verdict.cautions,
        *_block("accuracy", [_accuracy(row) for row in report.accuracy]),
        *_block("speed", [_speed(row) for row in report.speed]),
        *_block("noisiest", [f"{visible(layer.name)} ({layer.op}): {decibels(layer.sqnr_db)}" for layer in noisy]),
        *_block(
            f"not in {report.precision}, {counted(len(kept), 'layer')}",
            [f"{visible(layer.name)} ({layer.op}): {layer.precision}, {layer.reason or 'no reason'}" for layer in kept],
        ),
        *_block("warnings", [f"{visible(note.about)}{': ' if note.about else ''}{note.text}" for note in warnings]),
    )
    return tuple(line.replace("\N{NO-BREAK SPACE}", " ") for line in lines)


def _block(title: str, lines: Sequence[str]) -> list[str]:
    return [f"{title}:", *(f"  {line}" for line in lines)] if lines else []


def _accuracy(row: AccuracyRow) -> str:
    drop = f"drop {difference(row.drop, row.unit)}"
    budget = "" if row.max_drop is None else f" of {difference(row.max_drop, row.unit)} allowed, {_STATES[row.kept]}"
    agreement = "" if row.labeled else f" (agreement with {REFERENCE}, no labels)"
    scores = f"{score(row.fp32, row.unit)} → {score(row.result, row.unit)}"
    return f"{row.metric} {row.precision}{agreement}: {scores}, {drop}{budget}"


def _speed(row: SpeedRow) -> str:
    where = ", ".join(filter(None, (row.engine, row.machine)))
    time = f"{row.precision}: {milliseconds(row.median_ms)}, median of {counted(row.runs, 'run')}"
    return f"{time} ({where})" if where else time


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
    return header(
        f"Quantization report{target}",
        report.provenance.model,
        _unbroken(verdict.sentence),
        *(paragraph(text, "caution") for text in verdict.cautions),
        figures((one.label, one.value, one.detail) for one in verdict.figures),
        badges=badges,
    )


def _unbroken(sentence: str) -> Markup:
    """Names of metrics have hyphens, where lines should not end."""
    words = (tag("span", word, class_="whole") if "-" in word else escape(word) for word in sentence.split(" "))
    return join(words, " ")
