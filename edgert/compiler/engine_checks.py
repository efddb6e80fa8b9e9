"""Checks of a compiled engine: placement of its nodes, outputs compared with the model's, times and memory.

TensorRT moves layers to the GPU without an error, so the place of each node is read from the engine itself.
"""

import hashlib
import json
import logging
import statistics
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any, Literal

from edgert.backend.base import Store, cache_content
from edgert.backend.ort import Function
from edgert.backend.tensorrt import engine_layers
from edgert.backend.tensorrt.build_process import BuildResult
from edgert.backend.tensorrt.build_request import GPU, BuildRequest
from edgert.backend.tensorrt.engine_cache import BuiltEngine
from edgert.backend.tensorrt.log import why_off_dla
from edgert.backend.tensorrt.network import correspond
from edgert.backend.tensorrt.trt_engine import TrtEngine
from edgert.compiler.build_target import COMPARED_IMAGES
from edgert.compiler.model_steps import distance, tolerance, uniform_feeds
from edgert.config import ModelConfig
from edgert.errors import BuildError, PlacementError
from edgert.graph import Model
from edgert.quantiles import quantiles_of
from edgert.steps import to_json

log = logging.getLogger("edgert.build")

Policy = Literal["strict", "warn"]
Source = Literal["inspector", "log", ""]
_SHOWN = 5


def check_placement(request: BuildRequest, result: BuildResult, policy: Policy = "strict") -> dict[str, Any]:
    """Compare planned and actual accelerators, node by node; return them as plain data.

    Args:
        request: request for the engine; the engine may be built from a relaxed one.
        result: built engine.
        policy: ``strict`` raises an error for differences, ``warn`` logs them.

    Raises:
        PlacementError: with ``strict``, nodes run elsewhere than planned, or their places are unknown.
        BuildError: the inspector's answer cannot be read.
    """
    facts = engine_layers.engine_facts(result.inspector) if result.inspector else None
    source: Source = "inspector"
    if facts is None or not facts.detailed:  # for an engine that cannot be opened, there is only the log's summary
        facts = engine_layers.logged_facts(result.log)
        source = "log" if facts.layers else ""
    found = engine_layers.accelerators(facts, request.nodes)
    dla = "dla" if request.dla_core is None else f"dla{request.dla_core}"
    planned = {name: request.placement.get(name, GPU) for name in request.nodes}
    actual = {name: found.get(name, "").replace("dla", dla) for name in request.nodes}  # "" became no layer
    why = _reasons(request, result)
    misplaced = [
        [name, planned[name], actual[name], why.get(name, "")]
        for name in request.nodes
        if actual[name] and actual[name] != planned[name]
    ]
    error = _placement_error(request, source, misplaced)
    if error is not None and policy == "strict":
        raise error
    if error is not None:
        log.warning("%s", error)
    before, after = Counter(planned.values()), Counter(actual.values())
    return {
        "source": source,
        "misplaced": misplaced,
        "layers": len(facts.layers),
        "reformats": facts.reformats,
        "loadables": facts.loadables,
        "nodes": {name: {"planned": before[name], "actual": after[name]} for name in sorted({*before, *after})},
    }


def _reasons(request: BuildRequest, result: BuildResult) -> Mapping[str, str]:
    """Return node → TensorRT's reason for its place. The log names layers, of which a node may have several."""
    found = dict(why_off_dla(result.log))
    parts = correspond(result.layers, request.nodes)
    for position, names in enumerate(parts.nodes_of):
        text = found.get(result.layers[position].name, "")
        for name in names if text else ():
            found.setdefault(name, text)
    for name in result.refused:
        found.setdefault(name, "TensorRT reports that it cannot run on a DLA")
    return found


def _placement_error(
    request: BuildRequest, source: Source, misplaced: Sequence[Sequence[str]]
) -> PlacementError | None:
    if request.dla_core is None:
        return None
    if not source:
        return PlacementError(
            f"cannot tell where the layers of {request.title} run",
            why="the engine could not be opened, and its build log has no summary",
            where=request.title,
            fix="build on the board itself",
        )
    if not misplaced:
        return None
    first, planned, actual, reason = misplaced[0]
    names = ", ".join(f"{node!r}" for node, *_ in misplaced[:_SHOWN]) + (" …" if len(misplaced) > _SHOWN else "")
    return PlacementError(
        f"{len(misplaced)} of {len(request.nodes)} nodes run elsewhere than planned: {names}",
        why=f"{first!r} runs on {actual}, not {planned}: {reason or 'TensorRT gives no reason'}",
        where=request.title,
        fix="place these nodes on the GPU, or accept it without --strict",
    )


