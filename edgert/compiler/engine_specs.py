"""Requests to TensorRT for the engines of a bundle: form, precision, placement, scales, and image layout."""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgert.backend.base import DEFAULT_PROFILE, EngineOptions, Shapes
from edgert.backend.tensorrt.build_request import GPU, BuildRequest, Format, request_of
from edgert.backend.tensorrt.library import Library
from edgert.backend.tensorrt.trt_backend import Part, PlanKey, parts_of, precision_of, settings_of, static_request
from edgert.bundle.manifest import Manifest, ModelEntry, PlacedEngine, Placement
from edgert.config import InputConfig, ModelConfig
from edgert.config.engine_choice import TENSORRT_DLA
from edgert.errors import BuildError, PlacementError
from edgert.graph import Graph, Node, TensorSpec, load, read
from edgert.quantization.lowering.trt_form import parse_cache, write_cache

_QUANTIZE, _DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"
_RETYPES = ("Cast", _QUANTIZE)
_GPU_FORMS, _DLA_FORMS = ("gpu", "fp16", "float"), ("dla", "fp16", "float")
_DLA = "dla"
_PARTS = 100
"""Denominator to which shares of the frames are rounded."""
_HWC4_CHANNELS, _HWC4_GROUPS = (1, 3, 4), 4
_VECTORS = {"float16": "CHW16", "int8": "CHW32"}


@dataclass(frozen=True, slots=True)
class InputLayout:
    """Layout in which an engine with DLA layers takes its image.

    Attributes:
        tensor: name of the input; empty unless the model takes exactly one image.
        format: requested format; None: a plain one, which the GPU converts.
        why: line on the reason.
    """

    tensor: str
    format: Format | None
    why: str

    def describe(self, built: Mapping[str, Format]) -> str:
        """Return a line on the layout; ``built`` has the formats that TensorRT accepted."""
        name = f"input {self.tensor!r}" if self.tensor else "inputs"
        if self.format is None:
            return f"{name} plain: {self.why}"
        kind = f"{self.format.layout} {self.format.dtype}".rstrip()
        if self.tensor not in built:
            return f"{name} plain: TensorRT could not build it with {kind}"
        return f"{name} in {kind}: {self.why}"


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """One engine, as requested from TensorRT.

    Attributes:
        requests: requests for its plans by profile and number of rows, the main one first.
        profiles: named shapes for opening it; empty with one static shape.
        reference: file of an equivalent model that runs on any machine.
        weight: share of the frames, relative to the model's other engines.
        input: layout of the image, if a DLA reads it; else None.
    """

    requests: Mapping[PlanKey, BuildRequest]
    profiles: Mapping[str, Shapes]
    reference: Path
    weight: int = 1
    input: InputLayout | None = None

    @property
    def request(self) -> BuildRequest:
        """Request for its plan, or for the main one of several."""
        return next(iter(self.requests.values()))


@dataclass(frozen=True, slots=True)
class BundleModel:
    """One model of an unpacked bundle.

    Attributes:
        folder: folder with the bundle's members.
        manifest: manifest of the bundle.
        name: name of the model.
        config: section of the bundle's pipeline file.
    """

    folder: Path
    manifest: Manifest
    name: str
    config: ModelConfig

    @property
    def entry(self) -> ModelEntry:
        """Entry of the model in the manifest."""
        return self.manifest.models[self.name]

    def path(self, form: str) -> Path:
        """Return the file of one of its forms."""
        return self.folder / self.entry.forms[form]

    def text(self, kind: str) -> str:
        """Return the text of one of its files."""
        return (self.folder / self.entry.files[kind]).read_text(encoding="utf-8")

    @property
    def scales(self) -> Mapping[str, float]:
        """Tensor → value of one int8 step, from the bundle's calibration cache; empty without one."""
        return parse_cache(self.text("cache")) if "cache" in self.entry.files else {}

    @property
    def placement(self) -> Placement:
        """Placement by the planner."""
        has_file = "placement" in self.entry.files
        return Placement.model_validate_json(self.text("placement")) if has_file else Placement(engines=[])


def engine_specs(source: BundleModel, engine: str, library: Library) -> tuple[EngineSpec, ...]:
    """Return the engines of a model, those with most frames first.

    Args:
        source: model of the bundle.
        engine: ``tensorrt-dla`` for the bundle's placement, ``tensorrt`` for one engine on the GPU.
        library: TensorRT that will build them.

    Raises:
        PlacementError: no node of the model was placed on a DLA.
        BuildError: the bundle lacks scales for INT8 on a DLA, or the request is impossible.
    """
    if engine != TENSORRT_DLA:
        return (_gpu_spec(source, library, 1),)
    found = [one for one in source.placement.engines if one.share > 0]
    places = sorted({where for one in found for where in one.nodes.values()})
    if not any(where.startswith(_DLA) for where in places):
        on = f"it on {' and '.join(places)}" if places else "no engines"
        raise PlacementError(
            f"no node of model {source.name!r} was placed on a DLA",
            why=f"the bundle's placement for {source.manifest.board} has {on}",
            where=f"models.{source.name}",
            fix="write placement: dla; edgert inspect --dla shows which nodes a DLA can run, and why",
        )
    return tuple(_placed_spec(source, one, library) for one in found)


