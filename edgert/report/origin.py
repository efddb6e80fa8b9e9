"""The sections on what was done and how: corrections, warnings, settings and provenance."""

from __future__ import annotations

from collections.abc import Iterable

from edgert.report.markup import Markup, code, join, lines, paragraph, tag
from edgert.report.number import counted
from edgert.report.record import Correction, Note, QuantizationReport
from edgert.report.table import Column, table

_MANY = 12  # rows from which a list is folded away


def correction_section(report: QuantizationReport) -> Markup:
    """Changes of weights, by kind."""
    if not report.corrections:
        return paragraph(report.absent.get("corrections", "None: weights were rounded as they are."), "absent")
    kinds = dict.fromkeys(one.kind for one in report.corrections)
    return join(_kind(kind, [one for one in report.corrections if one.kind == kind]) for kind in kinds)


def _kind(kind: str, corrections: list[Correction]) -> Markup:
    names = [join(map(code, one.nodes), " → ") for one in corrections]
    effects = [one.effect or "–" for one in corrections]
    columns = [Column("Layers", names, "name"), Column("Effect", effects, "prose")]
    whole = table(f"{kind}: what was changed", columns)
    title = f"{kind}, {counted(len(corrections), 'change')}"
    if len(corrections) < _MANY:
        return join([tag("h3", title), whole])
    return tag("details", tag("summary", title), whole)


def note_section(report: QuantizationReport) -> Markup:
    """Warnings first, notes behind them."""
    notes = sorted(report.notes, key=lambda note: note.level != "warning")
    if not notes:
        return paragraph("None.")
    return tag("ul", *map(_note, notes), class_="notes")


def _note(note: Note) -> Markup:
    word = "Warning" if note.level == "warning" else "Note"
    about = [code(note.about), " "] if note.about else []
    return tag("li", tag("b", word), " ", *about, lines(note.text), class_=note.level)


def origin_section(report: QuantizationReport) -> Markup:
    """Everything needed to make the result again."""
    origin = report.provenance
    images = counted(origin.images, "image") if origin.images is not None else ""
    facts = {
        "Model": origin.model,
        "SHA-256": tag("code", origin.digest) if origin.digest else "",
        "Made for": report.target,
        "Calibrated on": ", ".join(filter(None, [images, origin.source])),
        "Thresholds": origin.method,
        "Command": tag("code", origin.command) if origin.command else "",
        "Machine": origin.machine,
        "Made": origin.made,
        "Versions": ", ".join(f"{name} {version}" for name, version in origin.versions.items()),
    }
    parts = [_facts(facts.items())]
    if report.settings:
        settings = [(name, tag("code", value)) for name, value in report.settings.items()]
        parts += [tag("h3", "Settings"), _facts(settings)]
    return join(parts)


def _facts(pairs: Iterable[tuple[str, object]]) -> Markup:
    found = [join([tag("dt", name), tag("dd", value)]) for name, value in pairs if value]
    return tag("dl", *found)
