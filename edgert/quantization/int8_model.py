"""A model of a pipeline file made INT8, within its accuracy budget."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from edgert.config import ModelConfig
from edgert.errors import BuildError, EdgertError
from edgert.evaluation import EvaluationResult
from edgert.graph import Model
from edgert.quantization.calibrated import Calibrated
from edgert.quantization.calibration.ranges import RangeTable
from edgert.quantization.evaluator import CORRECTION_IMAGES, Examiner, Judge, examiner
from edgert.quantization.mixed_precision import MixedPrecision, Scan
from edgert.quantization.noise import sqnr
from edgert.quantization.quantizer import Quantized, Quantizer, Recipe, for_this_machine
from edgert.quantization.recovery import SCAN_IMAGES, Means, Mended, mend
from edgert.quantization.run import Bar, Tell
from edgert.quantization.scheme.scheme import USUAL_DLA, Dla, Target

# What came of quantizing a model.


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """An INT8 model, what it was made of, and how good it is.

    Attributes:
        prepared: the float model it was made of.
        table: the ranges, with the thresholds' methods as they were used.
        recipe: how it was made.
        quantized: the INT8 model.
        kept: units left in higher precision → why.
        evaluation: FP32 and INT8 on the labeled images; without labels their agreement on the calibration images.
        labeled: whether ``evaluation`` is of labeled images.
        scan: which units cost most, if that was looked into.
        search: how the units to keep were found, if there was a budget to meet.
        sqnr_db: tensor → signal to quantization noise: outputs of weighted nodes and of the graph.
        seconds: for making it all.
        warnings: what had to be done, or could not be, without being asked for.
        is_sound: whether it is as good as its budget asks, or without one as good as INT8 usually is; also where
            nothing could tell.
    """

    prepared: Model
    table: RangeTable
    recipe: Recipe
    quantized: Quantized
    kept: Mapping[str, str]
    evaluation: EvaluationResult | None
    labeled: bool
    scan: Scan | None
    search: MixedPrecision | None
    sqnr_db: Mapping[str, float]
    seconds: float
    warnings: tuple[str, ...] = ()
    is_sound: bool = True

    @property
    def model(self) -> Model:
        """The INT8 model."""
        return self.quantized.model


BUDGET_S = 600.0
"""The time that looking for layers to keep may take, unless told otherwise."""
UNASKED_S = 300.0
"""And where no budget was set, but INT8 would spoil the model."""
_BLAMED = 5


def quantize_section(
    config: ModelConfig,
    calibrated: Calibrated,
    *,
    target: Target = "ort",
    dla: Dla | None = None,
    where: str = "",
    directory: Path | None = None,
    budget_s: float = BUDGET_S,
    state: Path | None = None,
    tell: Tell | None = None,
    bar: Bar | None = None,
    stop: threading.Event | None = None,
    judged: bool = True,
    even: bool = False,
    strict: bool = True,
) -> Outcome:
    """Makes the model INT8 as its section says. Blocks until done.

    With ``accuracy:`` in the section the model is examined on the labeled images; where it loses too much, layers
    are found whose higher precision brings it back, as few as can be. Without, it is compared with FP32 on the
    calibration images, and the same is done where hardly anything is left of it: the outcome says so.

    Args:
        calibrated: the model's ranges.
        target: who will run it.
        dla: whose rules hold, for target ``dla``; Orin's by default.
        where, directory: the section's place and the folder of its file.
        budget_s: for finding layers to keep; what is found by then counts.
        state: a file in which that search survives an interruption.
        tell: told each step.
        bar: moved while images are counted.
        stop: ends it when set, within an image's time.
        judged: False leaves it at the noise of the outputs, where the section sets no budget.
        even: lets TensorRT's forms have their channels evened out where that saves accuracy
            (:mod:`~edgert.quantization.equalization`). Not for a calibration cache, which belongs to the model
            as it is.
        strict: False hands out a model that misses its budget as well; it is not ``is_sound`` then.

    Raises:
        BuildError: the budget cannot be met; names the layers that cost most.
        CalibrationError: stopped.
        EdgertError: labels or model cannot be used.
    """
    started = time.perf_counter()
    tell = tell or (lambda text: None)
    try:
        tell("quantizing")
        recipe = recipe_of(config, target, dla)
        quantizer = _quantizer(recipe, calibrated, tell, stop)
        judge = examiner(config, calibrated, directory, where, bar, stop, judged=judged)
        evener = partial(_evened, recipe, calibrated, tell, stop) if even and target != "ort" else None
        key = str(judge.setup.dataset.path) if isinstance(judge, Judge) else ""
        time_s = budget_s if config.accuracy is not None else min(budget_s, UNASKED_S)
        made = mend(quantizer, judge, Means(evener, time_s, state, key), tell)
        is_sound = made.result is None or judge is None or made.result.value >= judge.floor
        if judge is not None and judge.is_strict and strict and not is_sound:
            raise _missed(judge, made)
        tell("comparing layer by layer")
        few, maker = quantizer.feeds[:SCAN_IMAGES], made.quantizer
        noise = sqnr(maker.graph, made.quantized.graph, few, None, maker.model) if few else {}
    except EdgertError as error:
        raise error.at(where)  # noqa: B904 - the same error, with its place
    accuracy = made.result.accuracy if made.result else None
    return Outcome(
        prepared=maker.model,
        table=maker.table,
        recipe=maker.recipe,
        quantized=_told(made.quantized) if maker.model is not calibrated.model else made.quantized,
        kept=reasons(made),
        evaluation=judge.evaluation(accuracy) if isinstance(judge, Judge) and accuracy else None,
        labeled=config.accuracy is not None,
        scan=made.scan,
        search=made.search,
        sqnr_db=noise,
        seconds=time.perf_counter() - started,
        warnings=() if judge is None else tuple(_warnings(judge, made)),
        is_sound=is_sound,
    )


def rounded(config: ModelConfig, calibrated: Calibrated) -> Model:
    """The model for this machine by plain rounding, of unknown accuracy: to see how fast INT8 can be."""
    recipe = recipe_of(config, "ort")
    return _quantizer(recipe, calibrated, lambda text: None, None).quick().model


def recipe_of(config: ModelConfig, target: Target, dla: Dla | None = None) -> Recipe:
    """The recipe that a section asks for; ``dla``: whose rules hold, Orin's by default."""
    wanted = config.quantize
    recipe = Recipe(
        target,
        keep=wanted.keep,
        choose=config.calibrate is not None and config.calibrate.method == "auto",
        correct_bias=wanted.correct_bias,
        adaround=wanted.adaround,
        activation=wanted.activation,
        dla=dla or USUAL_DLA,
    )
    return for_this_machine(recipe) if target == "ort" else recipe


