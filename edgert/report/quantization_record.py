"""The result of a quantization, as plain records for a report."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy.typing as npt

from edgert.report.numbers import bare, counted, difference, is_same, milliseconds, score, size, times
from edgert.report.page import Figure

Missing = Literal["accuracy", "speed", "layers", "tensors"]
"""Parts of a report that may be missing, for a reason."""

REFERENCE = "FP32"
"""Precision with which all others are compared."""

ROUNDING = 1e-9
"""Least excess over a budget that counts: 0.702 - 0.692 is 0.010, and not more."""


@dataclass(frozen=True, slots=True)
class AccuracyRow:
    """One metric before and after quantization.

    Attributes:
        metric: name of the metric: ``top-1``, ``mAP50-95``, ``cosine``.
        fp32, result: metric of the float model, and of the model in ``precision``.
        precision: precision of the result; there may be rows of other precisions that were tried.
        interval: 95 % confidence interval of the drop, lowest first.
        max_drop: budget, in the unit of the metric (0.01 is one percentage point).
        images: number of scored images.
        unit: ``percent``: a fraction, shown in percent and points; ``plain``: shown unchanged.
        labeled: whether there were labels; else FP32's answers replaced them.
        is_error: whether smaller is better, as for ``CER``.
    """

    metric: str
    fp32: float
    result: float
    precision: str = "INT8"
    interval: tuple[float, float] | None = None
    max_drop: float | None = None
    images: int | None = None
    unit: Literal["percent", "plain"] = "percent"
    labeled: bool = True
    is_error: bool = False

    @property
    def drop(self) -> float:
        """Loss of accuracy; negative for a gain."""
        return self.result - self.fp32 if self.is_error else self.fp32 - self.result

    @property
    def kept(self) -> bool | None:
        """Whether the drop is within its budget, ignoring rounding errors; None without a budget."""
        return None if self.max_drop is None else self.drop <= self.max_drop + ROUNDING

    @property
    def sure(self) -> bool:
        """Whether the complete interval is on one side of the budget; True without an interval."""
        if self.interval is None or self.max_drop is None:
            return True
        low, high = self.interval
        return high <= self.max_drop + ROUNDING if self.kept else low > self.max_drop


@dataclass(frozen=True, slots=True)
class SpeedRow:
    """The median time of one inference, over ``runs`` calls."""

    precision: str
    median_ms: float
    runs: int


@dataclass(frozen=True, slots=True)
class LayerRow:
    """One layer; rows come in graph order.

    Attributes:
        name: name of its main node; any text.
        op: operator, such as ``Conv``.
        sqnr_db: signal to quantization noise ratio of its output in dB, with all earlier layers quantized; infinite for
            an exact output, None where it was not measured.
        precision: precision of its computation.
        reason: why it does not compute in the report's precision.
        cost: cost of quantizing only this layer, explained by the report's ``cost_meaning``.
    """

    name: str
    op: str
    sqnr_db: float | None = None
    precision: str = "INT8"
    reason: str = ""
    cost: float | None = None


@dataclass(frozen=True, slots=True, eq=False)
class TensorRow:
    """The values of one tensor over all calibration images, and its thresholds.

    Attributes:
        name: name of the tensor; any text.
        counts: (bins,) integers, histogram of the magnitudes in equal bins of ``[0, 2**exponent)``.
        exponent: exponent of the histogram's range.
        amax: largest magnitude; 0 for a tensor that is always zero.
        thresholds: magnitude at which a method would clip the tensor, by method.
        chosen: method that was used.
        used: threshold in use if it is not ``thresholds[chosen]``, as in a group with one scale; else None.
        shared: other tensors of that group.
    """

    name: str
    counts: npt.NDArray[Any]
    exponent: int
    amax: float
    thresholds: Mapping[str, float]
    chosen: str
    used: float | None = None
    shared: tuple[str, ...] = ()

    @property
    def threshold(self) -> float:
        """The threshold in use."""
        return self.thresholds[self.chosen] if self.used is None else self.used


@dataclass(frozen=True, slots=True)
class Note:
    """A remark in the report: a ``warning`` is for what the reader may act on, a ``note`` explains."""

    text: str
    level: Literal["warning", "note"] = "warning"


@dataclass(frozen=True, slots=True)
class Provenance:
    """The origin of a result, by which it can be reproduced."""

    model: str
    digest: str = ""
    images: int | None = None
    source: str = ""
    method: str = ""
    command: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    machine: str = ""
    made: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class QuantizationReport:
    """The contents of a report on one quantized model. Unknown parts are left out.

    Attributes:
        provenance: origin of the result.
        precision: precision of the result: ``INT8``, or what was chosen instead. Rows of it are the result.
        target: target of the model: ``ONNX Runtime``, ``TensorRT 10 (DLA)``.
        timed_on: engine, processor and threads of ``speed``, in words.
        sizes_bytes: size of the model file, by precision.
        layers, tensors: layers and tensors in graph order.
        cost_meaning: meaning and unit of the layers' ``cost``.
        settings: settings by name, in the form of the pipeline file.
        absent: reason why a part is missing, in one sentence; other parts have a general reason.
    """

    provenance: Provenance
    precision: str = "INT8"
    target: str = ""
    accuracy: tuple[AccuracyRow, ...] = ()
    speed: tuple[SpeedRow, ...] = ()
    timed_on: str = ""
    sizes_bytes: Mapping[str, int] = field(default_factory=dict)
    layers: tuple[LayerRow, ...] = ()
    cost_meaning: str = ""
    tensors: tuple[TensorRow, ...] = ()
    notes: tuple[Note, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    absent: Mapping[Missing, str] = field(default_factory=dict)

    @property
    def fp32(self) -> SpeedRow | None:
        """The time of the reference; None where FP32 was not timed."""
        return next((row for row in self.speed if row.precision == REFERENCE), None)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The overall verdict; ``kept`` is None without accuracy budgets. See :func:`judge`."""

    kept: bool | None
    sentence: str
    cautions: tuple[str, ...]
    figures: tuple[Figure, ...]


