"""Evaluation of INT8 versions: with labels, by agreement with FP32, or by the noise of the outputs."""

import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial

from edgert.backend.ort import Function
from edgert.config import ClassifyTask, DetectTask, EmbedTask, KeypointsTask, ModelConfig, SegmentTask, TaskConfig
from edgert.dataset import ImageDataset, LabeledDataset, open_dataset
from edgert.errors import CalibrationError
from edgert.evaluation import Accuracy, Candidate, EvaluationResult, compare, evaluate, open_evaluation, score
from edgert.evaluation.compare import chosen_metric
from edgert.graph import Model
from edgert.quantization import quantization_error, quantizer
from edgert.quantization.calibrated import CalibratedModel
from edgert.quantization.calibration.walk import Feeds
from edgert.quantization.run import DEFAULT_RUN, Run
from edgert.runtime import Frame
from edgert.stages.decode.kinds import labels_of

AGREEMENT_IMAGES = 64
"""Number of calibration images on which INT8 is compared with FP32 without labels."""
CORRECTION_IMAGES = 32
"""Number of calibration images, the first, on which biases are corrected; evaluations prefer others."""
NOISE_IMAGES = 16
"""Number of calibration images on which the noise of outputs is measured."""

SOUND = {"agreement": 0.8, "cosine": 0.9}
"""Values from which INT8 needs no repair, by metric without labels. YOLOX-nano entirely in INT8 has an agreement of 0.6
and loses a third of its mAP; sound models have 0.86 or more."""
REPAIRED = {"agreement": 0.9, "cosine": 0.97}
"""Values that a repaired model must reach; they are higher than SOUND, near which a value could be luck."""
NOISY, QUIET = 0.3, 0.15
"""Noise of outputs of unknown meaning up to which INT8 needs no repair, and which a repaired model must reach."""


@dataclass(frozen=True, slots=True, eq=False)
class Result:
    """Result of an INT8 model. ``accuracy`` is None where the outputs cannot be decoded."""

    value: float
    accuracy: Accuracy | None = None


class NoiseEvaluator:
    """Evaluator by the noise of the outputs, for outputs of unknown meaning.

    Attributes:
        metric: name of :attr:`Result.value`.
        floor: value from which a model needs no repair.
        goal: value that a repaired model must reach.
        is_strict: whether the user set the budget, so that missing it is an error, not a warning.
    """

    metric, floor, goal, is_strict = "signal in the outputs", 1 - NOISY, 1 - QUIET, False

    def __init__(self, model: Model, feeds: Sequence[Feeds], stop: threading.Event | None = None) -> None:
        self._noise = quantization_error.OutputNoise(model, feeds, stop)

    def evaluate(self, quantized: quantizer.Quantized) -> Result:
        """Return the result of a model; raise CalibrationError after a stop, BuildError if it cannot be run."""
        return Result(1 - self._noise.measure(Function(quantized.model, fused=quantized.scheme.target == "ort")))


