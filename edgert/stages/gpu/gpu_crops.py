"""Inference of several models on crops of one frame, on the GPU.

The geometry of all crops is computed at once. One launch writes them into the input tensors of all models whose inputs
have the same format.
"""

from collections.abc import Sequence
from itertools import chain
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from edgert.config import CropConfig, InputConfig
from edgert.memory.cuda import Kernel, Launch
from edgert.runtime import Crops, Frame, Result
from edgert.runtime.frame import origin_of
from edgert.runtime.records import without_outputs
from edgert.stages.context import SimpleStage
from edgert.stages.crop import I32, Geometry, crop_boxes
from edgert.stages.gpu.gpu_preprocess import BLOCK, HEADER_BYTES, GpuPreprocessor, addresses_of, hold, kernel_matrix
from edgert.stages.gpu.infer_gpu import Batch, GpuInference
from edgert.stages.gpu.kernels import Kernels
from edgert.stages.infer import newest_detections
from edgert.stages.preprocess import place

JOB = np.dtype(
    [("planes", "<u8", 3), ("pitches", "<i4", 3), ("size", "<i4", 2), ("chroma", "<i4", 2), ("rectangle", "<i4", 4),
     ("row", "<i4"), ("matrix", "<f4", 12)]
)  # fmt: skip
"""Struct that ``preprocess.cu`` reads for each image."""
_ARGUMENT_BYTES = 4096
"""Maximum bytes of a kernel's arguments on every CUDA version."""
I64 = npt.NDArray[np.int64]
_SUBSAMPLED = ("i420", "nv12", "yuyv")


class CropLayout(NamedTuple):
    """Layout of crops of one frame in an input tensor.

    ``jobs`` are (M,) :data:`JOB`, for rows from 0 on; the variant of the kernel is that of
    :meth:`GpuPreprocessor.definitions`.
    """

    jobs: npt.NDArray[Any]
    geometries: list[Geometry]
    paired: bool
    narrow: bool


def _clip_boxes(boxes: I64, width: Any, height: Any, form: str) -> I64:
    """Return (M, 4) boxes clipped and aligned as :meth:`edgert.runtime.Frame.crop` does. Sizes may be one per box."""
    x1, y1 = np.maximum(boxes[:, 0], 0), np.maximum(boxes[:, 1], 0)
    x2, y2 = np.minimum(boxes[:, 2], width), np.minimum(boxes[:, 3], height)
    if form in _SUBSAMPLED:
        x1, y1, x2, y2 = x1 & ~1, y1 & ~1, np.minimum(x2 + (x2 & 1), width), np.minimum(y2 + (y2 & 1), height)
    return np.stack([x1, y1, x2, y2], axis=1)


def crop_layout(frame: Frame, boxes: I32, network: tuple[int, int], config: InputConfig) -> CropLayout:
    """Return the layout of crops in the input, as :func:`~edgert.stages.preprocess.place` computes it for one crop.

    Boxes are (M, 4) x1, y1, x2, y2 in whole pixels of the frame, none empty. Raises StageError: as in ``place``, or the
    frame is not in GPU memory.
    """
    form, (net_w, net_h) = frame.format, network
    parts = _clip_boxes(boxes.astype(np.int64), frame.width, frame.height, form)
    width, height = parts[:, 2] - parts[:, 0], parts[:, 3] - parts[:, 1]
    rectangles = np.empty((len(boxes), 4), np.int64)
    rectangles[:] = 0, 0, net_w, net_h
    if config.resize == "letterbox":
        ratio = np.minimum(net_w / width, net_h / height)
        rectangles[:, 2:] = np.maximum(np.rint(np.stack([width * ratio, height * ratio], axis=1)), 1)
        if config.anchor == "center":
            rectangles[:, :2] = (network - rectangles[:, 2:]) // 2
    elif config.resize == "center_crop":
        across = np.minimum(width, height * net_w / net_h) * config.crop
        down = across * net_h / net_w
        inner = np.rint(np.stack([(width - across) / 2, (height - down) / 2, across, down], axis=1)).astype(np.int64)
        inner[:, 2:] = inner[:, :2] + np.maximum(inner[:, 2:], 1)
        parts = np.tile(parts[:, :2], 2) + _clip_boxes(inner, width, height, form)
        width, height = parts[:, 2] - parts[:, 0], parts[:, 3] - parts[:, 1]
    elif config.resize == "none" and len(wrong := np.flatnonzero((width != net_w) | (height != net_h))):
        place(frame.crop(*parts[wrong[0]].tolist()), network, config)
    jobs = np.zeros(len(boxes), JOB)
    addresses = addresses_of(frame)
    for number, (plane, address) in enumerate(zip(frame.planes, addresses, strict=True)):
        x, y = parts[:, 0] >> (number > 0), parts[:, 1] >> (number > 0)
        jobs["planes"][:, number] = address + y * plane.strides[0] + x * plane.strides[1]
        jobs["pitches"][:, number] = plane.strides[0]
    jobs["size"], jobs["chroma"], jobs["rectangle"] = parts[:, 2:] - parts[:, :2], _chroma(parts, form), rectangles
    jobs["row"], jobs["matrix"] = np.arange(len(boxes)), kernel_matrix(frame.color, config.color)
    is_odd = (jobs["planes"][:, 1] | jobs["planes"][:, 2]) & np.uint64(1) | (jobs["pitches"][:, 1:] & 1).any(axis=1)
    is_narrow = (np.minimum(jobs["size"][:, 0], jobs["chroma"][:, 0]) < 2).any()
    return CropLayout(jobs, _geometries(frame, parts, rectangles, network), not is_odd.any(), bool(is_narrow))


