"""Kernels that decode outputs on the GPU, cut crops and draw, one by one, beside PyTorch doing the same.

    python tests/bench/bench_gpu_kernels.py [--json FILE]

Microseconds of each kernel are what CUPTI measures, by PyTorch's profiler; ``graph`` is a CUDA graph of 20 times all
kernels of a reader, per time, with the gaps between them. Outputs are of the usual sizes in FP16, and as many boxes
score enough as the name says. PyTorch's figures are the kernels that it launches for the same answer and, under
``wait``, the time from the call until the answer is on the host. Crops are of a 1080p NV12 frame, 20 boxes for each of
three models of 128 × 128; the frame's conversion to RGB is part of PyTorch's. What is drawn is 50 boxes with labels and
trails and a mask over all of a 1080p NV12 frame; PyTorch's is its conversion alone, without anything drawn. Needs a
GPU, PyCUDA, PyTorch and torchvision; says so and passes where one is missing.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from edgert.backend.gpu import GpuTensor
from edgert.benchmark.measure import Figure
from edgert.config import InputConfig
from edgert.errors import EdgertError
from edgert.memory import Counter
from edgert.memory.cuda import CudaDevice, Launch, open_device
from edgert.runtime import Color, Frame, Result
from edgert.stages.crop import Geometry
from edgert.stages.decode.classify import Classify
from edgert.stages.decode.decoded import YoloNas
from edgert.stages.decode.detection import Detector
from edgert.stages.decode.instances import YoloV8Seg
from edgert.stages.decode.maps import Heatmap, SegmentArgmax
from edgert.stages.decode.shaped import YoloV8Obb
from edgert.stages.decode.yolo import YoloPose, YoloV8
from edgert.stages.draw import Overlay
from edgert.stages.gpu.gpu_crops import CropLaunches, laid_out
from edgert.stages.gpu.gpu_detections import GpuDetector, GpuInstances, GpuOriented, GpuPose
from edgert.stages.gpu.gpu_preprocess import GpuPreprocessor, ValueType
from edgert.stages.gpu.gpu_rows import GpuRows
from edgert.stages.gpu.gpu_scores import GpuClasses, GpuMask, GpuPeaks
from edgert.stages.gpu.kernels import Kernels
from edgert.stages.gpu.overlay import GpuPainter
from edgert.stages.preprocess import yuv_matrix
from tests.bench.gpu_run import HEIGHT, WIDTH
from tests.bench.report import main
from tests.helpers.frames import frame_of
from tests.helpers.gpu import to_gpu
from tests.helpers.gpu_target import target
from tests.helpers.overlay_scenes import busy_scene

NETWORK, CELLS, CLASSES = (640, 640), 8400, 80
RUNS, REPEATS = 200, 20
GEOMETRY = Geometry(3.0, 3.0, 0.0, 0.0, NETWORK, (0.0, 0.0, 1920.0, 1920.0))


def crowd(random: Any, count: int, each: int = 8) -> tuple[Any, Any]:
    """(count, 4) center x, y, width, height of boxes, ``each`` around one object, and their classes."""
    objects = -(-count // each)
    place = np.hstack([random.uniform(30, 610, (objects, 2)), random.uniform(20, 120, (objects, 2))])
    kinds = random.integers(0, CLASSES, objects)
    boxes = np.repeat(place, each, axis=0)[:count] + random.normal(0, 4, (count, 4))
    return np.maximum(boxes, 1), np.repeat(kinds, each)[:count]


def detector_output(rows: int, count: int, classes: int = CLASSES, extras: int = 0) -> Any:
    """(rows, 4 + classes + extras, cells) float16, where ``count`` boxes of each image score 0.3 or more."""
    random = np.random.default_rng(count)
    values = np.zeros((rows, 4 + classes + extras, CELLS), np.float32)
    values[:, 4:] = random.uniform(0, 0.2, values[:, 4:].shape)
    for image in values:
        cells = random.choice(CELLS, count, replace=False)
        boxes, kinds = crowd(random, count)
        image[:4, cells], image[4 + kinds % classes, cells] = boxes.T, random.uniform(0.3, 1, count)
    return values.astype(np.float16)


def kernel_us(run: Callable[[], object], runs: int = RUNS) -> dict[str, float]:
    """Median microseconds of every kernel, by name, times how often it is launched in a run."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    for _ in range(5):
        run()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        for _ in range(runs):
            run()
        torch.cuda.synchronize()
    taken: dict[str, list[float]] = {}
    for event in found.profiler.kineto_results.events():
        if event.device_type() == torch.autograd.DeviceType.CUDA:
            taken.setdefault(event.name(), []).append(event.duration_ns() / 1e3)
    return {name: statistics.median(each) * len(each) / runs for name, each in taken.items()}


