"""Settings of the tests of what runs on a GPU."""

from __future__ import annotations

import pytest

from edgert.errors import DeviceError
from edgert.memory.cuda import CudaDevice


@pytest.fixture(autouse=True)
def no_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The double records no graphs, also where the driver is there."""

    def capture(*_: object) -> None:
        raise DeviceError("there is no CUDA driver")

    monkeypatch.setattr(CudaDevice, "capture", capture)