def _chroma(parts: I64, form: str) -> I64:
    """Return (M, 2) width and height of the chroma planes, or of the image if it has no chroma."""
    if form in ("i420", "nv12"):
        return (parts[:, 2:] + 1) // 2 - parts[:, :2] // 2
    return (parts[:, 2:] - parts[:, :2]) // ((2, 1) if form == "yuyv" else (1, 1))


def _geometries(frame: Frame, parts: I64, rectangles: I64, network: tuple[int, int]) -> list[Geometry]:
    sources = (parts + np.array(origin_of(frame) * 2)).astype(np.float64)
    scales = (sources[:, 2:] - sources[:, :2]) / rectangles[:, 2:]
    offsets = sources[:, :2] - rectangles[:, :2] * scales
    rows = zip(scales.tolist(), offsets.tolist(), sources.tolist(), strict=True)
    return [Geometry(across, down, x, y, network, tuple(source)) for (across, down), (x, y), source in rows]


def launch_arguments(parts: Sequence[tuple[bytes, npt.NDArray[Any]]], capacity: int) -> list[tuple[bytes, int]]:
    """Return the arguments of as few launches as possible: a struct and its number of images for each launch.

    Each part is a header struct and the jobs of a tensor; ``capacity`` is the maximum number of images in a launch.
    """
    header = b"".join(target for target, _ in parts)
    jobs = np.concatenate([each for _, each in parts])
    jobs["row"] |= np.repeat(np.arange(len(parts)), [len(each) for _, each in parts]).astype(np.int32) << 16
    chunks = [jobs[start : start + capacity] for start in range(0, len(jobs), capacity)]
    room = len(header) + capacity * JOB.itemsize
    return [((header + chunk.tobytes()).ljust(room, b"\0"), len(chunk)) for chunk in chunks]


class CropWriter:
    """Kernel launches that write crops of a frame into tensors of one format.

    ``into`` has the preprocessor of one slot of each model.
    """

    def __init__(self, into: Sequence[GpuPreprocessor], kernels: Kernels) -> None:
        self._first, self._kernels, self._count = into[0], kernels, len(into)
        self._is_aligned = all(each.definitions("nv12", True, False)["ALIGNED"] for each in into)
        self._across, self._down = (max(each.grid[axis] for each in into) for axis in (0, 1))
        room = (_ARGUMENT_BYTES - self._count * HEADER_BYTES) // JOB.itemsize
        self.capacity = min(room, sum(each.target.rows for each in into))
        self._compiled: dict[tuple[str, bool, bool], Kernel] = {}

    def compile(self) -> None:
        """Compile the kernel for NV12 frames before the first one arrives. Raises BuildError."""
        self._kernel("nv12", True, False)

    def launches(self, form: str, parts: Sequence[tuple[GpuPreprocessor, CropLayout]]) -> list[Launch]:
        """Return one launch, or several if the images do not fit into the arguments of one.

        ``parts`` are the slot to fill and its crops, for each model in the order of ``into``.
        """
        paired, narrow = all(each.paired for _, each in parts), any(each.narrow for _, each in parts)
        kernel = self._kernel(form, paired, narrow)
        structs = launch_arguments([(into.header, each.jobs) for into, each in parts], self.capacity)
        return [Launch(kernel, struct, (self._across, self._down, count), BLOCK) for struct, count in structs]

    def _kernel(self, form: str, paired: bool, narrow: bool) -> Kernel:
        variant = form, paired, narrow
        if variant not in self._compiled:
            given = {"ALIGNED": int(self._is_aligned), "JOBS": self.capacity, "TARGETS": self._count}
            definitions = self._first.definitions(*variant) | given
            self._compiled[variant] = self._kernels.kernel("preprocess", definitions)
        return self._compiled[variant]


