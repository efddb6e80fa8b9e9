"""Differences between TensorRT 8.6 to 10.x, 11.x and TensorRT-RTX while an engine is built.

These are types, target GPUs, accelerators and kernel timings.
"""

from collections.abc import Sequence
from typing import Any

from edgert.backend.tensorrt import library as api
from edgert.backend.tensorrt.build_request import BuildRequest
from edgert.backend.tensorrt.network import Correspondence, Layer
from edgert.errors import nearest


class Dialect:
    """Build steps that differ between releases. Methods are called in the order of their definition.

    This class has the steps of most releases: types are those of the model, and kernels are timed during the build, on
    the GPU of the builder.
    """

    def __init__(self, library: api.Library) -> None:
        self._library = library
        self._trt: api.Trt = library.trt

    def check(self, request: BuildRequest) -> None:
        """Raise BuildError for a request that this TensorRT cannot build, such as for types that the model lacks."""
        title = self._library.title
        if request.calibration:
            raise request.refusal(
                f"{title} reads no calibration cache",
                "calibrators were removed in 11.0",
                "use the Q/DQ form of the model",
            )
        if request.fp16_nodes:
            raise request.refusal(
                f"{title} cannot keep node {request.fp16_nodes[0]!r} in float16",
                "the types in the model define precisions",
                "leave the node out when the model is lowered to Q/DQ",
            )
        if request.precision == "int8" and not request.explicit:
            raise request.refusal(
                f"{title} cannot make a float model INT8",
                "it has no Q/DQ nodes",
                "lower the model to its Q/DQ form first",
            )
        typed = [name for name, form in request.formats.items() if form.dtype]
        if typed:
            raise request.refusal(
                f"{title} cannot change the type of tensor {typed[0]!r}",
                "the model defines types",
                "change the type of the model's input or output",
            )

    def create_network(self, builder: api.Builder) -> api.INetworkDefinition:
        """Return an empty network. It needs no flags, whose bits changed in 11.0."""
        return builder.create_network()

    def set_target(self, config: api.IBuilderConfig, request: BuildRequest) -> None:
        """Set the GPUs to build for. Raises BuildError for GPUs that are not supported as targets."""
        if request.compute:
            raise request.refusal(f"{self._library.title} builds for this GPU only", f"asked for {request.compute}")

    def set_parser(self, parser: api.OnnxParser, config: api.IBuilderConfig, request: BuildRequest) -> None:
        """Parse InstanceNormalization as layers for version-compatible engines, which lack the plugin."""
        if request.version_compatible:
            parser.set_flag(self._trt.OnnxParserFlag.NATIVE_INSTANCENORM)

    def set_precision(
        self,
        network: api.INetworkDefinition,
        config: api.IBuilderConfig,
        request: BuildRequest,
        layers: Sequence[Layer],
        parts: Correspondence,
    ) -> None:
        """Set the precision of layers, unless the model's types define it."""

    def set_timing_cache(self, config: api.IBuilderConfig, content: bytes) -> bool:
        """Set the timings of earlier builds; if they are of another TensorRT or GPU, set none and return False.

        ``ignore_mismatch`` would use these timings, and choose kernels that are slow here.
        """
        cache: api.ITimingCache = config.create_timing_cache(content)
        if cache is not None and config.set_timing_cache(cache, False):
            return True
        config.set_timing_cache(config.create_timing_cache(b""), False)
        return False

    def timing_cache(self, config: api.IBuilderConfig) -> bytes:
        """Return the measured timings; empty without any."""
        cache: api.ITimingCache = config.get_timing_cache()
        return bytes(memoryview(cache.serialize())) if cache is not None else b""


