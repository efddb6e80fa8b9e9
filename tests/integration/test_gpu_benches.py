"""Benches that need a GPU, run small over stand-ins for it, so that what they count is not first seen on a machine that
has one."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from edgert.assemble import Environment
from edgert.benchmark.measure import Figure
from edgert.memory import Counter
from edgert.memory.cuda import CudaDevice
from edgert.stages.gpu import kernels
from edgert.stages.gpu.overlay import GpuPainter
from edgert.stages.sink import nvenc
from tests.bench import bench_gpu_call, bench_gpu_copies, bench_gpu_draw, bench_gpu_rtsp, bench_host, gpu_run
from tests.helpers.clips import h264_units, write_clip
from tests.helpers.cuda_double import CudaDouble
from tests.helpers.cuda_on_host import kernels_or_skip
from tests.helpers.gpu_pipeline import CalledRig
from tests.helpers.nvenc_double import NvencDouble
from tests.helpers.ort_double import CudaLikeEngines
from tests.helpers.overlay_scenes import Demo


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> CudaDevice:
    """A stand-in for a GPU, with one for its decoder."""
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


def test_every_way_takes_a_frame_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = CalledRig(tmp_path, monkeypatch, "")
    monkeypatch.setattr(bench_gpu_call, "ROUNDS", 8)
    pixels = gpu_run.frames(2)
    with rig.pipeline() as called, rig.pipeline() as started:
        found = bench_gpu_call.raced(bench_gpu_call.Ways(called, started, pixels, list(map(rig.tensor, pixels))))
        assert started.summary().frames_in == 3 * 3 * 9 and called.summary().frames_in == 3 * 3 * 9 + 1
    assert {len(turn) for turns in found.values() for turn in turns} == {8} and len(found) == 7
    assert all(len(turns) == bench_gpu_call.TURNS == 3 for turns in found.values())


def test_no_image_is_copied_from_camera_to_boxes(
    device: CudaDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "nvrtc", lambda _: SimpleNamespace(compile=lambda *_: b""))
    monkeypatch.setattr(nvenc, "driver_missing", lambda: "")
    write_clip(tmp_path / "camera.mp4", 20)
    read = list[int]()

    def note(address: int, nbytes: int, stream: int) -> None:
        read.append(len(ctypes.string_at(address, nbytes)))

    def figures() -> list[Figure]:
        environment = Environment(engines=CudaLikeEngines(device))
        with bench_gpu_copies.without_nvenc(sys.modules["PyNvVideoCodec"], h264_units(20), note):
            return list(bench_gpu_copies.measured(tmp_path, device.driver, environment, frames=30))

    found = figures()
    assert [figure.value for figure in found] == [0] * 4
    assert all(figure.detail["driver_was_asked"] == 0 for figure in found[::2])
    assert sum(read) == 30 * 320 * 240 * 3 // 2
    monkeypatch.setattr(bench_gpu_copies, "RECORDED", bench_gpu_copies.RECORDED.replace("encode: gpu", "encode: cpu"))
    assert figures()[2].value >= 320 * 240 * 3  # down from the GPU, and into what x264 takes


def test_what_is_drawn_on_the_gpu_is_compared_byte_by_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    made, demo = kernels_or_skip(), Demo(192, 144)
    monkeypatch.setattr(bench_gpu_draw, "MANY", 2)
    painter = GpuPainter(made.device, Counter(), made)
    frames = [demo.result(index) for index in range(3)]
    time, levels = bench_gpu_draw.measured(made.device, painter, "small", bench_gpu_draw.DEMO, frames)
    assert levels.holds and levels.is_exact and time.detail["objects"] > 0
    assert time.detail["host_p99_ms"] >= time.detail["host_p50_ms"] > 0
    painter.close()


@pytest.mark.parametrize(("rows", "on_gpu", "most"), [(1, False, 18), (1, True, 18), (8, False, 10), (8, True, 10)])
def test_a_frame_takes_few_calls_of_the_driver_and_a_batch_no_more(
    monkeypatch: pytest.MonkeyPatch, rows: int, on_gpu: bool, most: int
) -> None:
    monkeypatch.setattr(bench_host, "COUNT", 800)
    spent_us, calls = bench_host.piped(CudaDevice(bench_host.IdleGpu(), 0, Counter()), rows, on_gpu)
    assert spent_us > 0 and 1 < calls <= most  # of batches that a busy machine ends early, somewhat more
