"""Input of TensorRT: the Q/DQ form, or a calibration cache and the nodes that stay FP16, for the float model.

With TensorRT <= 10 a DLA takes no Q/DQ. The first line of a cache names the TensorRT and the algorithm. Each further
line has a tensor and its scale, amax / 127, as the eight hexadecimal digits of a float32, most significant first.

The number in the first line follows ``NV_TENSORRT_VERSION`` in NvInferRuntimeBase.h and NvInferVersion.h of the
releases. The name ends at the last colon, as trtexec reads the file (samples/common/sampleEngines.cpp in
NVIDIA/TensorRT).
"""

import math
import re
import struct
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

import numpy as np

from dla import Target as Dla
from edgert.errors import CalibrationError
from edgert.graph import Graph, Model, draft, read
from edgert.graph.model import Array
from edgert.quantization.calibration.ranges import RangeTable
from edgert.quantization.lowering.weights import LIMIT, Rounding, integer_weight, raw_output_names, store_dequantized
from edgert.quantization.scheme.scheme import scheme
from edgert.quantization.scheme.trt_scheme import fp16_exceptions, keeps_scale, layer_precisions
from edgert.quantization.scheme.units import Scheme, clip_behind, scale_groups, tensors_to_calibrate

Amax = Callable[[tuple[str, ...]], float]


def lower_trt(graph: Graph, scheme: Scheme, amax: Amax, rounded: Mapping[str, Array]) -> Graph:
    """Return the form for TensorRT: int8 with zero point 0, weights as int8 behind a DQ, biases in float.

    For arguments see :func:`edgert.quantization.lowering.lower.lower`.
    """
    builder = draft.Builder(graph)
    read: dict[tuple[str, str], str] = {}  # (node, tensor) → name under which the node reads the tensor
    weights: dict[tuple[str, int | None], str] = {}

    def round_tensor(raw: str, name: str) -> None:
        """Add Q and DQ of a tensor that has a point."""
        point = scheme.points.get(name)
        if point is not None:
            scale = np.float32(point.amax or amax(scheme.groups[name])) / np.float32(LIMIT)
            rounding = Rounding(scale, np.int8(0))
            stored = rounding.quantize(builder, raw, builder.name(f"{name}_quantized"), name)
            back = name if point.is_output else builder.name(f"{name}_dequantized")
            rounding.dequantize(builder, stored, back, name)
            read.update({(reader, name): back for reader in point.readers})

    for spec in graph.inputs:
        round_tensor(spec.name, spec.name)
    for node in graph.nodes:
        inputs = [read.get((node.name, name), name) for name in node.inputs]
        if node.name in scheme.weighted:
            found = integer_weight(graph, node, rounded)
            key = (node.inputs[1], found.axis)
            if key not in weights:
                weights[key] = store_dequantized(builder, found.values, found.scales, found.axis, node.inputs[1])
            inputs[1] = weights[key]
        outputs = raw_output_names(builder, scheme, node)
        builder.nodes.append(replace(node, inputs=tuple(inputs), outputs=outputs))
        for raw, name in zip(outputs, node.outputs, strict=True):
            round_tensor(raw, name)
    return builder.finish()


class DlaScales:
    """Scales of all tensors on a DLA by name, amax / 127 in float32, for the cache, the Q/DQ form and the emulation.

    A tensor that the Q/DQ form rounds has the scale it has there. That form leaves the others in FP16, but a
    calibration cache names them too. They get the scale of tensors with which they must share it, or one of their own.
    """

    def __init__(self, graph: Graph, scheme: Scheme, amax: Amax) -> None:
        self._scheme, self._amax = scheme, amax
        self._graph, self._groups = graph, dla_groups(graph)
        self._known: dict[str, np.float32] = {}

    def __getitem__(self, tensor: str) -> np.float32:
        """Return the scale of a tensor; raise what ``amax`` raises for one without a range."""
        if tensor not in self._known:
            group = self._groups.get(tensor, (tensor,))
            amax = self._rounded(tensor) or max(map(self._rounded, group))
            seen = tuple(name for name in group if clip_behind(self._graph, name) is None)
            self._known[tensor] = np.float32(amax or self._amax(seen or group)) / np.float32(LIMIT)
        return self._known[tensor]

    def _rounded(self, tensor: str) -> float:
        """Return the threshold of a tensor in the Q/DQ form; 0 where it is not rounded."""
        point, group = self._scheme.points.get(tensor), self._scheme.groups.get(tensor)
        if point is None or not (point.amax or group):
            return 0.0
        return point.amax or self._amax(group or ())