def _quantizer(recipe: Recipe, calibrated: Calibrated, tell: Tell, stop: threading.Event | None) -> Quantizer:
    feeds = calibrated.feeds(CORRECTION_IMAGES)
    whole = calibrated.whole_for(recipe)
    return Quantizer(calibrated.model, calibrated.table, recipe, feeds, tell, calibrated.more, stop, whole)


def _evened(recipe: Recipe, calibrated: Calibrated, tell: Tell, stop: threading.Event | None) -> Quantizer | None:
    even = calibrated.evened(recipe, stop=stop)
    return None if even is None else _quantizer(recipe, even, tell, stop)


def _told(quantized: Quantized) -> Quantized:
    """With what was done to the model before it was quantized."""
    return replace(
        quantized, notes=("channels evened out, so that those of one tensor reach equally far", *quantized.notes)
    )


def reasons(made: Mended) -> Mapping[str, str]:
    """Unit left in higher precision → why."""
    found = {skipped.node: skipped.reason for skipped in made.quantized.scheme.skipped}
    found |= dict.fromkeys(sorted(made.quantizer.keep), "asked for")
    if made.search and made.scan:
        costs = {item.unit: item.cost for item in made.scan.ranked}
        for name in made.search.kept:
            cost = costs[name]
            told = f"; alone in INT8 it makes {cost:.1%} of the outputs noise" if cost else ""
            found[name] = f"needed for accuracy{told}"
    return found


def _warnings(judge: Examiner, made: Mended) -> Iterator[str]:
    """What a reader must know who set no budget."""
    if judge.is_strict or made.result is None:
        return
    if made.search is not None and made.search.kept:
        before = next(one.value for one in made.search.tried if not one.kept)
        yield (
            f"INT8 throughout would spoil this model ({judge.metric} {before:.2f} with FP32): {len(made.search.kept)} "
            f"layers stay in higher precision ({judge.metric} {made.result.value:.2f}). Set accuracy: {{dataset: …, "
            "metric: …, max_drop: …} to say what it may cost"
        )
    if made.result.value < judge.floor:
        yield (
            f"this INT8 model does not do what FP32 does: {judge.metric} {made.result.value:.2f}, and sound ones have "
            f"{judge.floor:.2f} or more. Try method: auto, or precision: fp16"
        )


def _missed(judge: Examiner, made: Mended) -> BuildError:
    assert made.result is not None  # there is an examiner
    why = ""
    if made.search is not None and made.scan is not None:
        why = f"{made.search.reason} The layers that cost most: {', '.join(made.scan.names[:_BLAMED])}"
    return BuildError(
        f"INT8 misses the accuracy budget: {judge.metric} {made.result.value:.4f}, at least {judge.goal:.4f} wanted",
        why=why,
        fix="calibrate on more images like those it will see, try method: auto or quantize: {adaround: '*'}, "
        "allow a larger max_drop, or precision: fp16",
    )
