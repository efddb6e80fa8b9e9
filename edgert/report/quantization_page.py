"""A quantization report as one HTML file that needs nothing else, with the verdict in one sentence."""

from dataclasses import dataclass

from edgert.report import page
from edgert.report import quantization_sections as sections
from edgert.report.numbers import bare, counted, difference, is_same, milliseconds, score, size, times
from edgert.report.page import Badge, Figure, Part
from edgert.report.quantization_record import REFERENCE, AccuracyRow, QuantizationReport, SpeedRow, Verdict

_BADGES = {True: ("✓ Budget kept", "good"), False: ("✗ Budget missed", "bad"), None: ("No budget", "open")}


@dataclass(frozen=True, slots=True)
class QuantizationPage:
    """What the page shows: the report, what is computed from it, and names of its metrics and precisions."""

    report: QuantizationReport
    names: tuple[str, ...]
    reference: str
    fp32: SpeedRow | None
    accuracy: Part
    layers: Part
    kept: Part
    activations: sections.Activations


def render(report: QuantizationReport) -> str:
    """Return the report as a whole HTML document; equal reports give equal text."""
    shown = QuantizationPage(
        report,
        tuple(sections.metric_names(report)),
        REFERENCE,
        sections.reference(report.speed),
        sections.accuracy(report),
        sections.layers(report),
        sections.kept(report),
        sections.activations(report),
    )
    return page.render("quantization.html.j2", _head(report), shown)


def _head(report: QuantizationReport) -> page.Head:
    verdict, model = judge(report), report.provenance.model
    badges = [Badge(*_BADGES[verdict.kept])]
    if warnings := sum(note.level == "warning" for note in report.notes):
        badges.append(Badge(f"⚠ {counted(warnings, 'warning')}", "warned", "#notes"))
    return page.Head(
        f"{model}: {report.precision} report",
        f"Quantization report{f' for {report.target}' if report.target else ''}",
        model,
        verdict.sentence,
        badges,
        verdict.cautions,
        verdict.figures,
    )


# The verdict.


def judge(report: QuantizationReport) -> Verdict:
    """Return the verdict: budgets are kept when every row of the report's precision keeps its own."""
    rows = [row for row in report.accuracy if row.precision == report.precision]
    judged = [row for row in rows if row.kept is not None]
    kept = all(row.kept for row in judged) if judged else None
    # to speak of: the first row that misses its budget, else the first that has one, else the first
    main = min(rows, key=lambda row: (False, True, None).index(row.kept), default=None)
    compared = [found for found in (_speed(report), _size(report)) if found is not None]
    figures = [figure for _, figure in compared]
    if main is not None:
        allowed = "" if main.max_drop is None else f", {bare(main.max_drop, main.unit)} allowed"
        detail = f"{bare(main.fp32, main.unit)} → {score(main.result, main.unit)}{allowed}"
        figures.insert(0, Figure(main.metric, difference(-main.drop, main.unit), detail))
    if report.layers:
        others = [layer.precision for layer in report.layers if layer.precision != report.precision]
        detail = f"{len(others)} in {' or '.join(sorted(set(others)))}" if others else "all of them"
        done = f"{len(report.layers) - len(others)} of {len(report.layers)}"
        figures.append(Figure(f"Layers in {report.precision}", done, detail))
    sentence = _sentence(report.precision, kept, main, [clause for clause, _ in compared])
    return Verdict(kept, sentence, tuple(_caution(row) for row in judged if not row.sure), tuple(figures))


def _sentence(name: str, kept: bool | None, main: AccuracyRow | None, rest: list[str]) -> str:
    if main is None:
        if not rest:
            return f"{name} was made; neither its accuracy nor its speed was measured."
        return f"{name}: {_listed(rest)}; its accuracy was not measured."
    amount = difference(abs(main.drop), main.unit)
    if amount == difference(0.0, main.unit):
        drop = f"{main.metric} stays the same"
    else:
        drop = f"{main.metric} {'falls' if main.drop > 0 else 'rises'} by {amount}"
    if main.max_drop is not None:
        drop += f" ({bare(main.max_drop, main.unit)} allowed)"
    if kept is None:
        return f"{name}: {_listed([drop, *rest])}; there was no accuracy budget to keep."
    start = f"{name} {'keeps' if kept else 'misses'} its accuracy budget: {drop}"
    return f"{start}{'; ' + _listed(rest) if rest else ''}."


def _listed(clauses: list[str]) -> str:
    return clauses[0] if len(clauses) == 1 else f"{', '.join(clauses[:-1])} and {clauses[-1]}"


def _speed(report: QuantizationReport) -> tuple[str, Figure] | None:
    """Return a clause and a figure on the speed beside FP32; None without both."""
    base = sections.reference(report.speed)
    made = next((row for row in report.speed if row is not base and row.precision == report.precision), None)
    if base is None or made is None:
        return None
    before, after = base.median_ms, made.median_ms
    ratio = before / after
    factor = times(max(ratio, 1 / ratio))
    clause = f"it runs {factor} as fast" if ratio > 1 else f"it is slower, taking {factor} as long"
    if is_same(ratio):
        clause = f"it runs as fast as {REFERENCE}"
    value = f"{factor} {'as fast' if ratio >= 1 else 'as long'}"
    return clause, Figure("Speed", value, f"{milliseconds(before)} → {milliseconds(after)}")


def _size(report: QuantizationReport) -> tuple[str, Figure] | None:
    """Return a clause and a figure on the sizes of the files likewise."""
    before, after = (report.sizes_bytes.get(name) for name in (REFERENCE, report.precision))
    if not before or not after:
        return None
    value = f"{times(max(before, after) / min(before, after))} {'smaller' if before >= after else 'larger'}"
    clause = "its file is as large" if is_same(before / after) else f"its file is {value}"
    return clause, Figure("File", value, f"{size(before)} → {size(after)}")


def _caution(row: AccuracyRow) -> str:
    low, high = row.interval or (0.0, 0.0)
    images = f"On {counted(row.images, 'image')} the" if row.images else "The"
    span = f"from {bare(low, row.unit)} to {difference(high, row.unit)}"
    reach = "past the budget" if row.kept else "into the budget"
    return (
        f"{images} drop of {row.metric} may be anything {span} (95 % confidence interval). That reaches {reach}: "
        "more images would settle it."
    )
