"""What a bundle asks of TensorRT: for each engine of a model the form, precision, placement and scales it takes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgert.bundle.manifest import Manifest, ModelEntry
from edgert.config import ModelConfig
from edgert.config.engine_choice import TENSORRT_DLA
from edgert.errors import BuildError, PlacementError

if TYPE_CHECKING:
    from edgert.backend.base import Shapes, Span
    from edgert.backend.tensorrt.build_request import BuildRequest
    from edgert.backend.tensorrt.library import Library
    from edgert.compiler.input_layout import InputLayout
    from edgert.graph import Graph

_QUANTIZE, _DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"
_GPU_FORMS = ("gpu", "fp16", "float")
_DLA = "dla"
_PARTS = 100
"""Shares of the frames are rounded to hundredths."""


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """One engine, as TensorRT is asked for it.

    Attributes:
        request: what is compiled.
        profiles: named shapes it is opened with; empty where there is one static shape.
        reference: file of the model that computes the same, for any machine.
        weight: its share of the frames, relative to the model's other engines.
        input: how it takes its image, where a DLA is to read it.
    """

    request: BuildRequest
    profiles: Mapping[str, Shapes]
    reference: Path
    weight: int = 1
    input: InputLayout | None = None


@dataclass(frozen=True, slots=True)
class BundleModel:
    """One model of an unpacked bundle.

    Attributes:
        folder: where the bundle's members are.
        manifest: of the bundle.
        name: of the model.
        config: its section in the bundle's pipeline file.
    """

    folder: Path
    manifest: Manifest
    name: str
    config: ModelConfig

    @property
    def entry(self) -> ModelEntry:
        """Its part of the manifest."""
        return self.manifest.models[self.name]

    def path(self, form: str) -> Path:
        """The file of one of its forms."""
        return self.folder / self.entry.forms[form]

    def text(self, kind: str) -> str:
        """One of its files."""
        return (self.folder / self.entry.files[kind]).read_text(encoding="utf-8")


def engine_specs(source: BundleModel, engine: str, library: Library) -> tuple[EngineSpec, ...]:
    """The engines of a model, those with most frames first.

    Args:
        engine: ``tensorrt-dla`` for the placement that the bundle has, ``tensorrt`` for one engine on the GPU.
        library: the TensorRT that is to build them.

    Raises:
        PlacementError: nothing of the model was placed on a DLA.
        BuildError: INT8 on a DLA, and the bundle has no scales; or what is asked for cannot be.
    """
    if engine != TENSORRT_DLA:
        return (_on_gpu(source, library, 1),)
    found = [one for one in _engines(source) if one["share"] > 0]
    if not any(where.startswith(_DLA) for one in found for where in one["nodes"].values()):
        raise PlacementError(
            f"nothing of model {source.name!r} was placed on a DLA",
            why=f"the bundle's placement for {source.manifest.board} has {_where(found)}",
            where=f"models.{source.name}",
            fix="placement: dla asks for it; edgert inspect shows why each node can or cannot",
        )
    return tuple(_placed(source, one, library) for one in found)


def _engines(source: BundleModel) -> list[dict[str, Any]]:
    if "placement" not in source.entry.files:
        return []
    engines: list[dict[str, Any]] = json.loads(source.text("placement"))["engines"]
    return engines


def _where(engines: list[dict[str, Any]]) -> str:
    names = sorted({where for one in engines for where in one["nodes"].values()})
    return f"it on {' and '.join(names)}" if names else "no engines"


def _on_gpu(source: BundleModel, library: Library, weight: int) -> EngineSpec:
    """One engine for the GPU alone. For several sizes that is the float form, whose precision a flag sets: the
    other forms have one size."""
    if _spans(source):
        return _spec(source, "float", library, {}, {"precision": source.entry.precision}, weight)
    form = next(form for form in _GPU_FORMS if form in source.entry.forms)
    return _spec(source, form, library, {}, {}, weight)


def _spans(source: BundleModel) -> dict[str, Span]:
    """Input → the shapes that ``input: shape`` of the pipeline named, where the bundle keeps them open."""
    from edgert.backend.base import Span

    if "placement" not in source.entry.files:
        return {}
    spans: dict[str, dict[str, list[int]]] = json.loads(source.text("placement")).get("spans", {})
    return {name: Span(*(tuple(one[key]) for key in ("least", "usual", "most"))) for name, one in spans.items()}


def _placed(source: BundleModel, engine: Mapping[str, Any], library: Library) -> EngineSpec:
    """One engine of the placement. On the GPU alone it is built from the form for GPUs."""
    nodes = {name: where for name, where in engine["nodes"].items() if where.startswith(_DLA)}
    weight = max(1, round(engine["share"] * _PARTS))
    if not nodes:
        return _on_gpu(source, library, weight)
    if library.kind == "weak":
        return _spec(source, "float", library, nodes, _weak(source, library), weight)
    form = next(form for form in ("dla", "fp16", "float") if form in source.entry.forms)
    return _spec(source, form, library, nodes, {}, weight)


def _weak(source: BundleModel, library: Library) -> dict[str, Any]:
    """What TensorRT <= 10 takes besides a float model: precision by flag, INT8 by cache."""
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
    from edgert.quantization.lowering.trt_cache import write_cache

    cache = write_cache(_scales(source), library.version)  # it reads only caches of its own release
    return {
        "precision": "int8",
        "calibration": cache,
        "fp16_nodes": tuple(json.loads(source.text("fp16_nodes"))["nodes"]),
    }


def _scales(source: BundleModel) -> Mapping[str, float]:
    """Tensor → what one step of int8 is worth; of those that the bundle's calibration cache knows."""
    from edgert.quantization.lowering.trt_cache import parse_cache

    return parse_cache(source.text("cache")).scales if "cache" in source.entry.files else {}


