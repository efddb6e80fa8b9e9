"""The rows of a plan, from placements: speed, latency, and memory part by part.

Memory on a board has weights and tensors of every engine, by accelerator, a CUDA context, and the host's frames.
TensorRT's own allocations are in the error bar alone: they depend on its version, and no figures of them are published
for these boards.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate

from edgert.assemble.memory import ERROR, QUEUES, engine_parts, frame_parts, sizes_of
from edgert.board import HOST
from edgert.board.host import system_memory
from edgert.budget.footprint import Footprint, Part, shrunk
from edgert.config import PipelineFile
from edgert.errors import ConfigError, PlacementError
from edgert.graph import load
from edgert.placement.constraints import Limits, Placement, streams
from edgert.placement.contention import MEASURED, Contention
from edgert.placement.plan_record import BoardPlan, EngineRow, ModelRow, Objective, Row
from edgert.placement.problem import Assignment, Network, with_costs
from edgert.placement.profile import Profile, network_of
from edgert.placement.schedule import play
from edgert.placement.solver import solve
from edgert.planner.planned_model import bound_to
from edgert.planner.selection import Machine, judged
from edgert.simulator import Platform
from edgert.simulator.board_platform import played, static_graph
from edgert.simulator.board_stages import BoardStages
from edgert.simulator.design import Demand, check_demands, counterpart, demands, levels_of, with_fallbacks

_PLAYED_RUNS = 120  # of the model that runs least, so that p99 means something
_IN_FLIGHT = 4  # frames of one model, waiting and running, before a camera's next one is dropped

Choice = tuple[str, tuple[Network, ...]]
"""A placement's name, and the networks with the accelerators that it may use."""
Error = Callable[[Sequence[ModelRow]], float | None]


def distinct(choices: Sequence[Choice], solve: Callable[[Choice], Placement]) -> Iterator[tuple[Choice, Placement]]:
    """Yield the placements that differ, each with its choice.

    Raises:
        PlacementError: the last choice, which leaves most open, has none; others are left out.
    """
    seen = set()
    for choice in choices:
        try:
            placement = solve(choice)
        except PlacementError:
            if choice is choices[-1]:
                raise
            continue  # all on the GPU, say, where the file puts a part elsewhere
        key = tuple(engine.assignment for one in placement.networks for engine in one.engines)
        if key not in seen:
            seen.add(key)
            yield choice, placement


def limited(network: Network, preferred: Callable[[str], bool]) -> Network:
    """Return the network with every unit on the preferred accelerators, where they can run it and the file agrees."""
    if network.shares:
        return network

    return with_costs(
        network, lambda unit: {name: cost for name, cost in unit.costs.items() if preferred(name)} or unit.costs
    )


def is_dla(name: str) -> bool:
    """Return whether an accelerator is a DLA core."""
    return name.startswith("dla")


@dataclass(frozen=True, slots=True)
class RowMaker:
    """The settings that all rows of a machine in one power mode have in common.

    Attributes:
        file: the pipeline.
        board, mode: names.
        machine_bytes: the most memory that programs can have there.
        contention: of its accelerators for memory.
        parts: memory of the pipeline's engines and frames in a placement.
        macs: of every model, node → multiply-adds; none where there is no DLA.
        stages: times of stages other than models; None: not known.
    """

    file: PipelineFile
    board: str
    mode: str
    machine_bytes: int
    contention: Contention
    parts: Callable[[PipelineFile, Sequence[Network], Placement], Sequence[Part]]
    macs: Sequence[Mapping[str, int]] = ()
    stages: BoardStages | None = None

    def row(self, choice: Choice, placement: Placement, platform: Platform, error: Error) -> Row:
        """Return a placement's row, simulated on a platform; ``error``: relative, of the times of its models."""
        name, networks = choice
        models = tuple(self._models(networks, placement))
        memory = row_memory(self.file, self.machine_bytes, lambda one: self.parts(one, networks, placement))
        made = Row(
            board=self.board,
            mode=self.mode,
            name=name,
            models=models,
            headroom=0.0,
            fps=0.0,
            p99_ms=math.inf,
            power_w=None,
            memory_bytes=memory.total_bytes,
            energy_mj=None,
            busy={},
            error=error(models),
            memory_error=max(ERROR, UNPLANNED_BYTES / memory.total_bytes),
            memory=memory.parts,
            steps=memory.steps,
        )
        return played(self.file, made, platform, self.stages)

    def _models(self, networks: Sequence[Network], placement: Placement) -> Iterator[ModelRow]:
        rates_hz = [network.rate_hz for network in networks]
        requested = [replace(one, in_flight=_IN_FLIGHT) for one in streams(networks, placement)]
        flows = play(requested, 1e3 * _PLAYED_RUNS / min(rates_hz), self.contention).streams
        macs = self.macs or [{}] * len(networks)
        for network, one, flow, work in zip(networks, placement.networks, flows, macs, strict=True):
            engines = tuple(EngineRow(engine.assignment, engine.weight) for engine in one.engines)
            yield ModelRow(
                name=network.name,
                network=network,
                engines=engines,
                rate_hz=network.rate_hz,
                latency_ms=one.latency_ms,
                p50_ms=flow.p50_ms,
                p99_ms=flow.p99_ms,
                dla_share=_dla_share(network, engines, work),
                loadables={name: count for name, count in one.loadables.items() if is_dla(name)},
            )