class CropModel(NamedTuple):
    """Model that runs on crops."""

    name: str
    inference: GpuInference
    crop: CropConfig


class InferCropsOfModels(SimpleStage):
    """A stage that runs several models on crops of the newest detections, and adds a record for each model.

    One launch writes about 30 crops of a frame for all models whose inputs have one format. All models are launched
    before the first result is waited for.
    """

    def __init__(self, models: Sequence[CropModel], every: int = 1) -> None:
        kernels = models[0].inference.preprocessor.kernels
        self.name, self.models, self._every, self.device = models[0].name, models, every, kernels.device
        self._crops = [
            model.crop for at, model in enumerate(models) if model.crop not in [one.crop for one in models[:at]]
        ]
        self._stream, self._written = self.device.stream(), self.device.event()
        by_format = dict[Any, list[CropModel]]()
        for model in models:
            by_format.setdefault(_shared_definitions(model.inference.preprocessor), []).append(model)
        self._by_format = [
            (own, CropWriter([model.inference.preprocessor for model in own], kernels)) for own in by_format.values()
        ]

    def combined_with(self, others: "Sequence[InferCropsOfModels]") -> "InferCropsOfModels":
        """Return one stage for the models of this stage and of other stages on the same GPU."""
        models = chain(self.models, *(other.models for other in others))
        return InferCropsOfModels(list(models), self._every)

    def open(self) -> None:
        for model in self.models:
            model.inference.warm_up()
        for _, launches in self._by_format:
            launches.compile()

    def process(self, result: Result) -> Result:
        if result.frame.index % self._every:
            return result
        parent, detections = newest_detections(result)
        found = [crop_boxes(detections, result.frame, crop) for crop in self._crops]
        cut = {model.name: found[self._crops.index(model.crop)] for model in self.models}
        boxes = {name: own for name, (_, own) in cut.items()}
        runs: dict[str, list[Batch]] = {model.name: [] for model in self.models}
        if any(map(len, boxes.values())):
            self._submit(result.frame, boxes, runs)
        for model in self.models:
            records = chain.from_iterable(run.records() for run in runs[model.name])
            result = result.with_output(model.name, Crops(parent, cut[model.name][0], tuple(records)))
        return result

    def _submit(self, whole: Frame, boxes: dict[str, I32], runs: dict[str, list[Batch]]) -> None:
        """Enqueue all crops, in rounds of at most one batch for each model."""
        with self.device:
            frame, writer = self.models[0].inference.readable_frame(whole)
        try:
            with self.device:
                if writer is not None:
                    self._stream.wait(self._written.record(writer))
                while any(map(len, boxes.values())):
                    for own, launches in self._by_format:
                        self._enqueue_round(frame, own, launches, boxes, runs)
                hold([frame], self._stream, self._written.record(self._stream))
        except BaseException:
            self.device.drain()  # no event marks the end of work that may be in progress
            raise
        finally:
            frame.lease.release()

    def _enqueue_round(
        self,
        frame: Frame,
        models: Sequence[CropModel],
        launches: CropWriter,
        boxes: dict[str, I32],
        runs: dict[str, list[Batch]],
    ) -> None:
        """Enqueue one batch of each model that has crops left."""
        parts, slots = [], []
        for model in models:
            inference, rest = model.inference, boxes[model.name]
            if len(rest):
                slots.append((model, inference.next_slot()))
            into = slots[-1][1].preprocessor if len(rest) else inference.preprocessor
            parts.append((into, crop_layout(frame, rest[: inference.rows], into.network, into.config)))
            boxes[model.name] = rest[inference.rows :]
        if not slots:
            return
        for launch in launches.launches(frame.format, parts):
            launch.enqueue(self._stream)
        self._written.record(self._stream)
        geometries = [layout.geometries for _, layout in parts if layout.geometries]
        for (model, slot), own in zip(slots, geometries, strict=True):
            slot.enqueue_filled(own, self._written, model.inference.wait_mode(model.inference.is_patient))
            runs[model.name].append(model.inference.new_batch(own))


class AlreadyInferred(SimpleStage):
    """A stage whose model an earlier stage has already run; see :class:`InferCropsOfModels`.

    Records of ``others``, the other stages whose models that stage ran, are removed here.
    """

    effort: ClassVar[str] = "none"

    def __init__(self, name: str, others: frozenset[str] = frozenset()) -> None:
        self.name, self._others = name, others

    def process(self, result: Result) -> Result:
        return without_outputs(result, self._others) if self._others else result


def _shared_definitions(into: GpuPreprocessor) -> frozenset[tuple[str, int]]:
    """Return the compile-time definitions that models must share so that one launch can write their inputs."""
    free = ("ALIGNED", "JOBS")
    return frozenset((name, value) for name, value in into.definitions("nv12", True, False).items() if name not in free)