def graph_us(device: CudaDevice, enqueue: Callable[[Any], None]) -> float:
    """Of what ``enqueue`` puts on a stream, repeated in a CUDA graph; the median per time."""
    stream, begin, end = device.stream(), device.event(timed=True), device.event(timed=True)
    enqueue(stream)
    stream.synchronize()

    def many() -> None:
        for _ in range(REPEATS):
            enqueue(stream)

    graph = device.capture(stream, many)
    taken = []
    for _ in range(RUNS // 4):
        begin.record(stream)
        with device:
            graph()
        end.record(stream)
        end.synchronize()
        taken.append(end.since_ms(begin) * 1e3 / REPEATS)
    return statistics.median(taken)


def wait_us(run: Callable[[], object]) -> float:
    """Median microseconds of a call whose answer comes to the host."""
    taken = []
    for _ in range(RUNS):
        started = time.perf_counter_ns()
        run()
        taken.append((time.perf_counter_ns() - started) / 1e3)
    return statistics.median(taken)


def of_reader(
    device: CudaDevice, name: str, reader: Any, bar: float | None, kernel: str, peer: Callable[[], object]
) -> Iterator[Figure]:
    """A reader's kernels, and PyTorch's for the same answer."""
    rows = reader.rows
    yield of_work(device, name, lambda stream: reader.enqueue(rows, stream), bar, kernel, peer)


def of_work(
    device: CudaDevice, name: str, enqueue: Callable[[Any], None], bar: float | None, kernel: str,
    peer: Callable[[], object],
) -> Figure:  # fmt: skip
    """Kernels that are put on a stream, and PyTorch's for the same."""
    stream = device.stream()
    ours = kernel_us(lambda: enqueue(stream))
    own_us = {one: us for one, us in ours.items() if not one.startswith("Mem")}
    theirs = sum(us for one, us in kernel_us(peer, 20).items() if not one.startswith("Memcpy"))
    detail = {**own_us, "graph": graph_us(device, enqueue), "torch_kernels": theirs, "torch_wait": wait_us(peer)}
    return Figure(name, own_us.get(kernel, sum(own_us.values())), "µs", bar, "lower", RUNS, detail)


def torch_nms(values: Any, score: float, iou: float) -> Callable[[], object]:
    """YOLOv8's decoding as it is written in PyTorch, one image after another."""
    import torch
    from torchvision.ops import batched_nms, box_convert

    output = torch.from_numpy(values).cuda()

    def run() -> object:
        answers = []
        for image in output:
            best, kinds = image[4 : 4 + CLASSES].max(dim=0)
            keep = best >= score
            boxes = box_convert(image[:4, keep].T.float(), "cxcywh", "xyxy")
            left = batched_nms(boxes, best[keep].float(), kinds[keep], iou)[:300]
            answers.append((boxes[left].cpu(), best[keep][left].cpu(), kinds[keep][left].cpu()))
        return answers

    return run


def rows(device: CudaDevice, kernels: Kernels, images: int, count: int) -> Iterator[Figure]:
    """Of YOLO-NAS, where ``count`` boxes of each image score enough; PyTorch's rows are not decoded either."""
    import torch

    table = np.ascontiguousarray(detector_output(images, count).transpose(0, 2, 1))
    arrays = [np.ascontiguousarray(table[:, :, :4]), np.ascontiguousarray(table[:, :, 4:])]
    outputs = [GpuTensor("out", array.shape, "float16", on_gpu(device, array)) for array in arrays]
    reader = GpuRows(Detector(YoloNas(), 0.25, 0.45, 300), outputs, NETWORK, kernels)
    boxes, scores = (torch.from_numpy(array).cuda() for array in arrays)

    def peer() -> object:
        return [
            (some[keep].cpu(), one[keep].cpu())
            for some, one, keep in zip(scores, boxes, scores.amax(2) >= 0.25, strict=True)
        ]

    name = f"{count} rows of 8400 that score enough" + (f", {images} images" if images > 1 else "")
    yield from of_reader(device, name, reader, None, "rows", peer)
    reader.close()
    for output in outputs:
        output.block.release()


def torch_best(values: Any, classes: int) -> Callable[[], object]:
    """Softmax and the five best."""
    import torch

    output = torch.from_numpy(values).cuda()

    def run() -> object:
        scores, kinds = torch.softmax(output.float(), dim=1).topk(min(5, classes))
        return scores.cpu(), kinds.cpu()

    return run


def torch_codes(values: Any) -> Callable[[], object]:
    """The class of every cell."""
    import torch

    output = torch.from_numpy(values).cuda()
    return lambda: output.argmax(dim=1).to(torch.uint8).cpu()


def torch_peaks(values: Any) -> Callable[[], object]:
    """Where each map is greatest, and its value."""
    import torch

    output = torch.from_numpy(values).cuda().flatten(2)
    return lambda: [part.cpu() for part in output.max(dim=2)]


def masks(device: CudaDevice, kernels: Kernels, random: Any) -> Iterator[Figure]:
    """Of 100 boxes, 32 prototypes of 160 × 160; beside PyTorch's product, cut to nothing."""
    import torch

    table, maps = detector_output(1, 100, CLASSES, 32), random.standard_normal((1, 32, 160, 160)).astype(np.float16)
    outputs = [GpuTensor("out", array.shape, "float16", on_gpu(device, array)) for array in (table, maps)]
    reader = GpuInstances(Detector(YoloV8Seg()), outputs, NETWORK, kernels)
    shares, prototypes = torch.ones(30, 32).cuda(), torch.from_numpy(maps[0]).cuda().float().flatten(1)
    name = "masks of what is left of 100 boxes"
    yield from of_reader(device, name, reader, None, "instances", lambda: (shares @ prototypes > 0).cpu())
    reader.close()
    for output in outputs:
        output.block.release()


class Cutting:
    """Crops of a frame for several models.

    Args:
        frame: on the GPU.
        boxes: (M, 4) int32 x1, y1, x2, y2.
        sides: of each model's square input, pixels.
    """

    def __init__(
        self, kernels: Kernels, frame: Frame, boxes: Any, sides: Sequence[int], dtype: ValueType = "float16"
    ) -> None:
        wanted = [target("nchw", dtype, len(boxes), side, side) for side in sides]
        self.blocks = [kernels.device.device_block(one.nbytes) for one in wanted]
        config = InputConfig(resize="stretch", std=(255.0,))
        self._into = [GpuPreprocessor(config, one, block.address, kernels)
                      for one, block in zip(wanted, self.blocks, strict=True)]  # fmt: skip
        self._frame = frame
        self._together = CropLaunches(self._into, kernels)
        self._each = [CropLaunches([into], kernels) for into in self._into]
        self._layouts = [laid_out(frame, boxes, into.network, config) for into in self._into]

    def launches(self, together: bool) -> list[Launch]:
        """One for all models, or one for each."""
        parts, form = list(zip(self._into, self._layouts, strict=True)), self._frame.format
        if together:
            return self._together.launches(form, parts)
        return [one for own, part in zip(self._each, parts, strict=True) for one in own.launches(form, [part])]

    def close(self) -> None:
        """Frees the tensors."""
        for block in self.blocks:
            block.release()


def enqueued(launches: Sequence[Launch]) -> Callable[[Any], None]:
    """What puts them on a stream."""

    def enqueue(stream: Any) -> None:
        for launch in launches:
            launch.enqueue(stream)

    return enqueue


def torch_rgb(pixels: Any) -> Any:
    """A (1620, 1920) uint8 NV12 frame on the GPU → (1, 3, 1080, 1920) float16."""
    import torch

    rows, columns = pixels.shape[0] * 2 // 3, pixels.shape[1]
    luma = pixels[:rows].half()
    chroma = pixels[rows:].reshape(rows // 2, columns // 2, 2).half().repeat_interleave(2, 0).repeat_interleave(2, 1)
    matrix = torch.from_numpy(yuv_matrix(Color(), "rgb")).cuda().half()
    planes = torch.stack([luma, chroma[..., 0], chroma[..., 1]])
    return (torch.einsum("rc,chw->rhw", matrix[:, :3], planes) + matrix[:, 3].view(3, 1, 1)).clamp(0, 255)[None]


def crops(device: CudaDevice, kernels: Kernels, random: Any, frame: Frame) -> Iterator[Figure]:
    """Of 20 boxes for three models, by one launch and by one for each."""
    import torch
    from torchvision.ops import roi_align

    corner = random.integers((0, 0), (WIDTH - 300, HEIGHT - 300), (20, 2))
    boxes, sides = np.hstack([corner, corner + random.integers(20, 300, (20, 2))]).astype(np.int32), (128,) * 3
    pixels = torch.from_numpy(np.vstack([plane.reshape(-1, WIDTH) for plane in frame.planes])).cuda()
    places = [torch.from_numpy(boxes).cuda().half()]

    def peer() -> object:
        rgb = torch_rgb(pixels)
        return [(roi_align(rgb, places, side, aligned=True) / 255).cpu() for side in sides]

    cutting = Cutting(kernels, to_gpu(device, frame), boxes, sides)
    for name, together in (("one launch", True), ("one for each", False)):
        enqueue = enqueued(cutting.launches(together))
        yield of_work(device, f"crops of 20 boxes for three models, {name}", enqueue, None, "preprocess", peer)
    cutting.close()


def drawing(device: CudaDevice, kernels: Kernels, frame: Frame) -> Iterator[Figure]:
    """An image of a frame with results on it."""
    import torch

    painter = GpuPainter(device, Counter(), kernels)
    pixels = torch.from_numpy(np.vstack([plane.reshape(-1, WIDTH) for plane in frame.planes])).cuda()
    there = replace(busy_scene(frame, 0), frame=to_gpu(device, frame))
    with device:
        launches, image = drawn(painter, there)
    name = "an image of a 1080p frame with 50 boxes and a mask"
    yield of_work(device, name, enqueued(launches), None, "", lambda: torch_rgb(pixels).byte().cpu())
    del image
    painter.close()


def drawn(painter: GpuPainter, result: Result) -> tuple[list[Launch], Any]:
    """What draws it when the list is there, as it is then, and the image."""
    size = result.frame.width, result.frame.height
    overlay = Overlay(("boxes", "labels", "trails", "masks"))
    listed, image = painter._listed(size, list(overlay.shapes(size, result))), painter._take((size[1], size[0], 3))
    listed.send(painter.stream, painter._tiles)
    painter.stream.synchronize()
    return list(painter._launches(result.frame, image, listed.packed)), image


def on_gpu(device: CudaDevice, values: Any) -> Any:
    """A block of its own."""
    block = device.device_block(values.nbytes)
    with device:
        device.driver.memcpy_htod(block.address, np.ascontiguousarray(values))
    device.synchronize()
    return block


def measure() -> Iterator[Figure]:
    """All of it."""
    try:
        import torch
        import torchvision  # noqa: F401 - asked for before anything is measured
    except ImportError as error:
        print(f"skipped: {error}")
        return
    try:
        device = open_device()
    except EdgertError as error:
        print(f"skipped: {error.what}: {error.why}")
        return
    torch.cuda.synchronize()  # after ours: both use the primary context
    kernels = Kernels(device)

    def made(kind: Any, decoder: Any, values: Any) -> Any:
        block = on_gpu(device, values)
        return kind(decoder, [GpuTensor("out", values.shape, "float16", block)], NETWORK, kernels), block

    def figures(name: str, kind: Any, decoder: Any, values: Any, kernel: str, bar: float | None, peer: Any) -> Any:
        reader, block = made(kind, decoder, values)
        yield from of_reader(device, name, reader, bar, kernel, peer)
        reader.close()
        block.release()

    for images, count, bar in ((1, 100, 12.0), (1, 300, 12.0), (8, 300, None), (1, 1000, None), (1, 3000, None)):
        values = detector_output(images, count)
        name = f"suppression of {count} boxes, {images} images" if images > 1 else f"suppression of {count} boxes"
        yield from figures(name, GpuDetector, Detector(YoloV8(), 0.25, 0.45, 300), values, "suppress", bar,
                           torch_nms(values, 0.25, 0.45))  # fmt: skip
    for images, count in ((1, 100), (8, 300)):
        yield from rows(device, kernels, images, count)
    random = np.random.default_rng(2)
    for lines, classes in ((1, 1000), (8, 1000), (1, 100_000), (8, 100_000)):
        values = (random.standard_normal((lines, classes)) * 3).astype(np.float16)
        name = f"best 5 of {classes} classes, {lines} rows"
        peer = torch_best(values, classes)
        yield from figures(name, GpuClasses, Classify("logits"), values, "classes", None, peer)
    values = detector_output(1, 100, 1, 51)
    yield from figures("suppression of 100 bodies of 17 points", GpuPose, YoloPose(), values, "suppress", None,
                       torch_nms(values[:, :5], 0.25, 0.45))  # fmt: skip
    turned = detector_output(1, 300, 15, 1)
    turned[:, -1] = random.uniform(-3, 3, CELLS)
    peer = torch_nms(turned[:, :-1], 0.25, 0.45)
    yield from figures(
        "suppression of 300 oriented boxes", GpuOriented, Detector(YoloV8Obb()), turned, "suppress", None, peer
    )
    yield from masks(device, kernels, random)
    for images in (1, 8):
        values = random.standard_normal((images, 19, 512, 512)).astype(np.float16)
        name = f"classes of 512 × 512 cells of 19 scores, {images} images"
        yield from figures(name, GpuMask, SegmentArgmax(), values, "best_class", None, torch_codes(values))
        values = random.random((images, 17, 64, 48)).astype(np.float16)
        name = f"peaks of 17 heat maps of 64 × 48, {images} images"
        yield from figures(name, GpuPeaks, Heatmap(), values, "peaks", None, torch_peaks(values))
    frame = frame_of(WIDTH, HEIGHT, "nv12")
    yield from crops(device, kernels, random, frame)
    yield from drawing(device, kernels, frame)


if __name__ == "__main__":
    main(__doc__ or "", measure)
