"""Files decoded by a process of its own: how it is started, what becomes of it, and what comes of it on a real GPU.

What comes of a decoder there, image by image, is in test_source_nvdec.py, which does everything both ways.
"""

from __future__ import annotations

import gc
import json
import logging
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from edgert.clock import REAL
from edgert.config.stages import SourceStage
from edgert.errors import DeviceError, StageError
from edgert.memory import Counter
from edgert.memory.cuda import CudaDevice
from edgert.memory.cuda.ipc import HANDLE_BYTES
from edgert.runtime.frame import Color
from edgert.stages.source import nvdec, nvdec_process
from edgert.stages.source.files import VideoFile
from edgert.stages.source.kinds import source_for
from tests.helpers.clips import write_clip
from tests.helpers.cuda_double import CudaDouble
from tests.helpers.gpu import gpu_or_skip
from tests.helpers.nvdec_double import NvdecDouble


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> CudaDevice:
    """One GPU of two; processes that are started see none."""
    made = CudaDevice(CudaDouble(), 0, Counter())
    made.is_one_of_several = True
    monkeypatch.setitem(sys.modules, "PyNvVideoCodec", cast("Any", NvdecDouble(made)))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    return made


def source(path: Path) -> VideoFile:
    config = SourceStage.model_validate({"source": path.name})
    return cast("VideoFile", source_for("cam", config, Counter(), REAL, path.parent))


@pytest.mark.parametrize(
    ("several", "asked", "integrated", "apart"),
    [
        (True, "", False, True),
        (False, "", False, False),
        (True, "thread", False, False),
        (False, "process", False, True),
        (True, "process", True, False),
    ],
)
def test_a_gpu_beside_others_gets_a_process(
    monkeypatch: pytest.MonkeyPatch, several: bool, asked: str, integrated: bool, apart: bool
) -> None:
    monkeypatch.setenv(nvdec.PROCESSES, asked)
    device = CudaDevice(CudaDouble(integrated=integrated), 0, Counter())
    device.is_one_of_several = several
    assert nvdec.is_apart(device) is apart


