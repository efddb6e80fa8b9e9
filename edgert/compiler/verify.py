"""A built engine held against its plan: TensorRT moves layers to the GPU without an error, so it is looked up."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from edgert.backend.trt.inspect import EngineFacts, accelerators, engine_facts, logged_facts
from edgert.backend.trt.log import reasons
from edgert.backend.trt.mapping import correspond
from edgert.backend.trt.request import GPU, BuildRequest
from edgert.backend.trt.result import BuildResult
from edgert.errors import PlacementError

log = logging.getLogger("edgert.compiler")

Policy = Literal["strict", "warn"]
_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Standing:
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

    nodes: tuple[Standing, ...]
    facts: EngineFacts
    source: Literal["inspector", "log", ""]

    @property
    def moved(self) -> tuple[Standing, ...]:
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


def _standings(request: BuildRequest, result: BuildResult, facts: EngineFacts) -> tuple[Standing, ...]:
    actual = accelerators(facts, request.nodes)
    core = "" if request.dla_core is None else str(request.dla_core)
    told = _reasons(request, result)
    nodes = []
    for name in request.nodes:
        where = f"dla{core}" if actual.get(name) == "dla" else actual.get(name, "")
        standing = Standing(name, request.placement.get(name, GPU), where)
        nodes.append(Standing(name, standing.planned, where, told.get(name, "")) if standing.moved else standing)
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