def _dla_share(network: Network, engines: Iterable[EngineRow], macs: Mapping[str, int]) -> float:
    """Return the share of the multiply-adds that run on a DLA, over all frames."""
    work = [sum(macs.get(node, 0) for node in unit.nodes) for unit in network.units]
    total = sum(work) or 1
    return sum(
        engine.share * sum(count for count, where in zip(work, engine.assignment, strict=True) if is_dla(where)) / total
        for engine in engines
    )


# Memory.

NOT_PLANNED = (
    "memory: what TensorRT and Python allocate for themselves is in the error bar alone, as measured elsewhere; "
    "edgert run measures it"
)
CONTEXT_BYTES = 197 * 2**20
"""Of a CUDA context on a Jetson, whose memory host and GPU share: what TensorRT logged as "Init CUDA" on a Jetson Nano
(https://github.com/wang-xinyu/tensorrtx/issues/1145). With CUDA's lazy loading, the default since 12.2, it is less: a
whole process was at 37 MiB after it on an Orin NX (https://github.com/OE4T/meta-tegra/pull/2243)."""
UNPLANNED_BYTES = 341 * 2**20
"""The error bar of memory: what runs took that is in no part of a plan. The process before anything is made, with
Python, is 74 MiB (``edgert run --dry-run``), and kernels that libraries loaded for the demo's detector on an H200 were
267 MiB (docs/budgets.md). None was measured on a Jetson."""
_CONTEXT_NOTE = "modeled: context of a Jetson Nano; less since CUDA 12.2"


def row_memory(file: PipelineFile, machine_bytes: int, parts_of: Callable[[PipelineFile], Sequence[Part]]) -> Footprint:
    """Return a row's memory, with queues as short as its budget or its machine requires.

    Args:
        file: the pipeline.
        machine_bytes: the most that programs can have there.
        parts_of: called with the pipeline, and with ones whose queues are shorter.
    """
    budget_bytes = file.config.budgets.memory
    return shrunk(file, lambda one: Footprint(tuple(parts_of(one)), budget_bytes, machine_bytes), [QUEUES])[1]


def board_parts(file: PipelineFile, networks: Sequence[Network], placement: Placement) -> tuple[Part, ...]:
    """Return the memory parts of a placement on a board; ``networks`` in its order."""
    engines = [
        part
        for network, placed in zip(networks, placement.networks, strict=True)
        for engine in placed.engines
        for part in _engine(network, engine.assignment)
    ]
    context = Part("CUDA", "gpu", "runtime", CONTEXT_BYTES, _CONTEXT_NOTE)
    return (*engines, context, *frame_parts(file))


def host_parts(file: PipelineFile, networks: Sequence[Network], placement: Placement) -> tuple[Part, ...]:
    """Return the memory parts of a placement on this machine's cores, where ONNX Runtime runs the models."""
    config = file.config
    engines = [
        part
        for placed in placement.networks
        for part in engine_parts(placed.name, sizes_of(config, placed.name), len(placed.engines))
    ]
    return (*engines, *frame_parts(file))


