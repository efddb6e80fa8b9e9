"""Eight 1080p NV12 frames on a GPU → one FP16 batch of 8 × 3 × 640 × 640, against the least that memory allows.

The bar is a device-to-device copy that reads and writes as many bytes as the kernel must: 32-byte sectors of the planes
that hold a pixel it samples, and the whole tensor. Everything runs as a CUDA graph over eight sets of frames in turn,
more than any cache holds, timed by events. Beside it, on the same frames: torch operations, as people write them and
with planes scaled first, both recorded as graphs of their own.
Needs a GPU, PyCUDA and PyTorch; says so and passes where they are missing.
"""

import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from edgert.benchmark.measure import Figure
from edgert.config import InputConfig
from edgert.errors import DeviceError
from edgert.memory import Counter, lend
from edgert.memory.cuda import CudaDevice, DeviceView, Stream, open_device
from edgert.runtime import Frame
from edgert.stages.gpu.gpu_preprocess import GpuPreprocessor, Target
from edgert.stages.gpu.kernels import Kernels
from tests.bench.report import main
from tests.helpers.cuda_on_host import kernels_or_skip
from tests.helpers.gpu_target import target
from tests.helpers.gpu_written import fill, written

WIDTH, HEIGHT, SIDE, BATCH, SETS = 1920, 1080, 640, 8, 8
ROUNDS, REPEATS = 30, 5
BAR = 1.5
SECTOR_BYTES = 32
CONFIG = InputConfig(mean=(123.675, 116.28, 103.53), std=(58.395, 57.12, 57.375))
RESIZES = ("letterbox", "stretch")


