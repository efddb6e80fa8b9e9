"""A model's lane where its engine is on a GPU: frames go up, records come down, pixels and tensors stay there."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TypeGuard, cast

from edgert.artifact import FileStore, cache_folder
from edgert.backend import Engine
from edgert.backend.gpu import GpuEngine, GpuSession, GpuTensor
from edgert.config import InputConfig
from edgert.errors import DeviceError, ModelError
from edgert.memory.cuda import CudaDevice, Stream
from edgert.place.engine import SegmentedEngine
from edgert.ready import picture_input
from edgert.stages.decode.base import Decoder
from edgert.stages.decode.detection import Detector
from edgert.stages.decode.shape import Size
from edgert.stages.gpu.decode import GpuDetector
from edgert.stages.gpu.decode import unsupported as not_decoded
from edgert.stages.gpu.kernels import Kernels
from edgert.stages.gpu.lane import SLOTS, GpuLane
from edgert.stages.gpu.outputs import HostReader
from edgert.stages.gpu.preprocess import GpuPreprocessor
from edgert.stages.gpu.slot import Reader, Slot
from edgert.stages.gpu.target import ITEM_BYTES, Target, TensorLayout, ValueType, strided, target
from edgert.stages.gpu.upload import Uploader
from edgert.stages.preprocess import layout_of

log = logging.getLogger("edgert.gpu")


def is_on_gpu(engine: Engine | SegmentedEngine) -> TypeGuard[GpuEngine]:
    """Whether an engine's tensors are on a GPU."""
    return isinstance(getattr(engine, "device", None), CudaDevice)


def gpu_lane(
    engine: GpuEngine,
    profile: str | None,
    config: InputConfig,
    decoder_for: Callable[[Size], Decoder],
    where: str,
    *,
    beside: bool = True,
    is_urgent: bool = False,
) -> GpuLane | None:
    """A lane over sessions of its own; None where the host must prepare pictures or read outputs, and says why.

    Args:
        decoder_for: gives the decoder for a network of (width, height).
        beside: batches are decoded beside the engine's work on the next, by a graph of their own; else all that is done
            with a batch is one graph.
        is_urgent: its kernels start before those of others that wait.

    Raises:
        ModelError: the model's input is no picture, or of a type that pictures cannot be written in.
        DeviceError: too little memory.
    """
    kernels = Kernels(engine.device, FileStore(cache_folder() / "cuda"))
    reason = kernels.why_not()
    sessions = [] if reason else [engine.session(profile) for _ in range(SLOTS)]
    reason = reason or _not_read(sessions[0])
    if reason:
        log.warning("%s: pictures are prepared on the host: %s", where, reason)
        return None
    bound = sessions[0].inputs_on_gpu[picture_input(sessions[0].inputs, where)]
    layout, written = _target(bound, config, where), _in_steps(config, bound.scale)
    decoder = decoder_for((layout.width, layout.height))
    device, rows = engine.device, layout.rows
    reading = device.stream() if beside else None
    if is_urgent:  # before anything is recorded: graphs keep the priority that they were recorded with
        _go_first([sessions[0].stream, *([reading] if reading else [])], where)
    slots = []
    for session in sessions:
        (picture,) = session.inputs_on_gpu.values()
        preprocessor = GpuPreprocessor(written, layout, picture.block.address, kernels, where=where)
        reader = _reader(session, decoder, engine.batched, preprocessor.network, kernels)
        slots.append(Slot(session, preprocessor, reader, reading or session.stream))
    uploader = Uploader(device, device.stream(), device.counter, in_flight=rows * (SLOTS + 1))
    return GpuLane(slots, config, uploader)


def _go_first(streams: Sequence[Stream], where: str) -> None:
    """What cannot be had is told: the model runs as any other then."""
    try:
        for stream in streams:
            stream.go_first()
    except DeviceError as error:
        log.warning("%s: priority: high is not used: %s (%s)", where, error.what, error.why)


def _not_read(session: GpuSession) -> str:
    """Why outputs cannot be read where they are; empty if they can."""
    strange = [one.name for one in session.outputs_on_gpu if not one.is_plain]
    return f"output {strange[0]!r} is in a DLA's layout" if strange else ""


def _reader(session: GpuSession, decoder: Decoder, batched: Sequence[bool], network: Size, kernels: Kernels) -> Reader:
    outputs = session.outputs_on_gpu
    if isinstance(decoder, Detector) and len(outputs) == 1:
        (only,) = outputs
        if not not_decoded(decoder, only.shape, only.dtype, network):
            return GpuDetector(decoder, only.shape, only.dtype, only.block.address, network, kernels)
    return HostReader(outputs, batched, decoder)


def _target(picture: GpuTensor, config: InputConfig, where: str) -> Target:
    shape = picture.shape
    channels = 1 if config.color == "gray" else 3
    layout = layout_of(shape, config.layout, channels, where)
    height, width = shape[2:] if layout == "nchw" else shape[1:3]
    if picture.dtype not in ITEM_BYTES:
        known = ", ".join(ITEM_BYTES)
        raise ModelError(f"the model wants {picture.dtype} pixels", why=f"edgert writes {known}", where=where)
    dtype = cast("ValueType", picture.dtype)
    if not picture.is_plain:
        four = cast("tuple[int, int, int, int]", shape), cast("tuple[int, int, int, int]", picture.strides)
        return strided(dtype, *four, picture.block.nbytes)
    return target(cast("TensorLayout", layout), dtype, shape[0], width, height, channels)


def _in_steps(config: InputConfig, scale: float) -> InputConfig:
    """The input of an int8 tensor that stands for real numbers, as the steps that are written."""
    return config.model_copy(update={"std": tuple(std * scale for std in config.std)}) if scale else config
