"""The report's essence as lines of plain text, for terminals and logs."""

from __future__ import annotations

from collections.abc import Sequence

from edgert.report.layer import worst_layers
from edgert.report.markup import visible
from edgert.report.number import counted, decibels, difference, milliseconds, score
from edgert.report.record import REFERENCE, AccuracyRow, QuantizationReport, SpeedRow
from edgert.report.verdict import judge

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
    agreement = "" if row.labelled else f" (agreement with {REFERENCE}, no labels)"
    scores = f"{score(row.fp32, row.unit)} → {score(row.result, row.unit)}"
    return f"{row.metric} {row.precision}{agreement}: {scores}, {drop}{budget}"


def _speed(row: SpeedRow) -> str:
    where = ", ".join(filter(None, (row.engine, row.machine)))
    time = f"{row.precision}: {milliseconds(row.median_ms)}, median of {counted(row.runs, 'run')}"
    return f"{time} ({where})" if where else time
