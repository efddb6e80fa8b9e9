"""TensorRT 11: every type stands in the model. No flag, calibrator or layer precision: they were removed in 11.0."""

from __future__ import annotations

from collections.abc import Sequence

from edgert.backend.tensorrt.build_request import BuildRequest
from edgert.backend.tensorrt.result import Correspondence, Layer
from edgert.backend.tensorrt.timing_cache import set_timing_cache, timing_cache
from edgert.backend.tensorrt.trt_types import Builder, IBuilderConfig, INetworkDefinition, OnnxParser, Trt
from edgert.backend.tensorrt.version import Library


class StrongDialect:
    """See :class:`~edgert.backend.tensorrt.dialect.Dialect`."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._trt: Trt = library.trt

    def check(self, request: BuildRequest) -> None:
        """Refuses what only a weakly typed TensorRT has."""
        check_typed(request, self._library.title)

    def create_network(self, builder: Builder) -> INetworkDefinition:
        """No flags: what their bits mean has changed, and there is one kind of network only."""
        return builder.create_network()

    def set_target(self, config: IBuilderConfig, request: BuildRequest) -> None:
        """It builds for the GPU that it runs on."""
        if request.compute:
            raise request.refusal(f"{self._library.title} builds for this GPU only", f"asked for {request.compute}")

    def set_parser(self, parser: OnnxParser, config: IBuilderConfig, request: BuildRequest) -> None:
        """With DLA layers, the parser may rewrite what would not fit; if all are, it also refuses what cannot."""
        flags = self._trt.OnnxParserFlag
        if request.version_compatible:
            parser.set_flag(self._trt.OnnxParserFlag.NATIVE_INSTANCENORM)
        if request.dla_core is None:
            return
        if hasattr(parser, "set_builder_config"):
            parser.set_builder_config(config)
        if hasattr(flags, "ADJUST_FOR_DLA"):
            parser.set_flag(flags.ADJUST_FOR_DLA)
        if request.all_on_dla and hasattr(flags, "REPORT_CAPABILITY_DLA"):
            parser.set_flag(flags.REPORT_CAPABILITY_DLA)

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
        """See :func:`edgert.backend.tensorrt.timing_cache.set_timing_cache`."""
        return set_timing_cache(config, content)

    def timing_cache(self, config: IBuilderConfig) -> bytes:
        """See :func:`edgert.backend.tensorrt.timing_cache.timing_cache`."""
        return timing_cache(config)


def check_typed(request: BuildRequest, title: str) -> None:
    """Raises BuildError for what a strongly typed TensorRT has no place for."""
    if request.calibration:
        raise request.refusal(
            f"{title} reads no calibration cache",
            "calibrators were removed in 11.0",
            "give it the Q/DQ form of the model",
        )
    if request.half:
        raise request.refusal(
            f"{title} cannot keep node {request.half[0]!r} in float16 by itself",
            "precisions stand in the model",
            "leave the node out when the model is lowered to Q/DQ",
        )
    if request.precision == "int8" and not request.explicit:
        raise request.refusal(
            f"{title} cannot make a float model INT8", "it has no Q/DQ nodes", "lower the model to its Q/DQ form first"
        )
    typed = [name for name, form in request.formats.items() if form.dtype]
    if typed:
        raise request.refusal(
            f"{title} cannot change the type of tensor {typed[0]!r}",
            "types stand in the model",
            "make the model's input or output that type",
        )
