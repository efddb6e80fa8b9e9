"""HOTA and IDF1 of tracks, by the protocol of the MOT challenges; only this module uses TrackEval.

J. Luiten et al., "HOTA", 2020 (arXiv:2009.07736); E. Ristani et al. 2016 (arXiv:1609.01775);
github.com/JonathonLuiten/TrackEval.
"""

import contextlib
import io
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from edgert.dataset.labels import F64, GroundTruthBoxes
from edgert.errors import ConfigError
from edgert.runtime import Detections

METRICS = ("hota", "idf1")
_PEDESTRIAN, _DISTRACTOR = 1, 8  # classes of the challenges; detections of a distractor do not count


@dataclass(frozen=True, slots=True)
class SequenceScore:
    """Metric of a complete sequence, which cannot be computed on resampled frames."""

    value: float

    def values(self, weights: F64) -> F64:
        """Return NaN for each of the R rows of weights."""
        return np.full(len(weights), np.nan)


def is_installed() -> bool:
    """Return whether TrackEval is installed."""
    return find_spec("trackeval") is not None


def needs_trackeval() -> None:
    """Raise ConfigError if TrackEval is not installed."""
    if not is_installed():
        raise ConfigError("HOTA and IDF1 need TrackEval", fix="pip install trackeval (the extra mot)")


def scores(ground_truth: GroundTruthBoxes, found: Sequence[Detections]) -> Mapping[str, SequenceScore]:
    """Return ``hota``, the mean over overlaps of 0.05 to 0.95, and ``idf1``.

    Frames are in order of time; crowds are distractors.
    """
    from trackeval.datasets import MotChallenge2DBox
    from trackeval.metrics import HOTA, Identity

    with tempfile.TemporaryDirectory() as place, contextlib.redirect_stdout(io.StringIO()):
        folder = Path(place)
        true = ((one.ids, one.corners, np.where(one.crowds, _DISTRACTOR, _PEDESTRIAN)) for one in ground_truth.images)
        seen = ((one.ids, one.boxes, np.full(len(one), _PEDESTRIAN)) for one in found)
        _write(folder / "sequence" / "gt" / "gt.txt", true)
        _write(folder / "tracks" / "one" / "data" / "sequence.txt", seen)
        given = {"GT_FOLDER": place, "TRACKERS_FOLDER": f"{place}/tracks", "SKIP_SPLIT_FOL": True,
                 "SEQ_INFO": {"sequence": len(found)}, "PRINT_CONFIG": False}  # fmt: skip
        data = MotChallenge2DBox(given)
        frames = data.get_preprocessed_seq_data(data.get_raw_seq_data("one", "sequence"), "pedestrian")
        hota = HOTA().eval_sequence(frames)["HOTA"]
        identity = Identity({"PRINT_CONFIG": False}).eval_sequence(frames)["IDF1"]
    return {"hota": SequenceScore(float(np.mean(hota))), "idf1": SequenceScore(float(identity))}


def _write(file: Path, frames: Iterable[tuple[Any, Any, Any]]) -> None:
    """Write rows of frame, id, x, y, width, height, whether the box counts, class, and visibility."""
    file.parent.mkdir(parents=True)
    lines = []
    for frame, (ids, corners, classes) in enumerate(frames, 1):
        for number, (x1, y1, x2, y2), kind in zip(() if ids is None else ids, corners.tolist(), classes, strict=True):
            lines.append(f"{frame},{number},{x1 + 1},{y1 + 1},{x2 - x1},{y2 - y1},1,{kind},1\n")
    file.write_text("".join(lines), encoding="ascii")
