"""Image bytes copied between host and GPU, or on the host, per frame of an ordinary pipeline on a GPU.

    python tests/bench/bench_gpu_copies.py [--json FILE]

A 1080p H.264 file decoded by NVDEC is the camera, the demo's model on ONNX Runtime CUDA finds parts, boxes go to JSON
lines; then the same with drawing and H.264 recording beside it. Each copy that the pipeline counts is taken down with
its size: those of more than 16 kB are of images, the others of records. (A detector's kernel writes its boxes, 7 kB at
most, where the host reads them.) ``driver_was_asked`` is the same of what PyCUDA is asked to copy, lists of what is to
be drawn included. Compressed video is no copy of pixels.

NVENC is a stand-in, since GPUs such as the H100 have none: it takes what edgert gives PyNvVideoCodec's encoder,
reads each whole surface on the GPU, and returns images that were encoded before. ``last_number`` is that of the last
surface, read from its pixels. Needs a GPU, PyCUDA, PyNvVideoCodec and ONNX Runtime with CUDA; says so and passes where
one is missing.
"""

from __future__ import annotations

import ctypes
import json
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import av
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from edgert.assemble import HERE, Environment
from edgert.backend.ort import cuda
from edgert.benchmark.measure import Figure
from edgert.clock import REAL
from edgert.config.stages import SourceStage
from edgert.installation import demo_images
from edgert.memory import Counter
from edgert.memory.cuda import CudaDevice, gpu_context, open_device
from edgert.memory.cuda.driver import call, load_driver
from edgert.pipeline import Pipeline
from edgert.runtime.summary import Summary
from edgert.stages.sink import nvenc
from edgert.stages.source.kinds import source_for
from edgert.stages.source.nvdec import missing, nvdec
from tests.bench.report import main
from tests.helpers.clips import h264_units, numbered, write_clip
from tests.helpers.counter import read_counter
from tests.helpers.rtsp_server import nals

ASSETS = Path(__file__).parents[2] / "pipelines/assets"
FRAMES, IMAGES, SIZE = 600, 60, (1920, 1080)
IMAGE_BYTES = 16_384
"""More than the records of a frame take, less than any image of use."""
BOXES = f"""
schema: 1
name: copies
engines: [onnxruntime-cuda]
models:
  parts:
    onnx: {ASSETS}/parts.onnx
    task: {{detect: yolox, labels: {ASSETS}/parts.txt, score: 0.4}}
    input: {{resize: letterbox, color: rgb, mean: 0, std: 255}}
    precision: fp32
stages:
  camera: {{source: camera.mp4, decode: gpu, realtime: false, loop: true, limit: LIMIT}}
  find: {{infer: parts, from: camera}}
  boxes: {{sink: jsonl, from: find, path: FOLDER/boxes.jsonl}}
"""
_IDR = 3  # NV_ENC_PIC_TYPE_IDR
RECORDED = """\
  paint: {draw: [boxes, labels], from: find}
  film: {sink: video, from: paint, path: FOLDER/film.mp4, encode: gpu}
"""


@dataclass
class Copies:
    """Bytes of each copy since the first frame: as the pipeline counts them, and as PyCUDA's driver is asked for."""

    counted: list[int] = field(default_factory=list)
    asked: list[int] = field(default_factory=list)

    @contextmanager
    def noted(self, driver: Any) -> Iterator[None]:
        """Takes down those of this block."""
        count = Counter.copied

        def copied(counter: Counter, nbytes: int) -> None:
            self.counted.append(nbytes)
            count(counter, nbytes)

        with ExitStack() as patches:
            patches.enter_context(mock.patch.object(Counter, "copied", copied))
            for name, at in (
                ("memcpy_dtoh_async", 0),
                ("memcpy_htod_async", 1),
                ("memcpy_dtoh", 0),
                ("memcpy_htod", 1),
            ):
                if hasattr(driver, name):
                    noted = partial(self._asked, getattr(driver, name), at)
                    patches.enter_context(mock.patch.object(driver, name, noted))
            yield

    def _asked(self, copy: Callable[..., None], at: int, *arguments: Any) -> None:
        self.asked.append(arguments[at].nbytes)
        copy(*arguments)


def run(file: Path, driver: Any, environment: Environment) -> tuple[Summary, Copies]:
    """A pipeline from its first frame to its end."""
    copies = Copies()
    by_pycuda = mock.patch.object(gpu_context, "copy_up", lambda one: lambda *copied: one.memcpy_htod_async(*copied))
    with by_pycuda, Pipeline.within(environment, file) as pipeline, copies.noted(driver):
        return pipeline.run(), copies


