"""Where the pictures of each source are wanted: on the GPU, when every stage that looks at them is there."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import Protocol, runtime_checkable

from edgert.config import DrawStage, InferStage, PackageStage, PythonStage, SinkStage, SourceStage, StageConfig
from edgert.config.flow import sources_of
from edgert.errors import DeviceError
from edgert.memory.cuda import CudaDevice

log = logging.getLogger("edgert.source")


@runtime_checkable
class GpuSource(Protocol):
    """A source that can give its frames on a GPU."""

    def on_gpu(self, device: CudaDevice) -> str:
        """Does so from its start on; or says why not, and gives them on the host. Raises EdgertError."""
        ...


@runtime_checkable
class SharingSource(Protocol):
    """A source that can give its frames on the host in memory that a GPU reads, too."""

    def share(self, device: CudaDevice) -> None:
        """Does so from its start on."""
        ...


def put_on_gpu(
    stages: Mapping[str, StageConfig],
    sources: Mapping[str, object],
    devices: Mapping[str, CudaDevice],
    listened: Collection[str] = (),
) -> None:
    """Has each source give its frames where they are looked at, and tells where they are and why.

    Args:
        sources: by the name of their stage, not started yet.
        devices: of the infer stages that read frames on a GPU.
        listened: stages whose results the user's own functions get.

    Raises:
        DeviceError: ``decode: gpu`` where that cannot be.
        EdgertError: the file cannot be read.
    """
    for name, source in sources.items():
        stage = stages[name]
        if not isinstance(stage, SourceStage):
            continue
        readers = _readers(stages, name)
        device = next((devices[reader] for reader in readers if reader in devices), None)
        reason = _host_reason(stages, readers, devices, listened) or _own_reason(stage, source, device)
        if reason and stage.decode == "gpu" and isinstance(source, GpuSource):
            what = f"the frames of {name!r} cannot be decoded on the GPU"
            raise DeviceError(what, why=reason, where=f"stages.{name}.decode", fix="leave decode: out")
        if device is None:
            continue
        place = "GPU" if not reason else "host, in memory that the GPU reads" if _shared(source, device) else "host"
        log.info("%s: frames on the %s%s", name, place, f": {reason}" if reason else "")


def _own_reason(stage: SourceStage, source: object, device: CudaDevice | None) -> str:
    """Why a source does not give its frames on the GPU; empty when from now on it does."""
    if stage.decode == "cpu":
        return "decode: cpu"
    if device is None or not isinstance(source, GpuSource):
        return "its pictures are made on the host"
    return source.on_gpu(device)


def _shared(source: object, device: CudaDevice) -> bool:
    """Has frames on the host lie where the GPU can fetch them, if the source can and the host reads them as fast."""
    if not isinstance(source, SharingSource) or not device.traits.cached:
        return False
    source.share(device)
    return True


def _readers(stages: Mapping[str, StageConfig], source: str) -> list[str]:
    """The stages that a source's frames reach, in the file's order."""
    streams = sources_of(stages)
    return [name for name, stage in stages.items() if source in streams[name] and not isinstance(stage, SourceStage)]


def _host_reason(
    stages: Mapping[str, StageConfig],
    readers: Collection[str],
    devices: Collection[str],
    listened: Collection[str],
) -> str:
    """Why the pixels are wanted on the host; empty when they are not."""
    for name in readers:
        stage = stages[name]
        if isinstance(stage, InferStage) and name not in devices:
            return f"{name!r} runs its model on the processor"
        if isinstance(stage, DrawStage):
            return f"{name!r} draws on them"
        if isinstance(stage, PythonStage) or name in listened:
            return f"your own code sees them at {name!r}"
        if isinstance(stage, PackageStage) and stage.takes_images:
            return f"{name!r} is a stage that takes images: {stage.stage}"
        if isinstance(stage, SinkStage) and stage.takes_images:
            return f"{name!r} is a sink that takes pictures: {stage.sink}"
    return "" if any(name in devices for name in readers) else "no model reads them on a GPU"
