"""Verdicts of a shadow's rules on a real detector: of models that were made worse, and of ones that are as good."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import cv2
import numpy as np
import onnx
from onnx import helper, numpy_helper

from edgert.config import InputConfig, ModelConfig
from edgert.config.pipeline_file import parse_input, parse_task
from edgert.dataset import ArrayDataset, LabeledDataset, open_dataset
from edgert.evaluation import evaluate, open_evaluation
from edgert.graph import Model, from_proto, load
from edgert.runtime.frame import U8
from edgert.swap.shadow import agreement_of_notes
from edgert.swap.verdict import Terms, agreement_bound, cannot_agree, why_refused
from tests.helpers.evaluation_data import data, photos

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


# Models that are worse by a known amount, and others that are as good.

Plant = Callable[[Model, float, int], Model]
"""Makes a model worse: the more, the larger the strength; by a seed."""


def _changed(model: Model, change: Callable[[np.ndarray, np.random.Generator], np.ndarray], seed: int) -> Model:
    proto, random = onnx.ModelProto(), np.random.default_rng(seed)
    proto.CopyFrom(model.proto)
    for tensor in proto.graph.initializer:
        array = numpy_helper.to_array(tensor)
        if array.ndim == 4 and array.dtype == np.float32 and array.size > 64:
            tensor.CopyFrom(numpy_helper.from_array(change(array, random).astype(np.float32), tensor.name))
    return from_proto(proto, Path(f"{model.path.stem}-{seed}.onnx"))


def noise(model: Model, strength: float, seed: int) -> Model:
    """Gaussian noise on weights, of up to a 32nd of each tensor's standard deviation."""
    return _changed(
        model, lambda array, random: array + strength / 32 * array.std() * random.standard_normal(array.shape), seed
    )


def coarse(model: Model, strength: float, seed: int) -> Model:
    """Weights rounded to steps of a part of each tensor's largest value, as by a bad quantization."""

    def rounded(array: np.ndarray, random: np.random.Generator) -> np.ndarray:
        step, offset = max(strength, 1e-6) * np.abs(array).max() / 4, random.random()
        return (np.floor(array / step + offset) - offset + 0.5) * step

    return _changed(model, rounded, seed)


def pruned(model: Model, strength: float, seed: int) -> Model:
    return _changed(model, lambda array, random: array * (random.random(array.shape) >= strength / 4), seed)


def miscolored(model: Model, strength: float, seed: int) -> Model:
    """A wrong preprocessing: the colors of the input change places and get darker."""
    proto, random = onnx.ModelProto(), np.random.default_rng(seed)
    proto.CopyFrom(model.proto)
    graph, name = proto.graph, proto.graph.input[0].name
    for node in graph.node:
        node.input[:] = ["seen" if one == name else one for one in node.input]
    mix = (1 - strength) * np.eye(3) + strength * random.uniform(0.05, 0.15) * np.eye(3)[random.permutation(3)]
    graph.initializer.append(numpy_helper.from_array(mix.astype(np.float32)[:, :, None, None], "mix"))
    graph.node.insert(0, helper.make_node("Conv", [name, "mix"], ["seen"]))
    return from_proto(proto, Path(f"{model.path.stem}-{seed}.onnx"))


PLANTS: tuple[Plant, ...] = (noise, coarse, pruned, miscolored)


def equal(model: Model, seed: int) -> Model:
    """A model that is as good: each weight off by at most what half precision rounds it by."""
    return _changed(model, lambda array, random: array * (1 + 2**-11 * random.uniform(-1, 1, array.shape)), seed)


def planted(
    model: Model, plant: Plant, seed: int, loss_of: Callable[[Model], float], loss: float
) -> tuple[Model, float]:
    """A model that is worse by about ``loss``, found by bisection, and by how much it is: at least that."""
    low, high, best = 0.0, 1.0, (model, 0.0)
    for _ in range(8):
        middle = (low + high) / 2
        made = plant(model, middle, seed)
        found = loss_of(made)
        if found < loss:
            low = middle
            continue
        high = middle
        if best[1] < loss or found < best[1]:
            best = made, found
        if found < 1.15 * loss:
            break
    assert best[1] >= loss, (plant.__name__, seed)
    return replace(best[0]), best[1]