def measured(folder: Path, driver: Any, environment: Environment = HERE, frames: int = FRAMES) -> Iterator[Figure]:
    """Both pipelines over ``camera.mp4`` of a folder."""
    for name, more in {"boxes": "", "boxes, drawn and recorded": RECORDED}.items():
        file = folder / "copies.yaml"
        file.write_text((BOXES + more).replace("LIMIT", str(frames)).replace("FOLDER", str(folder)))
        summary, copies = run(file, driver, environment)
        images = [nbytes for nbytes in copies.counted if nbytes > IMAGE_BYTES]
        asked = [nbytes for nbytes in copies.asked if nbytes > IMAGE_BYTES]
        lines = (folder / "boxes.jsonl").read_text().splitlines()
        detail = {
            "driver_was_asked": sum(asked) / frames,
            "record_bytes": (sum(copies.counted) - sum(images)) / frames,
            "lines": len(lines),
            "boxes": sum(len(json.loads(line)["outputs"]["find"]["objects"]) for line in lines) / frames,
            "fps": summary.fps,
            "p50_ms": summary.latency_ms.p50,
        }
        if more:
            detail["recorded"] = decoded_count(folder / "film.mp4")
        lost = float(max(frames - detail["lines"], frames - detail.get("recorded", frames)))
        yield Figure(
            f"camera to {name}: image bytes copied per frame", sum(images) / frames, "B", 0, "lower", frames, detail
        )
        yield Figure(f"camera to {name}: frames lost", lost, "", 0, "lower", frames)


def scene() -> Iterator[Any]:
    """Images of the demo's conveyor belt, with parts to find on them and their number in a corner."""
    config = SourceStage(source=demo_images(), size=f"{SIZE[0]}x{SIZE[1]}", seed=7, limit=IMAGES)
    frames = source_for("belt", config, Counter(), REAL, Path()).frames(threading.Event())
    for number, frame in zip(numbered(IMAGES, (256, 64)), frames, strict=True):
        image = frame.planes[0].copy()
        image[:8, :256] = number[:8]
        frame.lease.release()
        yield image


def decoded_count(path: Path) -> int:
    """How many images a video holds."""
    with av.open(str(path)) as film:
        return sum(1 for _ in film.decode(video=0))


Read = Callable[[int, int, int], None]
"""Has the GPU read bytes: their address, how many, and the stream on which they were written."""


class StandIn:
    """PyNvVideoCodec's encoder as far as edgert uses it: reads what it is given, and returns ``units`` in turn."""

    def __init__(self, units: list[bytes], read: Read, *arguments: Any, cudastream: int, **options: Any) -> None:
        self._units, self._read, self._stream, self._count = units, read, cudastream, 0

    def Encode(self, image: Any, parameters: Any) -> list[dict[str, Any]]:
        """Of one NV12 surface: its unit, its time, whether it is a key frame."""
        for plane in image.cuda():
            interface = plane.__cuda_array_interface__
            height, width, channels = interface["shape"]
            assert interface["strides"] == (width * channels, channels, 1)
            self._read(interface["data"][0], height * width * channels, self._stream)
        number = self._count % len(self._units)
        self._count += 1
        is_key = 5 in (nal[0] & 31 for nal in nals(self._units[number]))
        return [
            {"data": self._units[number], "timestamp": parameters.inputTimeStamp, "picture_type": _IDR if is_key else 0}
        ]

    def EndEncode(self) -> list[dict[str, Any]]:
        """Holds nothing back."""
        return []


@contextmanager
def without_nvenc(module: Any, units: list[bytes], read: Read) -> Iterator[None]:
    """The stand-in in place of the encoder of PyNvVideoCodec's module."""
    with ExitStack() as patches:
        made = {
            "CreateEncoder": partial(StandIn, units, read),
            "GetEncoderCaps": lambda **_: {"num_encoder_engines": 1},
        }
        for name, value in made.items():
            patches.enter_context(mock.patch.object(module, name, value, create=True))
        nvenc._lacks.cache_clear()
        yield
    nvenc._lacks.cache_clear()


class Surface:
    """Memory of the GPU that surfaces are read into, one after the other."""

    def __init__(self, device: CudaDevice) -> None:
        self._device, self._block = device, device.device_block(SIZE[0] * SIZE[1])

    def read(self, address: int, nbytes: int, stream: int) -> None:
        """Has the GPU copy them here; chroma, which is half as much, over luma's end."""
        to = ctypes.c_uint64(self._block.address + self._block.nbytes - nbytes)
        whole = ctypes.c_uint64(address), ctypes.c_size_t(nbytes), ctypes.c_void_p(stream)
        with self._device:
            call(load_driver(), "cuMemcpyDtoDAsync_v2", to, *whole)

    def number(self) -> int:
        """That the upper rows of the last one show."""
        out = np.empty((8, SIZE[0]), np.uint8)
        with self._device:
            self._device.synchronize()
            self._device.driver.memcpy_dtoh(out, self._block.address)
        return read_counter(out)

    def close(self) -> None:
        """Gives the memory back."""
        self._block.release()


def measure() -> Iterator[Figure]:
    """All of it."""
    if reason := missing() or cuda.why_not():
        print(f"skipped: {reason}")
        return
    device = open_device()
    surface = Surface(device)
    units = h264_units(IMAGES, size=SIZE, gop=IMAGES, bit_rate=4_000_000)
    with tempfile.TemporaryDirectory() as name, without_nvenc(nvdec(), units, surface.read):
        folder = Path(name)
        write_clip(folder / "camera.mp4", scene(), size=SIZE, options={"preset": "veryfast", "crf": "23"})
        yield from measured(folder, device.driver)
        detail = {"last_number": surface.number(), "wanted": (FRAMES - 1) % IMAGES}
        wrong = detail["last_number"] != detail["wanted"]
        yield Figure("surfaces that the encoder read: other than wanted", wrong, "", 0, "lower", 1, detail)
    surface.close()


if __name__ == "__main__":
    main(__doc__ or "", measure)
