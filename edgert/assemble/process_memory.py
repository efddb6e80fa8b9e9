"""Memory of the process itself and of the libraries that a pipeline loads: measured, not predicted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from edgert.assemble.library import CUDA, CUDA_ENGINE, ENGINE, VIDEO, library_memory
from edgert.backend.chain import why_not
from edgert.backend.trt.backend import TrtBackend
from edgert.board.detect import detect
from edgert.budget.footprint import Part
from edgert.budget.meter import rss_bytes
from edgert.config import InferStage, PipelineConfig, PipelineFile, SinkStage, SourceStage
from edgert.config.engine import ORT, ORT_CUDA
from edgert.config.variant import users_of
from edgert.stages.source.select import kind_of
from edgert.units import format_bytes

_TITLES: Mapping[str, tuple[str, str]] = {
    CUDA: ("CUDA", "opens a context"),
    CUDA_ENGINE: (CUDA_ENGINE, "runs a small model on the GPU"),
}
_GPU_BACKENDS = ("tensorrt", "onnxruntime-cuda")
CUDNN_BYTES = 270 * 2**20
"""Host memory of kernels that a network's layers load, beyond those of the small model. Measured on an H200 with driver
580.159.04, ONNX Runtime 1.31.1 and cuDNN 9: a run of a detector with 83 nodes took 268 MiB more than a plan without
this, one of ResNet-50 148 MiB, and 115 MiB more were hidden by its weights, which are there 2.8 times and not four."""


def process_parts(file: PipelineFile) -> Iterator[Part]:
    """This process as it stands, and what libraries add. Takes a second for a child process that measures them.

    Raises:
        DeviceError: a library is missing.
    """
    yield Part("process", "cpu", "runtime", rss_bytes(), "measured: this process as it stands")
    for name, taken in library_memory(_needed(file)).items():
        title, does = _TITLES.get(name, (name, "loads it"))
        own = f"; {format_bytes(taken.gpu_bytes)} more of the GPU's own" if taken.gpu_bytes else ""
        if taken.host_bytes or name not in _TITLES:
            yield Part(title, "cpu", "runtime", taken.host_bytes, f"measured in a process that {does}{own}")
        if taken.host_bytes and name == CUDA_ENGINE:
            yield Part("cuDNN", "cpu", "runtime", CUDNN_BYTES, "kernels of a network's layers: as on an H200")


def _needed(file: PipelineFile) -> list[str]:
    """Libraries, in the order in which they are loaded."""
    config, stages = file.config, file.config.stages.values()
    needed = [ENGINE] if any(isinstance(stage, InferStage) for stage in stages) else []
    needed += [VIDEO] if any(_is_video(stage, file) for stage in stages) else []
    needed += [CUDA] if _wants_gpu(config) else []
    return needed + ([CUDA_ENGINE] if _takes_ort_cuda(config) else [])


def _wants_gpu(config: PipelineConfig) -> bool:
    """Whether a model may run on a GPU, or frames be decoded there."""
    backends = _backends(config)
    asked = any(isinstance(stage, SourceStage) and stage.decode == "gpu" for stage in config.stages.values())
    chained = bool(backends) and any(name != ORT for name in config.engines)
    return asked or chained or not backends.isdisjoint(_GPU_BACKENDS)


def _takes_ort_cuda(config: PipelineConfig) -> bool:
    """Whether a model asks for ONNX Runtime on the GPU, or gets it because nothing before it in ``engines:`` can."""
    backends = _backends(config)
    if "auto" not in backends or ORT_CUDA not in config.engines:
        return ORT_CUDA in backends
    before = config.engines[: config.engines.index(ORT_CUDA)]
    return ORT_CUDA in backends or all(why_not(name, detect(), TrtBackend()) for name in before)


def _backends(config: PipelineConfig) -> set[str]:
    """What the sections of the models that are used ask for."""
    return {model.backend for name, model in config.models.items() if users_of(config.stages, config.models, name)}


def _is_video(stage: object, file: PipelineFile) -> bool:
    if isinstance(stage, SourceStage):
        return kind_of(stage.source, file.document.path.parent) in ("file", "network", "camera")
    return isinstance(stage, SinkStage) and stage.sink == "video"
