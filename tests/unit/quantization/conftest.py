"""What tests of precision begin with."""

from pathlib import Path

import pytest

from edgert.config import ClassifyTask, InputConfig, ModelConfig
from edgert.graph import to_bytes
from tests.unit.quantization.network import network


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small network in a file."""
    path = tmp_path_factory.mktemp("model") / "net.onnx"
    path.write_bytes(to_bytes(network()))
    return path


@pytest.fixture
def config(file: Path) -> ModelConfig:
    """The small network as a classifier."""
    image = InputConfig(resize="stretch", std=(64.0,))
    return ModelConfig(onnx=file, task=ClassifyTask(classify="softmax"), input=image)
