"""Ranges of a section, for everybody and for one engine."""

import numpy as np
import pytest

from edgert.backend.ort import Function
from edgert.config import ModelConfig
from edgert.graph import read, to_bytes
from edgert.quantization.calibrated import CalibratedModel, calibrate_section
from edgert.quantization.int8_model import section_recipe
from edgert.quantization.quantizer import Quantizer
from edgert.quantization.scheme.scheme import scheme
from edgert.quantization.scheme.units import Target, tensors_to_calibrate
from tests.unit.quantization.network import IMAGES, SIZE, random_images


def test_without_a_target_every_tensor_is_measured(config: ModelConfig) -> None:
    found = calibrate_section(config, images=random_images(IMAGES, 5))
    assert tuple(found.table.histograms) == tensors_to_calibrate(read(found.model))


@pytest.mark.parametrize("target", ["ort", "gpu", "dla"])
def test_for_one_target_only_what_it_rounds_is_measured_to_the_same_model(config: ModelConfig, target: Target) -> None:
    everything, few = (calibrate_section(config, target=one, images=random_images(IMAGES, 5)) for one in (None, target))
    needed = set(scheme(read(few.model), target).needed)
    assert set(few.table.histograms) == needed
    assert needed < set(everything.table.histograms) or target == "dla"
    first, second = (int8(one, config, target) for one in (everything, few))
    assert first == second


def int8(found: CalibratedModel, config: ModelConfig, target: Target) -> bytes:
    made = Quantizer(found.model, found.table, section_recipe(config, target), found.feeds(16)).finish()
    if target == "ort":
        feeds = {"x": np.random.default_rng(0).normal(0, 1, (1, 3, SIZE, SIZE)).astype(np.float32)}
        assert np.isfinite(Function(made.model)(feeds)["y"]).all()
    return to_bytes(made.model)
