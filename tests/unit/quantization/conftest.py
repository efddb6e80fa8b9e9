"""What tests of precision begin with."""

from pathlib import Path

import pytest

from edgert.config import ClassifyTask, InputConfig, ModelConfig
from edgert.graph import to_bytes
from tests.unit.quantization.network import network


@pytest.fixture
def config(tmp_path: Path) -> ModelConfig:
    """The small network as a classifier in a file."""
    path = tmp_path / "net.onnx"
    path.write_bytes(to_bytes(network()))
    image = InputConfig(resize="stretch", std=(64.0,))
    return ModelConfig(onnx=path, task=ClassifyTask(classify="softmax"), input=image)
