"""Benches that need a GPU, run small over stand-ins for it, so that what they count is not first seen on a machine that
has one."""

from __future__ import annotations

import ctypes
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from edgert.assemble import Environment
from edgert.benchmark.measure import Figure
from edgert.memory import Counter
from edgert.memory.cuda import CudaDevice
from edgert.stages.draw import Overlay
from edgert.stages.gpu import kernels
from edgert.stages.gpu.overlay import GpuPainter
from edgert.stages.sink import nvenc
from tests.bench import (
    bench_gpu_call,
    bench_gpu_copies,
    bench_gpu_draw,
    bench_gpu_kernels,
    bench_gpu_rtsp,
    bench_host,
    gpu_run,
)
from tests.helpers.clips import h264_units, write_clip
from tests.helpers.cuda_double import CudaDouble
from tests.helpers.cuda_on_host import kernels_or_skip
from tests.helpers.frames import frame_of
from tests.helpers.gpu import read, to_gpu
from tests.helpers.gpu_pipeline import CalledRig
from tests.helpers.nvenc_double import NvencDouble
from tests.helpers.ort_double import CudaLikeEngines
from tests.helpers.overlay_scenes import Demo, busy_scene


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


def test_crops_are_the_same_by_one_launch_and_by_one_for_each_model() -> None:
    made, found = kernels_or_skip(), list[Any]()
    frame = to_gpu(made.device, frame_of(122, 90, "nv12"))
    boxes = np.int32([[0, 0, 40, 40], [10, 20, 61, 75], [80, 3, 122, 90]])
    cutting = bench_gpu_kernels.Cutting(made, frame, boxes, (8, 16, 24), "float32")
    stream = made.device.stream()
    for together, count in ((True, 1), (False, 3)):
        launches = cutting.launches(together)
        assert len(launches) == count
        for block in cutting.blocks:
            with made.device:
                made.device.driver.memcpy_htod(block.address, np.full(block.nbytes, 201, np.uint8))
        bench_gpu_kernels.enqueued(launches)(stream)
        stream.synchronize()
        found.append([read(made.device, block.address, block.nbytes).copy() for block in cutting.blocks])
    assert all(np.array_equal(*pair) for pair in zip(*found, strict=True)) and len(np.unique(found[0][2])) > 20
    cutting.close()


def test_what_is_timed_of_drawing_draws_what_the_painter_does() -> None:
    made, frame = kernels_or_skip(), frame_of(192, 144, "nv12")
    painter, stream = GpuPainter(made.device, Counter(), made), made.device.stream()
    result = replace(busy_scene(frame, 0, objects=5), frame=to_gpu(made.device, frame))
    launches, image = bench_gpu_kernels.drawn(painter, result)
    overlay = Overlay(("boxes", "labels", "trails", "masks"))
    wanted = painter.paint(result.frame, (192, 144), overlay.shapes((192, 144), result)).to_host()
    for _ in range(2):  # as often as it is launched
        bench_gpu_kernels.enqueued(launches)(stream)
    stream.synchronize()
    assert np.array_equal(image.to_host(), wanted)
    painter.close()


@pytest.mark.parametrize(("rows", "on_gpu", "most"), [(1, False, 18), (1, True, 18), (8, False, 10), (8, True, 10)])
def test_a_frame_takes_few_calls_of_the_driver_and_a_batch_no_more(
    monkeypatch: pytest.MonkeyPatch, rows: int, on_gpu: bool, most: int
) -> None:
    monkeypatch.setattr(bench_host, "COUNT", 800)
    spent_us, calls = bench_host.piped(CudaDevice(bench_host.IdleGpu(), 0, Counter()), rows, on_gpu)
    assert spent_us > 0 and 1 < calls <= most  # of batches that a busy machine ends early, somewhat more


@pytest.mark.parametrize("run", [partial(bench_host.piped, on_gpu=False), bench_host.submitted])
def test_a_gpu_has_the_next_batches_while_it_works_on_one(monkeypatch: pytest.MonkeyPatch, run: Any) -> None:
    monkeypatch.setattr(bench_host, "COUNT", 480)
    gpu = bench_host.BusyGpu(0.02)
    run(CudaDevice(gpu, 0, Counter()), 8)
    later = gpu.waiting[10:-2]  # beside the one that is launched
    assert 60 <= len(gpu.waiting) <= 66 and max(later) <= 2.01 and sorted(later)[len(later) // 10] > 0.9
    assert gpu.busy > 0.95


def test_one_thread_sleeps_once_for_the_camera_and_mostly_once_for_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_host, "FILMED", 150)
    marks = bench_host.filmed(CudaDevice(bench_host.BusyGpu(0.001), 0, Counter()))
    assert marks.sleeps < 4.5  # how long a run takes is learnt first, and a busy machine makes it look again
