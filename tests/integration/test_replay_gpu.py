"""Replays of models on a GPU: refused bit for bit, compared within a stated part, and what is beyond it is found."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgert import Pipeline
from edgert.assemble import Environment
from edgert.errors import StageError
from edgert.installation import demo_images
from edgert.replayer import replayed
from edgert.replayer.replayed import Options, replay
from edgert.stages.crop import Geometry
from edgert.stages.gpu.infer_gpu import InferenceSlot
from tests.helpers.gpu_pipeline import HEIGHT, WIDTH, CalledRig, Engines
from tests.helpers.recordings import MODEL, STAGES
from tests.integration.test_gpu_control import needs

EXACT, WITHIN = Options(must_be_exact=True), Options(must_be_exact=True, within=0.01)
"""``--expect``, and ``--expect --within 0.01``: the part that docs/replay.md states for GPUs."""
FRAMES = 24


def refused(path: Path, model: str) -> None:
    with pytest.raises(StageError, match=f"--expect cannot compare bits of model '{model}'") as raised:
        replay(path, EXACT)
    assert "may round in another way" in raised.value.why
    assert "--within 0.01" in raised.value.fix


@pytest.mark.parametrize("batch", [{}, {"batch": {"max": 4, "wait": "5ms"}}])
def test_runs_and_batches_of_a_gpu_are_replayed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch: dict[str, Any]
) -> None:
    """The GPU's double numbers its runs: each frame's number is right only if the same frames ran together."""
    monkeypatch.chdir(tmp_path)
    rig = CalledRig(tmp_path, monkeypatch, "  rec: {sink: mcap, from: find, path: run.mcap}\n")
    text = rig.path.read_text()
    rig.path.write_text(text.replace("from: cam}", f"from: cam, {str(batch)[1:-1]}}}".replace("'", ""), 1))
    with rig.pipeline() as pipeline:
        pipeline.start()
        for index in range(FRAMES):
            pipeline.submit(np.full((HEIGHT, WIDTH, 3), index, np.uint8))
        pipeline.finish()
        pipeline.wait()
    monkeypatch.setattr(replayed, "Environment", partial(Environment, engines=Engines(rig.device)))
    refused(tmp_path / "run.mcap", "parts")
    made = replay(tmp_path / "run.mcap", WITHIN)
    assert (made.different, made.missing, made.first) == (0, 0, None)
    assert made.same == FRAMES
    assert not any("another size" in note for note in made.notes)


@pytest.mark.gpu
@pytest.mark.parametrize("engine", ["tensorrt", "onnxruntime-cuda"])
def test_a_run_on_a_gpu_is_replayed_within_a_hundredth(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    needs(engine)
    path = tmp_path / "run.mcap"
    stages: dict[str, Any] = {
        f"cam{seed}": {"source": demo_images(), "size": "320x240", "seed": seed, "limit": FRAMES, "realtime": False}
        for seed in range(2)
    }
    stages["find"] = {"infer": "parts", "from": list(stages)}
    stages |= {name: STAGES[name] for name in ("track", "areas", "alarm")}
    stages["rec"] = {"sink": "mcap", "path": str(path), "from": "alarm"}
    model = {key: value for key, value in MODEL.items() if key != "threads"}
    with Pipeline({"engines": [engine], "models": {"parts": model}, "stages": stages}) as pipeline:
        pipeline.run()
    refused(path, "parts")
    made = replay(path, WITHIN)
    assert (made.different, made.missing, made.first) == (0, 0, None)
    assert made.same == 2 * FRAMES

    own = InferenceSlot.read

    def moved(slot: InferenceSlot, geometries: Sequence[Geometry]) -> list[Any]:
        return [replace(record, scores=record.scores * np.float32(0.95)) for record in own(slot, geometries)]

    monkeypatch.setattr(InferenceSlot, "read", moved)
    first = replay(path, WITHIN).first
    assert first is not None and first.stage == "find" and "score" in first.where
