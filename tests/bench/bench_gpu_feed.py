"""Ways of bringing 1080p frames of the host to an engine's input, beside the engine's work on the batch before.

    python tests/bench/bench_gpu_feed.py [--json FILE]

Three sets of tensors in turn, as a pipeline has them; ResNet-50 and a detector in FP16 by PyTorch, as CUDA graphs, one
frame at a time and eight. ``copied`` is what edgert does: the GPU's copy engine brings the planes, and preprocessing
follows on the same stream. ``in front``: preprocessing on the engine's stream. ``by a kernel``: the GPU's
multiprocessors copy the planes, all of one batch by one launch. ``in place``: preprocessing reads the host's memory.
Needs a GPU, PyCUDA, NVRTC and PyTorch with torchvision; says so and passes where one is missing.
"""

from __future__ import annotations

import statistics
import struct
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from edgert.benchmark.measure import Figure
from edgert.config import InputConfig
from edgert.errors import DeviceError
from edgert.memory.cuda import CudaDevice, Event, Kernel, Launch, nvrtc, open_device
from edgert.runtime import Frame
from edgert.stages.gpu.gpu_preprocess import GpuPreprocessor, Ready, hold, plain
from edgert.stages.gpu.kernels import Kernels
from edgert.stages.gpu.upload import Uploader
from tests.bench.gpu_run import Pinned, frames
from tests.bench.report import main

SETS, ROUNDS, BLOCKS, MOST = 3, 3, 4, 8
SIDES = {"resnet50": 224, "detector": 640}
BATCHES = {("resnet50", 1): 400, ("resnet50", 8): 120, ("detector", 1): 200, ("detector", 8): 50}
WAYS = ("copied", "in front", "by a kernel", "in place")
_COPIES = struct.Struct("=16QQ")
_SOURCE = """
struct Copies { const uint4* from[8]; uint4* to[8]; unsigned long long count; };
extern "C" __global__ void __launch_bounds__(512) bring(const Copies copies) {
    const uint4* from = copies.from[blockIdx.y];
    uint4* to = copies.to[blockIdx.y];
    const int count = (int)copies.count, step = gridDim.x * blockDim.x;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += 4 * step) {
        uint4 part[4];
#pragma unroll
        for (int k = 0; k < 4; ++k) if (i + k * step < count) part[k] = __ldcs(from + i + k * step);
#pragma unroll
        for (int k = 0; k < 4; ++k) if (i + k * step < count) to[i + k * step] = part[k];
    }
}
"""


