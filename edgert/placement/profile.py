"""Measured profile: how long the parts of one model take on a machine without a cost model.

The time of a unit is that of its kernels in ONNX Runtime's profiler. Times are scaled so that their sum is the time of
the complete model without the profiler. The two sums must agree within :data:`MAX_GAP`.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import permutations
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, TypeAdapter

from edgert.errors import ArtifactError, PlacementError, cause
from edgert.graph import Graph
from edgert.graph.partition import Part
from edgert.placement.contention import requested_share
from edgert.placement.problem import Cost, Edge, Network, Transition, Unit

SCHEMA = 2
MAX_GAP = 0.10
"""Largest difference between the sum of the kernels and the complete model, as a share of the latter."""


_Ms = Annotated[float, Field(ge=0, allow_inf_nan=False)]


@dataclass(frozen=True, slots=True)
class ModelTimes:
    """Times of the complete model on one accelerator, in milliseconds per run.

    Attributes:
        alone_ms: time while the other accelerators are idle.
        busy_ms: time while all other accelerators run the same model.
        kernels_ms: sum over the profiler's kernels, while the other accelerators are idle.
    """

    alone_ms: Annotated[_Ms, Field(gt=0)]
    busy_ms: _Ms
    kernels_ms: _Ms

    @property
    def gap(self) -> float:
        """Relative difference between the sum of the kernels and the complete model."""
        return abs(self.kernels_ms - self.alone_ms) / self.alone_ms

    @property
    def contention(self) -> float:
        """Factor by which a run takes longer when all other accelerators are busy."""
        return max(1.0, self.busy_ms / self.alone_ms)


@dataclass(frozen=True, slots=True)
class ProfiledUnit:
    """Nodes timed as one kernel; ``time_ms`` is accelerator → milliseconds, with nothing else running."""

    name: str
    nodes: tuple[str, ...]
    time_ms: Mapping[str, _Ms]


@dataclass(frozen=True, slots=True)
class MeasuredTransition:
    """Cost of a cut beyond the work of the units, half of it on either side; ``docs/costs.md`` explains it.

    Attributes:
        hop_ms: time to pass a frame to the next thread.
        tensor_ms: time per tensor, for kernels that cannot fuse across the cut and for conversions between the
            runtime's layout and that of ONNX.
        ms_per_mib: additional time per MiB of the tensor.
    """

    hop_ms: _Ms
    tensor_ms: _Ms
    ms_per_mib: _Ms

    def time_ms(self, size_bytes: int) -> float:
        """Return the time for one tensor, both sides together, without the hop."""
        return self.tensor_ms + self.ms_per_mib * size_bytes / 2**20


@dataclass(frozen=True, slots=True)
class Profile:
    """Measurements of one model on one machine.

    Attributes:
        digest: SHA-256 of the model file.
        board: ``"host"``, or the name of a board.
        mode: ``""``, or the board's power mode.
        machine: properties of the machine that the figures depend on: cpu, system, runtime.
        runs: number of runs behind each median.
        whole: accelerator → times of the complete model.
        units: timed units, each after those whose results it reads.
    """

    model: str
    digest: str
    board: str
    mode: str
    machine: Mapping[str, str]
    runs: int
    whole: Mapping[str, ModelTimes]
    units: tuple[ProfiledUnit, ...]
    transition: MeasuredTransition

    def check(self, digest: str, machine: Mapping[str, str]) -> None:
        """Raise PlacementError if the profile was measured with another model or on another machine."""
        if digest != self.digest:
            raise PlacementError(
                f"this profile belongs to another model: {self.model}, {self.digest[:12]}…",
                why=f"the digest of the model to place is {digest[:12]}…",
                fix="measure it: edgert bench --units MODEL.onnx -o profile.json",
            )
        wrong = [key for key in (*self.machine, *machine) if self.machine.get(key) != machine.get(key)]
        if wrong:
            key = wrong[0]
            raise PlacementError(
                "this profile belongs to another machine",
                why=f"its {key} is {self.machine.get(key, 'unknown')}, here it is {machine.get(key, 'unknown')}",
                fix="measure here: edgert bench --units MODEL.onnx -o profile.json",
            )

    def to_json(self) -> dict[str, Any]:
        """Return the profile as JSON values."""
        return {"schema": SCHEMA, **asdict(self)}


def read_profile(path: Path) -> Profile:
    """Return the profile in a file; raise ArtifactError if it is missing, damaged, or has impossible times."""
    try:
        data = json.loads(path.read_bytes())
        if not isinstance(data, dict) or data.get("schema") != SCHEMA or "format" in data:
            raise ValueError(f"it has no times of this machine in schema {SCHEMA}")  # a format: those of a board
        profile = TypeAdapter(Profile).validate_python(data)
        if not profile.units or any(unit.time_ms.keys() != profile.whole.keys() for unit in profile.units):
            raise ValueError("units and accelerators are missing or do not match")
    except (OSError, ValueError, RecursionError) as error:
        why = " ".join(cause(error).splitlines()[:3])
        fix = "measure again: edgert bench --units MODEL.onnx -o profile.json"
        raise ArtifactError(f"cannot read profile {path}", why=why, fix=fix) from error
    return profile


def network_of(profile: Profile, graph: Graph) -> Network:
    """Return the placement problem of a profiled model.

    Args:
        profile: measurements of the model.
        graph: graph of the model as profiled: cleaned, with static shapes.

    Raises:
        PlacementError: the graph and the profile have different nodes.
    """
    names = {node.name for node in graph.nodes}
    profiled = {name for unit in profile.units for name in unit.nodes}
    if names != profiled:
        other = sorted(names ^ profiled)[0]
        raise PlacementError(
            "the profile and the model do not have the same nodes",
            why=f"only {'the model' if other in names else 'the profile'} has {other!r}",
            fix="profile the model as it will be placed: with fixed shapes, in the same precision",
        )
    demand = {name: requested_share(whole.contention, len(profile.whole)) for name, whole in profile.whole.items()}
    units = []
    for unit in profile.units:
        costs = {name: Cost(ms, traffic_bytes=demand[name] * ms / 1e3) for name, ms in unit.time_ms.items()}
        units.append(Unit(unit.name, unit.nodes, costs))
    return Network(profile.model, tuple(units), _edges(profile, graph), home=next(iter(profile.whole)))


def _edges(profile: Profile, graph: Graph) -> tuple[Edge, ...]:
    owner = {name: index for index, unit in enumerate(profile.units) for name in unit.nodes}
    inputs = dict.fromkeys(spec.name for spec in graph.inputs)
    edges = []
    for name in (*inputs, *graph.producers):
        producer = None if name in inputs else owner[graph.producers[name].name]
        users = sorted({owner[node.name] for node in graph.consumers.get(name, ())} - {producer})
        is_output = name in graph.output_names
        if users or is_output:
            size_bytes = tensor_bytes(graph, name)
            transitions = {}
            if producer is not None and users:  # inputs and outputs of the network are in memory anyway
                time_ms = profile.transition.hop_ms + profile.transition.time_ms(size_bytes)
                each = Transition(time_ms, from_ms=time_ms / 2, to_ms=time_ms / 2)
                transitions = dict.fromkeys(permutations(profile.whole, 2), each)
            edges.append(Edge(name, producer, tuple(users), is_output, transitions, size_bytes))
    return tuple(edges)


def tensor_bytes(graph: Graph, name: str) -> int:
    """Return the size of a tensor; 0 where it is unknown or the graph has no such tensor."""
    spec = graph.spec(name)
    return 0 if spec is None else spec.size_bytes


def part_ms(profile: Profile, graph: Graph, parts: Sequence[Part], number: int) -> float:
    """Return the time of one part of a model, with half of the transitions into it and out of it."""
    part, transition = parts[number], profile.transition
    own = set(part.nodes)
    work = sum(unit.time_ms[part.accelerator] * len(own & set(unit.nodes)) / len(unit.nodes) for unit in profile.units)
    written_before = {name for other in parts[:number] for name in other.outputs}
    read_later = {name for other in parts[number + 1 :] for name in other.inputs}
    crossed = [*written_before.intersection(part.inputs), *read_later.intersection(part.outputs)]
    hops = (number > 0) + (number < len(parts) - 1)
    return (
        work + sum(transition.time_ms(tensor_bytes(graph, name)) for name in crossed) / 2 + hops * transition.hop_ms / 2
    )