ENGINE_TOLERANCE: Mapping[str, float] = {"fp32": 1e-2, "fp16": 2e-2, "int8": 0.7}
"""Precision → largest RMS difference of an engine's outputs from the reference's, relative to the reference's RMS. A
GPU computes float32 in TF32, whose 11 bits round by 2^-11 = 0.0005 in each layer: 0.005 after 100 layers, as
independent errors add up. FP16 and INT8: as in :data:`edgert.compiler.model_steps.TOLERANCE`."""
_WARM_UP, _RUNS = 3, 30


def compare_outputs(engine: TrtEngine, reference: Model, config: ModelConfig, precision: str) -> dict[str, Any]:
    """Compare an engine's outputs with those of ONNX Runtime for the equivalent model.

    Raises:
        BuildError: they differ by more than :data:`ENGINE_TOLERANCE`.
    """
    function = Function(reference, fused=False)
    names = [tensor.name for tensor in engine.outputs]
    expected, found = [], []
    with closing(engine.session()) as session:
        for feed in uniform_feeds(reference, config, COMPARED_IMAGES):
            for name, values in feed.items():
                session.inputs[name][...] = values
            expected.append(function(feed))
            found.append({name: array.copy() for name, array in zip(names, session.run(), strict=True)})
    apart = distance(expected, found)
    result = {"tolerance": tolerance(apart, ENGINE_TOLERANCE[precision], precision), **apart}
    error = result["relative_error"]
    if error is None or error > result["tolerance"]:
        raise BuildError(
            "the engine's outputs differ too much from the model's",
            why=f"relative error {'that is not finite' if error is None else f'{error:.2g}'} in {precision}, "
            f"at most {result['tolerance']:g} is accepted",
            fix="precision: fp16 or fp32 for this model, or quantize: {keep: …} names layers that stay in FP16",
        )
    return result


def time_runs(engine: TrtEngine) -> dict[str, Any]:
    """Return the time of a run, host to host, alone on the machine: milliseconds, number of runs, and quantiles."""
    with closing(engine.session()) as session:
        for _ in range(_WARM_UP):
            session.run()
        times = []
        for _ in range(_RUNS):
            started = time.perf_counter()
            session.run()
            times.append((time.perf_counter() - started) * 1e3)
    found = {"runs": _RUNS, "median_ms": statistics.median(times), "least_ms": min(times), "most_ms": max(times)}
    return {**found, "quantiles": list(quantiles_of(times))}


def time_layers(engine: TrtEngine, made: BuiltEngine) -> list[dict[str, Any]]:
    """Return the median time of each layer by TensorRT's profiler, and the nodes it was made from."""
    with closing(engine.session()) as session:
        times = engine_layers.layer_times(session, _RUNS)
    return engine_layers.times_with_nodes(times, made.engine_facts, made.request.nodes)


def memory_use(engine: TrtEngine, made: BuiltEngine) -> dict[str, int]:
    """Return the bytes of the plan (mostly weights), an execution context, and one set of inputs and outputs."""
    with closing(engine.session()) as session:
        tensors = [*session.inputs_on_gpu.values(), *session.outputs_on_gpu]
        tensor_bytes = sum(tensor.block.nbytes for tensor in tensors)
    return {"plan_bytes": len(made.result.plan), "context_bytes": engine.context_bytes, "tensor_bytes": tensor_bytes}


def summary(found: Mapping[str, Any]) -> str:
    """Return a summary in one line."""
    placement, outputs, profile = (found.get(name) for name in ("placement", "outputs", "profile"))
    parts = []
    if placement:
        misplaced = len(placement["misplaced"])
        parts.append(f"{misplaced} nodes elsewhere than planned" if misplaced else "placed as planned")
    if outputs:
        parts.append(f"relative error {outputs['relative_error']:.2g}")
    parts.append(f"{profile['median_ms']:.2f} ms" if profile else "not run: it cannot be opened here")
    return ", ".join(parts)


def cache_checks(store: Store, key: str, mode: str, found: Mapping[str, Any]) -> None:
    """Cache the checks of an engine for the power mode in which it was timed.

    If that fails, the engine is checked again at the next start.
    """
    cache_content(store, _checks_key(key, mode), to_json(found))


def cached_checks(store: Store, key: str, mode: str, *, ran: bool) -> Mapping[str, Any] | None:
    """Return the cached checks of an engine.

    Args:
        store: cache of engines.
        key: key of the engine.
        mode: power mode in which it was timed.
        ran: whether to return only checks with a run of the engine.
    """
    content = store.get(_checks_key(key, mode))
    found: Mapping[str, Any] | None = json.loads(content) if content is not None else None
    return None if found is not None and ran and "layers" not in found else found


def _checks_key(key: str, mode: str) -> str:
    return f"{key}-{hashlib.sha256(mode.encode()).hexdigest()[:8]}-checks"  # a mode's name may contain any characters
