"""TensorRT 8.6 to 10.x: precision by flags, INT8 by a calibration cache or Q/DQ, exceptions layer by layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from edgert.backend.tensorrt.build_request import BuildRequest
from edgert.backend.tensorrt.result import Correspondence, Layer
from edgert.backend.tensorrt.timing_cache import set_timing_cache, timing_cache
from edgert.backend.tensorrt.trt_types import Builder, IBuilderConfig, ILayer, INetworkDefinition, OnnxParser, Trt
from edgert.backend.tensorrt.version import Library, release_of


class WeakDialect:
    """See :class:`~edgert.backend.tensorrt.dialect.Dialect`."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._trt: Trt = library.trt

    def check(self, request: BuildRequest) -> None:
        """A DLA takes INT8 by calibration only; a GPU by either way, but not by neither."""
        if request.explicit and request.dla_core is not None:
            raise request.refusal(
                "a DLA cannot run a Q/DQ model here",
                f"{self._library.title} builds INT8 for a DLA from a calibration cache only (TensorRT issue 2222)",
                "lower the ranges of the float model to a calibration cache",
            )
        if request.precision == "int8" and not request.explicit and not request.calibration:
            raise request.refusal(
                "INT8 without ranges",
                "the model has no Q/DQ nodes and there is no calibration cache",
                "calibrate the model first: edgert calibrate",
            )
        if request.explicit and request.calibration:
            raise request.refusal("two sources of INT8 ranges", "the model has Q/DQ nodes and there is a cache as well")

    def create_network(self, builder: Builder) -> INetworkDefinition:
        """Before 10.0 an explicit batch had to be asked for; since then there is nothing else."""
        if release_of(self._library.version)[0] >= 10:
            return builder.create_network()
        explicit = self._trt.NetworkDefinitionCreationFlag.EXPLICIT_BATCH
        return builder.create_network(1 << int(explicit))

    def set_target(self, config: IBuilderConfig, request: BuildRequest) -> None:
        """It builds for the GPU that it runs on."""
        if request.compute:
            raise request.refusal(f"{self._library.title} builds for this GPU only", f"asked for {request.compute}")

    def set_parser(self, parser: OnnxParser, config: IBuilderConfig, request: BuildRequest) -> None:
        """InstanceNormalization as layers: the plugin it would be is not there in version-compatible engines."""
        if request.version_compatible:
            parser.set_flag(self._trt.OnnxParserFlag.NATIVE_INSTANCENORM)

    def set_precision(
        self,
        network: INetworkDefinition,
        config: IBuilderConfig,
        request: BuildRequest,
        layers: Sequence[Layer],
        parts: Correspondence,
    ) -> None:
        """Flags, the calibration cache, and the layers that stay in float16."""
        flags = self._trt.BuilderFlag
        # A DLA computes in FP16 or INT8 only, so without FP16 every other layer would leave it.
        if request.precision != "fp32" or request.dla_core is not None:
            config.set_flag(self._trt.BuilderFlag.FP16)
        if request.precision == "int8":
            config.set_flag(self._trt.BuilderFlag.INT8)
        if request.calibration:
            config.int8_calibrator = cached_calibrator(self._trt, request.calibration)
        if request.half:
            config.set_flag(flags.OBEY_PRECISION_CONSTRAINTS if request.obey else flags.PREFER_PRECISION_CONSTRAINTS)
            self._keep_half(network, request, layers, parts)

    def set_timing_cache(self, config: IBuilderConfig, content: bytes) -> bool:
        """See :func:`edgert.backend.tensorrt.timing_cache.set_timing_cache`."""
        return set_timing_cache(config, content)

    def timing_cache(self, config: IBuilderConfig) -> bytes:
        """See :func:`edgert.backend.tensorrt.timing_cache.timing_cache`."""
        return timing_cache(config)

    def _keep_half(
        self, network: INetworkDefinition, request: BuildRequest, layers: Sequence[Layer], parts: Correspondence
    ) -> None:
        """Only layers that compute in floating point: shape arithmetic must stay in integers."""
        for name in request.half:
            for position in parts.layers_of.get(name, ()):
                if parts.own[position] and layers[position].dtype in ("FLOAT", "HALF"):
                    layer: ILayer = network.get_layer(position)
                    layer.precision = self._trt.DataType.HALF


def cached_calibrator(trt: Trt, text: str) -> Any:
    """A calibrator that feeds no images and has all scales already.

    The entropy calibrator of the second kind is the one that NVIDIA documents for a DLA.
    """

    class CachedCalibrator(trt.IInt8EntropyCalibrator2):  # type: ignore[misc]
        """Its base must be initialized by name: pybind11 does not follow ``super``."""

        def __init__(self) -> None:
            trt.IInt8EntropyCalibrator2.__init__(self)

        def get_batch_size(self) -> int:
            return 1

        def get_batch(self, names: Sequence[str]) -> None:
            """Nothing to measure: a tensor without a scale stays in higher precision."""

        def read_calibration_cache(self) -> bytes:
            return text.encode()

        def write_calibration_cache(self, cache: Any) -> None:
            """The scales are edgert's; what TensorRT makes of them is not kept."""

    return CachedCalibrator()
