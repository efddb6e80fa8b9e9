"""Readers of engine outputs on a GPU, decoding there or on the host."""

import math
from collections.abc import Sequence

import numpy as np

from edgert.backend.gpu import GpuTensor
from edgert.memory.cuda import Stream
from edgert.runtime import Record
from edgert.stages.crop import Geometry
from edgert.stages.decode import classify, detection, instances, maps, shaped, yolo
from edgert.stages.decode.decoder import Decoder, Size, image_outputs
from edgert.stages.decode.kinds import SubsetDecoder
from edgert.stages.decode.rows import RowHead
from edgert.stages.gpu import gpu_detections, gpu_rows, gpu_scores
from edgert.stages.gpu.gpu_reader import GpuReader, Reader
from edgert.stages.gpu.kernels import Kernels


class HostReader(Reader):
    """Download of all outputs of the processed rows, for decoders without a kernel."""

    def __init__(self, outputs: Sequence[GpuTensor], batched: Sequence[bool], decoder: Decoder) -> None:
        self._outputs, self._batched, self._decoder = tuple(outputs), tuple(batched), decoder

    def enqueue(self, rows: int, stream: Stream) -> None:
        for tensor, nbytes in zip(self._outputs, self._sizes(rows), strict=True):
            tensor.block.download(stream, nbytes)

    def copy_sizes(self, rows: int) -> Sequence[int]:
        return [
            nbytes for tensor, nbytes in zip(self._outputs, self._sizes(rows), strict=True) if tensor.block.is_staged
        ]

    def read(self, geometries: Sequence[Geometry]) -> list[Record]:
        arrays = [tensor.host for tensor in self._outputs]
        images = [image_outputs(arrays, self._batched, row) for row in range(len(geometries))]
        return [self._decoder(image, geometry) for image, geometry in zip(images, geometries, strict=True)]

    def _sizes(self, rows: int) -> list[int]:
        """Return the bytes of each output, and of only the first ``rows`` if it has a batch dimension."""
        return [
            math.prod((min(rows, tensor.shape[0]), *tensor.shape[1:]) if batched else tensor.shape)
            * np.dtype(tensor.dtype).itemsize
            for tensor, batched in zip(self._outputs, self._batched, strict=True)
        ]


_READERS: dict[type, type[GpuReader]] = {
    detection.Detector: gpu_detections.GpuDetector,
    shaped.YoloV8Obb: gpu_detections.GpuOriented,
    instances.YoloV8Seg: gpu_detections.GpuInstances,
    classify.Classify: gpu_scores.GpuClasses,
    maps.SegmentArgmax: gpu_scores.GpuMask,
    maps.SegmentThreshold: gpu_scores.GpuMask,
    yolo.YoloPose: gpu_detections.GpuPose,
    maps.Heatmap: gpu_scores.GpuPeaks,
}


def reader_for(
    outputs: Sequence[GpuTensor], batched: Sequence[bool], decoder: Decoder, network: Size, kernels: Kernels
) -> tuple[GpuReader | HostReader, str]:
    """Return the reader of a session's outputs for a decoder, on the GPU if there are kernels for it.

    Also return why the host decodes; empty if the GPU does.
    """
    outputs, batched, decoder = needed_outputs(outputs, batched, decoder)
    reason = why_on_host(outputs, batched, decoder, network)
    if reason:
        return HostReader(outputs, batched, decoder), reason
    return _reader_class(decoder)(decoder, outputs, network, kernels), ""  # type: ignore[misc]  # there is one


def why_on_host(outputs: Sequence[GpuTensor], batched: Sequence[bool], decoder: Decoder, network: Size) -> str:
    """Return why the host decodes outputs of these shapes and types; empty if the GPU does.

    Arguments are those of :func:`reader_for`, of which only shapes and types are read.
    """
    outputs, batched, decoder = needed_outputs(outputs, batched, decoder)
    kind = _reader_class(decoder)
    whole = [tensor.name for tensor, has_batch in zip(outputs, batched, strict=True) if not has_batch]
    if kind is None:
        return "there are no kernels for this decoder"
    if whole:
        return f"output {whole[0]!r} has no batch dimension"
    return kind.unsupported(decoder, outputs, network)


def decoder_of(decoder: Decoder) -> Decoder:
    """Return the decoder that a reader uses, of just the outputs that it reads."""
    return decoder.decoder if isinstance(decoder, SubsetDecoder) else decoder


def needed_outputs(
    outputs: Sequence[GpuTensor], batched: Sequence[bool], decoder: Decoder
) -> tuple[Sequence[GpuTensor], Sequence[bool], Decoder]:
    """Return the outputs that a decoder reads, whether each has a batch dimension, and the decoder of only these."""
    if not isinstance(decoder, SubsetDecoder):
        return outputs, batched, decoder
    return [outputs[place] for place in decoder.places], [batched[place] for place in decoder.places], decoder.decoder


def _reader_class(decoder: Decoder) -> type[GpuReader] | None:
    """Return the reader class of a decoder or of its head, or None."""
    head = getattr(decoder, "head", None)
    if isinstance(head, RowHead):
        return gpu_rows.GpuRows
    return _READERS.get(type(head)) or _READERS.get(type(decoder))
