"""1080p NV12 frames in, records out, on one GPU: what stands around an engine, beside the engine alone.

    python tests/bench/bench_gpu_end_to_end.py [--json FILE]

edgert's own parts around ONNX Runtime on CUDA, without a pipeline file: ResNet-50 at 224 × 224 and a detector of
YOLOX-s's size at 640 × 640, random weights. Frames lie in pinned memory that their source wrote into, where not said
otherwise. One thread brings frames up, one waits for records. The bare engine is the same session, its CUDA graph
replayed in a loop with nothing around it. Both run with the kernels that a pipeline has once it has run for some
seconds (``fused: auto``): those are compiled before anything is timed. bench_gpu_peers.py has other frameworks beside
whole pipelines, and bench_gpu_cameras.py many cameras. EDGERT_GPU_FRAMES is how many frames the memory test takes.
Needs a GPU, PyCUDA, PyTorch and ONNX Runtime with CUDA; says so and passes where one is missing.
"""

from __future__ import annotations

import gc
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from edgert.assemble.gpu_models import gpu_inference
from edgert.backend import EngineOptions
from edgert.backend.gpu import GpuEngine
from edgert.backend.ort.cuda import OrtCudaBackend, OrtCudaEngine, why_not
from edgert.benchmark.measure import Figure
from edgert.config import InputConfig
from edgert.graph import load
from edgert.memory.cuda import CudaDevice, open_device
from edgert.runtime import Frame
from edgert.stages.decode.classify import Classify
from edgert.stages.decode.decoder import Decoder
from edgert.stages.decode.detection import Detector
from edgert.stages.decode.yolo import YoloX
from edgert.stages.gpu.infer_gpu import GpuInference
from edgert.stages.gpu.upload import Staging, Uploader
from edgert.stages.preprocess import Preprocessor
from tests.bench.gpu_run import HEIGHT, WIDTH, Camera, Kind, Pinned, Run, frame_of, frames, run
from tests.bench.gpu_task import Task
from tests.bench.report import main

COUNT, ROUNDS, ROWS, RATE_HZ = 2000, 300, 8, 30.0
SIDES = {"resnet50": 224, "detector": 640}
IOU = 0.45
YUV_BYTES = WIDTH * HEIGHT * 3 // 2


class Subject:
    """One network in one precision: PyTorch's, and edgert's engine of the same weights."""

    def __init__(self, name: str, half: bool, folder: Path, device: CudaDevice, pixels: list[Any]) -> None:
        import torch

        from tests.bench import gpu_peer

        self.name, self.half, self.device, self.pixels = name, half, device, pixels
        self.side, self.is_detector = SIDES[name], name == "detector"
        self._peer = gpu_peer
        dtype = torch.float16 if half else torch.float32
        self.net = gpu_peer.network(name).cuda().to(dtype)
        self.score = self._hundredth() if self.is_detector else 0.0
        self.path = gpu_peer.export(self.net, self.side, half, folder / f"{name}-{'fp16' if half else 'fp32'}.onnx")

    @property
    def config(self) -> InputConfig:
        if self.is_detector:
            return InputConfig()
        return InputConfig(resize="stretch", mean=self._peer.MEAN, std=self._peer.STD)

    @property
    def decoder(self) -> Decoder:
        return Detector(YoloX(), self.score, IOU, 300) if self.is_detector else Classify("softmax", 5)

    def _hundredth(self) -> float:
        """A score that about a hundred boxes reach."""
        import torch

        from tests.bench.gpu_careful import Prepared

        prepare = Prepared(Task("detector", self.side, True, (0.0,) * 3, (1.0,) * 3)).cuda()
        with torch.inference_mode():
            image = prepare(torch.from_numpy(self.pixels[0]).cuda()[None])
            found = self.net(image.to(next(self.net.parameters()).dtype))[0].float()
        return float((found[:, 4] * found[:, 5:].max(1).values).topk(100).values[-1])

    def engine(self, rows: int) -> OrtCudaEngine:
        """With all that it prepares while it runs."""
        profiles = {"default": {self._peer.INPUT: (rows, 3, self.side, self.side)}}
        return OrtCudaBackend(self.device).compile(load(self.path), EngineOptions(profiles=profiles))

    def inference(self, engine: OrtCudaEngine) -> GpuInference:
        made = gpu_inference(engine, None, self.config, lambda _: self.decoder, self.name)
        assert made is not None
        made.warm_up()
        return made


