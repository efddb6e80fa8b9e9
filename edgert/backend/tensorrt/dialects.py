"""Differences between TensorRT 8.6 to 10.x, 11.x and TensorRT-RTX while an engine is built.

They are how each gets types, targets, accelerators and timings.
"""

from collections.abc import Sequence
from typing import Any

from edgert.backend.tensorrt import library as api
from edgert.backend.tensorrt.build_request import BuildRequest
from edgert.backend.tensorrt.network import Correspondence, Layer
from edgert.errors import nearest


class Dialect:
    """One way to build. Methods are called in the order of their definition.

    This class is the common part of most releases. Types are those of the model, and kernels are timed during the
    build, for the GPU that the builder runs on.
    """

    def __init__(self, library: api.Library) -> None:
        self._library = library
        self._trt: api.Trt = library.trt

    def check(self, request: BuildRequest) -> None:
        """Raise BuildError for what this TensorRT cannot build: here, types that the model does not have."""
        title = self._library.title
        if request.calibration:
            raise request.refusal(
                f"{title} reads no calibration cache",
                "calibrators were removed in 11.0",
                "give it the Q/DQ form of the model",
            )
        if request.fp16_nodes:
            raise request.refusal(
                f"{title} cannot keep node {request.fp16_nodes[0]!r} in float16",
                "precisions come from the types in the model",
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
                "types come from the model",
                "make the model's input or output that type",
            )

    def create_network(self, builder: api.Builder) -> api.INetworkDefinition:
        """Return an empty network, without flags: their bits changed in 11.0, and there is one kind only."""
        return builder.create_network()

    def set_target(self, config: api.IBuilderConfig, request: BuildRequest) -> None:
        """Set the GPUs to build for. Raises BuildError for GPUs that cannot be chosen."""
        if request.compute:
            raise request.refusal(f"{self._library.title} builds for this GPU only", f"asked for {request.compute}")

    def set_parser(self, parser: api.OnnxParser, config: api.IBuilderConfig, request: BuildRequest) -> None:
        """Parse InstanceNormalization as layers: version-compatible engines do not have the plugin."""
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
        """Set what may be computed in which precision; nothing where the model has the types."""

    def set_timing_cache(self, config: api.IBuilderConfig, content: bytes) -> bool:
        """Set the timings of earlier builds; return False where another TensorRT or GPU made them.

        An empty cache is used then. ``ignore_mismatch`` would use those timings and pick kernels that are slow here.
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
        """Refuse a DLA without a calibration cache for INT8, and a GPU with neither a cache nor Q/DQ."""
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
        """Return an empty network with an explicit batch, which needs a flag before 10.0."""
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
        # A DLA computes in FP16 or INT8 only, so without FP16 every other layer would leave it.
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
                # Only layers that compute in floating point: shape arithmetic must stay in integers.
                if parts.computes[position] and layers[position].dtype in ("FLOAT", "HALF"):
                    layer: api.ILayer = network.get_layer(position)
                    layer.precision = self._trt.DataType.HALF


def cached_calibrator(trt: api.Trt, text: str) -> Any:
    """Return a calibrator that has all scales and feeds no images.

    NVIDIA documents the second entropy calibrator for a DLA.
    """

    class CachedCalibrator(trt.IInt8EntropyCalibrator2):  # type: ignore[misc]
        """Calibrator that reads a cache. It names its base because pybind11 does not follow ``super``."""

        def __init__(self) -> None:
            trt.IInt8EntropyCalibrator2.__init__(self)

        def get_batch_size(self) -> int:
            return 1

        def get_batch(self, names: Sequence[str]) -> None:
            """Return None: a tensor without a scale stays in higher precision."""

        def read_calibration_cache(self) -> bytes:
            return text.encode()

        def write_calibration_cache(self, cache: Any) -> None:
            """Discard TensorRT's cache: the scales are edgert's."""

    return CachedCalibrator()


class StrongDialect(Dialect):
    """TensorRT 11: types are those of the model. Flags, calibrators and layer precisions were removed in 11.0."""

    def set_parser(self, parser: api.OnnxParser, config: api.IBuilderConfig, request: BuildRequest) -> None:
        """Let the parser rewrite unsuited layers for a DLA; where all are on it, also refuse unsupported ones."""
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
    """TensorRT-RTX: strongly typed, for the GPUs of workstations; builds where there is none. No DLA.

    Kernels are chosen when the engine first runs, and cached by its runtime: nothing is timed while building.
    """

    def check(self, request: BuildRequest) -> None:
        super().check(request)
        if request.dla_core is not None:
            raise request.refusal(
                f"{self._library.title} supports no DLA", "it is for workstation GPUs", "build on the Jetson itself"
            )

    def set_target(self, config: api.IBuilderConfig, request: BuildRequest) -> None:
        """Set the requested GPUs; by default all since Ampere, TensorRT-RTX's own choice."""
        if not request.compute:
            return
        known = api.capabilities(self._trt)
        for each in request.compute:
            if each not in known:
                raise request.refusal(
                    f"{self._library.title} does not support compute capability {each}{nearest(each, known)}",
                    f"it supports {', '.join(known)}",
                )
        config.num_compute_capabilities = len(request.compute)
        for index, each in enumerate(request.compute):
            config.set_compute_capability(getattr(self._trt.ComputeCapability, known[each]), index)

    def set_parser(self, parser: api.OnnxParser, config: api.IBuilderConfig, request: BuildRequest) -> None:
        """Do nothing."""

    def set_timing_cache(self, config: api.IBuilderConfig, content: bytes) -> bool:
        """Return whether there is no cache: none can be used."""
        return not content

    def timing_cache(self, config: api.IBuilderConfig) -> bytes:
        return b""


def dialect_of(library: api.Library) -> Dialect:
    """Return the dialect of a TensorRT."""
    known = {"weak": WeakDialect, "strong": StrongDialect, "rtx": RtxDialect}
    return known[library.kind](library)
