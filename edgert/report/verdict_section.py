"""The verdict in one sentence, and the sections on corrections, warnings, settings and provenance."""

from collections.abc import Iterable

from edgert.report.html import Column, Markup, code, join, lines, paragraph, table, tag
from edgert.report.numbers import counted, difference, is_same, milliseconds, score, size, times
from edgert.report.quantization_record import (
    REFERENCE,
    AccuracyRow,
    Correction,
    Figure,
    Note,
    QuantizationReport,
    SpeedRow,
    Verdict,
)

# The sections on what was done and how: corrections, warnings, settings and provenance.

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


def judge(report: QuantizationReport) -> Verdict:
    """Budgets are kept when every row of the report's precision keeps its own."""
    rows = result_rows(report)
    judged = [row for row in rows if row.kept is not None]
    kept = all(row.kept for row in judged) if judged else None
    main = _main(rows)
    figures = (_accuracy_figure(main), _speed_figure(report), _size_figure(report), _layer_figure(report))
    cautions = tuple(_caution(row) for row in judged if not row.sure)
    return Verdict(kept, _sentence(report, kept, main), cautions, tuple(one for one in figures if one is not None))


def result_rows(report: QuantizationReport) -> tuple[AccuracyRow, ...]:
    """The accuracy rows of the report's own precision."""
    return tuple(row for row in report.accuracy if row.precision == report.precision)


def compared_speed(report: QuantizationReport) -> tuple[SpeedRow, SpeedRow] | None:
    """FP32's and the result's speed on one engine and machine; None without both."""
    for row in report.speed:
        base = speed_base(report.speed, row)
        if row.precision == report.precision and base is not None and base is not row:
            return base, row
    return None


def speed_base(rows: Iterable[SpeedRow], row: SpeedRow) -> SpeedRow | None:
    """What a row is compared with: FP32 on the same engine and machine."""
    same = [one for one in rows if (one.engine, one.machine) == (row.engine, row.machine)]
    return next((one for one in same if one.precision == REFERENCE), None)


def _main(rows: tuple[AccuracyRow, ...]) -> AccuracyRow | None:
    """The row to speak of: the first that misses its budget, else the first that has one, else the first."""
    return min(rows, key=lambda row: (False, True, None).index(row.kept), default=None)


def _sentence(report: QuantizationReport, kept: bool | None, main: AccuracyRow | None) -> str:
    name = report.precision
    faster, smaller = _speed_clause(report), _size_clause(report)
    rest = [clause for clause in (faster, smaller) if clause]
    if main is None:
        if not rest:
            return f"{name} was made; neither its accuracy nor its speed was measured."
        return f"{name}: {_listed(rest)}; its accuracy was not measured."
    if kept is None:
        return f"{name}: {_listed([_drop_clause(main), *rest])}; there was no accuracy budget to keep."
    start = f"{name} {'keeps' if kept else 'misses'} its accuracy budget: {_drop_clause(main)}"
    return f"{start}{'; ' + _listed(rest) if rest else ''}."


def _listed(clauses: list[str]) -> str:
    return clauses[0] if len(clauses) == 1 else f"{', '.join(clauses[:-1])} and {clauses[-1]}"


def _drop_clause(row: AccuracyRow) -> str:
    amount = difference(abs(row.drop), row.unit)
    if amount == difference(0.0, row.unit):
        clause = f"{row.metric} stays the same"
    else:
        clause = f"{row.metric} {'falls' if row.drop > 0 else 'rises'} by {amount}"
    return clause if row.max_drop is None else f"{clause} ({_number(row.max_drop, row.unit)} allowed)"


def _speed_clause(report: QuantizationReport) -> str:
    pair = compared_speed(report)
    if pair is None:
        return ""
    ratio = pair[0].median_ms / pair[1].median_ms
    if is_same(ratio):
        return f"it runs as fast as {REFERENCE}"
    return f"it runs {times(ratio)} as fast" if ratio > 1 else f"it is slower, taking {times(1 / ratio)} as long"


def _size_clause(report: QuantizationReport) -> str:
    sizes = _sizes(report)
    if sizes is None:
        return ""
    before, after = sizes
    if is_same(before / after):
        return "its file is as large"
    return (
        f"its file is {times(before / after)} smaller"
        if before > after
        else f"its file is {times(after / before)} larger"
    )


def _sizes(report: QuantizationReport) -> tuple[int, int] | None:
    before, after = report.sizes_bytes.get(REFERENCE), report.sizes_bytes.get(report.precision)
    return (before, after) if before and after else None


def _caution(row: AccuracyRow) -> str:
    low, high = row.interval or (0.0, 0.0)
    images = f"On {counted(row.images, 'image')} the" if row.images else "The"
    span = f"from {_number(low, row.unit)} to {difference(high, row.unit)}"
    reach = "past the budget" if row.kept else "into the budget"
    return (
        f"{images} drop of {row.metric} may be anything {span} (95 % confidence interval). That reaches {reach}: "
        "more images would settle it."
    )


def _number(value: float, unit: str) -> str:
    return difference(value, unit).split("\N{NO-BREAK SPACE}")[0]


def _accuracy_figure(row: AccuracyRow | None) -> Figure | None:
    if row is None:
        return None
    allowed = "" if row.max_drop is None else f", {_number(row.max_drop, row.unit)} allowed"
    before = score(row.fp32, row.unit).split("\N{NO-BREAK SPACE}")[0]
    detail = f"{before} → {score(row.result, row.unit)}{allowed}"
    return Figure(row.metric, difference(-row.drop, row.unit), detail)


def _speed_figure(report: QuantizationReport) -> Figure | None:
    pair = compared_speed(report)
    if pair is None:
        return None
    before, after = (row.median_ms for row in pair)
    word = "as fast" if before >= after else "as long"
    value = times(max(before, after) / min(before, after))
    return Figure("Speed", f"{value} {word}", f"{milliseconds(before)} → {milliseconds(after)}")


def _size_figure(report: QuantizationReport) -> Figure | None:
    sizes = _sizes(report)
    if sizes is None:
        return None
    before, after = sizes
    word = "smaller" if before >= after else "larger"
    return Figure("File", f"{times(max(sizes) / min(sizes))} {word}", f"{size(before)} → {size(after)}")


def _layer_figure(report: QuantizationReport) -> Figure | None:
    if not report.layers:
        return None
    done = sum(layer.precision == report.precision for layer in report.layers)
    others = sorted({layer.precision for layer in report.layers} - {report.precision})
    detail = f"{len(report.layers) - done} in {' or '.join(others)}" if others else "all of them"
    return Figure(f"Layers in {report.precision}", f"{done} of {len(report.layers)}", detail)