def test_where_it_does_not_start_this_process_decodes_and_says_why(
    device: CudaDevice, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    video = source(write_clip(tmp_path / "clip.mp4", 5))
    assert video.on_gpu(device) == ""
    with caplog.at_level(logging.WARNING):
        frames = list(video.frames(threading.Event()))
    assert len(frames) == 5 and all(frame.is_on_gpu for frame in frames)
    (line,) = [one.getMessage() for one in caplog.records if "decoded in this process" in one.getMessage()]
    assert "a process for NVDEC does not start" in line and "stages.cam" in line


@pytest.mark.parametrize("program", ["true", "false"])
def test_one_that_ends_at_once_is_an_error(device: CudaDevice, monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    monkeypatch.setattr(sys, "executable", f"/bin/{program}")
    with pytest.raises(DeviceError) as caught:
        nvdec_process.process_for(device)
    assert "ended at once" in caught.value.why


def test_memory_that_cannot_be_shared_is_an_error(
    device: CudaDevice, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    hello = json.dumps({"handle": "00" * HANDLE_BYTES})
    program = tmp_path / "python"  # is given: -m MODULE FILE_NUMBER GPU
    program.write_text(
        f"#!{sys.executable}\nimport socket, sys\nway = socket.socket(fileno=int(sys.argv[3]))\n"
        f"way.send({hello.encode()!r})\nway.recv(1)\n"
    )
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    device.driver.broken["ipc"] = "operation not supported"
    with pytest.raises(DeviceError, match="mapping another process's memory") as caught:
        nvdec_process.process_for(device)
    assert caught.value.why == "operation not supported"


class Way:
    """A file that another process reads, whose answers a test gives."""

    def __init__(self, device: CudaDevice) -> None:
        mine, self.theirs = socket.socketpair()
        self.counts: list[tuple[int, int]] = []
        counted = lambda *counts: self.counts.append(counts)  # noqa: E731
        self.file = nvdec_process.RemoteFile(device, mine, Counter(), REAL, Color(), counted)

    def answers(self, *bodies: bytes) -> None:
        for body in bodies:
            self.theirs.sendall(len(body).to_bytes(4, sys.byteorder) + body)


def test_one_that_ends_under_way_is_an_error_that_says_what_to_do(device: CudaDevice) -> None:
    way = Way(device)
    way.theirs.close()
    with pytest.raises(DeviceError) as caught:
        list(way.file.images())
    assert caught.value.what == "the process that decodes on this GPU has ended" and caught.value.fix == "decode: cpu"


def test_its_errors_are_errors_here(device: CudaDevice) -> None:
    way = Way(device)
    error_there = StageError("it is damaged", why="a scratch", where="stages.cam", fix="a cloth").to_json()
    head = nvdec_process.HEAD.pack(nvdec_process.FAILED, 0, 0, 0, 0, 7, 3)
    way.answers(head + json.dumps(error_there).encode())
    with pytest.raises(StageError) as caught:
        list(way.file.images())
    error = caught.value
    assert (error.what, error.why, error.where, error.fix) == ("it is damaged", "a scratch", "stages.cam", "a cloth")
    assert way.counts == [(7, 3)]


def test_a_size_that_changes_has_surfaces_mapped_anew(device: CudaDevice) -> None:
    """What lies at the same address there may be another allocation."""
    way, pool = Way(device), [device.device_block(1 << 16) for _ in range(2)]
    for number, (width, block) in enumerate(zip((64, 96), pool, strict=True)):
        head = nvdec_process.HEAD.pack(nvdec_process.MORE, 1, width, 32, 1, number, 0)
        new = nvdec_process.NEW.pack(0x1000, 0, block.address.to_bytes(64, "little"))
        way.answers(head + nvdec_process.IMAGE.pack(0x1000, number) + new)
    way.answers(nvdec_process.HEAD.pack(nvdec_process.END, 0, 96, 32, 0, 2, 0))
    images: list[Any] = []
    for image in way.file.images():
        luma: Any = image.planes[0]
        images.append((luma.pointer, luma.shape, image.media_ns))
        image.lease.release()
    assert images == [(pool[0].address, (32, 64), 0), (pool[1].address, (32, 96), 1)]
    way.file.close()
    assert way.file.lent == 0


def test_a_recorder_keeps_the_packets_here(device: CudaDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    video = source(write_clip(tmp_path / "clip.mp4", 5))
    assert video.on_gpu(device) == ""
    inbox = video.tap.listen(1 << 20, threading.Event())
    monkeypatch.setattr(nvdec_process, "process_for", lambda device: pytest.fail("it is not asked"))
    assert len(list(video.frames(threading.Event()))) == 5
    assert len(inbox.take()) == 5


@pytest.fixture
def apart(monkeypatch: pytest.MonkeyPatch) -> Iterator[CudaDevice]:
    device = gpu_or_skip()
    if reason := nvdec.missing():
        pytest.skip(reason)
    monkeypatch.setenv(nvdec.PROCESSES, "process")
    yield device


@pytest.mark.gpu
def test_on_a_real_gpu_its_images_are_those_of_the_processor(apart: CudaDevice, tmp_path: Path) -> None:
    path = write_clip(tmp_path / "clip.mp4", 200, options={"bf": "2", "g": "30"})
    video = source(path)
    expected = [frame.to_host().planes for frame in video.frames(threading.Event())]
    assert video.on_gpu(apart) == ""
    count = 0
    for frame, planes in zip(video.frames(threading.Event()), expected, strict=True):
        assert frame.is_on_gpu
        luma, chroma = frame.to_host().planes
        assert np.array_equal(luma, planes[0])
        assert np.array_equal(chroma[..., 0], planes[1]) and np.array_equal(chroma[..., 1], planes[2])
        frame.lease.release()
        count += 1
    assert count == 200


@pytest.mark.gpu
def test_on_a_real_gpu_the_process_ends_with_what_it_decoded_for(apart: CudaDevice, tmp_path: Path) -> None:
    process = nvdec_process.process_for(apart)
    assert nvdec_process.process_for(apart) is process and process.runs
    popen = process._process
    del process
    nvdec_process._KEPT.pop(apart)
    gc.collect()
    assert popen.wait(10) == 0


@pytest.mark.gpu
def test_on_a_real_gpu_one_that_is_killed_is_replaced(apart: CudaDevice, tmp_path: Path) -> None:
    video = source(write_clip(tmp_path / "clip.mp4", 400))
    assert video.on_gpu(apart) == ""
    with pytest.raises(DeviceError, match="has ended"):
        for number, frame in enumerate(video.frames(threading.Event())):
            frame.lease.release()
            if number == 20:
                nvdec_process.process_for(apart)._process.kill()
    video.close()
    again = source(tmp_path / "clip.mp4")
    assert again.on_gpu(apart) == ""
    assert sum(1 for frame in again.frames(threading.Event()) if not frame.lease.release()) == 400
