"""Settings of the tests of what runs on a GPU."""

from collections.abc import Callable
from typing import Any

import pytest

from edgert.errors import DeviceError
from edgert.memory.cuda import CudaDevice
from tests.helpers.gpu_inference import RecordedGraph


@pytest.fixture(autouse=True)
def no_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The double records no graphs, also where the driver is there."""

    def capture(*_: object) -> None:
        raise DeviceError("there is no CUDA driver")

    monkeypatch.setattr(CudaDevice, "capture", capture)


@pytest.fixture
def graphs(no_graphs: None, monkeypatch: pytest.MonkeyPatch) -> list[RecordedGraph]:
    """Graphs that were recorded, in order."""
    found: list[RecordedGraph] = []

    def capture(device: CudaDevice, stream: Any, enqueue: Callable[[], None]) -> RecordedGraph:
        found.append(RecordedGraph(enqueue))
        return found[-1]

    monkeypatch.setattr(CudaDevice, "capture", capture)
    return found
