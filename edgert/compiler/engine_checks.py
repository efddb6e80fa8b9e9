"""A compiled engine held against its plan and against the model it was made of, and timed."""

from __future__ import annotations

import json
import logging
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgert.compiler.model_job import COMPARED_IMAGES
from edgert.compiler.model_steps import uniform_feeds
from edgert.compiler.verification import Policy, Verification, distance, verify
from edgert.config import ModelConfig
from edgert.errors import ArtifactError, BuildError
from edgert.steps import to_json

if TYPE_CHECKING:
    from edgert.backend.base import Array, Session, Store
    from edgert.backend.tensorrt.build_request import BuildRequest
    from edgert.backend.tensorrt.engine_cache import BuiltEngine
    from edgert.backend.tensorrt.trt_engine import TrtEngine
    from edgert.graph import Model

log = logging.getLogger("edgert.build")
EngineChecks = Mapping[str, Any]
"""What was found of an engine, as plain data: ``placement``, ``input`` where a DLA is in it, and where it could be
run ``outputs``, ``profile``, ``layers`` and ``memory``."""
TOLERANCE: Mapping[str, float] = {"fp32": 1e-2, "fp16": 2e-2, "int8": 0.7}
"""Precision → how far an engine's outputs may be from the reference's: root of the mean squared difference over that
of the reference. A GPU computes float32 in TF32, whose 11 bits round by 2^-11 = 0.0005 in each layer: 0.005 after 100
layers, as errors that know nothing of each other add up. FP16 and INT8: as in :mod:`edgert.compiler.verification`."""
_WARM_UP, _RUNS = 3, 30


def placed(asked: BuildRequest, made: BuiltEngine, policy: Policy) -> dict[str, Any]:
    """Where nodes run, against what was asked for, which the engine may have been built without after a failure.

    Raises:
        PlacementError: they run elsewhere, or nobody can tell, and the policy is ``strict``.
    """
    found = verify(asked, made.result, policy)
    return {
        "source": found.source,
        "moved": [[one.node, one.planned, one.actual, one.reason] for one in found.moved],
        "layers": len(found.facts.layers),
        "reformats": found.facts.reformats,
        "loadables": found.facts.loadables,
        "nodes": _counted(found),
    }


def _counted(found: Verification) -> dict[str, dict[str, int]]:
    """Accelerator → how many nodes were to run there, and how many do; ``""`` has those that became no layer."""
    planned, actual = Counter(one.planned for one in found.nodes), Counter(one.actual for one in found.nodes)
    return {name: {"planned": planned[name], "actual": actual[name]} for name in sorted({*planned, *actual})}


def compared(engine: TrtEngine, reference: Model, config: ModelConfig, precision: str) -> dict[str, Any]:
    """An engine's outputs against those of ONNX Runtime for the model that computes the same, Q/DQ as ONNX says.

    Raises:
        BuildError: they are further apart than :data:`TOLERANCE`.
    """
    from edgert.backend.ort import Function

    function = Function(reference, fused=False)
    names = [tensor.name for tensor in engine.outputs]
    wanted, found = [], []
    with closing(engine.session()) as session:
        for feed in uniform_feeds(reference, config, COMPARED_IMAGES):
            wanted.append(function(feed))
            found.append(dict(zip(names, _outputs(session, feed), strict=True)))
    told = {"tolerance": TOLERANCE[precision], **distance(wanted, found)}
    error = told["relative_error"]
    if error is None or error > TOLERANCE[precision]:
        raise BuildError(
            "the engine does not compute what the model does",
            why=f"relative error {'that is not finite' if error is None else f'{error:.2g}'} in {precision}, "
            f"at most {TOLERANCE[precision]:g} is accepted",
            fix="precision: fp16 or fp32 for this model, or quantize: {keep: …} names layers that stay in FP16",
        )
    return told


def timed(engine: TrtEngine) -> dict[str, Any]:
    """How long a run takes, host to host, alone on the machine: milliseconds, of so many runs."""
    with closing(engine.session()) as session:
        for _ in range(_WARM_UP):
            session.run()
        times = sorted(_run_ms(session) for _ in range(_RUNS))
    return {"runs": _RUNS, "median_ms": statistics.median(times), "least_ms": times[0], "most_ms": times[-1]}


def layered(engine: TrtEngine, made: BuiltEngine) -> list[dict[str, Any]]:
    """How long each layer takes, by TensorRT's profiler, and which nodes it is of: medians of so many runs."""
    from edgert.backend.tensorrt.engine_layers import layer_times, mapped

    with closing(engine.session()) as session:
        times = layer_times(session, _RUNS)
    return [asdict(one) for one in mapped(times, made.engine_facts, made.request.nodes)]


def occupied(engine: TrtEngine, made: BuiltEngine) -> dict[str, int]:
    """Bytes: of the plan, which is mostly weights, of one execution context, and of one set of inputs and outputs."""
    with closing(engine.session()) as session:
        tensors = [*session.inputs_on_gpu.values(), *session.outputs_on_gpu]
        tensor_bytes = sum(tensor.block.nbytes for tensor in tensors)
    return {
        "plan_bytes": len(made.result.plan),
        "context_bytes": engine.context_bytes,
        "tensor_bytes": tensor_bytes,
    }


def _run_ms(session: Session) -> float:
    started = time.perf_counter()
    session.run()
    return (time.perf_counter() - started) * 1e3


def _outputs(session: Session, feed: Mapping[str, Array]) -> list[Array]:
    for name, values in feed.items():
        session.inputs[name][...] = values
    return [array.copy() for array in session.run()]


def in_words(found: EngineChecks) -> str:
    """One line for people."""
    placement, outputs, profile = (found.get(name) for name in ("placement", "outputs", "profile"))
    told = []
    if placement:
        moved = len(placement["moved"])
        told.append(f"{moved} nodes elsewhere than planned" if moved else "placed as planned")
    if outputs:
        told.append(f"relative error {outputs['relative_error']:.2g}")
    told.append(f"{profile['median_ms']:.2f} ms" if profile else "not run: it cannot be opened here")
    return ", ".join(told)


def keep(store: Store, key: str, found: EngineChecks) -> None:
    """Caches what was checked of an engine beside it. One that cannot be kept is made again at the next start."""
    try:
        with tempfile.TemporaryDirectory(prefix="edgert-") as folder:
            path = Path(folder) / "checks"
            path.write_bytes(to_json(found))
            store.put(_key(key), path)
    except (ArtifactError, OSError) as error:
        log.warning("%s", error)


def kept(store: Store, key: str, *, ran: bool) -> EngineChecks | None:
    """The cached checks of an engine.

    Args:
        ran: whether one counts only if the engine was run for it, its layers timed.
    """
    path = store.get(_key(key))
    found: EngineChecks | None = json.loads(path.read_bytes()) if path is not None else None
    return None if found is not None and ran and "layers" not in found else found


def _key(key: str) -> str:
    return f"{key}-checks"
