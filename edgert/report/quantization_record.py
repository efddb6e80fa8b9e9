"""A quantization's result as plain records: all that a report shows, without what it can compute itself."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy.typing as npt

from edgert.report.numbers import bare, counted, difference, is_same, milliseconds, score, size, times
from edgert.report.page import Figure

Missing = Literal["accuracy", "speed", "layers", "tensors", "corrections"]
"""Parts of a report that may be missing, with a reason."""

REFERENCE = "FP32"
"""The precision that all others are compared with."""

_ROUNDING = 1e-9  # scores are fractions of images: 0.702 - 0.692 must count as 0.010, not as a hair more


@dataclass(frozen=True, slots=True)
class AccuracyRow:
    """One metric before and after; larger is better.

    Attributes:
        metric: as the field writes it: ``top-1``, ``mAP50-95``, ``cosine``.
        fp32, result: the metric of the float model and of the one in ``precision``.
        precision: which result this is; rows of other precisions that were tried may stand beside the chosen one.
        interval: 95 % confidence interval of the drop, lowest first.
        max_drop: the budget, in the metric's own unit (0.01 is one point of a percentage).
        images: how many were scored.
        unit: ``percent``: a fraction, shown as percent and points; ``plain``: shown as it is.
        labeled: false where there were no labels and FP32's own answers stood in for them.
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

    @property
    def drop(self) -> float:
        """Loss of accuracy; negative for a gain."""
        return self.fp32 - self.result

    @property
    def kept(self) -> bool | None:
        """Whether the drop is inside its budget; None without one. Tiny float rounding errors are ignored."""
        return None if self.max_drop is None else self.drop <= self.max_drop + _ROUNDING

    @property
    def sure(self) -> bool:
        """Whether the whole interval is on one side of the budget; True without an interval."""
        if self.interval is None or self.max_drop is None:
            return True
        low, high = self.interval
        return high <= self.max_drop + _ROUNDING if self.kept else low > self.max_drop


@dataclass(frozen=True, slots=True)
class SpeedRow:
    """The time of one inference.

    Attributes:
        precision: ``FP32``, ``FP16``, ``INT8``.
        median_ms: median over ``runs`` calls.
    """

    precision: str
    median_ms: float
    runs: int


@dataclass(frozen=True, slots=True)
class LayerRow:
    """One layer; rows come in graph order.

    Attributes:
        name: of its main node; any text at all.
        op: operator, ``Conv``.
        sqnr_db: signal over quantization noise of its output, in dB, with everything before it quantized too; infinite
            for an exact one, None where it was not measured.
        precision: what it computes in.
        reason: why it does not compute in the report's precision.
        cost: what quantizing this layer alone does, in words of the report's ``cost_meaning``.
    """

    name: str
    op: str
    sqnr_db: float | None = None
    precision: str = "INT8"
    reason: str = ""
    cost: float | None = None


@dataclass(frozen=True, slots=True, eq=False)
class TensorRow:
    """One tensor's values over all calibration images, and where they are clipped.

    Attributes:
        name: any text at all.
        counts: (bins,) integers: how many values have their magnitude in each of as many equal parts of
            ``[0, 2**exponent)``.
        exponent: of the histogram's range.
        amax: the largest magnitude seen; 0 for a tensor that is always zero.
        thresholds: method → magnitude at which it would clip this tensor.
        chosen: the method that was used.
        used: the threshold in force where it is not ``thresholds[chosen]``, as in a group that shares one scale.
        shared: the other tensors of that group.
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
        """Threshold in use."""
        return self.thresholds[self.chosen] if self.used is None else self.used


@dataclass(frozen=True, slots=True)
class Correction:
    """A change of weights that was made to recover accuracy.

    Attributes:
        kind: ``Cross-layer equalization``, ``Bias correction``, ``AdaRound``.
        nodes: whose weights changed.
        effect: in words, with numbers where there are any.
    """

    kind: str
    nodes: tuple[str, ...]
    effect: str = ""


@dataclass(frozen=True, slots=True)
class Note:
    """Something the reader should know.

    Attributes:
        text: one or a few lines.
        level: a warning may change what the reader does; a note only explains.
    """

    text: str
    level: Literal["warning", "note"] = "warning"


@dataclass(frozen=True, slots=True)
class Provenance:
    """Origin of a result, enough to reproduce it.

    Attributes:
        model: file name.
        digest: SHA-256 of that file.
        images: how many were used for calibration.
        source: where they came from, in words.
        method: of choosing thresholds.
        command: as it was typed.
        versions: package → version.
        machine: what it was made on.
        made: date and time.
    """

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
    """Everything that a page shows of one quantized model; whatever is not known is left out.

    Attributes:
        provenance: where the result comes from.
        precision: the result's name: ``INT8``, or what was chosen instead; rows of this precision are the result.
        target: what the model was made for: ``ONNX Runtime``, ``TensorRT 10 (DLA)``.
        timed_on: engine, processor and threads of ``speed``, in words.
        sizes_bytes: precision → size of the model file.
        layers, tensors: in graph order.
        cost_meaning: what the layers' ``cost`` is, with its unit.
        settings: name → value, as the user would write them.
        absent: part → why there is none, one sentence; there are general reasons for those that are not named.
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
    corrections: tuple[Correction, ...] = ()
    notes: tuple[Note, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    absent: Mapping[Missing, str] = field(default_factory=dict)

    @property
    def fp32(self) -> SpeedRow | None:
        """The time that others are compared with; None where FP32 was not timed."""
        return next((row for row in self.speed if row.precision == REFERENCE), None)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The overall verdict; see :func:`judge`.

    Attributes:
        kept: whether every budget was kept; None without accuracy budgets.
        sentence: the whole result in one sentence.
        cautions: what keeps the sentence from being certain.
        figures: the same as numbers to print large.
    """

    kept: bool | None
    sentence: str
    cautions: tuple[str, ...]
    figures: tuple[Figure, ...]


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