def dla_scales(graph: Graph, scheme: Scheme, amax: Amax) -> Mapping[str, float]:
    """Return the scales of all float32 tensors that depend on the inputs, by name, in order of execution.

    See :class:`DlaScales`.
    """
    scales = DlaScales(graph, scheme, amax)
    return {name: float(scales[name]) for name in tensors_to_calibrate(graph)}


def dla_groups(graph: Graph) -> Mapping[str, tuple[str, ...]]:
    """Return the tensors that must have the scale of each tensor on a DLA, itself included."""
    return scale_groups(graph, lambda node: not node.domain and keeps_scale(graph, node), tensors_to_calibrate(graph))


_ALGORITHM = "EntropyCalibration2"
"""Calibrator, as a cache names it, that the documentation of a DLA uses."""

_HEADER = re.compile(r"TRT-[0-9]{1,9}-\w+")
_DIGITS = re.compile(r"[0-9a-fA-F]{8}")
_UNWRITABLE = ("\n", "\r", "\0")


def write_cache(scales: Mapping[str, float], version: str) -> str:
    """Return the text of a cache, one line per tensor in the order given; scales are rounded to float32.

    ``version`` is that of the TensorRT that will read it, ``"8.6.2"``; others may refuse the cache. Raises
    CalibrationError: this TensorRT reads no caches, or is unknown. There are no scales, a scale is not positive and
    finite in float32, or a name is empty or has a line break.
    """
    if not scales:
        raise CalibrationError("the calibration cache has no scales", why="no tensor has one", fix="calibrate first")
    lines = [f"TRT-{version_number(version)}-{_ALGORITHM}"]
    for name, scale in scales.items():
        if not name or any(mark in name for mark in _UNWRITABLE):
            why = "a cache has one line per tensor, which begins with the name"
            raise CalibrationError(f"tensor {name!r} cannot be named in a cache", why=why, fix="rename it in the model")
        with np.errstate(over="ignore", under="ignore"):
            rounded = float(np.float32(scale))
        if not 0 < rounded < math.inf:
            why = f"it is {scale} and must be positive and finite in float32"
            raise CalibrationError(f"tensor {name!r} has no usable scale", why=why, fix="calibrate again")
        lines.append(f"{name}: {struct.pack('>f', rounded).hex()}")  # hex() of an integer would drop leading zeros
    return "\n".join([*lines, ""])


def parse_cache(text: str) -> dict[str, float]:
    """Return the scales in a cache by tensor, each exactly a float32; blank lines are ignored.

    Raises CalibrationError: the first line is not a header, a line is damaged, or names a tensor a second time.
    """
    lines = [line.removesuffix("\r") for line in text.split("\n")]  # a name may hold other line separators
    if _HEADER.fullmatch(lines[0].strip()) is None:
        why = f"the first line is {_shorten(lines[0])} and not like TRT-100300-EntropyCalibration2"
        raise CalibrationError("this is not a TensorRT calibration cache", why=why, where="line 1")
    scales: dict[str, float] = {}
    for number, line in enumerate(lines[1:], start=2):
        if line.strip():
            name, scale = _parse_entry(line, number)
            if name in scales:
                raise CalibrationError(f"a second scale for tensor {name!r}", where=f"line {number}")
            scales[name] = scale
    return scales


def cache_text(graph: Graph, scheme: Scheme, amax: Amax, version: str) -> str:
    """Return the text of the cache of a float model, with a scale for every float32 tensor that depends on an input.

    A DLA runs a region in INT8 only if all its tensors have scales, so tensors between nodes kept in FP16 have theirs,
    too. TensorRT finds the scales by name, so the network that is built must be this graph. Raises CalibrationError: a
    range is missing, or :func:`write_cache` raised it.
    """
    return write_cache(dla_scales(graph, scheme, amax), version)


