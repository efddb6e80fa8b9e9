"""Benches that need a GPU, run small over stand-ins for it, so that what they count is not first seen on a machine that
has one."""

import sys
from functools import partial
from typing import Any, cast

import pytest

from edgert.memory import Counter
from edgert.memory.cuda import CudaDevice
from tests.bench import bench_gpu_rtsp, bench_host
from tests.helpers.cuda_double import CudaDouble
from tests.helpers.nvenc_double import NvencDouble


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> CudaDevice:
    device = CudaDevice(CudaDouble(), 0, Counter())
    monkeypatch.setitem(sys.modules, "PyNvVideoCodec", cast("Any", NvencDouble(device)))
    return device


def test_cameras_on_the_network_are_counted_frame_by_frame(device: CudaDevice) -> None:
    setup = bench_gpu_rtsp.Setup(2, (320, 240), seconds=1, spare_s=4, clip=40, bit_rate=500_000)
    share, lost, latency = bench_gpu_rtsp.measured(device, setup)
    assert lost.detail["sent"] == 2 * setup.frames and lost.detail["out_of_order"] == lost.detail["wrong_number"] == 0
    assert lost.value == lost.detail["dropped"]  # a busy machine may be late; that is counted, not hidden
    assert 0 < share.value < 100 and share.detail["reader_us"] > share.detail["stage_us"] > 0
    assert 0 < latency.value < 1000


@pytest.mark.parametrize(("rows", "on_gpu", "most"), [(1, False, 18), (1, True, 18), (8, False, 10), (8, True, 10)])
def test_a_frame_takes_few_calls_of_the_driver_and_a_batch_no_more(
    monkeypatch: pytest.MonkeyPatch, rows: int, on_gpu: bool, most: int
) -> None:
    monkeypatch.setattr(bench_host, "COUNT", 800)
    spent_us, calls = bench_host.piped(CudaDevice(bench_host.IdleGpu(), 0, Counter()), rows, on_gpu)
    assert spent_us > 0 and 1 < calls <= most  # of batches that a busy machine ends early, somewhat more


@pytest.mark.timing
@pytest.mark.parametrize("run", [partial(bench_host.piped, on_gpu=False), bench_host.submitted])
def test_a_gpu_has_the_next_batches_while_it_works_on_one(monkeypatch: pytest.MonkeyPatch, run: Any) -> None:
    monkeypatch.setattr(bench_host, "COUNT", 480)
    gpu = bench_host.BusyGpu(0.02)
    run(CudaDevice(gpu, 0, Counter()), 8)
    later = gpu.waiting[10:-2]  # beside the one that is launched
    assert 60 <= len(gpu.waiting) <= 66 and max(later) <= 2.01 and sorted(later)[len(later) // 10] > 0.9
    assert gpu.busy > 0.95
