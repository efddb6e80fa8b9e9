"""Average precision as COCO defines it, by COCO's own evaluator (the ``pycocotools`` package, a development extra)."""

import contextlib
import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from edgert.runtime.records import Detections


@dataclass(frozen=True)
class Precision:
    """``map50``: at IoU 0.5. ``map``: mean over IoU 0.50 to 0.95."""

    map50: float
    map: float


def precision(annotations: Path, found: Mapping[int, Detections]) -> Precision:
    """Of the images in ``found``, by their id in ``annotations`` (COCO JSON); others do not count.

    Classes of the detections are the category ids of the file. Skips the test when pycocotools is missing.
    """
    coco = pytest.importorskip("pycocotools.coco", reason="pycocotools is not installed (development extra)")
    evaluator = pytest.importorskip("pycocotools.cocoeval")
    with contextlib.redirect_stdout(io.StringIO()):  # it prints its progress and a table
        truth = coco.COCO(str(annotations))
        run = evaluator.COCOeval(truth, truth.loadRes(_rows(found)), "bbox")
        run.params.imgIds = sorted(found)
        run.evaluate()
        run.accumulate()
        run.summarize()
    return Precision(map50=float(run.stats[1]), map=float(run.stats[0]))


def _rows(found: Mapping[int, Detections]) -> np.ndarray:
    """(N, 7) image, x, y, width, height, score, category."""
    rows = [
        np.column_stack(
            [np.full(len(one), key), one.boxes[:, :2], one.boxes[:, 2:] - one.boxes[:, :2], one.scores, one.classes]
        )
        for key, one in found.items()
    ]
    return np.concatenate(rows).astype(np.float64)
