"""What is done about a model that INT8 spoils, in the order of what it costs at run time.

Biases are corrected only where that is more accurate: it evens out means, which nearly always helps, but a network
whose errors are large already can lose what was left. Then channels are evened out, which is free where the engine
fuses activations with what makes them, as TensorRT does, and dear on ONNX Runtime. At last units stay in higher
precision, as few as can be.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from edgert.quantization.evaluator import Examiner, Result
from edgert.quantization.mixed_precision import MixedPrecision, Scan, scan, search
from edgert.quantization.noise import rounding_noise
from edgert.quantization.quantizer import Quantized, Quantizer
from edgert.quantization.run import Tell

SCAN_IMAGES = 4
"""Images that tell which layers cost most: only their order matters."""
_SCAN_SHARE = 0.5
"""Of the time for finding units to keep, what ranking them may take."""
_SPARED = 1.05
"""How much noise may grow by giving units back, to be examined at all. mAP of 128 images moves by half a point with
anything: of many sets that are nearly good enough some get there by luck."""


@dataclass(frozen=True, slots=True, eq=False)
class Mended:
    """An INT8 model, and how it got there.

    Attributes:
        quantizer: what made it, of the model as it was or of one with its channels evened out.
        quantized: the model.
        result: of the examiner; None where there was none.
        corrected: whether its biases are corrected.
        scan, search: which units cost most, and which were kept; None where none had to be.
    """

    quantizer: Quantizer
    quantized: Quantized
    result: Result | None = None
    corrected: bool = True
    scan: Scan | None = None
    search: MixedPrecision | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Means:
    """What may be done.

    Attributes:
        even: makes a quantizer of the model with its channels evened out, None where that changes nothing; None where
            it must not be tried.
        budget_s: for finding units to keep; None keeps none.
        state: a file in which that survives an interruption, with another one beside it.
        key: digest of whatever the evaluation depends on, for that file.
    """

    even: Callable[[], Quantizer | None] | None = None
    budget_s: float | None = None
    state: Path | None = None
    key: str = ""


def mend(quantizer: Quantizer, judge: Examiner | None, means: Means, tell: Tell) -> Mended:
    """Makes the INT8 model, and better where the examiner says it must be. What is not good enough after all that was
    allowed is returned all the same: its result says so.

    Raises:
        EdgertError: the model cannot be made or run; the evaluation was stopped.
    """
    if judge is None:
        return Mended(quantizer, quantizer.finish())
    best = corrected(quantizer, judge)
    if _value(best) >= judge.floor:
        return best
    tell(f"{judge.metric} {_value(best):.3f}, and {judge.goal:.3f} is wanted")
    if means.even is not None:
        tell("evening out channels")
        other = means.even()
        if other is not None:
            best = max(best, corrected(other, judge), key=_value)
    if _value(best) >= judge.goal or means.budget_s is None:
        return best
    return _kept(best, judge, means, tell)


def corrected(quantizer: Quantizer, judge: Examiner) -> Mended:
    """Everything in INT8; with biases corrected, or without where that is the better one."""
    found = []
    for correct in (True, False) if quantizer.corrects else (False,):
        made = quantizer.finish(correct=correct)
        found.append(Mended(quantizer, made, judge.examine(made), correct))
    return max(found, key=_value)


def _kept(whole: Mended, judge: Examiner, means: Means, tell: Tell) -> Mended:
    quantizer, budget_s = whole.quantizer, means.budget_s
    assert budget_s is not None  # mend() looked
    tell("looking for the layers that cost the accuracy")
    key = f"{quantizer.model.digest} {quantizer.recipe} {means.key}"
    noise = cache(rounding_noise(quantizer, quantizer.feeds[:SCAN_IMAGES]))
    ranking = scan(
        quantizer.units,
        noise,
        state=None if means.state is None else means.state.with_name(f"{means.state.name}.scan"),
        key=key,
        budget_s=budget_s * _SCAN_SHARE,
    )
    made = {frozenset[str](): whole}

    def measured(kept: frozenset[str]) -> float:
        if kept not in made:
            one = quantizer.finish(kept, correct=whole.corrected)
            made[kept] = replace(whole, quantized=one, result=judge.examine(one))
        return _value(made[kept])

    def spares(whole: frozenset[str], rest: frozenset[str]) -> bool:
        return noise(rest) <= _SPARED * noise(whole)

    found = search(ranking.names, measured, judge.goal, state=means.state, key=key, budget_s=budget_s, spares=spares)
    measured(frozenset(found.kept))  # a resumed search knows the value, not the model
    best = _once_corrected(made[frozenset(found.kept)], frozenset(found.kept), judge)
    return replace(best, scan=ranking, search=found)


def _once_corrected(made: Mended, kept: frozenset[str], judge: Examiner) -> Mended:
    """Its biases corrected after all, if that is better now that less is lost."""
    if made.corrected or not made.quantizer.corrects:
        return made
    one = made.quantizer.finish(kept)
    return max(made, replace(made, quantized=one, result=judge.examine(one), corrected=True), key=_value)


def _value(made: Mended) -> float:
    assert made.result is not None  # there was an examiner
    return made.result.value
