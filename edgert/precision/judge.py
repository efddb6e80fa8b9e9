"""FP32 and what is made of it, put through one exam."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from edgert.accuracy import Accuracy, Candidate, Exam, Standing, compare, evaluate, labels_of, open_dataset, open_exam
from edgert.accuracy.compare import chosen_metric
from edgert.accuracy.dataset import Dataset
from edgert.album import Album
from edgert.backend.ort import Function
from edgert.config import ModelConfig, PythonTask
from edgert.errors import CalibrationError
from edgert.precision.calibration import Calibrated
from edgert.quantize.recipe import Quantized
from edgert.runtime import Frame

AGREEMENT_PICTURES = 64
"""Calibration pictures on which INT8 is compared with FP32 where there are no labels."""

Bar = Callable[[str, int, int], object]
"""Called with what is being counted, how many are done and how many there are."""


class Judge:
    """Examines versions of one model: on the labelled pictures of its section, else by agreement with FP32.

    Args:
        config: the model's section.
        calibrated: the float model and the pictures its ranges come from.
        directory, where: of the pipeline file, for the user's own code and for errors.
        bar: moved with every picture.
        stop: ends an examination with CalibrationError.

    Raises:
        ConfigError: labels that cannot be understood or do not fit the task.
    """

    def __init__(
        self,
        config: ModelConfig,
        calibrated: Calibrated,
        directory: Path | None,
        where: str,
        bar: Bar | None = None,
        stop: threading.Event | None = None,
    ) -> None:
        self._model, self._bar, self._stop = calibrated.model, bar, stop
        self.budget = config.accuracy
        self.exam = _exam(config, calibrated, directory, where)

    @cached_property
    def reference(self) -> Accuracy:
        """FP32's result."""
        return self._examine(self._model, "fp32", None)

    def result(self, quantized: Quantized) -> Accuracy:
        """An INT8 model's result."""
        return self._examine(_candidate(quantized), "int8", self.reference)

    def standing(self, result: Accuracy) -> Standing:
        """Both side by side."""
        metric = chosen_metric(result.values, self.budget.metric if self.budget else None)
        drop = self.budget.max_drop if self.budget else None
        return Standing(metric, (self.reference, result), (compare(self.reference, result, metric, max_drop=drop),))

    def value(self, result: Accuracy) -> float:
        """The metric that counts."""
        return result.values[chosen_metric(result.values, self.budget.metric if self.budget else None)]

    @property
    def floor(self) -> float:
        """The value that the budget asks for; without one everything is good enough. FP32 agrees with itself by 1."""
        if self.budget is None:
            return 0.0
        before = self.reference.values.get(self.budget.metric, 1.0)
        return before - self.budget.max_drop

    def _examine(self, candidate: Candidate, name: str, reference: Accuracy | None) -> Accuracy:
        bar = None if self._bar is None else _named(self._bar, name)
        result = evaluate(candidate, self.exam, name=name, reference=reference, progress=bar, stop=self._stop)
        if result is None:
            raise CalibrationError("stopped while accuracy was measured", fix="run it again: ranges are kept")
        return result


def can_judge(config: ModelConfig, calibrated: Calibrated) -> bool:
    """Whether two versions of the model can be compared: on labelled pictures, or on those of the calibration unless
    the user's own code reads the outputs."""
    if config.accuracy is not None:
        return True
    return calibrated.feed is not None and not isinstance(config.task, PythonTask)


@dataclass(frozen=True, slots=True)
class _First:
    """The first pictures of an album."""

    album: Album
    count: int

    def __len__(self) -> int:
        return min(self.count, len(self.album))

    def name(self, index: int) -> str:
        return self.album.name(index)

    def frame(self, index: int) -> Frame:
        return self.album.frame(index)

    def digest(self) -> str:
        return f"{self.count} of {self.album.digest()}"


def _exam(config: ModelConfig, calibrated: Calibrated, directory: Path | None, where: str) -> Exam:
    labels = labels_of(config, where)
    if config.accuracy is not None:
        dataset = open_dataset(config.accuracy.dataset, config.task, labels, where=where)
    else:
        assert calibrated.feed is not None  # can_judge asks for pictures
        dataset = Dataset(config.onnx, _First(calibrated.feed.album, AGREEMENT_PICTURES))
    return open_exam(calibrated.model, config, dataset, labels=labels, directory=directory, where=where)


def _candidate(quantized: Quantized) -> Candidate:
    """On ONNX Runtime the model itself; what TensorRT runs is simulated, every Q/DQ pair as the standard says."""
    return quantized.model if quantized.scheme.target == "ort" else Function(quantized.model, fused=False)


def _named(bar: Bar, name: str) -> Callable[[int, int], object]:
    return lambda done, total: bar(name, done, total)