def _engine(network: Network, assignment: Assignment) -> list[Part]:
    """Return weights by the accelerator that reads them, and tensors, which the whole engine shares."""
    weights: dict[str, int] = {}
    for unit, name in zip(network.units, assignment, strict=True):
        weights[name] = weights.get(name, 0) + unit.weight_bytes
    size = [0] * (len(network.units) + 1)  # what comes to life and goes, with units that run in order
    for edge in network.edges:
        start = 0 if edge.producer is None else edge.producer
        size[start] += edge.size_bytes
        size[1 + (len(network.units) - 1 if edge.is_output else max(edge.consumers, default=start))] -= edge.size_bytes
    parts = [Part(network.name, name, "weights", count) for name, count in weights.items()]
    most = max(accumulate(size))
    return [*parts, Part(network.name, "+".join(weights), "activations", most, "inputs and outputs among them")]


# Plans for this machine, or any other without a DLA, from profiles that were measured on it.

PROFILED_ERROR = 0.2
"""Relative error of times that come from profiles. Assumed: other programs on the machine make it more."""


def plan_host(file: PipelineFile, profiles: Sequence[Profile], objective: Objective) -> BoardPlan:
    """Return rows for one core, and for all cores together, with the profiles' times; power is not known.

    Cores that are busy at the same time slow one another as the whole model was measured to be slowed. The host's work
    around the models is not included.

    Args:
        file: the pipeline.
        profiles: one of each model, from ``edgert bench --units``.
        objective: what placements are optimized for.

    Raises:
        ConfigError: a model has no profile.
        PlacementError: a profile does not fit its model.
    """
    check_demands(file)
    known = {one.digest: one for one in profiles}
    levels = [(at, demands(at.config)) for at in levels_of(file)]
    first = profile_of(file, levels[0][1][0].model, known)
    found, *others = [list(_rows(at, models, known, tuple(first.whole), objective)) for at, models in levels]
    rows = [with_fallbacks(file, row, [counterpart(row, one) for one in others]) for row in found]
    machine = Machine(HOST, first.machine.get("cpu", "this machine"), system_memory().most_bytes)
    return judged(machine, rows, file.config.budgets, objective)


def profile_of(file: PipelineFile, model: str, profiles: Mapping[str, Profile]) -> Profile:
    """Return the profile of one of a pipeline's models.

    Args:
        file: the pipeline.
        model: its name there.
        profiles: digest of a model's file → its profile.

    Raises:
        ConfigError: there is none.
    """
    onnx = file.config.models[model].onnx
    found = profiles.get(load(onnx).digest)
    if found is None:
        raise ConfigError(
            f"there is no profile of model {model!r}",
            why="times of a machine that no board file describes are measured, not modeled",
            where=file.where("models", model),
            fix=f"edgert bench --units {onnx} -o profile.json, then --profile profile.json",
        )
    return found


def _rows(
    file: PipelineFile,
    models: Sequence[Demand],
    profiles: Mapping[str, Profile],
    cores: Sequence[str],
    objective: Objective,
) -> Iterator[Row]:
    """Yield two rows: all on the first core, except units that the file puts elsewhere, and all cores."""
    networks = []
    for demand in models:
        config = file.config.models[demand.model]
        made = network_of(profile_of(file, demand.model, profiles), static_graph(config))
        network = replace(made, name=demand.model, rate_hz=demand.rate_hz)
        networks.append(bound_to(network, config, file.where("models", demand.model), first_is_default=True))
    mixed = ("mixed", tuple(limited(network, set(cores).__contains__) for network in networks))
    one = (cores[0], tuple(limited(network, cores[0].__eq__) for network in networks))
    choices = [one, mixed] if len(cores) > 1 else [one]
    if any(network.shares for network in networks):
        choices = choices[-1:]  # the file dispatches frames to several
    maker = RowMaker(file, HOST, "", system_memory().most_bytes, MEASURED, host_parts)
    for choice, placement in distinct(choices, partial(_solved, objective, cores)):
        row = maker.row(choice, placement, Platform(contention=MEASURED), lambda _: PROFILED_ERROR)
        yield replace(row, name=row.models[0].engines[0].accelerators[0]) if row.name != "mixed" else row


def _solved(objective: Objective, cores: Sequence[str], choice: Choice) -> Placement:
    """Return a placement with one segment per core and model: more transitions gain nothing."""
    name, networks = choice
    limits = Limits(loadables=dict.fromkeys(cores if name == "mixed" else (name,), len(networks)))
    most = solve(networks, "throughput", limits, contention=MEASURED, time_limit_s=2.0)
    if objective != "latency" or most.value < 1:
        return most
    return solve(networks, "latency", limits, contention=MEASURED, time_limit_s=2.0)
