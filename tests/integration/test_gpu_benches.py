"""Benches that need a GPU, run small over stand-ins for it, so that what they count is not first seen on a machine that
has one."""

from __future__ import annotations

import sys
from typing import Any, cast

import pytest

from edgert.memory import Counter
from edgert.memory.cuda import CudaDevice
from tests.bench import bench_gpu_rtsp
from tests.helpers.cuda_double import CudaDouble
from tests.helpers.nvdec_double import NvdecDouble


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> CudaDevice:
    """A stand-in for a GPU, with one for its decoder."""
    device = CudaDevice(CudaDouble(), 0, Counter())
    monkeypatch.setitem(sys.modules, "PyNvVideoCodec", cast("Any", NvdecDouble(device)))
    return device


def test_cameras_on_the_network_are_counted_frame_by_frame(device: CudaDevice) -> None:
    setup = bench_gpu_rtsp.Setup(2, (320, 240), seconds=1, spare_s=4, clip=40, bit_rate=500_000)
    share, lost, latency = bench_gpu_rtsp.measured(device, setup)
    assert lost.detail["sent"] == 2 * setup.frames and lost.detail["out_of_order"] == lost.detail["wrong_number"] == 0
    assert lost.value == lost.detail["dropped"]  # a busy machine may be late; that is counted, not hidden
    assert 0 < share.value < 100 and share.detail["reader_us"] > share.detail["stage_us"] > 0
    assert 0 < latency.value < 1000
