"""Detections out of an engine's output on the GPU: two kernels, and a few boxes that come back."""

import math
import struct
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from edgert.backend.gpu import GpuTensor
from edgert.errors import ModelError, StageError
from edgert.memory.cuda import Stream
from edgert.runtime import Detections, Record
from edgert.stages.crop import Geometry
from edgert.stages.decode.decoder import Decoder, Size, of_one_image
from edgert.stages.decode.detection import CANDIDATES, Detector
from edgert.stages.decode.yolo import YoloV5, YoloV8, YoloX, is_columns
from edgert.stages.gpu.kernels import Kernels


class HostReader:
    """Downloads the rows that were run, of every output, for a decoder on the host: what no kernel decodes.

    Args:
        outputs: of the session, in the model's order.
        batched: for every output, whether its first dimension is the batch.
    """

    def __init__(self, outputs: Sequence[GpuTensor], batched: Sequence[bool], decoder: Decoder) -> None:
        self._outputs, self._batched, self._decoder = tuple(outputs), tuple(batched), decoder

    def enqueue(self, rows: int, stream: Stream) -> None:
        """Puts the copies on the stream; none where host and GPU share the memory."""
        for tensor, nbytes in zip(self._outputs, self._sizes(rows), strict=True):
            tensor.block.download(stream, nbytes)

    def copied(self, rows: int) -> Sequence[int]:
        return [
            nbytes for tensor, nbytes in zip(self._outputs, self._sizes(rows), strict=True) if tensor.block.is_staged
        ]

    def read(self, geometries: Sequence[Geometry]) -> list[Record]:
        """One record per image, by the decoder."""
        arrays = [tensor.host for tensor in self._outputs]
        images = [of_one_image(arrays, self._batched, row) for row in range(len(geometries))]
        return [self._decoder(image, geometry) for image, geometry in zip(images, geometries, strict=True)]

    def close(self) -> None:
        """The outputs belong to the session."""

    def _sizes(self, rows: int) -> list[int]:
        """Bytes of each output, of the first rows where it has a batch."""
        return [
            math.prod((min(rows, tensor.shape[0]), *tensor.shape[1:]) if batched else tensor.shape)
            * np.dtype(tensor.dtype).itemsize
            for tensor, batched in zip(self._outputs, self._batched, strict=True)
        ]


_HEADS = {YoloX: 0, YoloV5: 1, YoloV8: 2}
_HEAD = struct.Struct("=5Qq6i3f4x")
_CAPACITY = 4096
_CANDIDATE_BYTES = 32
_COUNT_BYTES = 16
_SURVIVOR = np.dtype([("box", "f4", 4), ("score", "f4"), ("kind", "i4")])
_THREADS = 256
_BLOCK_OF_SUPPRESS = 1024


class GpuDetector:
    """Decodes a batch of outputs of one head where they lie.

    Args:
        detector: the CPU's decoder, whose answer this gives.
        shape: (rows, ...) of the output, batch first.
        dtype: float32 or float16.
        address: of the output on the GPU; must outlive this.
        network: (width, height) of the input, pixels.

    Raises:
        ModelError: the head, its shape or type is not one that the kernels read; see :func:`unsupported`.
    """

    def __init__(
        self, detector: Detector, shape: tuple[int, ...], dtype: str, address: int, network: Size, kernels: Kernels
    ) -> None:
        reason = unsupported(detector, shape, dtype, network)
        if reason:
            raise ModelError(
                "this output cannot be decoded on the GPU", why=reason, fix="the host's decoder reads it: HostReader"
            )
        self._detector, self.rows, self._network = detector, shape[0], network
        device = kernels.device
        columns = isinstance(detector.head, YoloV8) and is_columns(shape[1:], network)
        self._boxes, numbers = (shape[2], shape[1]) if columns else (shape[1], shape[2])
        classes = numbers - (4 if isinstance(detector.head, YoloV8) else 5)
        self._row_bytes = _COUNT_BYTES + detector.limit * _SURVIVOR.itemsize
        self._scratch = device.device_block(self.rows * (2 * _CAPACITY * _CANDIDATE_BYTES + 4))
        # The kernel writes the few survivors straight into the host's memory: a copy would take longer than decoding.
        self._out = device.block(self.rows * self._row_bytes, "mapped" if device.traits.can_map else None)
        found = self._scratch.address
        ranked = found + self.rows * _CAPACITY * _CANDIDATE_BYTES
        counts = ranked + self.rows * _CAPACITY * _CANDIDATE_BYTES
        self._argument = _HEAD.pack(
            address, found, ranked, counts, self._out.address, self._boxes * numbers, self._boxes, classes, *network,
            detector.limit, CANDIDATES, detector.score, detector.iou, 1 + detector.iou,
        )  # fmt: skip
        head = _HEADS[type(detector.head)]
        definitions = {"HEAD": head, "COLUMNS": int(columns), "HALF": int(dtype == "float16")}
        self._candidates = kernels.kernel("decode", definitions, _HEAD.size, function="candidates")
        self._suppress = kernels.kernel("decode", definitions, _HEAD.size, function="suppress")

    def enqueue(self, rows: int, stream: Stream) -> None:
        """Puts decoding and suppression of the first ``rows`` images on the stream. Does not wait."""
        grid = (-(-self._boxes // _THREADS), rows, 1)
        self._candidates.launch(self._argument, grid, (_THREADS, 1, 1), stream)
        self._suppress.launch(self._argument, (rows, 1, 1), (_BLOCK_OF_SUPPRESS, 1, 1), stream)
        self._out.download(stream, rows * self._row_bytes)

    def copied(self, rows: int) -> Sequence[int]:
        return [rows * self._row_bytes] if self._out.is_staged else []

    def read(self, geometries: Sequence[Geometry]) -> list[Record]:
        """The records, in source pixels, new memory throughout; once the stream has passed.

        Raises:
            StageError: more boxes scored enough than the GPU sorts.
        """
        return [self._row(row, geometry) for row, geometry in enumerate(geometries)]

    def close(self) -> None:
        """Frees the memory. The stream must have passed."""
        self._scratch.release()
        self._out.release()

    def _row(self, row: int, geometry: Geometry) -> Detections:
        memory = self._out.host[row * self._row_bytes : (row + 1) * self._row_bytes]
        count = int(memory[:4].view(np.int32)[0])
        if count < 0:
            raise StageError(
                f"more than {_CAPACITY} boxes score {self._detector.score:g} or more",
                why="that is no useful threshold, and more than the GPU sorts",
                fix="raise task: score",
            )
        found = memory[_COUNT_BYTES:].view(_SURVIVOR)[:count]
        boxes: npt.NDArray[np.float32] = np.ascontiguousarray(found["box"])
        return Detections(geometry.boxes(boxes), found["score"].copy(), found["kind"].copy(), self._detector.labels)


def unsupported(detector: Detector, shape: tuple[int, ...], dtype: str, network: Size) -> str:
    """Why the kernels cannot decode an output of this batched shape; empty when they can."""
    head = detector.head
    if type(head) not in _HEADS:
        return f"the kernels read yolox, yolov5 and yolov8, not {type(head).__name__.lower()}"
    if isinstance(head, YoloX) and head.strides != (8, 16, 32):
        return f"the kernels know strides 8, 16, 32, not {head.strides}"
    if dtype not in ("float32", "float16"):
        return f"the kernels read float32 and float16, not {dtype}"
    if len(shape) != 3:
        return f"they read [batch, boxes, numbers], not {list(shape)}"
    if head.class_count((shape[1:],), network) is None:
        return "an end-to-end export leaves nothing to decode"
    return ""
