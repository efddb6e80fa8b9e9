"""``batch:`` in a pipeline file: frames of several streams in one run, on the CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cv2
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


def test_float16_is_batched_too(tmp_path: Path) -> None:
    alone = results(written(tmp_path, model="precision: fp16"))
    together = results(written(tmp_path, "batch: {max: 4, wait: 5ms}", "precision: fp16"))
    assert together.keys() == alone.keys() and len(alone) == 21
    for key, record in together.items():
        assert np.allclose(np.sort(record.scores), np.sort(alone[key].scores), atol=2e-3)
    made = assemble(load_pipeline(written(tmp_path, "batch: {max: 4}", "precision: fp16")))
    assert [spec.shape for spec in made.engines["net"].inputs] == [(4, 3, 8, 8)]
    made.close()


def test_int8_is_of_one_size(tmp_path: Path) -> None:
    path = written(tmp_path, "batch: {max: 4}", "precision: int8, calibrate: {images: photos, early_stop: false}")
    model = models.conv(("n", 3, 8, 8))
    del model.proto.graph.output[0]  # which leaves the average of each channel
    (tmp_path / "net.onnx").write_bytes(to_bytes(model))
    (tmp_path / "photos").mkdir()
    for index in range(8):
        picture = np.random.default_rng(index).integers(0, 256, (8, 8, 3), np.uint8)
        cv2.imwrite(str(tmp_path / "photos" / f"{index}.png"), picture)
    file = load_pipeline(path)
    with pytest.raises(ConfigError, match="batches of 4 for a model that takes 1 at a time") as caught:
        assemble(file)
    assert caught.value.why == "INT8 models are made for one size" and "fp16" in caught.value.fix


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
