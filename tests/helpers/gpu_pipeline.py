"""Whole pipelines whose models and camera are on a GPU that is this process's memory."""

import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from edgert.assemble import Environment, gpu_models
from edgert.backend import Engine
from edgert.backend.base import EngineOptions, Tensor
from edgert.backend.ort import OrtBackend
from edgert.config import ModelConfig, stages as section
from edgert.graph import load
from edgert.memory import Counter
from edgert.memory.cuda import CudaDevice, Loans
from edgert.pipeline import Pipeline, pipeline_in
from edgert.runtime import Frame, SourceStats
from edgert.stages.source import kinds
from edgert.stages.source.planes import device_planes
from tests.helpers import foreign_gpu
from tests.helpers.cuda_double import CudaDouble
from tests.helpers.gpu_inference import SIDE, Session, no_kernels
from tests.helpers.nvdec_double import NvdecDouble
from tests.helpers.small_pipeline import small_pipeline

WIDTH, HEIGHT = 64, 48
NBYTES = WIDTH * HEIGHT * 3 // 2
RECORD_BYTES = 8
"""Of the two numbers that the engine's double gives of each frame: all that must come down."""
MODEL = "{onnx: parts.onnx, task: {embed: none}, input: {resize: stretch}, backend: ort}"
TEXT = """
name: small
models: {{parts: {model}, host: {model}}}
stages:
  cam: {{source: api}}
  find: {{infer: parts, from: cam}}
{stages}"""


class TrueSession(Session):
    """The same on a real GPU; its numbers are all one."""

    def enqueue(self, rows: int | None = None) -> None:
        address, numbers = self.outputs_on_gpu[0].block.address, 2 * (rows or 0)
        with self.device:
            self.device.driver.memset_d32_async(address, _ONE, numbers, self.stream.raw)


_ONE = 0x3F800000  # 1.0 as a float32


class GpuEngine:
    profiles, outputs_known, batched, dynamic_batch = ("default",), True, (True,), True
    info: Mapping[str, Any] = {"backend": "double"}

    def __init__(self, device: CudaDevice, rows: int) -> None:
        self.device, self._rows, self.sessions = device, rows, list[Session]()
        self.inputs = (Tensor("x", (rows, 3, SIDE, SIDE), "float32"),)
        self.outputs = (Tensor("y", (rows, 2), "float32"),)

    def session(self, profile: str | None = None, on_host: str = "all", queue_index: int = 0) -> Session:
        make = Session if isinstance(self.device.driver, CudaDouble) else TrueSession
        self.sessions.append(make(self.device, self._rows))
        return self.sessions[-1]

    def close(self) -> None:
        for session in self.sessions:
            for tensor in (*session.inputs_on_gpu.values(), *session.outputs_on_gpu):
                tensor.block.release()


class Engines:
    """Compiles ``host`` for the processor, and every other model for the GPU."""

    in_bundle = False

    def __init__(self, device: CudaDevice) -> None:
        self.device = device

    def compile(self, name: str, config: ModelConfig, threads: int, batch: int) -> Engine:
        if name == "host":
            return OrtBackend().compile(load(config.onnx), EngineOptions(threads=1))
        return cast("Engine", GpuEngine(self.device, batch))


