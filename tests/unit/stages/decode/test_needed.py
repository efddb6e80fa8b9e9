"""Final boxes in the layouts of their exporters equal the documented formulas, on random outputs."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from pydantic import TypeAdapter

from edgert.config import TaskConfig
from edgert.runtime.records import Detections
from edgert.stages.decode.kinds import checked_decoder, decoder_for
from tests.helpers.known_boxes import identity

Array = Any
NETWORK, ROWS, SCORE = (320, 192), 12, 0.25
WIDE = np.array(NETWORK * 2, np.float32)


def corners(rng: np.random.Generator) -> Array:
    """Boxes in pixels of the network that have a size."""
    first = rng.uniform(0, 90, (ROWS, 2))
    return np.concatenate([first, first + rng.uniform(2, 90, (ROWS, 2))], axis=1).astype(np.float32)


def yolov7(rng: np.random.Generator) -> tuple[dict[str, Array], Array, Array, Array]:
    boxes, scores, classes = corners(rng), rng.random(ROWS), rng.integers(0, 80, ROWS)
    rows = np.column_stack([np.zeros(ROWS), boxes, classes, scores]).astype(np.float32)
    return {"output": rows}, boxes, scores, classes


def tensorflow(rng: np.random.Generator) -> tuple[dict[str, Array], Array, Array, Array]:
    """Relative y1, x1, y2, x2, and classes from 1, with raw boxes beside."""
    boxes, scores, classes = corners(rng), rng.random(ROWS), rng.integers(0, 90, ROWS)
    outputs = {
        "detection_anchor_indices": np.arange(ROWS),
        "detection_boxes": (boxes / WIDE)[:, [1, 0, 3, 2]],
        "detection_classes": classes + 1.0,
        "detection_multiclass_scores": rng.random((ROWS, 91)),
        "detection_scores": scores,
        "num_detections": np.float32(ROWS),
        "raw_detection_boxes": rng.random((50, 4)),
        "raw_detection_scores": rng.random((50, 91)),
    }
    return outputs, boxes, scores, classes


def efficient_nms(rng: np.random.Generator) -> tuple[dict[str, Array], Array, Array, Array]:
    """The count comes first, and rows beyond it are padding."""
    boxes, scores, classes = corners(rng), rng.random(ROWS), rng.integers(0, 80, ROWS, np.int32)
    count = int(rng.integers(1, ROWS))
    outputs = {"num_dets": np.array([count], np.int32), "boxes": boxes, "scores": scores, "labels": classes}
    return outputs, boxes[:count], scores[:count], classes[:count]


def batched_nms(rng: np.random.Generator) -> tuple[dict[str, Array], Array, Array, Array]:
    """Classes are floats and come after the scores: only names tell them apart."""
    boxes, scores, classes = corners(rng), rng.random(ROWS), rng.integers(0, 80, ROWS)
    outputs = {
        "num_detections": np.array([ROWS], np.int32),
        "nmsed_boxes": boxes,
        "nmsed_scores": scores,
        "nmsed_classes": classes.astype(np.float32),
    }
    return outputs, boxes, scores, classes


def mask_rcnn(rng: np.random.Generator) -> tuple[dict[str, Array], Array, Array, Array]:
    boxes, scores, classes = corners(rng), rng.random(ROWS), rng.integers(0, 91, ROWS)
    outputs = {"boxes": boxes, "labels": classes, "scores": scores, "masks": rng.random((ROWS, 1, 9, 9))}
    return outputs, boxes, scores, classes


def four_classes(rng: np.random.Generator) -> tuple[dict[str, Array], Array, Array, Array]:
    """RF-DETR with as many classes as a box has numbers: boxes come first, by their name."""
    boxes, logits = corners(rng), rng.normal(-4, 1, (ROWS, 4))
    classes = rng.integers(0, 4, ROWS)
    logits[np.arange(ROWS), classes] = rng.normal(1, 2, ROWS)
    centers = np.concatenate([boxes[:, :2] + boxes[:, 2:], boxes[:, 2:] - boxes[:, :2]], axis=1)
    centers[:, :2] /= 2
    scores = 1 / (1 + np.exp(-logits))
    rows, found = np.nonzero(scores >= SCORE)
    return {"dets": centers / WIDE, "labels": logits}, boxes[rows], scores[rows, found], found


def yolo_nas(rng: np.random.Generator) -> tuple[dict[str, Array], Array, Array, Array]:
    """The score comes before the class."""
    boxes, scores, classes = corners(rng), rng.random(ROWS), rng.integers(0, 80, ROWS)
    rows = np.column_stack([np.zeros(ROWS), boxes, scores, classes]).astype(np.float32)
    return {"graph2_flat_predictions": rows}, boxes, scores, classes


def model_maker(rng: np.random.Generator) -> tuple[dict[str, Array], Array, Array, Array]:
    """Only fractions tell scores and classes apart, which are both floats."""
    boxes, scores, classes = corners(rng), rng.random(ROWS), rng.integers(0, 90, ROWS)
    ends = (np.float32(ROWS), scores, classes.astype(np.float32), (boxes / WIDE)[:, [1, 0, 3, 2]])
    return {f"StatefulPartitionedCall:{n}": end for n, end in enumerate(ends)}, boxes, scores, classes


def openvino(rng: np.random.Generator) -> tuple[dict[str, Array], Array, Array, Array]:
    """A negative number of the image ends the boxes."""
    boxes, scores, classes = corners(rng), rng.random(ROWS), rng.integers(0, 90, ROWS)
    count = int(rng.integers(1, ROWS))
    image = np.where(np.arange(ROWS) == count, -1, 0)
    rows = np.column_stack([image, classes, scores, boxes / WIDE])[None]
    return {"detection_out": rows}, boxes[:count], scores[:count], classes[:count]


def mmdeploy(rng: np.random.Generator) -> tuple[dict[str, Array], Array, Array, Array]:
    boxes, scores, classes = corners(rng), rng.random(ROWS), rng.integers(0, 80, ROWS)
    return {"dets": np.column_stack([boxes, scores]), "labels": classes}, boxes, scores, classes


def mmdeploy_masks(rng: np.random.Generator) -> tuple[dict[str, Array], Array, Array, Array]:
    named, *rest = mmdeploy(rng)
    return {**named, "masks": rng.random((ROWS, 28, 28))}, *rest


def yolov4(rng: np.random.Generator) -> tuple[dict[str, Array], Array, Array, Array]:
    """A box counts for its best class alone."""
    boxes, scores = corners(rng), rng.random((ROWS, 9))
    return {"boxes": (boxes / WIDE)[:, None], "confs": scores}, boxes, scores.max(axis=1), scores.argmax(axis=1)


LAYOUTS: list[tuple[Callable[..., Any], dict[str, Any]]] = [
    (yolov7, {"detect": "yolov10"}),
    (tensorflow, {"detect": "yolov10", "options": {"boxes": "relative", "order": "yxyx", "background": "first"}}),
    (efficient_nms, {"detect": "yolov10"}),
    (batched_nms, {"detect": "yolov10"}),
    (mask_rcnn, {"detect": "yolov10"}),
    (yolo_nas, {"detect": "yolov10"}),
    (model_maker, {"detect": "yolov10", "options": {"boxes": "relative", "order": "yxyx"}}),
    (openvino, {"detect": "yolov10"}),
    (mmdeploy, {"detect": "yolov10"}),
    (mmdeploy_masks, {"detect": "mask-rcnn"}),
    (yolov4, {"detect": "yolov4", "iou": 1.0}),
    (four_classes, {"detect": "detr", "options": {"activation": "sigmoid"}}),
]


@pytest.mark.parametrize(("layout", "written"), LAYOUTS, ids=[layout.__name__ for layout, _ in LAYOUTS])
def test_boxes_equal_the_formula_on_a_hundred_outputs(layout: Callable[..., Any], written: dict[str, Any]) -> None:
    task: TaskConfig = TypeAdapter(TaskConfig).validate_python({**written, "score": SCORE})
    for seed in range(100):
        named, boxes, scores, classes = layout(np.random.default_rng(seed))
        outputs = [np.asarray(one if one.dtype.kind in "iu" else one.astype(np.float32)) for one in named.values()]
        shapes = [one.shape for one in outputs]
        record = checked_decoder(decoder_for(task, ()), shapes, NETWORK, list(named))(outputs, identity(NETWORK))
        assert isinstance(record, Detections)
        keep = np.flatnonzero(scores >= SCORE)
        keep = keep[np.argsort(-scores[keep], kind="stable")]
        np.testing.assert_allclose(record.scores, scores[keep], atol=1e-5)
        np.testing.assert_array_equal(record.classes, classes[keep])
        np.testing.assert_allclose(record.boxes, boxes[keep], atol=0.5)
