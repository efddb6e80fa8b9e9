"""ByteTrack and BoT-SORT number detections as their authors' published code does.

tests/data/tracks has the numbers that it gives, written by tests/bench/bench_track.py --write.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from edgert.stages.botsort import BotSort
from edgert.stages.bytetrack import UNTRACKED, ByteTrack, Limits
from tests.helpers import tracking

DATA = Path(__file__).parents[2] / "data" / "tracks"
MADE = {"bytetrack": ByteTrack, "botsort": lambda limits: BotSort(limits, follows_camera=False)}
CHAOS = {("botsort", "crowd"): 0.011}  # there a track of theirs comes back after its end


@pytest.mark.parametrize("name", MADE)
@pytest.mark.parametrize("scene", tracking.SCENES)
def test_the_authors_tracks(name: str, scene: tracking.Scene) -> None:
    theirs = np.array(json.loads((DATA / f"{name}.json").read_text())[scene.__name__], np.int64)
    tracker, frames = MADE[name](Limits()), tracking.scene(scene)
    ours = np.concatenate([tracker.update(one.boxes, one.scores, np.zeros(len(one.boxes), np.int32)) for one in frames])
    assert len(ours) == len(theirs) > 500 and len(np.unique(ours[ours != UNTRACKED])) >= 10
    wrong = tracking.disagreements(ours, theirs)
    assert wrong <= CHAOS.get((name, scene.__name__), 0) * len(ours), f"{wrong} of {len(ours)} detections differ"