def _placed_spec(source: BundleModel, engine: PlacedEngine, library: Library) -> EngineSpec:
    """Return one engine of the placement; without DLA nodes it is built from the form for GPUs."""
    nodes = {name: where for name, where in engine.nodes.items() if where.startswith(_DLA)}
    weight = max(1, round(engine.share * _PARTS))
    if not nodes:
        return _gpu_spec(source, library, weight)
    if library.kind == "weak":
        return _make_spec(source, "float", library, nodes, _weak_settings(source, library), weight)
    form = next(form for form in _DLA_FORMS if form in source.entry.forms)
    return _make_spec(source, form, library, nodes, {}, weight)


def _gpu_spec(source: BundleModel, library: Library, weight: int) -> EngineSpec:
    """Return one engine for the GPU alone.

    For several sizes it is built from the float form with a precision flag, because the other forms have one size.
    """
    if source.placement.spans:
        return _make_spec(source, "float", library, {}, {"precision": source.entry.precision}, weight)
    form = next(form for form in _GPU_FORMS if form in source.entry.forms)
    return _make_spec(source, form, library, {}, {}, weight)


def _weak_settings(source: BundleModel, library: Library) -> dict[str, Any]:
    """Return further settings of a float model for TensorRT <= 10: a precision flag, and a cache for INT8."""
    if source.entry.precision != "int8":
        return {"precision": source.entry.precision}
    if "cache" not in source.entry.files:
        raise BuildError(
            f"model {source.name!r} has no scales for a DLA",
            why=f"{library.title} builds INT8 for a DLA from a calibration cache, and the bundle, made for TensorRT "
            f"{source.manifest.tensorrt}, has none",
            where=f"models.{source.name}",
            fix=f"build it again, with calibrate: in the pipeline file and --trt {library.version}",
        )
    cache = write_cache(source.scales, library.version)  # a release reads only its own caches
    return {
        "precision": "int8",
        "calibration": cache,
        "fp16_nodes": tuple(json.loads(source.text("fp16_nodes"))["nodes"]),
    }


def _make_spec(
    source: BundleModel, form: str, library: Library, nodes: Mapping[str, str], further: Mapping[str, Any], weight: int
) -> EngineSpec:
    model, builder = load(source.path(form)), source.config.tensorrt
    graph = read(model)
    places = sorted(set(nodes.values()))
    # The title appears in messages, and identifies the engine across builds of the bundle.
    title = f"{source.manifest.name}: {source.name}{f' on {places[0]}' if places else ''}"
    placement = extend_placement(graph, nodes)
    arguments = {"title": title, "placement": placement, **further}
    emulated = "dla" if "calibration" in further and "dla" in source.entry.forms else form
    reference = source.path(emulated)
    if all(spec.is_static for spec in graph.inputs):
        layout = None
        if nodes:
            layout = input_layout(
                graph,
                source.config.input,
                placement,
                typed=library.kind != "weak",
                precision=further.get("precision", ""),
                fp16_nodes=further.get("fp16_nodes", ()),
                scales=source.scales,
            )
        if layout is not None and layout.format is not None:
            arguments["formats"] = {layout.tensor: layout.format}
        arguments |= settings_of(builder, placement)
        request = request_of(model, **{"precision": precision_of(graph, "fp32"), **arguments})
        return EngineSpec({(DEFAULT_PROFILE, 0): request}, {}, reference, weight, layout)
    # Shapes of ``input: shape`` that the bundle keeps dynamic.
    spans = source.placement.spans
    usual = {DEFAULT_PROFILE: {name: span.usual for name, span in spans.items()}} if spans else {}
    options = EngineOptions(profiles=source.config.profiles or usual, spans=spans, builder=builder)
    requests = dict[PlanKey, BuildRequest]()
    for part in parts_of(model, options) if library.kind == "rtx" else (Part(options),):
        named = {**arguments, "title": title + part.title.removeprefix(str(model.path))}
        requests[part.key] = static_request(model, part.options, part.rows, **named)
    return EngineSpec(requests, options.profiles, reference, weight)


