"""Quantization of a section's model to INT8, within its accuracy budget."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dla import Target as Dla
from edgert.config import ModelConfig
from edgert.errors import BuildError, located_at
from edgert.evaluation import EvaluationResult
from edgert.evaluation.score import is_uninformative
from edgert.graph import Model
from edgert.quantization.calibrated import CalibratedModel
from edgert.quantization.calibration import ranges, walk
from edgert.quantization.evaluator import CORRECTION_IMAGES, REPAIRED, Evaluator, TaskEvaluator, evaluator_of
from edgert.quantization.quantization_error import is_clear, noisy_outputs, outputs_with_fixed_rows, sqnr
from edgert.quantization.quantizer import Quantized, Quantizer, Recipe, for_this_machine
from edgert.quantization.recovery import SCAN_IMAGES, Costs, MixedPrecision, Recovered, recover
from edgert.quantization.run import DEFAULT_RUN, Run
from edgert.quantization.scheme.units import USUAL_DLA, Target


@dataclass(frozen=True, slots=True, eq=False)
class QuantizationResult:
    """An INT8 model, its origin, and its accuracy.

    Attributes:
        table: ranges, with the methods by which thresholds were chosen.
        kept: reasons by name of the units left in higher precision.
        scan: cost of each unit; None where it was not measured.
        search: search for units to keep; None where there was none.
        sqnr_db: signal to quantization noise of the outputs of weighted nodes and of the graph, by tensor, in dB.
        evaluation: FP32 and INT8 on labeled images; without labels their agreement on calibration images.
        labeled: whether ``evaluation`` used labels.
        warnings: changes that the user did not ask for, and problems that remain.
        is_sound: whether the model meets its budget or, without one, is as good as INT8 usually is; True where its
            accuracy could not be measured.
    """

    prepared: Model
    table: ranges.RangeTable
    recipe: Recipe
    quantized: Quantized
    kept: Mapping[str, str]
    scan: Costs | None
    search: MixedPrecision | None
    sqnr_db: Mapping[str, float]
    evaluation: EvaluationResult | None = None
    labeled: bool = False
    warnings: tuple[str, ...] = ()
    is_sound: bool = True

    @property
    def model(self) -> Model:
        """The INT8 model."""
        return self.quantized.model


BUDGET_S = 600.0
"""Default limit of the search for layers to keep, in seconds."""
UNASKED_S = 300.0
"""Limit of this search, in seconds, where INT8 would spoil the model but no budget was set."""
_BLAMED = 5
_SMOOTHED = "activations smoothed, so that the channels of one tensor have similar ranges"


def quantize_section(
    config: ModelConfig,
    calibrated: CalibratedModel,
    *,
    target: Target = "ort",
    dla: Dla = USUAL_DLA,
    run: Run = DEFAULT_RUN,
    budget_s: float = BUDGET_S,
    state: Path | None = None,
    by_task: bool = True,
    smooth: bool = False,
    strict: bool = True,
) -> QuantizationResult:
    """Quantize a section's model to INT8. Blocks until done.

    With ``accuracy:`` in the section the model is evaluated on labeled images. Where it loses too much, as few layers
    as possible get a higher precision. Without ``accuracy:`` it is compared with FP32 on the calibration images, and
    repaired in the same way where hardly any accuracy is left; the result then has a warning. ``budget_s`` are seconds
    for finding layers to keep; the best found by then is used. Without ``by_task`` and a budget, the noise of outputs
    is compared. ``smooth`` allows smoothed activations for TensorRT (:mod:`~edgert.quantization.equalization`), which a
    calibration cache cannot have, since it belongs to the unchanged model. Without ``strict``, the result of a missed
    budget is not ``is_sound``. Raises BuildError: the budget cannot be met; the error names the layers that cost most.
    Raises CalibrationError: ``run.stop`` was set. Raises EdgertError: labels or model cannot be used.
    """
    with located_at(run.where):
        run.log("quantizing")
        evaluator = evaluator_of(config, calibrated, run, by_task=by_task)
        made = quantize_and_recover(
            calibrated,
            section_recipe(config, target, dla),
            evaluator,
            run,
            smooth=smooth,
            budget_s=budget_s if config.accuracy is not None else min(budget_s, UNASKED_S),
            state=state,
        )
        is_sound = made.result is None or evaluator is None or made.result.value >= evaluator.floor
        if evaluator is not None and evaluator.is_strict and strict and not is_sound:
            raise _budget_error(evaluator, made)
        run.log("comparing layer by layer")
        found = quantization_result(made, calibrated.feeds(SCAN_IMAGES))
    if made.quantizer.model is not calibrated.model:
        found = replace(found, quantized=replace(made.quantized, notes=(_SMOOTHED, *made.quantized.notes)))
    accuracy = made.result.accuracy if made.result else None
    # labels say more than noise
    graph = made.quantizer.graph
    outputs = outputs_with_fixed_rows(graph) if isinstance(evaluator, TaskEvaluator) else graph.output_names
    lost = () if config.accuracy is not None else noisy_outputs(found.sqnr_db, outputs)
    clear = bool(outputs) and is_clear(found.sqnr_db, outputs)
    return replace(
        found,
        labeled=config.accuracy is not None,
        evaluation=evaluator.evaluation(accuracy) if isinstance(evaluator, TaskEvaluator) and accuracy else None,
        warnings=(*_noise_warnings(lost), *(() if evaluator is None else _warnings(evaluator, made, clear))),
        is_sound=is_sound and not lost,
    )


def quantize_and_recover(
    calibrated: CalibratedModel,
    recipe: Recipe,
    evaluator: Evaluator | None,
    run: Run,
    *,
    smooth: bool = False,
    budget_s: float | None = None,
    state: Path | None = None,
) -> Recovered:
    """Quantize a calibrated model, and recover its accuracy (:func:`~edgert.quantization.recovery.recover`).

    No ``evaluator`` measures nothing; no ``budget_s`` keeps no units. For the others see :func:`quantize_section`.
    Raises EdgertError: the model cannot be made or run, or ``run.stop`` was set.
    """

    def smoothed() -> Quantizer | None:
        other = calibrated.smooth(recipe, stop=run.stop)
        return None if other is None else _quantizer(other, recipe, run)

    key = f"{evaluator.setup.dataset.path} {evaluator.metric}" if isinstance(evaluator, TaskEvaluator) else ""
    may_smooth = smooth and recipe.target != "ort"
    return recover(
        _quantizer(calibrated, recipe, run),
        evaluator,
        run,
        smoothed=smoothed if may_smooth else None,
        budget_s=budget_s,
        state=state,
        key=key,
    )


def round_only_model(config: ModelConfig, calibrated: CalibratedModel) -> Model:
    """Return the INT8 model for this machine with nearest rounding, of unknown accuracy, to measure its speed."""
    return _quantizer(calibrated, section_recipe(config, "ort"), DEFAULT_RUN).round_only().model


def section_recipe(config: ModelConfig, target: Target, dla: Dla = USUAL_DLA) -> Recipe:
    """Return the recipe of a section for a target; ``dla`` is the DLA whose rules apply for target ``dla``."""
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


def _quantizer(calibrated: CalibratedModel, recipe: Recipe, run: Run) -> Quantizer:
    whole = calibrated.whole if calibrated.whole and calibrated.whole.target == recipe.target else None
    feeds = calibrated.feeds(CORRECTION_IMAGES)
    return Quantizer(calibrated.model, calibrated.table, recipe, feeds, run, calibrated.measure_missing, whole)


def quantization_result(made: Recovered, feeds: Sequence[walk.Feeds]) -> QuantizationResult:
    """Return the result for a recovered model; comparing its layers takes seconds.

    Raises BuildError: ONNX Runtime cannot run the model.
    """
    maker, graph = made.quantizer, made.quantized.graph
    kept = {skipped.node: skipped.reason for skipped in made.quantized.scheme.skipped}
    kept |= dict.fromkeys(sorted(maker.keep), "asked for")
    if made.search and made.scan:
        for name in made.search.kept:
            cost = made.scan[name]
            noise = f"; alone in INT8 it makes {cost:.1%} of the outputs noise" if cost else ""
            kept[name] = f"needed for accuracy{noise}"
    noise_db = sqnr(maker.graph, graph, feeds, None, maker.model) if feeds else {}
    return QuantizationResult(
        maker.model, maker.table, maker.recipe, made.quantized, kept, made.scan, made.search, noise_db
    )


def _noise_warnings(lost: Sequence[str]) -> Iterator[str]:
    if lost:
        yield (
            f"INT8 spoils this model: {'; '.join(lost)}. Calibrate on images like those it will see, try "
            "method: auto, or precision: fp16"
        )


def _warnings(evaluator: Evaluator, made: Recovered, clear: bool) -> Iterator[str]:
    """Yield warnings for a user who set no budget; ``clear`` states that outputs have hardly any noise."""
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
            f"this INT8 model differs from FP32 now and then ({metric} {value:.2f}), which can cost a point of "
            "accuracy or more: measure it on labels, with accuracy: {dataset: …, metric: …, max_drop: …} or edgert "
            "eval --data"
        )


def _budget_error(evaluator: Evaluator, made: Recovered) -> BuildError:
    assert made.result is not None  # there is an evaluator
    why = ""
    if made.search is not None and made.scan is not None:
        why = f"{made.search.reason} The layers that cost most: {', '.join(list(made.scan)[:_BLAMED])}"
    return BuildError(
        f"INT8 misses the accuracy budget: {evaluator.metric} {made.result.value:.4f}, at least {evaluator.goal:.4f} "
        "wanted",
        why=why,
        fix="calibrate on more images like those it will see, try method: auto or quantize: {adaround: '*'}, "
        "allow a larger max_drop, or precision: fp16",
        code="E501",
    )