class Camera:
    """Frames in a bounded pool of the GPU's memory, NV12, every byte the frame's index; ``starved`` found no buffer."""

    def __init__(self, device: CudaDevice, count: int, pool: int = 10, live: bool = False, name: str = "cam") -> None:
        self.name = name
        self.device, self.count, self.pool, self.live = device, count, pool, live
        self.blocks = [device.device_block(NBYTES) for _ in range(pool)]
        self._free, self._stream = list(range(pool)), device.stream()
        self._loans = Loans(device, Counter(), self._free.append)
        self.most = self.starved = self.given = 0
        self.device_asked: CudaDevice | None = None

    def on_gpu(self, device: CudaDevice) -> str:
        self.device_asked = device
        return ""

    @property
    def leased(self) -> int:
        self._loans.reclaim()
        return self._loans.leased

    def frames(self, stop: threading.Event) -> Iterator[Frame]:
        for index in range(self.count):
            if self.live:
                time.sleep(0.001)
            until = time.monotonic() + 1
            while not self._free and not stop.is_set() and (not self.live or time.monotonic() < until):
                self._loans.reclaim()
                time.sleep(0.001)
            if stop.is_set():
                return
            if not self._free:
                self.starved += 1
                continue
            buffer = self._free.pop(0)
            lease, start = self._loans.lend(buffer), self.blocks[buffer].address
            self.most = max(self.most, self.leased)
            with self.device:
                self.device.driver.memcpy_htod(start, np.full(NBYTES, index % 256, np.uint8))
            rows = (start, WIDTH), (start + WIDTH * HEIGHT, WIDTH)
            planes = device_planes("nv12", (WIDTH, HEIGHT), rows, lease, self.device, self._stream)
            self.given += 1
            yield Frame(self.name, index, time.monotonic_ns(), index * 10**7, WIDTH, HEIGHT, "nv12", planes, lease)
            del planes, lease

    def stats(self) -> SourceStats:
        return SourceStats()

    def close(self) -> None:
        """Keeps its memory, since frames may be on their way."""


class _Piped:
    device: CudaDevice
    path: Path

    def pipeline(self, **options: Any) -> Pipeline:
        return pipeline_in(Environment(engines=Engines(self.device), **options), self.path)


class CalledRig(_Piped):
    """A pipeline file whose frames the program brings, and a GPU's double that reads them."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch, stages: str = "") -> None:
        self.gpu = CudaDouble()
        self.device, self.driver = CudaDevice(self.gpu, 0, Counter()), foreign_gpu.Driver(self.gpu)
        patch.setattr(gpu_models, "Kernels", no_kernels)
        patch.setattr("edgert.memory.cuda.driver.load_driver", lambda: self.driver)
        self.path = small_pipeline(folder, TEXT.format(model=MODEL, stages=stages), photos=0)

    def tensor(self, pixels: Any = 3) -> foreign_gpu.Tensor:
        """One of those pixels, or (48, 64, 3) of one value."""
        array = np.full((HEIGHT, WIDTH, 3), pixels, np.uint8) if isinstance(pixels, int) else pixels
        return foreign_gpu.Tensor(self.device, array, self.driver)


class VideoRig(_Piped):
    """A pipeline file whose camera is a video, ``clip.mp4`` beside it, and a GPU: a double unless one is given."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch, stages: str, device: CudaDevice | None = None) -> None:
        self.device = device or CudaDevice(CudaDouble(), 0, Counter())
        if device is None:
            patch.setattr(gpu_models, "Kernels", no_kernels)
            patch.setitem(sys.modules, "PyNvVideoCodec", cast("Any", NvdecDouble(self.device)))
        else:
            pytest.importorskip("PyNvVideoCodec", reason="pip install PyNvVideoCodec, by which the GPU decodes")
        text = TEXT.format(model=MODEL, stages=stages).replace("{source: api}", "{source: clip.mp4, decode: gpu}")
        self.path = small_pipeline(folder, text, photos=0)


class Rig(_Piped):
    def __init__(
        self,
        folder: Path,
        patch: pytest.MonkeyPatch,
        stages: str,
        *,
        count: int = 40,
        pool: int = 10,
        live: bool = False,
    ) -> None:
        self.gpu = CudaDouble()
        self.device = CudaDevice(self.gpu, 0, Counter())
        self.camera = Camera(self.device, count, pool, live)
        patch.setattr(gpu_models, "Kernels", no_kernels)

        def source_for(name: str, config: section.SourceStage, *rest: Any) -> Any:
            return self.camera if name == "cam" else kinds.source_for(name, config, *rest)

        patch.setattr("edgert.assemble.graph.source_for", source_for)
        self.path = small_pipeline(folder, TEXT.format(model=MODEL, stages=stages), photos=0)
