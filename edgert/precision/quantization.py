"""A model of a pipeline file made INT8, within its accuracy budget."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from edgert.accuracy import Accuracy
from edgert.backend.ort import Function
from edgert.config import ModelConfig
from edgert.errors import BuildError, EdgertError
from edgert.precision.calibration import Calibrated
from edgert.precision.judge import Bar, Judge, can_judge
from edgert.precision.outcome import Outcome
from edgert.quantize.compare import sqnr
from edgert.quantize.mixed import MixedPrecision, search
from edgert.quantize.recipe import Quantized, Quantizer, Recipe, for_this_machine
from edgert.quantize.scheme import Target
from edgert.quantize.sensitivity import Scan, scan

CORRECTION_PICTURES = 32
"""Pictures that biases are corrected over."""
SCAN_PICTURES = 4
"""Pictures that tell which layers cost most: only their order matters."""
BUDGET_S = 600.0
"""The time that looking for layers to keep may take, unless told otherwise."""
_BLAMED = 5

Tell = Callable[[str], object]
"""Called with one line about what is being done."""


def quantize_section(
    config: ModelConfig,
    calibrated: Calibrated,
    *,
    target: Target = "ort",
    where: str = "",
    directory: Path | None = None,
    budget_s: float = BUDGET_S,
    state: Path | None = None,
    tell: Tell | None = None,
    bar: Bar | None = None,
    stop: threading.Event | None = None,
    judged: bool = True,
) -> Outcome:
    """Makes the model INT8 as its section says. Blocks until done.

    With ``accuracy:`` in the section the model is examined on the labelled pictures; where it loses too much, layers
    are found whose higher precision brings it back, as few as can be. Without, its agreement with FP32 on the
    calibration pictures is told.

    Args:
        calibrated: the model's ranges.
        target: who will run it.
        where, directory: the section's place and the folder of its file.
        budget_s: for finding layers to keep; what is found by then counts.
        state: a file in which that search survives an interruption.
        tell: told each step.
        bar: moved while pictures are counted.
        judged: False makes the model without examining it, where the section sets no budget.

    Raises:
        BuildError: the budget cannot be met; names the layers that cost most.
        EdgertError: labels or model cannot be used.
    """
    started = time.perf_counter()
    tell = tell or (lambda text: None)
    try:
        feeds = calibrated.feeds(CORRECTION_PICTURES)
        quantizer = Quantizer(calibrated.model, calibrated.table, recipe_of(config, target), feeds, tell)
        judge = None
        if config.accuracy is not None or (judged and can_judge(config, calibrated)):
            judge = Judge(config, calibrated, directory, where, bar, stop)
        made = _within_budget(quantizer, judge, budget_s, state, tell)
        standing = judge.standing(made.result) if judge and made.result else None
        tell("comparing layer by layer")
        few = feeds[:SCAN_PICTURES]
        noise = sqnr(quantizer.graph, made.quantized.graph, few, None, quantizer.model) if few else {}
    except EdgertError as error:
        raise error.at(where)  # noqa: B904 - the same error, with its place
    return Outcome(
        prepared=calibrated.model,
        table=quantizer.table,
        recipe=quantizer.recipe,
        quantized=made.quantized,
        kept=_reasons(made, quantizer),
        standing=standing,
        labelled=config.accuracy is not None,
        scan=made.scan,
        search=made.search,
        sqnr_db=noise,
        seconds=time.perf_counter() - started,
    )


def recipe_of(config: ModelConfig, target: Target) -> Recipe:
    """The recipe that a section asks for."""
    wanted = config.quantize
    recipe = Recipe(
        target,
        keep=wanted.keep,
        choose=config.calibrate is not None and config.calibrate.method == "auto",
        correct_bias=wanted.correct_bias,
        adaround=wanted.adaround,
        activation=wanted.activation,
    )
    return for_this_machine(recipe) if target == "ort" else recipe


@dataclass(frozen=True, slots=True, eq=False)
class _Made:
    quantized: Quantized
    result: Accuracy | None = None
    scan: Scan | None = None
    search: MixedPrecision | None = None


def _within_budget(quantizer: Quantizer, judge: Judge | None, budget_s: float, state: Path | None, tell: Tell) -> _Made:
    tell("quantising")
    if judge is None:
        return _Made(quantizer.finish())
    whole, result, correct = _better(quantizer, judge)
    if judge.value(result) >= judge.floor:
        return _Made(whole, result)
    tell("looking for the layers that cost the accuracy")
    ranking = scan(quantizer.units, _output_error(quantizer), budget_s=budget_s / 2)
    made = {frozenset[str](): (whole, result)}

    def measured(kept: frozenset[str]) -> float:
        if kept not in made:
            one = quantizer.finish(kept, correct=correct)
            made[kept] = one, judge.result(one)
        return judge.value(made[kept][1])

    key = f"{quantizer.model.digest} {quantizer.recipe} {judge.exam.dataset.path}"
    found = search(ranking.names, measured, judge.floor, state=state, key=key, budget_s=budget_s)
    if not found.met:
        raise _missed(judge, found, ranking)
    measured(frozenset(found.kept))  # a resumed search knows the value, not the model
    return _Made(*made[frozenset(found.kept)], ranking, found)


def _better(quantizer: Quantizer, judge: Judge) -> tuple[Quantized, Accuracy, bool]:
    """With biases corrected, or without where that is more accurate: the correction evens out means, which nearly
    always helps, but a network whose errors are large already can lose what was left."""
    found = []
    for correct in (True, False) if quantizer.recipe.correct_bias else (False,):
        made = quantizer.finish(correct=correct)
        found.append((made, judge.result(made), correct))
    return max(found, key=lambda one: judge.value(one[1]))


def _output_error(quantizer: Quantizer) -> Callable[[frozenset[str]], float]:
    """The relative error of the outputs with some units kept: the mean over outputs of noise over signal."""
    feeds = quantizer.feeds[:SCAN_PICTURES]
    exact = Function(quantizer.model)
    wanted = [exact(one) for one in feeds]

    def error(kept: frozenset[str]) -> float:
        model = quantizer.quick(kept).model
        function = Function(model, fused=quantizer.recipe.target == "ort")
        pairs = [(true, function(one)) for true, one in zip(wanted, feeds, strict=True)]
        return float(np.mean([_noise([(t[name], f[name]) for t, f in pairs]) for name in exact.outputs]))

    return error


def _noise(pairs: list[tuple[np.ndarray, np.ndarray]]) -> float:
    noise = sum(float(np.square(true - found, dtype=np.float64).sum()) for true, found in pairs)
    signal = sum(float(np.square(true, dtype=np.float64).sum()) for true, _ in pairs)
    return noise / signal if signal else noise


def _reasons(made: _Made, quantizer: Quantizer) -> Mapping[str, str]:
    """Unit left in higher precision → why."""
    reasons = {skipped.node: skipped.reason for skipped in made.quantized.scheme.skipped}
    reasons |= dict.fromkeys(sorted(quantizer.keep), "asked for")
    if made.search and made.scan:
        gains = {item.unit: item for item in made.scan.ranked}
        for name in made.search.kept:
            gain = gains[name].gain
            reasons[name] = "needed for the accuracy budget" + (f"; error {gain:+.2g} without it" if gain else "")
    return reasons


def _missed(judge: Judge, found: MixedPrecision, ranking: Scan) -> BuildError:
    assert judge.budget is not None
    worst = ", ".join(ranking.names[:_BLAMED])
    return BuildError(
        f"INT8 misses the accuracy budget: {judge.budget.metric} {found.value:.4f}, at least {judge.floor:.4f} wanted",
        why=f"{found.reason} The layers that cost most: {worst}",
        fix="calibrate on more pictures like those it will see, try method: auto or quantize: {adaround: '*'}, "
        "allow a larger max_drop, or precision: fp16",
    )
