"""Times that a board measured, in place of those of the cost model: engines of a bundle that was finished there.

A bundle knows how long each engine took, not its layers. So all units of a model are scaled by one factor on the
accelerators that the engine used: what it took over what the model predicts for the same nodes in the same places.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from edgert.artifact.bundle import Bundle, open_bundle
from edgert.artifact.manifest import CompiledEntry, EngineEntry
from edgert.errors import ArtifactError, ConfigError
from edgert.place.problem import Network, Unit

GPU = "gpu"


@dataclass(frozen=True, slots=True)
class MeasuredEngine:
    """One engine that ran on a board.

    Attributes:
        model: its name in the pipeline file.
        digest: of the ONNX file that it was made of.
        board, mode: where, and in which power mode.
        placement: node → accelerator, of those that were not on the GPU.
        median_ms: of a run, host to host, alone on the board.
        runs: how many that is the median of.
    """

    model: str
    digest: str
    board: str
    mode: str
    placement: Mapping[str, str]
    median_ms: float
    runs: int

    def check(self, digest: str, where: str) -> None:
        """Raises ConfigError when it was made of another file than the one that is planned for."""
        if digest != self.digest:
            raise ConfigError(
                f"the profile is of another model {self.model!r}",
                why=f"it was measured on {self.digest[:12]}…, the file is {digest[:12]}…",
                where=where,
                fix="build the bundle of this file, and finish it on the board: edgert build BUNDLE -o BUNDLE",
            )


def read_measured(path: Path) -> tuple[MeasuredEngine, ...]:
    """The engines of a bundle that were timed.

    Raises:
        ArtifactError: the bundle is damaged, or none of its engines was timed.
    """
    with open_bundle(path) as bundle:
        found = [
            one
            for entry in bundle.manifest.compiled.values()
            for model, engines in entry.engines.items()
            for engine in engines
            if (one := _engine(bundle, entry, model, engine)) is not None
        ]
    if not found:
        raise ArtifactError(
            f"no engine of {str(path)!r} was timed",
            why="it was not finished on a board, or where nothing could be run",
            where="--profile",
            fix="on the board: edgert build BUNDLE -o BUNDLE",
        )
    return tuple(found)


def _engine(bundle: Bundle, entry: CompiledEntry, model: str, engine: EngineEntry) -> MeasuredEngine | None:
    proof, record = json.loads(bundle.read(engine.proof)), json.loads(bundle.read(engine.record))
    if "profile" not in proof:
        return None
    return MeasuredEngine(
        model,
        bundle.manifest.models[model].digest,
        entry.facts.get("module", ""),
        entry.facts.get("power mode", ""),
        {name: where for name, where in record["placement"].items() if where != GPU},
        float(proof["profile"]["median_ms"]),
        int(proof["profile"]["runs"]),
    )


def scaled(network: Network, engines: Sequence[MeasuredEngine]) -> Network:
    """The network with its units as fast as they were measured.

    Args:
        network: with the times of the cost model.
        engines: of this model on this board in this power mode; without any, nothing changes.
    """
    factors = factors_of(network, engines)

    def changed(unit: Unit) -> Unit:
        costs = {
            name: replace(cost, time_ms=cost.time_ms * factors.get(name, 1.0)) for name, cost in unit.costs.items()
        }
        return replace(unit, costs=costs)

    return replace(network, units=tuple(map(changed, network.units))) if factors else network


def factors_of(network: Network, engines: Sequence[MeasuredEngine]) -> dict[str, float]:
    """Accelerator → measured over predicted; the median where several engines used it."""
    found: dict[str, list[float]] = {}
    for engine in engines:
        places = [_place(unit, engine.placement) for unit in network.units]
        predicted = sum(unit.costs[where].time_ms for unit, where in zip(network.units, places, strict=True) if where)
        for where in set(places) - {""} if predicted > 0 else ():
            found.setdefault(where, []).append(engine.median_ms / predicted)
    return {name: statistics.median(factors) for name, factors in found.items()}


def _place(unit: Unit, placement: Mapping[str, str]) -> str:
    """Where an engine ran a unit; empty for one that the cost model does not know there."""
    where = next((placement[name] for name in unit.nodes if name in placement), GPU)
    return where if where in unit.costs else ""


def told(engines: Sequence[MeasuredEngine]) -> list[str]:
    """A line each, for the notes of a plan."""
    return [
        f"{one.model} on {one.board}, {one.mode}: {one.median_ms:.2f} ms measured ({one.runs} runs)" for one in engines
    ]
