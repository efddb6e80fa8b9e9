"""An inference slot on a GPU that is this process's memory; kernels are launched and counted, and compute nothing."""

import ctypes
import threading
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from edgert.backend.gpu import GpuTensor
from edgert.config import InputConfig
from edgert.memory import Counter
from edgert.memory.cuda import CudaDevice
from edgert.runtime import Frame
from edgert.stages.crop import Geometry
from edgert.stages.gpu.gpu_preprocess import GpuPreprocessor
from edgert.stages.gpu.infer_gpu import SLOTS, GpuInference, InferenceSlot
from edgert.stages.gpu.kernels import Kernels
from edgert.stages.gpu.readers import HostReader
from edgert.stages.gpu.upload import Staging, Uploader
from tests.helpers.cuda_double import CudaDouble
from tests.helpers.frames import frame_of
from tests.helpers.gpu_target import target

SIDE = 16


class RecordedGraph:
    def __init__(self, enqueue: Callable[[], None]) -> None:
        self.launches = 0
        enqueue()

    def __call__(self) -> None:
        self.launches += 1


class Session:
    """An engine that writes, for each row, how many runs there were."""

    def __init__(self, device: CudaDevice, rows: int, dynamic: bool = True) -> None:
        self.device, self.stream, self.exclusive = device, device.stream(), threading.RLock()
        self.dynamic, self.recordable, self.sizes = dynamic, True, []
        self.renewed: set[int] = set()
        shape = (rows, 3, SIDE, SIDE)
        self.inputs_on_gpu = {"x": GpuTensor("x", shape, "float32", device.block(4 * int(np.prod(shape))))}
        self.outputs_on_gpu = (GpuTensor("y", (rows, 2), "float32", device.block(8 * rows)),)
        self.inputs = {"x": self.inputs_on_gpu["x"].host}

    sizes: list[int]

    def run(self, rows: int | None = None) -> Sequence[Any]:
        raise AssertionError("the inference slot must not go through the host")

    def enqueue(self, rows: int | None = None) -> None:
        self.sizes.append(rows or 0)
        values = np.arange(len(self.sizes), len(self.sizes) + (rows or 0), dtype=np.float32).repeat(2)
        block = self.outputs_on_gpu[0].block
        with self.device:
            self.stream.raw.put(lambda: self.device.driver.memcpy_htod(block.address, values))


def no_kernels(device: CudaDevice, _store: object = None) -> Kernels:
    """Kernels that are compiled to nothing, and launched and counted all the same."""
    return Kernels(device, compiler=lambda: cast("Any", SimpleNamespace(compile=lambda *_: b"")))


class Rig:
    def __init__(
        self,
        rows: int = 1,
        dynamic: bool = True,
        gpu: CudaDouble | None = None,
        beside: bool = True,
        feeds_beside: bool = False,
    ) -> None:
        self.gpu = gpu or CudaDouble()
        self.device = CudaDevice(self.gpu, 0, Counter())
        kernels = no_kernels(self.device)
        config = InputConfig(resize="stretch")
        self.sessions = [Session(self.device, rows, dynamic) for _ in range(SLOTS)]
        slots, other = [], self.device.stream()
        uploader = Uploader(self.device, in_flight=4 * rows)
        for session in self.sessions:
            address = session.inputs_on_gpu["x"].block.address
            preprocessor = GpuPreprocessor(config, target("nchw", "float32", rows, SIDE, SIDE), address, kernels)
            reading, reader = other if beside else session.stream, HostReader(session.outputs_on_gpu, (True,), record)
            feeding = uploader.stream if feeds_beside else None
            slots.append(InferenceSlot(session, preprocessor, reader, reading, feeding))
        self.inference = GpuInference(slots, uploader)

    def close(self) -> None:
        self.inference.close()
        for session in self.sessions:
            for tensor in (*session.inputs_on_gpu.values(), *session.outputs_on_gpu):
                tensor.block.release()


def record(outputs: Sequence[Any], geometry: Geometry) -> tuple[float, Geometry]:
    return float(outputs[0][0]), geometry


def nv12(index: int = 0) -> Frame:
    return frame_of(64, 48, "nv12", index=index)


def shared(rig: Rig, index: int = 0) -> Frame:
    staging = Staging(rig.device)
    return staging.shared_frame(nv12(index))


def bytes_at(address: int, nbytes: int) -> Any:
    return np.frombuffer(memoryview((ctypes.c_uint8 * nbytes).from_address(address)), np.uint8)
