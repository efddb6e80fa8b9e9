"""TensorRT-RTX: strongly typed, for the GPUs of workstations; builds where there is none. No DLA and no timing."""

from __future__ import annotations

from collections.abc import Sequence

from edgert.backend.tensorrt.build_request import BuildRequest
from edgert.backend.tensorrt.result import Correspondence, Layer
from edgert.backend.tensorrt.strongly_typed import check_typed
from edgert.backend.tensorrt.trt_types import (
    Builder,
    IBuilderConfig,
    ICudaEngine,
    INetworkDefinition,
    IRuntimeCache,
    IRuntimeConfig,
    OnnxParser,
    Trt,
)
from edgert.backend.tensorrt.version import Library
from edgert.errors import nearest


class RtxDialect:
    """See :class:`~edgert.backend.tensorrt.dialect.Dialect`."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._trt: Trt = library.trt

    def check(self, request: BuildRequest) -> None:
        """Refuses DLAs, and what only a weakly typed TensorRT has."""
        check_typed(request, self._library.title)
        if request.dla_core is not None:
            raise request.refusal(
                f"{self._library.title} knows no DLA", "it is for workstation GPUs", "build on the Jetson itself"
            )

    def create_network(self, builder: Builder) -> INetworkDefinition:
        """Strongly typed, without asking."""
        return builder.create_network()

    def set_target(self, config: IBuilderConfig, request: BuildRequest) -> None:
        """The GPUs asked for; its own choice, all since Ampere, where none is."""
        if not request.compute:
            return
        known = {_dotted(name): name for name in self._trt.ComputeCapability.__members__ if name.startswith("SM")}
        for each in request.compute:
            if each not in known:
                raise request.refusal(
                    f"{self._library.title} does not support compute capability {each}{nearest(each, known)}",
                    f"it supports {', '.join(known)}",
                )
        config.num_compute_capabilities = len(request.compute)
        for index, each in enumerate(request.compute):
            config.set_compute_capability(getattr(self._trt.ComputeCapability, known[each]), index)

    def set_parser(self, parser: OnnxParser, config: IBuilderConfig, request: BuildRequest) -> None:
        """Nothing to tell."""

    def set_precision(
        self,
        network: INetworkDefinition,
        config: IBuilderConfig,
        request: BuildRequest,
        layers: Sequence[Layer],
        parts: Correspondence,
    ) -> None:
        """Nothing to tell: it stands in the model."""

    def set_timing_cache(self, config: IBuilderConfig, content: bytes) -> bool:
        """Kernels are chosen when the engine first runs, and kept in the runtime's own cache."""
        return not content

    def timing_cache(self, config: IBuilderConfig) -> bytes:
        """Nothing is measured while building."""
        return b""


def runtime_settings(engine: ICudaEngine, cache: bytes) -> tuple[IRuntimeConfig, IRuntimeCache]:
    """What an execution context is made with, so that kernels compiled for this GPU are found again.

    Args:
        engine: of TensorRT-RTX.
        cache: what :func:`serialized` gave after an earlier run; empty for none.
    """
    settings: IRuntimeConfig = engine.create_runtime_config()
    kernels: IRuntimeCache = settings.create_runtime_cache()
    if cache:
        kernels.deserialize(cache)
    settings.set_runtime_cache(kernels)
    return settings, kernels


def serialized(kernels: IRuntimeCache) -> bytes:
    """The compiled kernels, to be kept for this machine."""
    return bytes(memoryview(kernels.serialize()))


def _dotted(name: str) -> str:
    """``8.6`` for ``SM86``, ``12.0`` for ``SM120``."""
    digits = name.removeprefix("SM")
    return f"{digits[:-1]}.{digits[-1]}"
