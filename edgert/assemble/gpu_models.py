"""Construction of inference slots for engines on a GPU, where pixels and tensors stay in GPU memory."""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeGuard, cast

from edgert.backend import Engine, gpu
from edgert.config import InputConfig
from edgert.engine import image_input
from edgert.errors import DeviceError, ModelError
from edgert.files import FileStore, cache_folder
from edgert.memory.cuda import CudaDevice, Stream
from edgert.placement.segment_engines import SegmentedEngine
from edgert.stages.decode.decoder import Decoder, Size
from edgert.stages.decode.record_check import RecordCheck
from edgert.stages.gpu.gpu_preprocess import ITEM_BYTES, GpuPreprocessor, Target, ValueType, padded_target, plain_target
from edgert.stages.gpu.infer_gpu import SLOTS, GpuInference, InferenceSlot
from edgert.stages.gpu.kernels import Kernels
from edgert.stages.gpu.upload import Uploader
from edgert.stages.preprocess import layout_of

log = logging.getLogger("edgert.source")


def is_on_gpu(engine: Engine | SegmentedEngine) -> TypeGuard[gpu.GpuEngine]:
    """Return whether an engine's tensors are on a GPU."""
    return isinstance(getattr(engine, "device", None), CudaDevice)


def gpu_inference(
    engine: gpu.GpuEngine,
    profile: str | None,
    config: InputConfig,
    decoder_for: Callable[[Size], Decoder],
    where: str,
    *,
    check_for: Callable[[Decoder], RecordCheck] | None = None,
    beside: bool = True,
    refines: bool = True,
    is_urgent: bool = False,
    side_by_side: bool = False,
) -> GpuInference | None:
    """Return inference with separate sessions. If the host must prepare images, log why and return None.

    With ``beside``, images are prepared and decoded on separate streams, while the engine works on other batches.
    Otherwise a batch has one stream, and engine and decoder are one CUDA graph. ``refines``: engines that can become
    faster while they run do so. ``side_by_side``: the GPU may run several batches at a time, where the engine supports
    it: more frames per second, each with a little more latency. Raises ModelError: the model's input is not an image,
    or its type is not supported. Raises DeviceError: there is too little memory.
    """
    from edgert.stages.gpu.readers import needed_outputs, reader_for  # imports all decoders

    kernels = Kernels(engine.device, FileStore(cache_folder() / "cuda"))
    reason = kernels.why_not()
    on_host = _host_tensors(engine, profile, config, decoder_for, where)
    queues = range(SLOTS) if side_by_side else (0,) * SLOTS
    sessions = [] if reason else [engine.session(profile, on_host, index) for index in queues]
    unreadable = [one.name for one in sessions[0].outputs_on_gpu if not one.is_plain] if sessions else []
    reason = reason or (f"output {unreadable[0]!r} is in a DLA's layout" if unreadable else "")
    if reason:
        log.warning("%s: images are prepared on the host: %s", where, reason)
        return None
    bound = sessions[0].inputs_on_gpu[image_input(sessions[0].inputs_on_gpu, where)]
    layout, written = _target_for(bound, config, where), config
    if bound.scale:  # a quantized int8 tensor: values are written as its steps
        written = config.model_copy(update={"std": tuple(std * bound.scale for std in config.std)})
    decoder = decoder_for((layout.width, layout.height))
    check = check_for(decoder) if check_for is not None else None
    device, rows = engine.device, layout.rows
    uploader = Uploader(device, in_flight=rows * (SLOTS + 1))
    has_own_streams = len({id(one.stream) for one in sessions}) > 1
    reading = device.stream() if beside and not has_own_streams else None
    feeding = uploader.stream if beside else None
    if is_urgent:  # before the first recording, as CUDA graphs keep the priority they were recorded with
        own = [stream for one in sessions for stream in getattr(one, "streams", [one.stream])]
        _raise_priority([*dict.fromkeys(own), *(one for one in (reading, feeding) if one)], where)
    slots = []
    for session in sessions:
        (image,) = session.inputs_on_gpu.values()
        preprocessor = GpuPreprocessor(written, layout, image.block.address, kernels, where=where)
        outputs, batched, one = needed_outputs(session.outputs_on_gpu, engine.batched, decoder)
        made = partial(reader_for, outputs, batched, network=preprocessor.network, kernels=kernels)
        reader, why_host = made(one)
        decoding = session.stream if reading is None or getattr(reader, "is_quick", False) else reading
        slots.append(InferenceSlot(session, preprocessor, reader, decoding, feeding, check, made))
    if why_host:
        log.info("%s: outputs are brought to the host and decoded there: %s", where, why_host)
    recordable = sessions[0].recordable

    def without_graph(reason: str) -> None:
        engine.info = {**engine.info, "graph": f"no, because {reason}"}
        level = logging.WARNING if recordable else logging.INFO
        log.log(level, "%s: no CUDA graph, so frames take more of the processor: %s", where, reason)

    # Graphs recorded before this would keep another priority.
    refine = getattr(engine, "refine", None) if refines and not is_urgent else None
    return GpuInference(slots, uploader, without_graph, refine and partial(refine, profile=profile))


def _host_tensors(
    engine: gpu.GpuEngine, profile: str | None, config: InputConfig, decoder_for: Callable[[Size], Decoder], where: str
) -> gpu.OnHost:
    """Return which tensors the host accesses when images are prepared on the GPU, from the engine's shapes.

    This matters where host and GPU share memory.
    """
    from edgert.stages.gpu.readers import why_on_host

    shapes = [one.shape for one in engine.inputs]
    is_known = profile in (None, engine.profiles[0]) and len(shapes) == 1 and len(shapes[0]) == 4
    if engine.device.kind != "mapped" or not is_known:
        return "outputs"
    layout = layout_of(shapes[0], config.layout, 1 if config.color == "gray" else 3, where)
    height, width = shapes[0][2:] if layout == "nchw" else shapes[0][1:3]
    network, outputs = (width, height), cast("Sequence[gpu.GpuTensor]", engine.outputs)
    return "outputs" if why_on_host(outputs, engine.batched, decoder_for(network), network) else "none"


def _raise_priority(streams: Sequence[Stream], where: str) -> None:
    """Raise the priority of streams. If that fails, log it and continue."""
    try:
        for stream in streams:
            stream.raise_priority()
    except DeviceError as error:
        log.warning("%s: priority: high is not used: %s (%s)", where, error.what, error.why)


def _target_for(image: gpu.GpuTensor, config: InputConfig, where: str) -> Target:
    shape = image.shape
    channels = 1 if config.color == "gray" else 3
    layout = layout_of(shape, config.layout, channels, where)
    height, width = shape[2:] if layout == "nchw" else shape[1:3]
    if image.dtype not in ITEM_BYTES:
        known = ", ".join(ITEM_BYTES)
        raise ModelError(f"the model wants {image.dtype} pixels", why=f"edgert writes {known}", where=where)
    dtype = cast("ValueType", image.dtype)
    if not image.is_plain:
        four = cast("tuple[int, int, int, int]", shape), cast("tuple[int, int, int, int]", image.strides)
        return padded_target(dtype, *four, image.block.nbytes)
    return plain_target(layout, dtype, shape[0], width, height, channels)
