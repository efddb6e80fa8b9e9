"""What a model remembers of its training tells how its input was scaled."""

from pathlib import Path

import numpy as np
import onnx
import pytest

from edgert.config import InputConfig
from edgert.graph import load
from edgert.wiring.photos import make_photo
from edgert.wiring.training import CalibratedRange, Layer, TrainingStatistics, memories
from tests.helpers.models import node, save

IMAGE = np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8)
VIEW = make_photo(Path("p"), IMAGE, IMAGE, "detect").views[0]


class Echo:
    """A session whose one tapped tensor is its input."""

    def __init__(self) -> None:
        self.inputs = {"x": np.zeros((1, 3, 32, 32), np.float32)}

    def run(self, rows: int | None = None) -> list[np.ndarray]:
        return [self.inputs["x"]]


def test_the_range_of_a_quantized_input_fits_one_scale_only() -> None:
    memory = CalibratedRange((-2.13, 2.63))  # ImageNet's mean and std
    mean, std = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)
    signed = InputConfig(mean=(127.5,), std=(127.5,))
    configs = (InputConfig(mean=mean, std=std), signed, InputConfig(std=(255.0,)), InputConfig())
    fits = [memory.fit([memory.look(config, VIEW)]) for config in configs]
    assert fits[0] > 0.97
    assert fits == sorted(fits, reverse=True) and fits[1] < 0.5


def test_batch_statistics_fit_the_scale_they_were_gathered_at() -> None:
    pixels = VIEW.frame.planes[0][..., ::-1].reshape(-1, 3) / 255.0
    layer = Layer("x", pixels.mean(axis=0), pixels.var(axis=0))
    memory = TrainingStatistics([layer], Echo())
    right = memory.fit([memory.look(InputConfig(resize="stretch", std=(255.0,)), VIEW)])
    half = memory.fit([memory.look(InputConfig(resize="stretch", std=(127.5,)), VIEW)])
    raw = memory.fit([memory.look(InputConfig(resize="stretch"), VIEW)])
    assert right == pytest.approx(1, abs=1e-3)
    assert right > half > raw
    assert raw < 1e-6


def test_several_photos_count_together() -> None:
    layer = Layer("x", np.full(3, 0.5), np.full(3, 0.25))
    memory = TrainingStatistics([layer], Echo())
    black, white = np.array([[0.0] * 3, [0.0] * 3]), np.array([[1.0] * 3, [1.0] * 3])
    assert memory.fit([black, white]) == pytest.approx(1)
    assert memory.fit([black]) < 0.1


def test_a_normalization_of_vectors_is_no_memory_of_images(tmp_path: Path) -> None:
    channels = np.ones(4, np.float32)
    weights = {"w": np.ones((3, 4), np.float32), "b": channels, **dict.fromkeys(("s", "o", "m", "v"), channels)}
    nodes = [
        node("GlobalAveragePool", ["x"], ["pooled"]),
        node("Flatten", ["pooled"], ["flat"]),
        node("Gemm", ["flat", "w", "b"], ["vector"]),
        node("BatchNormalization", ["vector", "s", "o", "m", "v"], ["y"]),
    ]
    path = save(tmp_path / "embedder.onnx", nodes, {"x": (1, 3, 8, 8)}, {"y": (1, 4)}, weights)
    onnx.checker.check_model(path)
    assert memories(load(path), {}, 1) == ()
