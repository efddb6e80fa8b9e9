"""A model of a pipeline file made INT8, within its accuracy budget."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dla import Target as Dla
from edgert.config import ModelConfig
from edgert.errors import BuildError, EdgertError
from edgert.evaluation import EvaluationResult
from edgert.evaluation.score import is_uninformative
from edgert.graph import Model
from edgert.quantization.calibrated import Calibrated
from edgert.quantization.calibration.ranges import RangeTable
from edgert.quantization.calibration.walk import Feeds
from edgert.quantization.evaluator import (
    CORRECTION_IMAGES,
    REPAIRED,
    Evaluator,
    NoiseEvaluator,
    TaskEvaluator,
    evaluator_of,
)
from edgert.quantization.quantization_error import drowned, is_clear, outputs_in_order, sqnr
from edgert.quantization.quantizer import Quantized, Quantizer, Recipe, for_this_machine
from edgert.quantization.recovery import SCAN_IMAGES, MixedPrecision, Recovered, RecoveryOptions, Scan, recover
from edgert.quantization.run import ALONE, Run
from edgert.quantization.scheme.units import USUAL_DLA, Target


@dataclass(frozen=True, slots=True, eq=False)
class QuantizationResult:
    """An INT8 model, what it was made of, and its accuracy.

    Attributes:
        prepared: the float model it was made of.
        table: the ranges, with the methods of thresholds that were used.
        recipe: how it was made.
        quantized: the INT8 model.
        kept: units left in higher precision → why.
        scan: which units cost most, if that was measured.
        search: how the units to keep were found, if there was a budget to meet.
        sqnr_db: tensor → signal to quantization noise: outputs of weighted nodes and of the graph.
        seconds: for making it all.
        evaluation: FP32 and INT8 on the labeled images; without labels their agreement on the calibration images.
        labeled: whether ``evaluation`` is of labeled images.
        warnings: what had to be done, or could not be, without being asked for.
        is_sound: whether it meets its budget, or without one is as good as INT8 usually is; also where nothing could
            measure it.
    """

    prepared: Model
    table: RangeTable
    recipe: Recipe
    quantized: Quantized
    kept: Mapping[str, str]
    scan: Scan | None
    search: MixedPrecision | None
    sqnr_db: Mapping[str, float]
    seconds: float
    evaluation: EvaluationResult | None = None
    labeled: bool = False
    warnings: tuple[str, ...] = ()
    is_sound: bool = True

    @property
    def model(self) -> Model:
        """The INT8 model."""
        return self.quantized.model


BUDGET_S = 600.0
"""Seconds that the search for layers to keep may take, by default."""
UNASKED_S = 300.0
"""Seconds for that search where no budget was set, but INT8 would spoil the model."""
_BLAMED = 5
_SMOOTHED = "activations smoothed, so that the channels of one tensor have similar ranges"


def quantize_section(
    config: ModelConfig,
    calibrated: Calibrated,
    *,
    target: Target = "ort",
    dla: Dla = USUAL_DLA,
    run: Run = ALONE,
    budget_s: float = BUDGET_S,
    state: Path | None = None,
    judged: bool = True,
    smooth: bool = False,
    strict: bool = True,
) -> QuantizationResult:
    """Make the model INT8 as its section asks.

    Blocks until done. With ``accuracy:`` in the section the model is evaluated on the labeled images. Where it loses
    too much, the fewest layers are found whose higher precision recovers the accuracy. Without, it is compared with
    FP32 on the calibration images. The same is done where hardly any accuracy is left; the outcome then has a warning.

    Args:
        config: the model's section.
        calibrated: the model's ranges.
        target: who will run it.
        dla: whose rules hold, for target ``dla``.
        run: the section's place in the file, the log, and the stop event.
        budget_s: seconds for finding layers to keep; what is found by then counts.
        state: a file in which that search survives an interruption.
        judged: False measures only the noise of the outputs, where the section sets no budget.
        smooth: lets TensorRT's forms have their activations smoothed where that saves accuracy
            (:mod:`~edgert.quantization.equalization`). Not for a calibration cache, which belongs to the model as it
            is.
        strict: False returns a model that misses its budget as well; it is not ``is_sound`` then.

    Raises:
        BuildError: the budget cannot be met; names the layers that cost most.
        CalibrationError: stopped.
        EdgertError: labels or model cannot be used.
    """
    started = time.perf_counter()
    try:
        run.log("quantizing")
        evaluator = evaluator_of(config, calibrated, run, judged=judged)
        made = recovered(
            calibrated,
            recipe_of(config, target, dla),
            evaluator,
            run,
            smooth=smooth,
            budget_s=budget_s if config.accuracy is not None else min(budget_s, UNASKED_S),
            state=state,
        )
        is_sound = made.result is None or evaluator is None or made.result.value >= evaluator.floor
        if evaluator is not None and evaluator.is_strict and strict and not is_sound:
            raise _missed(evaluator, made)
        run.log("comparing layer by layer")
        found = outcome_of(made, made.quantizer.recipe, calibrated.feeds(SCAN_IMAGES))
    except EdgertError as error:
        raise error.at(run.where)  # noqa: B904 - the same error, with its place
    if made.quantizer.model is not calibrated.model:
        found = replace(found, quantized=replace(made.quantized, notes=(_SMOOTHED, *made.quantized.notes)))
    accuracy = made.result.accuracy if made.result else None
    # Labels say more than noise does.
    graph = made.quantizer.graph
    outputs = outputs_in_order(graph) if isinstance(evaluator, TaskEvaluator) else graph.output_names
    lost = () if config.accuracy is not None else drowned(found.sqnr_db, outputs)
    clear = bool(outputs) and is_clear(found.sqnr_db, outputs)
    return replace(
        found,
        labeled=config.accuracy is not None,
        evaluation=evaluator.evaluation(accuracy) if isinstance(evaluator, TaskEvaluator) and accuracy else None,
        seconds=time.perf_counter() - started,
        warnings=(*_noise_warnings(lost), *(() if evaluator is None else _warnings(evaluator, made, clear))),
        is_sound=is_sound and not lost,
    )


def recovered(
    calibrated: Calibrated,
    recipe: Recipe,
    evaluator: TaskEvaluator | NoiseEvaluator | None,
    run: Run,
    *,
    smooth: bool = False,
    budget_s: float | None = None,
    state: Path | None = None,
    kind: type[Quantizer] = Quantizer,
) -> Recovered:
    """Make the INT8 model of a calibrated one, as :func:`~edgert.quantization.recovery.recover` does.

    Args:
        calibrated: the float model and its ranges.
        recipe: how it is made.
        kind: of quantizer that makes it.
        evaluator: measures what INT8 costs; with None nothing is measured.
        run: its log is called with each step, its event stops it.
        smooth: as :func:`quantize_section` takes it.
        budget_s: likewise; None keeps no units.
        state: likewise.

    Raises:
        EdgertError: the model cannot be made or run; stopped.
    """

    def smoothed() -> Quantizer | None:
        other = calibrated.smoothed(recipe, stop=run.stop)
        return None if other is None else _quantizer(other, recipe, run, kind)

    key = str(evaluator.setup.dataset.path) if isinstance(evaluator, TaskEvaluator) else ""
    options = RecoveryOptions(smoothed if smooth and recipe.target != "ort" else None, budget_s, state, key, run.bar)
    return recover(_quantizer(calibrated, recipe, run, kind), evaluator, options, run.log)


def rounded(config: ModelConfig, calibrated: Calibrated) -> Model:
    """Return the model for this machine by plain rounding, of unknown accuracy: to see how fast INT8 can be."""
    return _quantizer(calibrated, recipe_of(config, "ort"), ALONE).quick().model


def recipe_of(config: ModelConfig, target: Target, dla: Dla = USUAL_DLA) -> Recipe:
    """Return the recipe of a section, for a target; ``dla``: whose rules hold for target ``dla``."""
    wanted = config.quantize
    recipe = Recipe(
        target,
        keep=wanted.keep,
        choose=config.calibrate is not None and config.calibrate.method == "auto",
        correct_bias=wanted.correct_bias,
        adaround=wanted.adaround,
        activation=wanted.activation,
        dla=dla,
    )
    return for_this_machine(recipe) if target == "ort" else recipe


def _quantizer(calibrated: Calibrated, recipe: Recipe, run: Run, kind: type[Quantizer] = Quantizer) -> Quantizer:
    whole = calibrated.whole if calibrated.whole and calibrated.whole.target == recipe.target else None
    feeds = calibrated.feeds(CORRECTION_IMAGES)
    return kind(calibrated.model, calibrated.table, recipe, feeds, run, calibrated.more, whole)


def outcome_of(made: Recovered, recipe: Recipe, feeds: Sequence[Feeds], seconds: float = 0.0) -> QuantizationResult:
    """Return the record of a model; compares layer by layer, in seconds.

    Args:
        made: the model and how it was recovered.
        recipe: how its numbers are described in a report.
        feeds: images to compare layers on; with none that is left out.
        seconds: how long making it took.

    Raises:
        BuildError: ONNX Runtime cannot run the model.
    """
    maker, graph = made.quantizer, made.quantized.graph
    kept = {skipped.node: skipped.reason for skipped in made.quantized.scheme.skipped}
    kept |= dict.fromkeys(sorted(maker.keep), "asked for")
    if made.search and made.scan:
        costs = {item.unit: item.cost for item in made.scan.ranked}
        for name in made.search.kept:
            noise = f"; alone in INT8 it makes {costs[name]:.1%} of the outputs noise" if costs[name] else ""
            kept[name] = f"needed for accuracy{noise}"
    noise_db = sqnr(maker.graph, graph, feeds, None, maker.model) if feeds else {}
    return QuantizationResult(
        maker.model, maker.table, recipe, made.quantized, kept, made.scan, made.search, noise_db, seconds
    )


def _noise_warnings(lost: Sequence[str]) -> Iterator[str]:
    if lost:
        yield (
            f"INT8 spoils this model: {'; '.join(lost)}, whatever the two agree on. Calibrate on images like those it "
            "will see, try method: auto, or precision: fp16"
        )


def _warnings(evaluator: Evaluator, made: Recovered, clear: bool) -> Iterator[str]:
    """Yield warnings for a user who set no budget; ``clear``: hardly any noise is in the outputs."""
    if evaluator.is_strict or made.result is None:
        return
    metric, value = evaluator.metric, made.result.value
    why = is_uninformative(evaluator.reference.notes) if isinstance(evaluator, TaskEvaluator) and not clear else ""
    if why:
        yield f"that INT8 agrees with FP32 says little: {why}. Calibrate on images that differ"
    if made.search is not None and made.search.kept:
        before = made.search.tried[()]
        yield (
            f"INT8 throughout would spoil this model ({metric} {before:.2f} with FP32): {len(made.search.kept)} layers "
            f"stay in higher precision ({metric} {value:.2f}). Set accuracy: {{dataset: …, metric: …, max_drop: …}} to "
            "limit what it may cost"
        )
    if value < evaluator.floor:
        yield (
            f"this INT8 model differs too much from FP32: {metric} {value:.2f}, and sound ones have "
            f"{evaluator.floor:.2f} or more. Try method: auto, or precision: fp16"
        )
    elif value < evaluator.goal and metric in REPAIRED:
        yield (
            f"this INT8 model does not always do what FP32 does ({metric} {value:.2f}), which can cost a point of "
            "accuracy or more: labels tell how much, with accuracy: {dataset: …, metric: …, max_drop: …} or "
            "edgert eval --data"
        )


def _missed(evaluator: Evaluator, made: Recovered) -> BuildError:
    assert made.result is not None  # there is an evaluator
    why = ""
    if made.search is not None and made.scan is not None:
        why = f"{made.search.reason} The layers that cost most: {', '.join(made.scan.names[:_BLAMED])}"
    return BuildError(
        f"INT8 misses the accuracy budget: {evaluator.metric} {made.result.value:.4f}, at least {evaluator.goal:.4f} "
        "wanted",
        why=why,
        fix="calibrate on more images like those it will see, try method: auto or quantize: {adaround: '*'}, "
        "allow a larger max_drop, or precision: fp16",
        code="E501",
    )
