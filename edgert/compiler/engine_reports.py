"""The compiled engines of a finished bundle: where nodes run and were planned to, how fast and how large they are."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edgert.backend.tensorrt.engine_cache import read_record
from edgert.bundle.bundle import Bundle
from edgert.bundle.manifest import EngineEntry


@dataclass(frozen=True, slots=True)
class Count:
    """Nodes of a model on one accelerator."""

    planned: int
    actual: int


@dataclass(frozen=True, slots=True)
class SlowLayer:
    """A layer of an engine; ``share`` is its part of the time of all layers."""

    name: str
    accelerator: str
    median_ms: float
    share: float
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class EngineReport:
    """One compiled engine of a bundle. What is not known is None or empty, as where it could not be run.

    Attributes:
        target: folder of the machine in the bundle.
        model: its name in the pipeline.
        number: of the model's engines on that machine, from 0.
        weight: its share of the frames, relative to the others.
        facts: what of the machine it depends on: module, TensorRT, power mode and the like.
        library: the TensorRT that made it.
        compile_s: how long that took.
        attempts: why it was tried otherwise than asked for; a line each.
        size_bytes: of the plan.
        median_ms: of a run, host to host; ``runs`` is of how many.
        relative_error: of its outputs, from the reference.
        input: how it takes its image and why, in words; empty where it has no DLA layers.
        source: where the places of nodes are known from: ``inspector``, ``log``, or empty.
        nodes: accelerator → nodes planned and found there; under ``folded`` those that became no layer.
        layers: TensorRT's, of them ``reformats`` that change a layout only.
        segments: DLA programs in it.
        context_bytes, tensor_bytes: memory of one execution context, and of one set of inputs and outputs.
        layer_times: those that were timed, slowest first.
    """

    target: str
    model: str
    number: int
    weight: int
    facts: Mapping[str, str]
    library: str
    compile_s: float
    attempts: tuple[str, ...]
    size_bytes: int
    median_ms: float | None
    runs: int
    relative_error: float | None
    input: str
    source: str
    nodes: Mapping[str, Count]
    layers: int
    reformats: int
    segments: int
    context_bytes: int | None
    tensor_bytes: int | None
    layer_times: tuple[SlowLayer, ...]


def compiled_engines(bundle: Bundle) -> tuple[EngineReport, ...]:
    """The engines of all machines, in the manifest's order; none where the bundle was not finished.

    Raises:
        ArtifactError: a member is damaged, or was written by another edgert.
    """
    return tuple(
        _report(bundle, target, dict(entry.facts), model, number, engine)
        for target, entry in bundle.manifest.compiled.items()
        for model, engines in entry.engines.items()
        for number, engine in enumerate(engines)
    )


def _report(
    bundle: Bundle, target: str, facts: Mapping[str, str], model: str, number: int, engine: EngineEntry
) -> EngineReport:
    record = read_record(bundle.read(engine.record), f"{bundle.path}: {engine.record}")
    checks: dict[str, Any] = json.loads(bundle.read(engine.checks))
    placement, profile, memory = checks["placement"], checks.get("profile", {}), checks.get("memory", {})
    return EngineReport(
        target=target,
        model=model,
        number=number,
        weight=engine.weight,
        facts=facts,
        library=record["result"]["library"],
        compile_s=record["result"]["seconds"],
        attempts=tuple(record["attempts"]),
        size_bytes=bundle.manifest.members[engine.plan].size_bytes,
        median_ms=profile.get("median_ms"),
        runs=profile.get("runs", 0),
        relative_error=checks.get("outputs", {}).get("relative_error"),
        input=checks.get("input", ""),
        source=placement["source"],
        nodes=_nodes(placement),
        layers=placement["layers"],
        reformats=placement["reformats"],
        segments=placement["loadables"],
        context_bytes=memory.get("context_bytes"),
        tensor_bytes=memory.get("tensor_bytes"),
        layer_times=_layer_times(checks.get("layers", ())),
    )


def _nodes(placement: Mapping[str, Any]) -> dict[str, Count]:
    counts = placement.get("nodes", {})
    return {name or "folded": Count(one["planned"], one["actual"]) for name, one in counts.items()}


def _layer_times(layers: Sequence[Mapping[str, Any]]) -> tuple[SlowLayer, ...]:
    total = sum(one["median_ms"] for one in layers) or 1.0
    slowest = sorted(layers, key=lambda one: -one["median_ms"])
    return tuple(
        SlowLayer(one["name"], one["accelerator"], one["median_ms"], one["median_ms"] / total, tuple(one["nodes"]))
        for one in slowest
    )
