"""A built engine held against its plan: TensorRT moves layers to the GPU without an error, so it is looked up."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from edgert.backend.tensorrt.build_request import GPU, BuildRequest
from edgert.backend.tensorrt.build_result import BuildResult
from edgert.backend.tensorrt.engine_layers import EngineFacts, accelerators, engine_facts, logged_facts
from edgert.backend.tensorrt.log import reasons
from edgert.backend.tensorrt.network import correspond
from edgert.compiler.model_job import COMPARED_IMAGES, MODEL, ModelJob, software
from edgert.compiler.model_steps import NEGLIGIBLE, random_feeds
from edgert.compiler.precision_steps import EVIDENCE
from edgert.errors import BuildError, PlacementError
from edgert.steps import Product, Report, Step, to_json

if TYPE_CHECKING:
    from edgert.backend.base import Array


log = logging.getLogger("edgert.steps")

Policy = Literal["strict", "warn"]
_SHOWN = 5


@dataclass(frozen=True, slots=True)
class NodePlacement:
    """Where one node was to run and where it does.

    Attributes:
        node: its name.
        planned: ``gpu``, ``dla0`` or ``dla1``.
        actual: the same; empty where it became no layer, as what is folded or does nothing.
        reason: what TensorRT's log says about it, where the two differ.
    """

    node: str
    planned: str
    actual: str
    reason: str = ""

    @property
    def moved(self) -> bool:
        """Whether it runs elsewhere than planned."""
        return bool(self.actual) and self.actual != self.planned


@dataclass(frozen=True, slots=True)
class Verification:
    """An engine against its plan.

    Attributes:
        nodes: every node, in the order they run.
        facts: what the engine's layers are.
        source: who told: ``inspector``, ``log``, or empty where nobody did.
    """

    nodes: tuple[NodePlacement, ...]
    facts: EngineFacts
    source: Literal["inspector", "log", ""]

    @property
    def moved(self) -> tuple[NodePlacement, ...]:
        """The nodes that run elsewhere than planned."""
        return tuple(node for node in self.nodes if node.moved)


def verify(request: BuildRequest, result: BuildResult, policy: Policy = "strict") -> Verification:
    """Compares planned and actual accelerators, node by node.

    Args:
        policy: ``warn`` logs what differs.

    Raises:
        PlacementError: with ``strict``, nodes run elsewhere than planned, or nobody can tell; names them and says why.
        BuildError: the inspector's answer cannot be read.
    """
    facts, source = _facts(result)
    found = _standings(request, result, facts)
    verification = Verification(found, facts, source)
    trouble = _trouble(request, verification)
    if trouble is not None and policy == "strict":
        raise trouble
    if trouble is not None:
        log.warning("%s", trouble)
    return verification


def _facts(result: BuildResult) -> tuple[EngineFacts, Literal["inspector", "log", ""]]:
    """The inspector knows best; an engine that could not be opened has left a summary in the log."""
    if result.inspector:
        facts = engine_facts(result.inspector)
        if facts.detailed:
            return facts, "inspector"
    logged = logged_facts(result.log)
    return logged, "log" if logged.layers else ""


def _standings(request: BuildRequest, result: BuildResult, facts: EngineFacts) -> tuple[NodePlacement, ...]:
    actual = accelerators(facts, request.nodes)
    core = "" if request.dla_core is None else str(request.dla_core)
    told = _reasons(request, result)
    nodes = []
    for name in request.nodes:
        where = f"dla{core}" if actual.get(name) == "dla" else actual.get(name, "")
        standing = NodePlacement(name, request.placement.get(name, GPU), where)
        nodes.append(NodePlacement(name, standing.planned, where, told.get(name, "")) if standing.moved else standing)
    return tuple(nodes)


def _reasons(request: BuildRequest, result: BuildResult) -> Mapping[str, str]:
    """Node → why; the log names layers, of which a node may have several."""
    told = dict(reasons(result.log))
    parts = correspond(result.layers, request.nodes)
    for position, names in enumerate(parts.nodes_of):
        text = told.get(result.layers[position].name, "")
        for name in names if text else ():
            told.setdefault(name, text)
    for name in result.refused:
        told.setdefault(name, "TensorRT says that it cannot run on a DLA")
    return told


def _trouble(request: BuildRequest, verification: Verification) -> PlacementError | None:
    if request.dla_core is None:
        return None
    if not verification.source:
        return PlacementError(
            f"nobody can tell where the layers of {request.title} run",
            why="the engine could not be opened, and its build log has no summary",
            where=request.title,
            fix="build on the board itself",
        )
    moved = verification.moved
    if not moved:
        return None
    first = moved[0]
    names = ", ".join(f"{node.node!r}" for node in moved[:_SHOWN]) + (" …" if len(moved) > _SHOWN else "")
    return PlacementError(
        f"{len(moved)} of {len(verification.nodes)} nodes run elsewhere than planned: {names}",
        why=f"{first.node!r} runs on {first.actual}, not {first.planned}: {first.reason or 'no reason is told'}",
        where=request.title,
        fix="place these nodes on the GPU, or accept it without --strict",
    )


# The step that runs every form beside the reference, and holds it to a stated tolerance.

TOLERANCE: Mapping[str, float] = {"float": 1e-3, "fp16": 2e-2, "ort": 0.7, "gpu": 0.7, "dla": 0.7}
"""Form → how far its outputs may be from the reference: the root of the mean squared difference over that of the
reference, over all outputs and images. Of INT8 no more is asked than that the noise has half the power of the signal
(3 dB): YOLOX-nano for the DLA, calibrated on 16 photos, has 0.43, while outputs that have nothing to do with the
reference have 1.0 and more. It is a check of the build, not of accuracy, which ``accuracy:`` holds to labels."""


def verify_step(job: ModelJob, shaped: Product, forms: Mapping[str, Product], judged: bool) -> Step:
    """Promises outputs within :data:`TOLERANCE` of the reference, the model as it was before any rewriting.

    Args:
        shaped: the reference.
        forms: who is to run it → the form.
        judged: whether labels decide instead; then what is beyond the tolerance is only told.
    """
    parts = {name: form.digest for name, form in forms.items()}
    facts = [shaped.digest, parts, job.images_digest, job.seen(), dict(TOLERANCE), judged, software()]

    def make(report: Report) -> Mapping[str, bytes]:
        feeds = list(_feeds(job, shaped.files[MODEL]))
        wanted = _outputs(job, shaped.files[MODEL], feeds, fused=True)
        found = {}
        for name, form in forms.items():
            fused = name in ("float", "fp16", "ort")  # TensorRT's forms: every Q/DQ pair as the standard says
            made = _outputs(job, form.files[MODEL], feeds, fused)
            found[name] = {"tolerance": TOLERANCE[name], **distance(wanted, made)}
        return {EVIDENCE: to_json({"images": len(feeds), "forms": found})}

    def promise(files: Mapping[str, bytes]) -> str:
        told = []
        for name, row in Product(files).json(EVIDENCE)["forms"].items():
            error = row["relative_error"]
            if not judged and (error is None or error > TOLERANCE[name]):
                raise _too_far(job, name, error)
            told.append(f"{name} {error:.2g}" if error is not None else f"{name} not finite")
        return "relative error " + ", ".join(told)

    return Step("verify", job.name, 1, facts, make, promise)


def _feeds(job: ModelJob, reference: bytes) -> Iterator[Mapping[str, Array]]:
    """A few images as the pipeline would feed them; numbers for a model that takes something else."""
    from edgert.dataset import feed_of
    from edgert.graph import inputs

    model = job.model(reference)
    specs = inputs(model)
    if len(specs) != 1 or len(specs[0].shape) != 4:
        yield from random_feeds(job, reference, COMPARED_IMAGES)
        return
    feed = feed_of(job.images, model, job.config)
    for index in range(min(COMPARED_IMAGES, len(feed))):
        yield feed.feeds(index)


def _outputs(
    job: ModelJob, content: bytes, feeds: Sequence[Mapping[str, Array]], fused: bool
) -> list[Mapping[str, Array]]:
    from edgert.backend.ort import Function

    function = Function(job.model(content), fused=fused)
    return [function(feed) for feed in feeds]


def distance(wanted: Sequence[Mapping[str, Array]], made: Sequence[Mapping[str, Array]]) -> dict[str, Any]:
    """Relative error over everything and output by output; None where numbers are not finite or shapes differ."""
    sums = {
        name: [_sums(one[name], other.get(name)) for one, other in zip(wanted, made, strict=True)] for name in wanted[0]
    }
    outputs = {name: _relative([sum(part) for part in zip(*pairs, strict=True)]) for name, pairs in sums.items()}
    everything = [sum(part) for part in zip(*(pair for pairs in sums.values() for pair in pairs), strict=True)]
    return {"relative_error": _relative(everything), "outputs": outputs}


def _sums(wanted: Array, made: Array | None) -> tuple[float, float]:
    """Σ x² and Σ (x - y)² over what is finite in the reference; 0 for differences that are next to nothing."""
    import numpy as np

    if made is None or made.shape != wanted.shape:
        return 0.0, math.inf
    known = np.isfinite(wanted)
    first, second = wanted[known].astype(np.float64), made[known].astype(np.float64)
    noise = float(np.square(first - second).sum())
    return float(np.square(first).sum()), noise if noise > first.size * NEGLIGIBLE**2 else 0.0


def _relative(sums: Sequence[float]) -> float | None:
    signal, noise = sums
    error = math.sqrt(noise / signal) if signal else math.sqrt(noise)
    return float(f"{error:.6g}") if math.isfinite(error) else None


def _too_far(job: ModelJob, form: str, error: float | None) -> BuildError:
    return BuildError(
        f"the {form} form of model {job.name!r} does not compute what the model does",
        why=f"relative error {'that is not finite' if error is None else f'{error:.2g}'}, "
        f"at most {TOLERANCE[form]:g} is accepted",
        where=job.where,
        fix="calibrate on images like those it will see; name layers in quantize: {keep: …}; or set accuracy: with "
        "labels, which then decide",
    )
