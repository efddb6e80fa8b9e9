"""Accuracy recovery of a model that INT8 spoils, in the order of what it costs at run time.

Biases are corrected only where that is more accurate. It takes the mean error off each channel, which nearly always
helps, but a network with large errors can lose its remaining accuracy. Then activations are smoothed. That is free
where the engine fuses activations with what makes them, as TensorRT does, and slow on ONNX Runtime. At last units stay
in higher precision, as few as possible.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from edgert.quantization.evaluator import Evaluator, Result
from edgert.quantization.mixed_precision import MixedPrecision, Scan, scan, search
from edgert.quantization.quantizer import Quantized, Quantizer, rounding_noise
from edgert.quantization.run import Log
from edgert.reporter import Bar

SCAN_IMAGES = 4
"""Images for ranking layers by what they cost: only their order matters."""
_SCAN_SHARE = 0.5
"""Share of the time for finding units to keep that ranking them may take."""
_NOISE_LIMIT = 1.05
"""How much noise may grow by giving units back, to be evaluated at all. mAP of 128 images moves by half a point with
anything: of many sets that are nearly good enough some get there by luck."""


@dataclass(frozen=True, slots=True, eq=False)
class Recovered:
    """An INT8 model, and how it was recovered.

    Attributes:
        quantizer: what made it, of the model as it was or of one with smoothed activations.
        quantized: the model.
        result: of the evaluator; None where there was none.
        corrected: whether its biases are corrected.
        scan, search: which units cost most, and which stay in higher precision; None where none had to.
    """

    quantizer: Quantizer
    quantized: Quantized
    result: Result | None = None
    corrected: bool = True
    scan: Scan | None = None
    search: MixedPrecision | None = None


@dataclass(frozen=True, slots=True, eq=False)
class RecoveryOptions:
    """The steps that are allowed.

    Attributes:
        smoothed: makes a quantizer of the model with smoothed activations, None where that changes nothing; None where
            it must not be tried.
        budget_s: seconds for finding units to keep in higher precision; None keeps none.
        state: a file in which that survives an interruption, with another one beside it.
        key: digest of whatever the evaluation depends on, for that file.
        bar: called with each layer that is ranked; None where nobody looks.
    """

    smoothed: Callable[[], Quantizer | None] | None = None
    budget_s: float | None = None
    state: Path | None = None
    key: str = ""
    bar: Bar | None = None


def recover(quantizer: Quantizer, evaluator: Evaluator | None, options: RecoveryOptions, log: Log) -> Recovered:
    """Make the INT8 model, and a better one where the evaluator needs it.

    A model that is not good enough after all allowed steps is returned too: its result has the value.

    Args:
        quantizer: makes the model.
        evaluator: measures it; None returns the first model.
        options: the steps that are allowed.
        log: called with each step.

    Raises:
        EdgertError: the model cannot be made or run; the evaluation was stopped.
    """
    if evaluator is None:
        return Recovered(quantizer, quantizer.finish())
    best = corrected(quantizer, evaluator)
    if _value(best) >= evaluator.floor:
        return best
    log(f"{evaluator.metric} {_value(best):.3f}, and {evaluator.goal:.3f} is wanted")
    if options.smoothed is not None:
        log("smoothing activations")
        other = options.smoothed()
        if other is not None:
            best = max(best, corrected(other, evaluator), key=_value)
    if _value(best) >= evaluator.goal or options.budget_s is None:
        return best
    log(f"looking for the layers that cost the accuracy, for at most {options.budget_s / 60:.0f} min")
    return _kept(best, evaluator, options, options.budget_s, log)


def corrected(quantizer: Quantizer, evaluator: Evaluator) -> Recovered:
    """Return the model with everything in INT8, with or without bias correction, whichever is better."""
    found = []
    for correct in (True, False) if quantizer.corrects else (False,):
        made = quantizer.finish(correct=correct)
        found.append(Recovered(quantizer, made, evaluator.evaluate(made), correct))
    return max(found, key=_value)


def _kept(whole: Recovered, evaluator: Evaluator, options: RecoveryOptions, budget_s: float, log: Log) -> Recovered:
    """Return the model with as few units in higher precision as possible."""
    quantizer = whole.quantizer
    key = f"{quantizer.model.digest} {quantizer.recipe} {options.key}"
    noise = cache(rounding_noise(quantizer, quantizer.feeds[:SCAN_IMAGES]))
    ranking = scan(
        quantizer.units,
        noise,
        state=None if options.state is None else options.state.with_name(f"{options.state.name}.scan"),
        key=key,
        budget_s=budget_s * _SCAN_SHARE,
        bar=options.bar,
    )
    made = {frozenset[str](): whole}

    def measured(kept: frozenset[str]) -> float:
        if kept not in made:
            one = quantizer.finish(kept, correct=whole.corrected)
            made[kept] = replace(whole, quantized=one, result=evaluator.evaluate(one))
            log(f"{evaluator.metric} {_value(made[kept]):.3f} with {len(kept)} of {len(ranking.ranked)} layers kept")
        return _value(made[kept])

    def may_drop(whole: frozenset[str], rest: frozenset[str]) -> bool:
        return noise(rest) <= _NOISE_LIMIT * noise(whole)

    found = search(
        ranking.names, measured, evaluator.goal, state=options.state, key=key, budget_s=budget_s, may_drop=may_drop
    )
    kept = frozenset(found.kept)
    measured(kept)  # a resumed search knows the value, not the model
    best = made[kept]
    if quantizer.corrects and not best.corrected:  # now that less is lost, correcting its biases may be better
        one = quantizer.finish(kept)
        best = max(best, replace(best, quantized=one, result=evaluator.evaluate(one), corrected=True), key=_value)
    return replace(best, scan=ranking, search=found)


def _value(made: Recovered) -> float:
    assert made.result is not None  # there was an evaluator
    return made.result.value
