"""Settings of the tests of what runs on a GPU."""

from collections.abc import Callable
from typing import Any

import pytest

from edgert.errors import DeviceError
from edgert.files import FileStore, cache_folder
from edgert.memory.cuda import CudaDevice
from edgert.stages.gpu.kernels import Kernels
from tests.helpers.cuda_on_host import kernels_or_skip
from tests.helpers.gpu import gpu_or_skip
from tests.helpers.gpu_inference import RecordedGraph


@pytest.fixture(params=["host", pytest.param("gpu", marks=pytest.mark.gpu)], scope="module")
def kernels(request: pytest.FixtureRequest) -> Kernels:
    """The kernels on the processor, and on a GPU where there is one."""
    return kernels_or_skip() if request.param == "host" else Kernels(gpu_or_skip(), FileStore(cache_folder() / "cuda"))


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