class WeakDialect(Dialect):
    """TensorRT 8.6 to 10.x: precision by flags, INT8 by a calibration cache or Q/DQ, exceptions layer by layer."""

    def check(self, request: BuildRequest) -> None:
        """Raise BuildError for INT8 on a DLA without a calibration cache, or on a GPU with neither cache nor Q/DQ."""
        if request.explicit and request.dla_core is not None:
            raise request.refusal(
                "a DLA cannot run a Q/DQ model here",
                f"{self._library.title} builds INT8 for a DLA from a calibration cache only (TensorRT issue 2222)",
                "lower the ranges of the float model to a calibration cache",
            )
        if request.precision == "int8" and not request.explicit and not request.calibration:
            raise request.refusal(
                "cannot build INT8 without ranges",
                "the model has no Q/DQ nodes and there is no calibration cache",
                "calibrate the model first: edgert calibrate",
            )
        if request.explicit and request.calibration:
            raise request.refusal(
                "the model has two sources of INT8 ranges", "the model has Q/DQ nodes and there is a cache as well"
            )

    def create_network(self, builder: api.Builder) -> api.INetworkDefinition:
        """Return an empty network with an explicit batch, for which releases before 10.0 need a flag."""
        if api.release_of(self._library.version)[0] >= 10:
            return builder.create_network()
        explicit = self._trt.NetworkDefinitionCreationFlag.EXPLICIT_BATCH
        return builder.create_network(1 << int(explicit))

    def set_precision(
        self,
        network: api.INetworkDefinition,
        config: api.IBuilderConfig,
        request: BuildRequest,
        layers: Sequence[Layer],
        parts: Correspondence,
    ) -> None:
        """Set flags, the calibration cache, and the layers that stay in float16."""
        # A DLA computes in FP16 or INT8 only: without the FP16 flag, layers that are not INT8 would leave it.
        if request.precision != "fp32" or request.dla_core is not None:
            config.set_flag(self._trt.BuilderFlag.FP16)
        if request.precision == "int8":
            config.set_flag(self._trt.BuilderFlag.INT8)
        if request.calibration:
            config.int8_calibrator = cached_calibrator(self._trt, request.calibration)
        if request.fp16_nodes:
            config.set_flag(self._trt.BuilderFlag.PREFER_PRECISION_CONSTRAINTS)
        for name in request.fp16_nodes:
            for position in parts.layers_of.get(name, ()):
                # Only layers of floating-point numbers, as shape arithmetic must stay in integers.
                if parts.computes[position] and layers[position].dtype in ("FLOAT", "HALF"):
                    layer: api.ILayer = network.get_layer(position)
                    layer.precision = self._trt.DataType.HALF


def cached_calibrator(trt: api.Trt, text: str) -> Any:
    """Return a calibrator that has all scales and needs no images.

    NVIDIA's documentation uses the second entropy calibrator for a DLA.
    """

    class CachedCalibrator(trt.IInt8EntropyCalibrator2):  # type: ignore[misc]
        """Calibrator that reads a cache. It calls its base by name, as pybind11 does not support ``super``."""

        def __init__(self) -> None:
            trt.IInt8EntropyCalibrator2.__init__(self)

        def get_batch_size(self) -> int:
            return 1

        def get_batch(self, names: Sequence[str]) -> None:
            """Return None: a tensor without a scale stays in higher precision."""

        def read_calibration_cache(self) -> bytes:
            return text.encode()

        def write_calibration_cache(self, cache: Any) -> None:
            """Do nothing: the scales are edgert's."""

    return CachedCalibrator()


class StrongDialect(Dialect):
    """TensorRT 11: types are those of the model. Precision flags, calibrators and layer precisions were removed."""

    def set_parser(self, parser: api.OnnxParser, config: api.IBuilderConfig, request: BuildRequest) -> None:
        """Let the parser rewrite layers for a DLA, and report unsupported layers if all of them are placed on it."""
        super().set_parser(parser, config, request)
        flags = self._trt.OnnxParserFlag
        if request.dla_core is None:
            return
        if hasattr(parser, "set_builder_config"):
            parser.set_builder_config(config)
        if hasattr(flags, "ADJUST_FOR_DLA"):
            parser.set_flag(flags.ADJUST_FOR_DLA)
        if request.all_on_dla and hasattr(flags, "REPORT_CAPABILITY_DLA"):
            parser.set_flag(flags.REPORT_CAPABILITY_DLA)


class RtxDialect(Dialect):
    """TensorRT-RTX: strongly typed, for the GPUs of workstations; without DLA. Builds on machines without a GPU, too.

    Its runtime chooses kernels when the engine first runs, and caches them. Nothing is timed during the build.
    """

    def check(self, request: BuildRequest) -> None:
        super().check(request)
        if request.dla_core is not None:
            raise request.refusal(
                f"{self._library.title} supports no DLA", "it is for workstation GPUs", "build on the Jetson"
            )

    def set_target(self, config: api.IBuilderConfig, request: BuildRequest) -> None:
        """Set the requested GPUs; TensorRT-RTX's default is all since Ampere."""
        if not request.compute:
            return
        supported = api.capabilities(self._trt)
        for capability in request.compute:
            if capability not in supported:
                hint = nearest(capability, supported)
                raise request.refusal(
                    f"{self._library.title} does not support compute capability {capability}{hint}",
                    f"it supports {', '.join(supported)}",
                )
        config.num_compute_capabilities = len(request.compute)
        for index, capability in enumerate(request.compute):
            config.set_compute_capability(getattr(self._trt.ComputeCapability, supported[capability]), index)

    def set_parser(self, parser: api.OnnxParser, config: api.IBuilderConfig, request: BuildRequest) -> None:
        """Do nothing."""

    def set_timing_cache(self, config: api.IBuilderConfig, content: bytes) -> bool:
        """Return whether the cache is empty, as TensorRT-RTX uses none."""
        return not content

    def timing_cache(self, config: api.IBuilderConfig) -> bytes:
        return b""


def dialect_of(library: api.Library) -> Dialect:
    """Return the dialect of a TensorRT."""
    dialects = {"weak": WeakDialect, "strong": StrongDialect, "rtx": RtxDialect}
    return dialects[library.kind](library)
