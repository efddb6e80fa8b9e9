"""How a TensorRT is told types and accelerators: the part that differs between 10.x, 11.x and TensorRT-RTX."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from edgert.backend.tensorrt.build_request import BuildRequest
from edgert.backend.tensorrt.result import Correspondence, Layer
from edgert.backend.tensorrt.trt_types import Builder, IBuilderConfig, INetworkDefinition, OnnxParser
from edgert.backend.tensorrt.version import Kind, Library


class Dialect(Protocol):
    """One way to build. All calls are made in the order in which they stand here."""

    def check(self, request: BuildRequest) -> None:
        """Raises BuildError for what this TensorRT cannot build."""
        ...

    def create_network(self, builder: Builder) -> INetworkDefinition:
        """An empty network."""
        ...

    def set_target(self, config: IBuilderConfig, request: BuildRequest) -> None:
        """Tells for which GPUs."""
        ...

    def set_parser(self, parser: OnnxParser, config: IBuilderConfig, request: BuildRequest) -> None:
        """Tells the parser what the network is for."""
        ...

    def set_precision(
        self,
        network: INetworkDefinition,
        config: IBuilderConfig,
        request: BuildRequest,
        layers: Sequence[Layer],
        parts: Correspondence,
    ) -> None:
        """Tells what may be computed in which precision."""
        ...

    def set_timing_cache(self, config: IBuilderConfig, content: bytes) -> bool:
        """Hands over what earlier builds measured; False when it is of another TensorRT or GPU and not used."""
        ...

    def timing_cache(self, config: IBuilderConfig) -> bytes:
        """What has been measured; empty where nothing is."""
        ...


def dialect_of(library: Library) -> Dialect:
    """The dialect of a TensorRT."""
    from edgert.backend.tensorrt.rtx import RtxDialect
    from edgert.backend.tensorrt.strongly_typed import StrongDialect
    from edgert.backend.tensorrt.weakly_typed import WeakDialect

    known: dict[Kind, type[WeakDialect] | type[StrongDialect] | type[RtxDialect]] = {
        "weak": WeakDialect,
        "strong": StrongDialect,
        "rtx": RtxDialect,
    }
    return known[library.kind](library)
