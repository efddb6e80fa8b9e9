"""``batch:`` in a pipeline file: frames of several streams in one run, on the CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgert.assemble import assemble
from edgert.config import load_pipeline
from edgert.errors import ConfigError
from edgert.graph.model import to_bytes
from edgert.pipeline import Pipeline
from tests.helpers import models

FILE = """
schema: 1
name: batch
models:
  net: {{onnx: net.onnx, task: {{classify: logits, top: 4}}, input: {{resize: stretch}}, {model}}}
stages:
  one: {{source: "synthetic:conveyor", size: 96x64, limit: 12, realtime: false, seed: 1}}
  two: {{source: "synthetic:conveyor", size: 128x96, limit: 9, realtime: false, seed: 2}}
  kind: {{infer: net, from: [one, two], {stage}}}
"""


def written(folder: Path, stage: str = "", model: str = "", batch: Any = "n") -> Path:
    (folder / "net.onnx").write_bytes(to_bytes(models.means((batch, 3, 8, 8))))
    file = folder / "batch.yaml"
    file.write_text(FILE.format(stage=stage, model=model))
    return file


def results(file: Path) -> dict[tuple[str, int], Any]:
    with Pipeline(file) as pipeline:
        return {(r.frame.stream, r.frame.index): r.outputs["kind"] for r in pipeline.results("kind", timeout=20)}


def test_every_frame_gets_the_record_it_gets_alone(tmp_path: Path) -> None:
    alone = results(written(tmp_path))
    together = results(written(tmp_path, "batch: {max: 4, wait: 5ms}"))
    assert together.keys() == alone.keys() and len(alone) == 21
    for key, record in together.items():
        assert np.array_equal(record.classes, alone[key].classes)
        assert np.allclose(record.scores, alone[key].scores, atol=1e-5)


def test_a_model_of_fixed_batch_is_refused(tmp_path: Path) -> None:
    file = load_pipeline(written(tmp_path, "batch: {max: 4}", batch=1))
    with pytest.raises(ConfigError, match="batches of 4 for a model that takes 1 at a time") as caught:
        assemble(file)
    assert "batch.yaml:9" in caught.value.where and "left open" in caught.value.fix


@pytest.mark.parametrize(
    ("stage", "model", "says"),
    [
        ("batch: {max: 4}, crop: {}", "", "batch cannot go with crop"),
        ("batch: {max: 1}", "", "greater than or equal to 2"),
        ("batch: {max: 4, wait: 5}", "", "5"),
        ("batch: {max: 4, wait: 5ms, size: 3}", "", "unknown key 'size'"),
    ],
)
def test_mistakes_in_the_file(tmp_path: Path, stage: str, model: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_pipeline(written(tmp_path, stage, model))
    assert says in str(caught.value) and "batch.yaml:9" in caught.value.where


def test_placed_models_are_not_batched(tmp_path: Path) -> None:
    file = load_pipeline(written(tmp_path, "batch: {max: 4}", "placement: cpu0"))
    with pytest.raises(ConfigError, match="batch cannot go with placement") as caught:
        assemble(file)
    assert caught.value.fix == "placement: auto"
