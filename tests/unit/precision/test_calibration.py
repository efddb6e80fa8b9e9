"""Ranges of a section, for everybody and for one engine."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edgert.album import Album, open_album
from edgert.backend.ort import Function
from edgert.config import ClassifyTask, InputConfig, ModelConfig
from edgert.graph import to_bytes
from edgert.graph.node import read
from edgert.precision.calibration import Calibrated, calibrate_section
from edgert.precision.quantization import recipe_of
from edgert.quantize.prepare import calibrated
from edgert.quantize.recipe import Quantizer
from edgert.quantize.scheme import Target, scheme
from tests.unit.precision.network import PICTURES, SIZE, network


@pytest.fixture
def config(tmp_path: Path) -> ModelConfig:
    path = tmp_path / "net.onnx"
    path.write_bytes(to_bytes(network()))
    picture = InputConfig(resize="stretch", std=(64.0,))
    return ModelConfig(onnx=path, task=ClassifyTask(classify="softmax"), input=picture)


def album() -> Album:
    random = np.random.default_rng(5)
    return open_album([random.integers(0, 256, (SIZE, SIZE, 3), dtype=np.uint8) for _ in range(PICTURES)])


def test_without_a_target_every_tensor_is_measured(config: ModelConfig) -> None:
    found = calibrate_section(config, album=album())
    assert tuple(found.table.histograms) == calibrated(read(found.model))


@pytest.mark.parametrize("target", ["ort", "gpu", "dla"])
def test_for_one_target_only_what_it_rounds_is_measured_to_the_same_model(config: ModelConfig, target: Target) -> None:
    everything, few = (calibrate_section(config, target=one, album=album()) for one in (None, target))
    needed = set(scheme(read(few.model), target).needed)
    assert set(few.table.histograms) == needed
    assert needed < set(everything.table.histograms) or target == "dla"
    first, second = (int8(one, config, target) for one in (everything, few))
    assert first == second


def int8(found: Calibrated, config: ModelConfig, target: Target) -> bytes:
    made = Quantizer(found.model, found.table, recipe_of(config, target), found.feeds(16)).finish()
    if target == "ort":
        feeds = {"x": np.random.default_rng(0).normal(0, 1, (1, 3, SIZE, SIZE)).astype(np.float32)}
        assert np.isfinite(Function(made.model)(feeds)["y"]).all()
    return to_bytes(made.model)
