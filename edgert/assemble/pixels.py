"""Where the pictures of each source are wanted: on the GPU, when every stage that looks at them is there."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import Protocol, runtime_checkable

from edgert.config import DrawStage, InferStage, PythonStage, SinkStage, SourceStage, StageConfig
from edgert.config.flow import sources_of
from edgert.errors import DeviceError
from edgert.memory.cuda import CudaDevice

log = logging.getLogger("edgert.source")
_WITHOUT_PICTURES = ("jsonl", "null")


@runtime_checkable
class GpuSource(Protocol):
    """A source that can give its frames on a GPU."""

    def on_gpu(self, device: CudaDevice) -> str:
        """Does so from its start on; or says why not, and gives them on the host. Raises EdgertError."""
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
        if not isinstance(stage, SourceStage) or stage.decode == "cpu" or not isinstance(source, GpuSource):
            continue
        readers = _readers(stages, name)
        reason = _host_reason(stages, readers, devices, listened)
        reason = reason or source.on_gpu(next(devices[reader] for reader in readers if reader in devices))
        if reason and stage.decode == "gpu":
            what = f"the frames of {name!r} cannot be decoded on the GPU"
            raise DeviceError(what, why=reason, where=f"stages.{name}.decode", fix="leave decode: out")
        if devices:
            log.info("%s: frames on the %s%s", name, "host" if reason else "GPU", f": {reason}" if reason else "")


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
        if isinstance(stage, SinkStage) and stage.sink not in _WITHOUT_PICTURES:
            return f"{name!r} is a sink that takes pictures: {stage.sink}"
    return "" if any(name in devices for name in readers) else "no model reads them on a GPU"