def version_number(version: str) -> int:
    """Return the number in the header: 8600 for ``"8.6.0"``, 100300 for ``"10.3.0"``; a fourth part is ignored.

    Raises CalibrationError: there is no such version, or it has no calibration caches.
    """
    match = re.fullmatch(r"([0-9]{1,9})\.([0-9]{1,9})(?:\.([0-9]{1,9}))?(?:\.[0-9]{1,9})?", version)
    if match is None:
        raise CalibrationError(f"{version!r} is not a TensorRT version", fix='give the full version, like "10.3.0"')
    major, minor, patch = (int(part or 0) for part in match.groups())
    if major >= 11:
        raise CalibrationError(
            f"TensorRT {version} reads no calibration cache",
            why="calibrators were removed in 11.0: scales are in the model",
            fix="give it the Q/DQ form of the model",
        )
    if major == 9:
        raise CalibrationError(
            f"how TensorRT {version} writes its version into a cache is not known",
            why="no Jetson has TensorRT 9",
            fix="give the version that the device has (JetPack 5: 8.5.2, JetPack 6: 8.6.2 or 10.3.0)",
        )
    if not major or patch > 99 or minor > (99 if major == 10 else 9):
        raise CalibrationError(f"there is no TensorRT {version}", fix='give its release, like "10.3.0"')
    return major * (10_000 if major == 10 else 1_000) + minor * 100 + patch


def _parse_entry(line: str, number: int) -> tuple[str, float]:
    """Return the tensor and scale of a line.

    Raises CalibrationError: the line is damaged, or its scale is not positive and finite.
    """
    name, colon, digits = line.rpartition(": ")
    if not colon or not name or _DIGITS.fullmatch(digits.rstrip()) is None:
        why = f"{_shorten(line)} is not a name, a colon, a space and eight hexadecimal digits"
        raise CalibrationError("a line of the calibration cache is damaged", why=why, where=f"line {number}")
    (scale,) = struct.unpack(">f", bytes.fromhex(digits.rstrip()))
    if not 0 < scale < math.inf:
        why = f"{digits.rstrip()} is {scale}, and a scale is positive and finite"
        raise CalibrationError(f"tensor {name!r} has no usable scale", why=why, where=f"line {number}")
    return name, scale


def _shorten(line: str) -> str:
    return repr(line if len(line) <= 60 else f"{line[:60]}…")


@dataclass(frozen=True, slots=True)
class CacheForm:
    """Files that TensorRT <= 10 needs beside the float model.

    ``layer_precisions`` is trtexec's option for the nodes that stay FP16; empty where it cannot hold a name.
    """

    cache: str
    fp16: tuple[str, ...]
    layer_precisions: str


def lower_to_cache(model: Model, table: RangeTable, keep: Collection[str], dla: Dla) -> CacheForm:
    """Return the calibration cache of a float model, with the nodes that stay FP16.

    Raises CalibrationError: a range is missing, or :func:`write_cache` raised it.
    """
    graph = read(model)
    plan = scheme(graph, "dla", frozenset(keep), dla)
    fp16 = fp16_exceptions(graph, plan)
    try:
        text = layer_precisions(fp16)
    except CalibrationError:  # a name with a comma or the like, which only the command line cannot hold
        text = ""
    return CacheForm(cache_text(graph, plan, table.amax, dla.tensorrt), fp16, text)


def dla_int8_scales(graph: Graph, table: RangeTable, keep: Collection[str], dla: Dla) -> Mapping[str, float]:
    """Return the INT8 scales of all tensors on a DLA, by name."""
    return dla_scales(graph, scheme(graph, "dla", frozenset(keep), dla), table.amax)


def check_cache(cache: str, fp16: Collection[str], graph: Graph) -> str:
    """Return a line about a cache after checking that it names tensors and nodes of the graph only.

    Raises CalibrationError: the text is damaged, or names a tensor or node that the graph does not have.
    """
    scales = parse_cache(cache)
    known = graph.names
    nodes = {node.name for node in graph.nodes}
    for name in (*(set(scales) - known), *(set(fp16) - nodes)):
        raise CalibrationError(f"the calibration cache names {name!r}", why="the model has no such tensor or node")
    return f"{len(scales)} scales for TensorRT, {len(fp16)} nodes in FP16"