def extend_placement(graph: Graph, nodes: Mapping[str, str]) -> dict[str, str]:
    """Return the placement of a float model's nodes for a form of it, extended to the form's Q/DQ nodes.

    A Q is placed with the node whose output it rounds, or at an input of the model with its readers. A DQ is placed
    with its readers if all are on one accelerator. Nodes that the form does not have are left out.
    """
    found = {node.name: nodes[node.name] for node in graph.nodes if node.name in nodes}
    for node in reversed(graph.nodes):
        if node.op == _DEQUANTIZE and node.name not in found:
            _place_with(found, node.name, [reader.name for reader in graph.consumers.get(node.outputs[0], ())])
    for node in graph.nodes:
        if node.op == _QUANTIZE and node.name not in found:
            maker = graph.producers.get(node.inputs[0])
            readers = [reader.name for reader in graph.consumers.get(node.outputs[0], ())]
            _place_with(found, node.name, [maker.name] if maker is not None else readers)
    return found


def _place_with(found: dict[str, str], name: str, others: list[str]) -> None:
    places = {found.get(other, "") for other in others}
    if len(places) == 1 and "" not in places:
        found[name] = places.pop()


# Layout of an engine's image: where possible, a layout of the DLA.
#
# A kernel on the GPU converts any other input to a DLA's layout for every frame
# (https://github.com/NVIDIA/Deep-Learning-Accelerator-SW, FAQ). The kernel that prepares images can write a DLA's
# layout as fast as a plain one. Layouts of a DLA:
# https://docs.nvidia.com/deeplearning/tensorrt/11.4.1/inference-library/dla-runtime-configuration.html


def input_layout(
    graph: Graph,
    config: InputConfig,
    placement: Mapping[str, str],
    *,
    typed: bool,
    precision: str,
    fp16_nodes: Collection[str] = (),
    scales: Mapping[str, float],
) -> InputLayout:
    """Return the layout for the image of an engine with DLA layers.

    Args:
        graph: graph of the model that is compiled.
        config: preprocessing of images.
        placement: node → accelerator; other nodes run on the GPU.
        typed: whether the model has its types, as for TensorRT >= 11, so that only a layout can be requested.
        precision: precision in which a weakly typed TensorRT computes.
        fp16_nodes: nodes that stay float16 in a weakly typed TensorRT.
        scales: tensor → value of one int8 step, for a weakly typed TensorRT.
    """
    if len(graph.inputs) != 1 or len(graph.inputs[0].shape) != 4:
        return InputLayout("", None, "the model takes something else than one image")
    (image,) = graph.inputs
    readers = graph.consumers.get(image.name, ())
    types = {"int8" if precision == "int8" and one.name not in fp16_nodes else "float16" for one in readers}
    dtype = image.dtype if typed else types.pop() if len(types) == 1 else ""  # a DLA has no float32
    why = _why_plain(image, config, readers, placement) or _why_wrong_type(image, readers, dtype, typed, scales)
    if why:
        return InputLayout(image.name, None, why)
    first = readers[0]
    reads = f"{first.name!r} on the DLA reads it, and no kernel of the GPU changes it"
    if (
        len(readers) == 1
        and first.op == "Conv"
        and first.attributes.get("group", 1) <= _HWC4_GROUPS
        and image.shape[1] in _HWC4_CHANNELS
    ):  # one convolution, whose precision is the input's
        layout, reason = "DLA_HWC4", f"convolution {reads}"
    else:
        layout, reason = _VECTORS[dtype], f"node {reads}"
    requested = "" if typed else dtype
    scale = scales[image.name] if requested == "int8" else 0.0
    return InputLayout(image.name, Format(layout, requested, scale, optional=True), reason)


def _why_plain(image: TensorSpec, config: InputConfig, readers: tuple[Node, ...], where: Mapping[str, str]) -> str:
    """Return why a DLA's layout would not help or cannot be written; empty if it helps."""
    on_gpu = [reader.name for reader in readers if where.get(reader.name, GPU) == GPU]
    if on_gpu or not readers:
        return f"node {on_gpu[0]!r}, which reads it, runs on the GPU" if on_gpu else "no node reads it"
    channels = 1 if config.color == "gray" else 3
    if config.layout == "nhwc" or image.shape[1] != channels:
        return f"it is {list(image.shape)}, not (N, {channels}, H, W)"
    return ""


def _why_wrong_type(
    image: TensorSpec, readers: tuple[Node, ...], dtype: str, typed: bool, scales: Mapping[str, float]
) -> str:
    """Return why the image cannot have a type that a DLA reads; empty if it can."""
    if typed:
        changed = [reader for reader in readers if reader.op in _RETYPES]
        if dtype not in _VECTORS:
            return f"types are in the model, whose input is {dtype}, and a DLA reads float16 and int8"
        return f"node {changed[0].name!r} changes its type first" if changed else ""
    if image.dtype != "float32" and image.dtype != dtype:
        return f"the model takes {image.dtype}, and a DLA reads float16 and int8"
    if not dtype:
        return "some nodes that read it compute in int8, others in float16"
    if dtype == "int8" and image.name not in scales:
        return "it has no scale for int8"
    return ""
