"""Placement of frames between stages: on the GPU, on the host, or with their pixels released."""

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Protocol, runtime_checkable

from edgert.config import flow, stages as section
from edgert.errors import DeviceError
from edgert.memory.cuda import CudaDevice
from edgert.policy import Reads
from edgert.runtime import Task, graph
from edgert.stages.gpu.download import Downloader
from edgert.stages.source.api import ApiSource
from edgert.stages.source.gst_decoder import jetson_missing

log = logging.getLogger("edgert.source")


@runtime_checkable
class GpuSource(Protocol):
    """A source that can deliver its frames on a GPU."""

    def on_gpu(self, device: CudaDevice) -> str:
        """Deliver frames on a GPU from the start; return why that is not possible, else ``""``. Raises EdgertError."""


@runtime_checkable
class SharingSource(Protocol):
    """A source that can deliver its frames in host memory that a GPU also reads."""

    def share(self, device: CudaDevice) -> None:
        """Deliver frames in memory shared with a GPU from the start."""


def put_on_gpu(
    stages: Mapping[str, section.StageConfig],
    sources: Mapping[str, object],
    devices: Mapping[str, CudaDevice],
    listened: Collection[str] = (),
) -> dict[str, str]:
    """Let each source deliver its frames on the GPU if a model reads them there; log where they are and why.

    Stages that read pixels on the host get a copy. ``devices`` are the GPUs of stages whose model reads frames there;
    ``listened`` are stages whose results user functions receive. Return the logged line of each source whose frames a
    model on a GPU reads. Raises DeviceError: ``decode: gpu`` is not possible. Raises EdgertError: a source's file
    cannot be read.
    """
    streams, reads, places = flow.sources_of(stages), flow.reads_of(stages, devices), dict[str, str]()
    for name, source in sources.items():
        stage = stages[name]
        if not isinstance(stage, section.SourceStage):
            continue
        readers = flow.stages_reached(stages, reads, name)  # stages before which no host copy was made
        device = next((devices[reader] for reader in readers if reader in devices), None)
        reason = "" if device else _why_not_gpu(stages, [one for one in readers if reads[one] == "host"], devices)
        reason = reason or ("decode: cpu" if stage.decode == "cpu" else "")
        if not reason:
            assert device is not None
            reason = source.on_gpu(device) if isinstance(source, GpuSource) else "its images are made on the host"
        # A Jetson's decoder also writes for the host; the source knows whether it supports the video.
        if reason and stage.decode == "gpu" and isinstance(source, GpuSource) and jetson_missing():
            what = f"the frames of {name!r} cannot be decoded on the GPU"
            raise DeviceError(what, why=reason, where=f"stages.{name}.decode", fix="leave decode: out")
        device = device or next((one for reader, one in devices.items() if name in streams[reader]), None)
        if device is None:
            continue
        if isinstance(source, ApiSource):
            source.read_by(device)
            reason = "the program submits them, and those that are on the GPU stay there"
        if not reason:
            places[name] = "on the GPU" + _host_copies(stages, reads, readers, {name, *readers}.intersection(listened))
        elif isinstance(source, SharingSource) and device.traits.cached:  # the host reads such memory as fast
            if _is_read_once(stages, reads, readers) and getattr(source, "live", False) and device.traits.can_map:
                device.frames = "mapped"  # for a single frame, a copy takes longer than reading host memory
            source.share(device)
            places[name] = f"on the host, in memory that the GPU reads: {reason}"
        else:
            places[name] = f"on the host: {reason}"
        log.info("%s: frames %s", name, places[name])
    return places


def _is_read_once(
    stages: Mapping[str, section.StageConfig], reads: Mapping[str, Reads], there: Collection[str]
) -> bool:
    """Return whether exactly one model on a GPU reads complete frames of the only source."""
    looking = [stages[name] for name in there if reads[name] in ("anywhere", "drawn")]
    is_whole = len(looking) == 1 and isinstance(looking[0], section.InferStage) and looking[0].parts is None
    return is_whole and sum(isinstance(stage, section.SourceStage) for stage in stages.values()) == 1


def _host_copies(
    stages: Mapping[str, section.StageConfig],
    reads: Mapping[str, Reads],
    there: Collection[str],
    listened: Collection[str],
) -> str:
    """Return text on which stages get host copies of frames on the GPU; empty if none does."""
    whys = [_why_host(name, stages[name]) for name in there if reads[name] == "host"]
    whys += [f"your own code sees them behind {name!r}" for name in sorted(listened) if reads[name] != "host"]
    return f", and a copy on the host, since {' and '.join(whys)}" if whys else ""


def _why_not_gpu(stages: Mapping[str, section.StageConfig], copied: Collection[str], devices: Collection[str]) -> str:
    """Return why no model on a GPU reads a source's frames in place."""
    first = next((name for name in copied if any(name in flow.upstream(stages, other) for other in devices)), None)
    return (
        "no model reads them on a GPU" if first is None else f"before a model does, {_why_host(first, stages[first])}"
    )


def _why_host(name: str, stage: section.StageConfig) -> str:
    """Return why a stage reads frames on the host."""
    if isinstance(stage, section.InferStage):
        return f"{name!r} runs its model on the processor"
    if isinstance(stage, section.DrawStage):
        return f"{name!r} draws on them"
    if isinstance(stage, section.PackageStage):
        return f"{name!r} is a stage that takes images: {stage.stage}"
    if isinstance(stage, section.SinkStage):
        return f"{name!r} is a sink that takes images: {stage.sink}"
    return f"your own code sees them at {name!r}"


def mark_pixel_use(tasks: Sequence[Task]) -> None:
    """Set for every task whether it receives frames on the GPU or on the host, and where pixels are released."""
    for task in tasks:
        if task.execution.reads in ("drawn", "host") and task.execution.download is None:
            task.execution.download = Downloader().to_host
    graph.release_pixels(tasks)
