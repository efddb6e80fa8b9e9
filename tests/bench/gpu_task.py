"""What every side of a race on the GPU is given, and what it must answer: 1080p NV12 frames, networks, and how an
answer is compared with another side's."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgert.config import InputConfig
from tests.bench.gpu_run import HEIGHT, WIDTH

TOP, LIMIT, IOU = 5, 300, 0.45
NEAR = 1.25
"""Scores of a class are alike that are no more times apart: as far as engines in FP16 are that add products in another
order and precision. A classifier of the races has logits that differ by about 1 from image to image; a factor of 1.25
is a difference of 0.22. Sums of 16 products that are rounded to FP16 on the way move logits by 0.02 (standard
deviation), frames that are a pixel aside by 1."""


@dataclass(frozen=True)
class Task:
    """A network, what its input wants to see, and what is made of its output; ``score`` is 0 for a classifier."""

    name: str
    side: int
    letterbox: bool
    mean: tuple[float, ...]
    std: tuple[float, ...]
    score: float = 0.0

    @property
    def detects(self) -> bool:
        return self.letterbox

    @property
    def image(self) -> tuple[int, int]:
        """(height, width) of the frame in the network's input."""
        return (self.side * HEIGHT // WIDTH if self.letterbox else self.side, self.side)

    @property
    def border(self) -> int:
        """Rows of gray above the frame."""
        return (self.side - self.image[0]) // 2

    @property
    def config(self) -> InputConfig:
        return InputConfig(resize="letterbox" if self.letterbox else "stretch", mean=self.mean, std=self.std)

    @property
    def yaml(self) -> str:
        """``task`` and ``input`` of its section in a pipeline file."""
        task = f"detect: yolov8, score: {self.score}, iou: {IOU}, limit: {LIMIT}"
        return (
            f"task: {{{task if self.detects else f'classify: logits, top: {TOP}'}}}\n"
            f"    input: {{resize: {self.config.resize}, mean: {list(self.mean)}, std: {list(self.std)}}}"
        )


TASKS = {
    "resnet50": Task("resnet50", 224, False, (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)),
    "yolov8s": Task("yolov8s", 640, True, (0.0, 0.0, 0.0), (255.0, 255.0, 255.0)),
}


def scenes(count: int) -> list[Any]:
    """(1620, 1920) uint8 NV12 each: coarse random patterns under fine noise, so that no two places look alike."""
    random = np.random.default_rng(0)
    rows, columns = HEIGHT * 3 // 2, WIDTH
    coarse = random.integers(48, 204, (count, rows // 60, columns // 60), np.uint8).repeat(60, 1).repeat(60, 2)
    fine = random.integers(0, 32, (count, rows // 4, columns // 4), np.uint8).repeat(4, 1).repeat(4, 2)
    made = coarse + fine
    made[:, HEIGHT:, 1::2] = 255 - made[:, HEIGHT:, 1::2]  # of the chroma planes, one differs from the other
    return list(np.ascontiguousarray(made))


@dataclass(frozen=True)
class Answer:
    """What a side makes of one frame, scores falling; ``every``: (C,) the score of each class, where it is known."""

    scores: Any
    classes: Any
    boxes: Any = None
    every: Any = None

    def score_of(self, classes: Any) -> Any:
        """Those of so many classes; 0 where it is not known."""
        if self.every is not None:
            return self.every[np.asarray(classes, int)]
        return (np.equal.outer(classes, self.classes) * self.scores).sum(1)


def agreement(answer: Answer, wanted: Answer, score: float = 0.0) -> float:
    """How much of each answer the other has too, 0 to 1, the smaller of both ways.

    Of a classifier: the classes that are named, once each, whose score is that which is wanted for the class, to a
    factor of :data:`NEAR`, whichever rank it has; and the wanted classes that are named, or are so near to the last
    that is. Near ties come in any order and drop out of the five best by a rounding; their scores tell what is right.

    Of a detector: boxes of the same class with an overlap (IoU) of 0.9, whose scores differ by no more than 0.02, or a
    tenth. What the other lacks because it is about as weak as the lowest ``score`` is no difference.
    """
    if wanted.boxes is None:
        return _classified(answer, wanted)
    return min(_found(answer, wanted, score), _found(wanted, answer, score))


def _classified(answer: Answer, wanted: Answer) -> float:
    if not len(answer.scores):
        return 0.0
    known, once = wanted.score_of(answer.classes), np.unique(answer.classes, return_index=True)[1]
    right = ((answer.scores <= NEAR * known) & (known <= NEAR * answer.scores))[once]
    named = np.isin(wanted.classes, answer.classes) | (wanted.scores <= NEAR * answer.scores.min())
    return float(min(right.sum() / max(len(answer.classes), len(wanted.classes)), named.mean()))


def _found(answer: Answer, other: Answer, score: float) -> float:
    if not len(answer.scores):
        return 1.0
    apart = np.abs(np.subtract.outer(answer.scores, other.scores))
    near = np.maximum(0.02, 0.1 * answer.scores)[:, None]
    alike = np.equal.outer(answer.classes, other.classes) & (apart <= near)
    alike &= overlaps(answer.boxes, other.boxes) >= 0.9
    return float((alike.any(1) | (answer.scores <= 1.02 * score)).mean())


def overlaps(boxes: Any, others: Any) -> Any:
    """(N, M) intersection over union, each box a pixel larger, so that one cut off at the image's edge has a size."""
    corner, far = np.maximum(boxes[:, None, :2], others[:, :2]), np.minimum(boxes[:, None, 2:], others[:, 2:])
    shared = np.clip(far - corner + 1, 0, None).prod(2)
    sizes, other_sizes = ((each[:, 2:] - each[:, :2] + 1).prod(1) for each in (boxes, others))
    return shared / (sizes[:, None] + other_sizes - shared)


def worst(answers: Sequence[Answer], others: Sequence[Answer], score: float = 0.0) -> float:
    return min(agreement(one, other, score) for one, other in zip(answers, others, strict=True))
