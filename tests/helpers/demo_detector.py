"""What the demo's detector finds on scenes of the conveyor, run as a user runs it, and what is there."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

import edgert
from edgert.dataset.labels import Boxes, GroundTruthBoxes
from edgert.evaluation.coco_metric import precision
from edgert.runtime import Detections
from pipelines.conveyor import LABELS, Conveyor

SIZES = ((640, 480), (1280, 720), (960, 540))


def compare(file: Path, seeds: Iterable[int], frames_each: int) -> tuple[list[Detections], GroundTruthBoxes]:
    """Detections and truth on frames spread over 20 seconds of the scene of each seed, in three frame sizes."""
    found, wanted = list[Detections](), list[Boxes]()
    with edgert.Model(file, score=0.05) as model:
        for seed in seeds:
            width, height = SIZES[seed % len(SIZES)]
            scene, image = Conveyor(width, height, 30.0, seed), np.empty((height, width, 3), np.uint8)
            for index in range(seed % 7, 600, 600 // frames_each)[:frames_each]:
                truth = scene.render(index, image)
                found.append(model(image))
                boxes, crowds = truth.boxes.astype(np.float64), np.zeros(len(truth.boxes), bool)
                wanted.append(Boxes(boxes, truth.classes.astype(np.int64), np.ones(len(boxes)), crowds))
    return found, GroundTruthBoxes(tuple(wanted), tuple(range(len(LABELS))))


def average_precision(found: Sequence[Detections], wanted: GroundTruthBoxes) -> float:
    return precision(wanted, found)["map50"].value