class TaskEvaluator:
    """Evaluator on the labeled images of the model's section, or without them by agreement with FP32.

    The agreement of vectors is their cosine. Raises ConfigError: labels cannot be read or do not fit the task.
    """

    def __init__(self, config: ModelConfig, calibrated: CalibratedModel, run: Run) -> None:
        self._model, self._run, budget = calibrated.model, run, config.accuracy
        self.is_strict = budget is not None
        self._max_drop = budget.max_drop if budget and budget.max_drop < 1 else None  # 1: all may be lost
        labels = labels_of(config, run.where)
        if budget is not None:
            self._measured: str = budget.metric
            dataset = open_dataset(budget.dataset, config.task, labels, where=run.where)
        else:
            assert calibrated.feed is not None  # evaluator_of() checked
            self._measured = "cosine" if isinstance(config.task, EmbedTask) else "agreement"
            images = calibrated.feed.images
            # prefer images on which biases were not corrected
            first = min(CORRECTION_IMAGES, max(0, len(images) - AGREEMENT_IMAGES))
            some = range(first, min(first + AGREEMENT_IMAGES, len(images)))
            dataset = LabeledDataset(config.onnx, _ImageSubset(images, some))
        self.metric = f"1 - {self._measured}" if self._measured in score.LOWER_IS_BETTER else self._measured
        self.setup = open_evaluation(
            calibrated.model,
            config,
            dataset,
            labels=labels,
            directory=run.directory,
            where=run.where,
            tracking=run.tracking,
        )

    @cached_property
    def reference(self) -> Accuracy:
        """Result of FP32."""
        return self._evaluate(self._model, "fp32", None)

    def evaluate(self, quantized: quantizer.Quantized) -> Result:
        """Return the result of a quantized model; see :class:`NoiseEvaluator`.

        A model for ONNX Runtime is run as it is. One for TensorRT is emulated, with Q/DQ as the standard defines them.
        """
        is_own = quantized.scheme.target == "ort"
        candidate = quantized.model if is_own else Function(quantized.model, fused=False)
        accuracy = self._evaluate(candidate, "int8", self.reference)
        return Result(self._value_of(accuracy.values[self._metric_of(accuracy)]), accuracy)

    def evaluation(self, result: Accuracy) -> EvaluationResult:
        """Return the results of FP32 and of a quantized model, compared."""
        metric = self._metric_of(result)
        drops = (compare(self.reference, result, metric, max_drop=self._max_drop),)
        return EvaluationResult(metric, (self.reference, result), drops)

    @property
    def floor(self) -> float:
        """Value from which a model needs no repair."""
        if not self.is_strict:
            return SOUND[self.metric]
        if self._max_drop is None:
            return -math.inf
        return self._value_of(self.reference.values.get(self._measured, 1.0)) - self._max_drop

    @property
    def goal(self) -> float:
        """Value that a repaired model must reach."""
        return self.floor if self.is_strict else REPAIRED[self.metric]

    def _metric_of(self, result: Accuracy) -> str:
        return chosen_metric(result.values, self._measured if self.is_strict else None)

    def _value_of(self, measured: float) -> float:
        return 1 - measured if self._measured in score.LOWER_IS_BETTER else measured

    def _evaluate(self, candidate: Candidate, name: str, reference: Accuracy | None) -> Accuracy:
        bar = None if self._run.bar is None else partial(self._run.bar, name)
        result = evaluate(candidate, self.setup, name=name, reference=reference, progress=bar, stop=self._run.stop)
        if result is None:
            raise CalibrationError("stopped while accuracy was measured", fix="run it again: ranges are cached")
        return result


def evaluator_of(
    config: ModelConfig,
    calibrated: CalibratedModel,
    run: Run = DEFAULT_RUN,
    *,
    by_task: bool = True,
) -> "Evaluator | None":
    """Return the evaluator of a section's model; None without images.

    It is a :class:`TaskEvaluator` where the budget needs one or outputs can be decoded, else a :class:`NoiseEvaluator`.
    Without ``by_task``, decoded outputs are compared only for a budget; otherwise their noise, which takes a second.
    Raises EdgertError: labels or model cannot be used.
    """
    is_decoded = calibrated.feed is not None and is_compared(config.task)
    if config.accuracy is not None or (by_task and is_decoded):
        return TaskEvaluator(config, calibrated, run)
    feeds = calibrated.feeds(NOISE_IMAGES, CORRECTION_IMAGES) or calibrated.feeds(NOISE_IMAGES)
    return NoiseEvaluator(calibrated.model, feeds, run.stop) if feeds else None


def is_compared(task: TaskConfig) -> bool:
    """Return whether two records of a task can be compared."""
    if isinstance(task, ClassifyTask):
        return task.classify not in ("multilabel", "heads")
    return isinstance(task, (DetectTask, SegmentTask, KeypointsTask, EmbedTask))


Evaluator = TaskEvaluator | NoiseEvaluator
"""Evaluator of INT8 versions of one model on the same images."""


@dataclass(frozen=True, slots=True)
class _ImageSubset:
    """Some images of a dataset."""

    images: ImageDataset
    numbers: range

    def __len__(self) -> int:
        return len(self.numbers)

    def name(self, index: int) -> str:
        return self.images.name(self.numbers[index])

    def frame(self, index: int) -> Frame:
        return self.images.frame(self.numbers[index])

    def digest(self) -> str:
        return f"{self.numbers} of {self.images.digest()}"
