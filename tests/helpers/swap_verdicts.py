"""Verdicts of a shadow's rules on a real detector: of models that were made worse, and of ones that are as good."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np

from edgert.config import InputConfig, ModelConfig
from edgert.config.pipeline_file import parse_input, parse_task
from edgert.dataset import ArrayDataset, LabeledDataset, open_dataset
from edgert.evaluation import evaluate, open_evaluation
from edgert.graph import Model, load
from edgert.runtime.frame import U8
from edgert.swap.shadow import agreement_of_notes
from edgert.swap.verdict import Terms, agreement_bound, cannot_agree, why_refused
from tests.helpers.evaluation_data import data, photos
from tests.helpers.planted_loss import PLANTS, equal, planted

TERMS = Terms(500, 0.97, 0.0)
LOSS = 0.05
_NAME, _INPUT = "yolox_nano_416", "letterbox top_left bgr"


@dataclass(frozen=True)
class Verdict:
    """What became of one model: its loss on held-out photos, and its agreement with the good model on frames."""

    name: str
    loss: float
    agreement: float
    low: float
    frames: int
    is_refused: bool


class Detector:
    def __init__(self, frames: int = TERMS.shadow + 40) -> None:
        config = ModelConfig(onnx=data("models", f"{_NAME}.onnx"), task=parse_task("detect yolox score=0.3 iou=0.5"),
                             input=parse_input(_INPUT))  # fmt: skip
        assert isinstance(config.input, InputConfig)
        self.model = load(config.onnx)
        held_out = open_dataset(data("images", "coco_val.json"), config.task)
        self._held_out = open_evaluation(self.model, config, held_out)
        live = LabeledDataset(Path("live"), ArrayDataset(tuple(live_frames(frames))))
        self._live = open_evaluation(self.model, config, live)
        self._best = self._value(self.model)
        self._notes = self._noted(self.model)

    def loss_of(self, model: Model) -> float:
        return self._best - self._value(model)

    def verdict(self, name: str, model: Model, loss: float) -> Verdict:
        """What the rules of a shadow say of a model after 500 frames, or before where that is enough."""
        pairs = zip(self._noted(model), self._notes, strict=True)
        values = list[float]()
        for new, old in pairs:
            if (found := agreement_of_notes(old, new)) is not None:
                values.append(found)
            if cannot_agree(values, TERMS) or len(values) == TERMS.shadow:
                break
        bound, refused = agreement_bound(values), bool(cannot_agree(values, TERMS) or why_refused(values, TERMS))
        return Verdict(name, loss, bound.mean, bound.low, len(values), refused)

    def worse(self, count: int) -> Iterator[Verdict]:
        for seed in range(count):
            plant = PLANTS[seed % len(PLANTS)]
            model, loss = planted(self.model, plant, seed, self.loss_of, LOSS)
            yield self.verdict(f"{plant.__name__} {seed}", model, loss)

    def equal(self, count: int) -> Iterator[Verdict]:
        for seed in range(count):
            model = equal(self.model, seed)
            yield self.verdict(f"equal {seed}", model, self.loss_of(model))

    def _value(self, model: Model) -> float:
        found = evaluate(model, self._held_out)
        assert found is not None
        return found.values["map"]

    def _noted(self, model: Model) -> tuple[object, ...]:
        found = evaluate(model, self._live)
        assert found is not None
        return found.notes


def live_frames(count: int) -> Iterator[U8]:
    """Frames of 128 photos: each as it is, mirrored, and enlarged parts of it."""
    images = [one.image for one in photos("coco_calib")]
    random = np.random.default_rng(0)
    for number in range(count):
        image, turn = images[number % len(images)], number // len(images)
        if turn % 2:
            image = image[:, ::-1]
        if turn >= 2:
            height, width = image.shape[:2]
            down, across = int(0.7 * height), int(0.7 * width)
            y, x = random.integers(height - down), random.integers(width - across)
            image = cv2.resize(image[y : y + down, x : x + across], (width, height)).astype(np.uint8, copy=False)
        yield np.ascontiguousarray(image)