def bare_ms(subject: Subject, engine: GpuEngine) -> list[float]:
    """Milliseconds per run of the engine alone, its graph replayed twenty times between two events.

    Its input holds frames: on zeros, GPUs are faster.
    """
    session, device = engine.session(), engine.device
    (tensor,) = session.inputs.values()
    preprocessor = Preprocessor(subject.config, tensor)
    for row in range(len(tensor)):
        preprocessor.into(row, frame_of(subject.pixels[row]))
    session.run()
    session.enqueue()
    graph = device.capture(session.stream, session.enqueue)
    start, end, taken = device.event(timed=True), device.event(timed=True), []
    for _ in range(ROUNDS // 10 + 3):
        start.record(session.stream)
        for _ in range(20):
            graph()
        end.record(session.stream).synchronize()
        taken.append(end.since_ms(start) / 20)
    return taken[3:]


def host_us(subject: Subject, inference: GpuInference) -> dict[str, float]:
    """Host microseconds per frame in the thread of the model, waiting for the GPU left out: of frames on the GPU, in
    pinned memory, and in ordinary memory; and what copying a frame into pinned memory takes its source."""
    uploader = Uploader(subject.device, subject.device.stream(), subject.device.counter)
    foreign, pinned, staging = (
        frame_of(subject.pixels[0]),
        Pinned(subject.device, subject.pixels),
        Staging(subject.device),
    )
    there = uploader.upload(foreign)
    takes: dict[str, Callable[[], Frame]] = {
        "on_gpu_us": lambda: retained(there),
        "pinned_us": pinned.take,
        "pageable_us": lambda: retained(foreign),
    }
    found = {name: statistics.median(inference_us(subject.device, inference, take) for _ in range(ROUNDS))
             for name, take in takes.items()}  # fmt: skip
    copying = []
    for _ in range(ROUNDS):
        started = time.perf_counter_ns()
        staging.taken(retained(foreign)).lease.release()
        copying.append((time.perf_counter_ns() - started) / 1e3)
    there.lease.release()
    uploader.close()
    return {**found, "staging_us": statistics.median(copying)}


def inference_us(device: CudaDevice, inference: GpuInference, take: Callable[[], Frame]) -> float:
    """Of one frame."""
    frame = take()
    started = time.perf_counter_ns()
    pending = inference.submit_batch((inference.fill(frame),))
    submitted = time.perf_counter_ns()
    device.synchronize()
    passed = time.perf_counter_ns()
    pending.records()[0]
    taken = time.perf_counter_ns() - passed + submitted - started
    frame.lease.release()
    return taken / 1e3


def retained(frame: Frame) -> Frame:
    """For one more who will release it."""
    frame.lease.retain()
    return frame


def files(subject: Subject, inference: GpuInference, count: int = COUNT, rows: int = 1, kind: Kind = "written") -> Run:
    """A file that is read as fast as results are taken."""
    camera = Camera("cam", subject.pixels, count, device=subject.device, kind=kind)
    return run(inference, subject.device.counter, [camera], count, rows)


def cameras(subject: Subject, inference: GpuInference, number: int, seconds: float) -> Run:
    """So many cameras at 30 Hz, batched."""
    count = round(seconds * RATE_HZ)
    live = [
        Camera(f"cam{n}", subject.pixels, count, RATE_HZ, n / number, subject.device, "written") for n in range(number)
    ]
    return run(inference, subject.device.counter, live, count, min(number, inference.rows))


def one_frame(name: str, device: CudaDevice, folder: Path, pixels: list[Any]) -> Iterator[Figure]:
    """What a frame costs, in both precisions."""
    for half in (False, True):
        subject = Subject(name, half, folder, device, pixels)
        engine = subject.engine(1)
        bare = statistics.median(bare_ms(subject, engine))
        inference = subject.inference(engine)
        host, found = host_us(subject, inference), files(subject, inference)
        form = "FP16" if half else "FP32"
        table = {"fps": found.fps, "bare_fps": 1e3 / bare, "gpu": device.name}
        yield Figure(
            f"{name} {form}: pipeline / bare engine", found.fps * bare / 1e3, "x", 0.95, "higher", COUNT, table
        )
        yield Figure(
            f"{name} {form}: host time per frame from pinned memory",
            host["pinned_us"],
            "µs",
            150,
            "lower",
            ROUNDS,
            host,
        )
        others = {kind: files(subject, inference, kind=kind) for kind in ("staged", "foreign")}
        detail = {"in_the_slot": others["foreign"].fps, "copies": others["staged"].copies}
        yield Figure(
            f"{name} {form}: fps from ordinary memory", others["staged"].fps, "Hz", None, "higher", COUNT, detail
        )
        yield Figure(f"{name} {form}: copies per frame", found.copies, "", 2, "lower", COUNT,
                     {"bytes": found.bytes_copied, "yuv_bytes": YUV_BYTES, "p50_ms": found.p50_ms})  # fmt: skip
        inference.close()
        engine.close()


def batches(device: CudaDevice, folder: Path, pixels: list[Any]) -> Iterator[Figure]:
    """A file in batches of eight."""
    subject = Subject("detector", True, folder, device, pixels)
    engine = subject.engine(ROWS)
    bare = ROWS * 1e3 / statistics.median(bare_ms(subject, engine))
    inference = subject.inference(engine)
    files(subject, inference, 400, ROWS)  # records the graphs of all sizes
    found = files(subject, inference, COUNT, ROWS).fps
    detail = {"fps": found, "bare_fps": bare, "staged_fps": files(subject, inference, COUNT, ROWS, "staged").fps}
    yield Figure(
        "detector FP16, batches of eight: pipeline / bare engine", found / bare, "x", 0.95, "higher", COUNT, detail
    )
    inference.close()
    engine.close()


def growth(device: CudaDevice, folder: Path, pixels: list[Any]) -> Iterator[Figure]:
    """What is left behind by many frames."""
    count = int(os.environ.get("EDGERT_GPU_FRAMES", "100000"))
    subject = Subject("resnet50", True, folder, device, pixels)
    engine = subject.engine(1)
    inference = subject.inference(engine)
    files(subject, inference)
    gc.collect()  # of each run, the last frame
    before, live, resident, opened = device.free_bytes()[0], device.live_bytes, rss_bytes(), open_files()
    files(subject, inference, count)
    gc.collect()
    detail = {
        "live_bytes": float(device.live_bytes - live),
        "rss_bytes": float(rss_bytes() - resident),
        "open_files": float(open_files() - opened),
    }
    yield Figure("GPU memory grown", before - device.free_bytes()[0], "bytes", 0, "lower", count, detail)
    inference.close()
    engine.close()
    yield Figure("blocks leaked", device.leaked, "", 0, "lower", count)


def rss_bytes() -> int:
    """The most that this process had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def open_files() -> int:
    """Of this process, the GPU's device files among them."""
    return len(list(Path("/proc/self/fd").iterdir()))


def measure() -> Iterator[Figure]:
    """All of it."""
    missing = why_not()
    if missing:
        print(f"skipped: {missing}")
        return
    device, pixels = open_device(), frames(16)
    parts: list[Callable[..., Iterator[Figure]]] = [batches, growth]
    with tempfile.TemporaryDirectory() as folder:
        for name in SIDES:
            yield from one_frame(name, device, Path(folder), pixels)
        for part in parts:
            yield from part(device, Path(folder), pixels)


if __name__ == "__main__":
    main(__doc__ or "", measure)