def nv12(seed: int) -> Any:
    """(1620, 1920) uint8: luma, then interleaved chroma."""
    return np.random.default_rng(seed).integers(16, 236, (HEIGHT * 3 // 2, WIDTH), np.uint8)


def frame_of(planes: Sequence[Any], lease: Any) -> Frame:
    return Frame("bench", 0, 0, 0, WIDTH, HEIGHT, "nv12", tuple(planes), lease)


class Surfaces:
    """Sets of frames in one piece of GPU memory, as a decoder would hold them."""

    def __init__(self, device: CudaDevice) -> None:
        size = WIDTH * HEIGHT * 3 // 2
        self.block = device.device_block(SETS * BATCH * size)
        lease = lend(self.block, Counter())
        self.pixels = nv12(0)
        u8 = np.dtype(np.uint8)
        self.sets: list[list[Frame]] = []
        for index in range(SETS * BATCH):
            at = self.block.address + index * size
            with device:
                device.driver.memcpy_htod(at, self.pixels)
            luma = DeviceView(at, (HEIGHT, WIDTH), (WIDTH, 1), u8, lease)
            chroma = DeviceView(at + WIDTH * HEIGHT, (HEIGHT // 2, WIDTH // 2, 2), (WIDTH, 2, 1), u8, lease)
            if index % BATCH == 0:
                self.sets.append([])
            self.sets[-1].append(frame_of((luma, chroma), lease))
        device.synchronize()

    def host(self) -> Frame:
        planes = self.pixels[:HEIGHT], self.pixels[HEIGHT:].reshape(HEIGHT // 2, WIDTH // 2, 2)
        return frame_of(planes, lend(self.pixels, Counter()))


def timed(device: CudaDevice, stream: Stream, launch: Callable[[], None]) -> list[float]:
    """GPU microseconds per batch of ``launch``, which does one for every set; one figure per round."""
    start, end, taken = device.event(timed=True), device.event(timed=True), []
    for _ in range(3):
        launch()
    for _ in range(ROUNDS):
        start.record(stream)
        for _ in range(REPEATS):
            launch()
        end.record(stream).synchronize()
        taken.append(end.since_ms(start) * 1e3 / SETS / REPEATS)
    return taken


def sampled(source: int, wanted: int) -> set[int]:
    """Pixels of an axis that are read to scale it: two for each output pixel, one where their centers meet."""
    exact = (np.arange(wanted) + 0.5) * source / wanted - 0.5
    return {int(one) for one in np.clip([*np.floor(exact), *np.ceil(exact)], 0, source - 1)}


def touched_bytes(image: tuple[int, int]) -> int:
    """Bytes of 32-byte sectors that hold a sampled pixel, luma and chroma, for one frame scaled to ``image``."""
    total = 0
    for width, height, step in ((WIDTH, HEIGHT, 1), (WIDTH // 2, HEIGHT // 2, 2)):
        columns, rows = sampled(width, image[0]), sampled(height, image[1])
        total += len(rows) * len({column * step // SECTOR_BYTES for column in columns}) * SECTOR_BYTES
    return total


def copy_us(device: CudaDevice, stream: Stream, nbytes: int) -> list[float]:
    """A copy that reads and writes ``nbytes`` together, over as many places as the kernel has sets."""
    half = nbytes // 2
    source, sink = device.device_block(SETS * half), device.device_block(SETS * half)

    def enqueue() -> None:
        for index in range(SETS):
            at = index * half
            device.driver.memcpy_dtod_async(sink.address + at, source.address + at, half, stream.raw)

    enqueue()
    taken = timed(device, stream, device.capture(stream, enqueue))
    source.release()
    sink.release()
    return taken


def ours(device: CudaDevice, stream: Stream, surfaces: Surfaces, config: InputConfig, wanted: Target) -> dict[str, Any]:
    """Microseconds per batch on the GPU and on the host, and how far the answer is off."""
    block, kernels = device.device_block(SETS * wanted.nbytes), Kernels(device)
    fills = [GpuPreprocessor(config, wanted, block.address + n * wanted.nbytes, kernels) for n in range(SETS)]

    def enqueue() -> None:
        for preprocessor, frames in zip(fills, surfaces.sets, strict=True):
            fill(preprocessor, frames, stream)

    enqueue()
    stream.synchronize()
    host = []
    for _ in range(20):
        started = time.perf_counter_ns()
        enqueue()
        host.append((time.perf_counter_ns() - started) / 1e3 / SETS)
        stream.synchronize()
    taken = timed(device, stream, device.capture(stream, enqueue))
    kernel = kernels.kernel("preprocess", fills[0].definitions("nv12", True, False))
    found = np.empty(wanted.nbytes, np.uint8)
    with device:
        device.driver.memcpy_dtoh(found, block.address + (SETS - 1) * wanted.nbytes)
    exact = written(kernels_or_skip(), [surfaces.host()], config, target("nchw", "float16", 1, SIDE, SIDE))
    same = all((row == exact).all() for row in found.reshape(BATCH, -1))
    block.release()
    return {
        "us": taken,
        "host_us": statistics.median(host),
        "equal": same,
        "registers": kernel.registers,
        "spilled_bytes": kernel.local_bytes,
    }


def torch_us(device: CudaDevice, surfaces: Surfaces, config: InputConfig, planes_first: bool) -> list[float]:
    import torch
    from torch.nn import functional

    from edgert.stages.preprocess import yuv_matrix

    size = WIDTH * HEIGHT * 3 // 2
    whole = DeviceView(
        surfaces.block.address, (SETS, BATCH, HEIGHT * 3 // 2, WIDTH), (BATCH * size, size, WIDTH, 1),
        np.dtype(np.uint8), lend(surfaces.block, Counter()),
    )  # fmt: skip
    frames = torch.from_dlpack(whole)
    color = torch.tensor(yuv_matrix(surfaces.sets[0][0].color, "rgb"), device="cuda", dtype=torch.float16)
    mean, std = (
        torch.tensor(v, device="cuda", dtype=torch.float16).view(1, 3, 1, 1) for v in (config.mean, config.std)
    )
    is_box = config.resize == "letterbox"
    image = (SIDE * HEIGHT // WIDTH, SIDE) if is_box else (SIDE, SIDE)
    border = (SIDE - image[0]) // 2

    def scaled(planes: Any, to: tuple[int, int]) -> Any:
        return functional.interpolate(planes, to, mode="bilinear", align_corners=False)

    def one(batch: Any) -> Any:
        y = batch[:, None, :HEIGHT].half()
        uv = batch[:, HEIGHT:].reshape(BATCH, HEIGHT // 2, WIDTH // 2, 2).permute(0, 3, 1, 2).half()
        to = image if planes_first else (HEIGHT, WIDTH)
        yuv = torch.cat([scaled(y, to) if planes_first else y, scaled(uv, to)], 1)
        rgb = torch.einsum("rc,nchw->nrhw", color[:, :3], yuv) + color[:, 3].view(1, 3, 1, 1)
        rgb = rgb.clamp(0, 255)
        rgb = rgb if planes_first else scaled(rgb, image)
        rgb = functional.pad(rgb, (0, 0, border, SIDE - image[0] - border), value=config.pad)
        return (rgb - mean) / std

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(2):
            one(frames[0])
    side.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for index in range(SETS):
            one(frames[index])
    start, end, taken = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True), []
    for _ in range(3):
        graph.replay()
    for _ in range(10):
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        taken.append(start.elapsed_time(end) * 1e3 / SETS)
    return taken


def measure() -> Iterator[Figure]:
    try:
        device = open_device()
    except DeviceError as error:
        print(f"skipped: {error.what}")
        return
    with device:
        stream, surfaces = device.stream(), Surfaces(device)
        yield from _linear(device, stream, surfaces)


def _linear(device: CudaDevice, stream: Stream, surfaces: Surfaces) -> Iterable[Figure]:
    wanted = target("nchw", "float16", BATCH, SIDE, SIDE)
    for resize in RESIZES:
        config = CONFIG.model_copy(update={"resize": resize})
        image = (SIDE, SIDE * HEIGHT // WIDTH) if resize == "letterbox" else (SIDE, SIDE)
        nbytes = BATCH * touched_bytes(image) + wanted.nbytes
        copies, found = copy_us(device, stream, nbytes), ours(device, stream, surfaces, config, wanted)
        taken, copy = statistics.median(found["us"]), statistics.median(copies)
        whole = statistics.median(copy_us(device, stream, BATCH * WIDTH * HEIGHT * 3 // 2 + wanted.nbytes))
        table = {
            "kernel_us": taken,
            "copy_us": copy,
            "copy_of_whole_frames_us": whole,
            "bytes": float(nbytes),
            "torch_as_written_us": statistics.median(torch_us(device, surfaces, config, False)),
            "torch_planes_first_us": statistics.median(torch_us(device, surfaces, config, True)),
            "host_us": found["host_us"],
            "registers": found["registers"],
            "spilled_bytes": found["spilled_bytes"],
            "equal_to_reference": int(found["equal"]),
            "gpu": device.name,
        }
        yield Figure(f"{resize}: kernel / copy of its bytes", taken / copy, "x", BAR, "lower", ROUNDS, table)


if __name__ == "__main__":
    main(__doc__ or "", measure)