def _input(
    source: BundleModel, graph: Graph, library: Library, placement: Mapping[str, str], further: Mapping[str, Any]
) -> InputLayout:
    from edgert.compiler.input_layout import input_layout

    return input_layout(
        graph,
        source.config.input,
        placement,
        typed=library.kind != "weak",
        precision=further.get("precision", ""),
        fp16_nodes=further.get("fp16_nodes", ()),
        scales=_scales(source),
    )


def _spec(
    source: BundleModel, form: str, library: Library, nodes: Mapping[str, str], further: Mapping[str, Any], weight: int
) -> EngineSpec:
    from edgert.backend.base import DEFAULT_PROFILE, EngineOptions
    from edgert.backend.tensorrt.build_request import request_of
    from edgert.backend.tensorrt.trt_backend import precision_of, settings_of, static_request
    from edgert.engine import builder_settings
    from edgert.graph import load, read

    model, builder = load(source.path(form)), builder_settings(source.config)
    graph = read(model)
    arguments = {"title": _title(source, nodes), "placement": spread(graph, nodes), **further}
    emulated = "dla" if "calibration" in further and "dla" in source.entry.forms else form
    reference = source.path(emulated)
    if all(spec.is_static for spec in graph.inputs):
        layout = _input(source, graph, library, arguments["placement"], further) if nodes else None
        if layout is not None and layout.format is not None:
            arguments["formats"] = {layout.tensor: layout.format}
        arguments |= settings_of(builder, arguments["placement"])
        request = request_of(model, **{"precision": precision_of(graph, "fp32"), **arguments})
        return EngineSpec(request, {}, reference, weight, layout)
    spans = _spans(source)
    usual = {DEFAULT_PROFILE: {name: span.usual for name, span in spans.items()}} if spans else {}
    options = EngineOptions(profiles=source.config.profiles or usual, spans=spans, builder=builder)
    return EngineSpec(static_request(model, options, **arguments), options.profiles, reference, weight)


def _title(source: BundleModel, nodes: Mapping[str, str]) -> str:
    """What the engine is called in messages, and known by from one bundle to the next."""
    places = sorted(set(nodes.values()))
    return f"{source.manifest.name}: {source.name}{f' on {places[0]}' if places else ''}"


def spread(graph: Graph, nodes: Mapping[str, str]) -> dict[str, str]:
    """A placement of a float model's nodes for a form of it, in which Q/DQ nodes stand between them.

    A Q belongs to the node whose output it rounds, and at an input of the model to its readers; a DQ belongs to its
    readers, if all are in one place. Nodes that the form does not have are left out.
    """
    found = {node.name: nodes[node.name] for node in graph.nodes if node.name in nodes}
    for node in reversed(graph.nodes):
        if node.op == _DEQUANTIZE and node.name not in found:
            _follow(found, node.name, [reader.name for reader in graph.consumers.get(node.outputs[0], ())])
    for node in graph.nodes:
        if node.op == _QUANTIZE and node.name not in found:
            maker = graph.producers.get(node.inputs[0])
            readers = [reader.name for reader in graph.consumers.get(node.outputs[0], ())]
            _follow(found, node.name, [maker.name] if maker is not None else readers)
    return found


def _follow(found: dict[str, str], name: str, others: list[str]) -> None:
    places = {found.get(other, "") for other in others}
    if len(places) == 1 and "" not in places:
        found[name] = places.pop()