def judge(report: QuantizationReport) -> Verdict:
    """Return the verdict of a report, whose budgets are kept if every row of its precision keeps its own."""
    rows = [row for row in report.accuracy if row.precision == report.precision]
    judged = [row for row in rows if row.kept is not None]
    kept = all(row.kept for row in judged) if judged else None
    # the first row that misses its budget, else the first with a budget, else the first
    main = min(rows, key=lambda row: (False, True, None).index(row.kept), default=None)
    compared = [found for found in (_speed(report), _size(report)) if found is not None]
    figures = [figure for _, figure in compared]
    if main is not None:
        allowed = "" if main.max_drop is None else f", {bare(main.max_drop, main.unit)} allowed"
        detail = f"{bare(main.fp32, main.unit)} → {score(main.result, main.unit)}{allowed}"
        figures.insert(0, Figure(main.metric, difference(main.result - main.fp32, main.unit), detail))
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
        return f"{name}: {_join_clauses(rest)}; its accuracy was not measured."
    amount = difference(abs(main.drop), main.unit)
    if amount == difference(0.0, main.unit):
        drop = f"{main.metric} stays the same"
    else:
        drop = f"{main.metric} {'falls' if main.result < main.fp32 else 'rises'} by {amount}"
    if main.max_drop is not None:
        drop += f" ({bare(main.max_drop, main.unit)} allowed)"
    if kept is None:
        return f"{name}: {_join_clauses([drop, *rest])}; there was no accuracy budget to keep."
    start = f"{name} {'keeps' if kept else 'misses'} its accuracy budget: {drop}"
    return f"{start}{'; ' + _join_clauses(rest) if rest else ''}."


def _join_clauses(clauses: list[str]) -> str:
    return clauses[0] if len(clauses) == 1 else f"{', '.join(clauses[:-1])} and {clauses[-1]}"


def _speed(report: QuantizationReport) -> tuple[str, Figure] | None:
    """Return a clause and a figure on the speed compared with FP32; None where one of the two was not timed."""
    base = report.fp32
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
    """Return a clause and a figure on the size of the file compared with FP32; None where one is not known."""
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