class Subject:
    """A network for so many rows, three times with inputs of its own, and what fills these."""

    def __init__(self, device: CudaDevice, name: str, rows: int, pinned: Pinned, nbytes: int, bring: Kernel) -> None:
        import torch

        from tests.bench import gpu_peer

        self._torch, self.device, self.rows, self._pinned, self._nbytes = torch, device, rows, pinned, nbytes
        self._bring, side = bring, SIDES[name]
        config = InputConfig()
        if name == "resnet50":
            config = InputConfig(resize="stretch", mean=gpu_peer.MEAN, std=gpu_peer.STD)
        target, kernels = plain("nchw", "float16", rows, side, side, 3), Kernels(device)
        self.inputs = [torch.zeros(rows, 3, side, side, device="cuda", dtype=torch.half) for _ in range(SETS)]
        self._prepare = [GpuPreprocessor(config, target, one.data_ptr(), kernels) for one in self.inputs]
        self._engine = device.stream()
        self._uploader = Uploader(device, device.stream(), device.counter)
        self._there = [[device.device_block(nbytes) for _ in range(rows)] for _ in range(SETS)]
        self._fed, self._done = ([Event(device, patient=patient) for _ in range(SETS)] for patient in (False, True))
        net = gpu_peer.network(name).cuda().half().to(memory_format=torch.channels_last)
        self._current = torch.cuda.ExternalStream(self._engine.handle)
        self._graphs = [self._recorded(net, one) for one in self.inputs]

    def _recorded(self, net: Any, one: Any) -> Any:
        torch, graph = self._torch, self._torch.cuda.CUDAGraph()
        with torch.inference_mode(), torch.cuda.stream(self._current):
            for _ in range(3):
                net(one.contiguous(memory_format=torch.channels_last))
            torch.cuda.synchronize()
            with torch.cuda.graph(graph, stream=self._current):
                self.out = net(one.contiguous(memory_format=torch.channels_last))
        return graph

    def feed(self, way: str, slot: int) -> None:
        """Brings one batch into a set of tensors, and the engine's stream behind that."""
        uploader, prepare, fed = self._uploader, self._prepare[slot], self._fed[slot]
        feeding = self._engine if way == "in front" else uploader.stream
        taken = [self._pinned.take() for _ in range(self.rows)]
        ready = [self._ready(way, prepare, frame) for frame in taken]
        if way == "by a kernel":
            ready = self._moved(ready, slot)
        launches: Sequence[Launch] = prepare.launches(ready)
        prepare.wait_for(ready, feeding)
        for launch in launches:
            launch.enqueue(feeding)
        hold(ready, feeding, fed.record(feeding))
        if feeding is not self._engine:
            self._engine.wait(fed)
        for frame in taken:
            frame.lease.release()

    def _ready(self, way: str, prepare: GpuPreprocessor, frame: Frame) -> Ready:
        lease: Any = frame.lease
        if way in ("copied", "in front"):
            return prepare.plans.ready(frame, lease.send(self._uploader.stream, is_read=True))
        addresses = [int(plane.__array_interface__["data"][0]) for plane in frame.planes]
        return prepare.plans.ready(frame)._replace(addresses=(*addresses, 0))  # of the host's side

    def _moved(self, ready: Sequence[Ready], slot: int) -> list[Ready]:
        there = [block.address for block in self._there[slot][: len(ready)]]
        unused = [0] * (MOST - len(ready))
        copies = _COPIES.pack(*[one.addresses[0] for one in ready], *unused, *there, *unused, self._nbytes // 16)
        self._bring.launch(copies, (BLOCKS, len(ready), 1), (512, 1, 1), self._uploader.stream)
        luma = [one.addresses[1] - one.addresses[0] for one in ready]
        rows = zip(ready, there, luma, strict=True)
        return [one._replace(addresses=(start, start + more, 0)) for one, start, more in rows]

    def us(self, way: str, batches: int) -> float:
        """Microseconds a batch; of the engine alone without a way."""
        device = self.device
        with device, self._torch.cuda.stream(self._current):
            for count in (2 * SETS, batches):
                device.synchronize()
                started = time.perf_counter()
                for turn in range(count):
                    slot = turn % SETS
                    self._done[slot].synchronize()
                    if way:
                        self.feed(way, slot)
                    self._graphs[slot].replay()
                    self._done[slot].record(self._engine)
                device.synchronize()
            return (time.perf_counter() - started) / batches * 1e6

    def agree(self) -> bool:
        """Whether all ways fill the input alike."""
        found = []
        for way in WAYS:
            with self.device:
                self.inputs[0].zero_()
                self.device.synchronize()
                self.feed(way, 0)
                self.device.synchronize()
                found.append(self.inputs[0].clone())
        return all(bool(self._torch.equal(found[0], one)) for one in found)


def measure() -> Iterator[Figure]:
    """Each network in each batch size, the ways in turns."""
    try:
        device = open_device()
        binary = nvrtc(device.cuda_major).compile(_SOURCE, "bring.cu", (f"--gpu-architecture={device.architecture}",))
    except DeviceError as error:
        print(f"skipped: {error.what} ({error.why})")
        return
    pixels = frames(1)  # the same for all, so that the ways can be compared
    pinned, nbytes = Pinned(device, pixels), pixels[0].nbytes
    bring = device.load(binary).kernel("bring", _COPIES.size)
    for (name, rows), batches in BATCHES.items():
        subject = Subject(device, name, rows, pinned, nbytes, bring)
        assert subject.agree(), "the ways differ in what they write"
        taken: dict[str, list[float]] = {}
        for _ in range(ROUNDS):
            for way in ("", *WAYS):
                taken.setdefault(way, []).append(subject.us(way, batches))
        bare, *others = (statistics.median(values) for values in taken.values())
        detail = {way.replace(" ", "_"): bare / us for way, us in zip(WAYS, others, strict=True)}
        title = f"{name} FP16, batch {rows}: engine alone / with frames brought by the copy engine"
        yield Figure(title, detail["copied"], "x", 0.95, "higher", batches, {**detail, "bare_us": bare})


if __name__ == "__main__":
    main(__doc__ or "", measure)
