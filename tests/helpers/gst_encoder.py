"""Real GStreamer with OpenH264's encoder where a Jetson has nvv4l2h264enc; video memory and GPU are doubles.

As a program, with the doubles of NVIDIA's libraries in front, it writes a video of frames that are on the GPU:

    LD_LIBRARY_PATH=<doubles> python -m tests.helpers.gst_encoder out.mp4 '{"frames": 60}'

and prints a JSON object: how often each call was made, the copies, and the error, if one came.
"""

import ctypes
import json
import logging
import sys
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from edgert.errors import EdgertError
from edgert.memory import Counter
from edgert.memory.cuda import CudaDevice
from edgert.runtime.records import Result
from edgert.stages.sink import encoder_choice, gst_encoder
from edgert.stages.sink.encoder_choice import NOT_ON_THIS_JETSON
from edgert.stages.sink.video import VideoSink
from edgert.stages.source import gst
from edgert.stages.source.nvmm_mapping import JetsonCalls, Surface
from tests.helpers.cuda_double import CudaDouble
from tests.helpers.frames import frame_of
from tests.helpers.gpu import to_gpu
from tests.helpers.nvmm_camera import counts

WHY = "GStreamer with openh264enc and h264parse is not installed: sudo apt install python3-gi gstreamer1.0-plugins-bad"
STAND_IN = "openh264enc complexity=low gop-size=30 ! h264parse"
STEP_NS = 33_366_667


def of_jetpack_6(codec: str, *, on_gpu: bool, ordinal: int = 0) -> list[tuple[str, str]]:
    """The hardware encoders of a Jetson that has its own encoder alone."""
    return [("nvenc", NOT_ON_THIS_JETSON), *([("board, on the GPU", "")] * on_gpu), ("board", "")]


def instead_of_a_jetsons(monkeypatch: pytest.MonkeyPatch, encoder: str = STAND_IN) -> None:
    """Encodes videos by GStreamer from now on, as on a board, by elements of this machine. Skips without them."""
    pytest.importorskip("gi", reason=WHY)
    found, _ = gst.gstreamer()
    if any(found.ElementFactory.find(name) is None for name in ("openh264enc", "h264parse")):
        pytest.skip(WHY)
    monkeypatch.setattr(encoder_choice, "hardware_encoders", of_jetpack_6)
    monkeypatch.setitem(gst_encoder.ENCODERS, "h264", encoder)


class Reader:
    def __init__(self, pipeline: Any, size: tuple[int, int]) -> None:
        self._taken, self._given = pipeline.element("taken"), pipeline.element("given")
        self._size, self.gst = size, gst.gstreamer()[0]
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        width, height = self._size
        while True:
            sample = self._taken.try_pull_sample(100_000_000)
            if sample is None:
                if self._taken.is_eos():
                    break
                continue
            taken = sample.get_buffer()
            assert taken.get_size() == ctypes.sizeof(Surface)
            params = Surface.from_address(gst.Mapping(taken).address).surface_list[0]
            raw = np.frombuffer(ctypes.string_at(params.data_ptr, params.data_size), np.uint8)
            nv12 = raw.reshape(-1, params.pitch)[:, :width]
            blue, red = np.moveaxis(nv12[height:].reshape(height // 2, width // 2, 2), 2, 0)
            buffer = self.gst.Buffer.new_wrapped(b"".join(one.tobytes() for one in (nv12[:height], blue, red)))
            buffer.pts = taken.pts
            del taken, sample
            self._given.push_buffer(buffer)
        self._given.end_of_stream()
        del self._taken, self._given


class Calls(JetsonCalls):
    def __init__(self, gpu: CudaDouble) -> None:
        super().__init__()
        self._gpu = gpu

    def create(self, width: int, height: int) -> int:
        surface = super().create(width, height)
        params = Surface.from_address(surface).surface_list[0]
        self._gpu.mapped[params.data_ptr] = params.data_size
        return surface


def level_of(index: int) -> int:
    return 40 + 4 * (index % 40)


def run(path: Path, frames: int = 60, width: int = 160, height: int = 120, encode: str = "auto") -> dict[str, Any]:
    gpu = CudaDouble(integrated=True, memory_bytes=2**32)
    device, counter = CudaDevice(gpu, 0, Counter()), Counter()
    caps = f"video/x-raw,format=I420,width={width},height={height},framerate=30/1"
    bridge = f'appsink name=taken sync=false async=false appsrc name=given format=time caps="{caps}" ! {STAND_IN}'
    cast("Any", encoder_choice).hardware_encoders = of_jetpack_6
    cast("Any", gst_encoder).NvmmPool = partial(gst_encoder.NvmmPool, calls=partial(Calls, gpu))

    class Watched(gst.Pipeline):
        def __init__(self, text: str, *arguments: Any, **settings: Any) -> None:
            on_gpu = "memory:NVMM" in text
            playing = f"{text.replace(STAND_IN, bridge)} async=false"  # two sinks would wait for each other's first
            super().__init__(playing if on_gpu else text, *arguments, **settings)
            if on_gpu:
                Reader(self, (width, height))

    gst.Pipeline = Watched  # type: ignore[assignment,misc]
    gst_encoder.ENCODERS["h264"] = STAND_IN
    sink, error, stream = VideoSink("video", path, encode=cast("Any", encode)), "", device.stream()
    try:
        sink.open()
        for index in range(frames):
            host = frame_of(width, height, "nv12", counter=counter, index=index, media_ns=index * STEP_NS)
            host.planes[0][...], host.planes[1][...] = level_of(index), 128
            there = to_gpu(device, host)
            planes = tuple(replace(cast("Any", plane), stream=stream) for plane in there.planes)
            sink.process(Result(replace(there, planes=cast("Any", planes))))
    except EdgertError as failed:
        error = str(failed)
    sink.close()
    copies = device.counter.read() + counter.read()
    return {"error": error, "copies": copies.copies, "calls": {**made(), **counts("libnvbufsurface.so.1.0.0")}}


def made() -> dict[str, int]:
    library = ctypes.CDLL("libnvbufsurface.so.1.0.0")
    return {
        name: ctypes.c_int.in_dll(library, f"count_{name}").value
        for name in ("NvBufSurfaceCreate", "NvBufSurfaceDestroy")
    }


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(name)s: %(message)s")
    print(json.dumps(run(Path(sys.argv[1]), **json.loads(sys.argv[2]))))
