"""Which outputs are decoded on the GPU."""

from collections.abc import Sequence
from typing import cast

from edgert.backend import Tensor
from edgert.backend.gpu import GpuTensor
from edgert.stages.decode import classify, detection, maps, shaped, yolo
from edgert.stages.decode.decoder import Decoder, Size
from edgert.stages.gpu import gpu_detections, gpu_scores, gpu_shaped
from edgert.stages.gpu.gpu_reader import GpuReader
from edgert.stages.gpu.kernels import Kernels

_READERS: dict[type, type[GpuReader]] = {
    detection.Detector: gpu_detections.GpuDetector,
    shaped.YoloV8Obb: gpu_shaped.GpuOriented,
    shaped.YoloV8Seg: gpu_shaped.GpuInstances,
    classify.Classify: gpu_scores.GpuClasses,
    maps.SegmentArgmax: gpu_scores.GpuMask,
    maps.SegmentThreshold: gpu_scores.GpuMask,
    yolo.YoloPose: gpu_detections.GpuPose,
    maps.Heatmap: gpu_scores.GpuPeaks,
}


def reader_for(
    outputs: Sequence[GpuTensor], batched: Sequence[bool], decoder: Decoder, network: Size, kernels: Kernels
) -> tuple[GpuReader | gpu_detections.HostReader, str]:
    """What reads a session's outputs for a decoder: on the GPU where there are kernels for it.

    Args:
        outputs: of the session, in the model's order.
        batched: for every output, whether its first dimension is the batch.
        network: (width, height) of the input, pixels.

    Returns:
        the reader, and why the host decodes; empty where the GPU does.
    """
    reason = why_on_host(outputs, batched, decoder, network)
    if reason:
        return gpu_detections.HostReader(outputs, batched, decoder), reason
    return _kind(decoder)(decoder, outputs, network, kernels), ""  # type: ignore[misc]  # there is one


def why_on_host(outputs: Sequence[Tensor | GpuTensor], batched: Sequence[bool], decoder: Decoder, network: Size) -> str:
    """Why the host decodes outputs of these shapes and types; empty where the GPU does. Arguments are those of
    :func:`reader_for`."""
    kind = _kind(decoder)
    whole = [tensor.name for tensor, has_batch in zip(outputs, batched, strict=True) if not has_batch]
    if kind is None:
        return "there are no kernels for this decoder"
    if whole:
        return f"output {whole[0]!r} has no batch dimension"
    return kind.unsupported(decoder, cast("Sequence[GpuTensor]", outputs), network)  # which looks at no memory


def _kind(decoder: Decoder) -> type[GpuReader] | None:
    """By a detector's head, where that has a reader of its own."""
    return _READERS.get(type(getattr(decoder, "head", None))) or _READERS.get(type(decoder))
