"""Rows of a plan, computed from placements: speed, latency, and memory in parts.

Memory on a board consists of weights and tensors of every engine, a CUDA context, and the host's frames. TensorRT's own
allocations are only part of the error bar: they depend on its version, and no figures are published for these boards.
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
from edgert.placement.constraints import Limits, Placement
from edgert.placement.contention import MEASURED
from edgert.placement.plan_record import BoardPlan, EngineRow, ModelRow, Objective, Row
from edgert.placement.problem import Assignment, Network, with_costs
from edgert.placement.profile import Profile, network_of
from edgert.placement.solver import solve
from edgert.planner.planned_model import restrict_to_section
from edgert.planner.selection import Machine, judge_rows
from edgert.simulator import Platform
from edgert.simulator.board_platform import played, static_graph
from edgert.simulator.board_stages import BoardStages
from edgert.simulator.design import Demand, check_demands, counterpart, demands, levels_of, with_fallbacks

Choice = tuple[str, tuple[Network, ...]]
"""Name of a placement, and networks with only the accelerators that it may use."""
Error = Callable[[Sequence[ModelRow]], float | None]


def distinct_placements(
    choices: Sequence[Choice], solve: Callable[[Choice], Placement]
) -> Iterator[tuple[Choice, Placement]]:
    """Yield each different placement with its choice; choices without a placement are left out.

    Raises:
        PlacementError: the last choice, which restricts least, has no placement.
    """
    seen = set()
    for choice in choices:
        try:
            placement = solve(choice)
        except PlacementError:
            if choice is choices[-1]:
                raise
            continue  # such as all on the GPU where the file puts a part elsewhere
        key = tuple(engine.assignment for one in placement.networks for engine in one.engines)
        if key not in seen:
            seen.add(key)
            yield choice, placement


def limit_accelerators(network: Network, preferred: Callable[[str], bool]) -> Network:
    """Return the network with each unit limited to preferred accelerators, if one can run it and the file allows it."""
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
    """Settings shared by all rows of a machine in one power mode.

    Attributes:
        file: pipeline file.
        board, mode: names of the board and the power mode.
        machine_bytes: maximum memory for programs.
        parts: (file, networks, placement) → memory parts of engines and frames.
        macs: node → multiply-adds, for every model; empty without a DLA.
        stages: times of stages other than models; None if unknown.
    """

    file: PipelineFile
    board: str
    mode: str
    machine_bytes: int
    parts: Callable[[PipelineFile, Sequence[Network], Placement], Sequence[Part]]
    macs: Sequence[Mapping[str, int]] = ()
    stages: BoardStages | None = None

    def row(self, choice: Choice, placement: Placement, platform: Platform, error: Error) -> Row:
        """Return the row of a placement simulated on a platform; ``error`` gives the relative error of its times."""
        name, networks = choice
        models = tuple(self._models(networks, placement))
        memory = row_memory(self.file, self.machine_bytes, lambda one: self.parts(one, networks, placement))
        row = Row(
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
        return played(self.file, row, platform, self.stages)

    def _models(self, networks: Sequence[Network], placement: Placement) -> Iterator[ModelRow]:
        macs = self.macs or [{}] * len(networks)
        for network, one, work in zip(networks, placement.networks, macs, strict=True):
            engines = tuple(EngineRow(engine.assignment, engine.weight) for engine in one.engines)
            yield ModelRow(
                name=network.name,
                network=network,
                engines=engines,
                rate_hz=network.rate_hz,
                latency_ms=one.latency_ms,
                dla_share=_dla_share(network, engines, work),
                loadables={name: count for name, count in one.loadables.items() if is_dla(name)},
            )


def _dla_share(network: Network, engines: Iterable[EngineRow], macs: Mapping[str, int]) -> float:
    work = [sum(macs.get(node, 0) for node in unit.nodes) for unit in network.units]
    total = sum(work) or 1
    return sum(
        engine.share * sum(count for count, where in zip(work, engine.assignment, strict=True) if is_dla(where)) / total
        for engine in engines
    )


# Memory.

NOT_PLANNED = (
    "memory: allocations of TensorRT and Python are only in the error bar, as measured elsewhere; edgert run measures "
    "them"
)
CONTEXT_BYTES = 197 * 2**20
"""Memory of a CUDA context on a Jetson, as TensorRT logged it as "Init CUDA" on a Jetson Nano
(https://github.com/wang-xinyu/tensorrtx/issues/1145). It is less with lazy loading, the default since CUDA 12.2: a
process on an Orin NX used 37 MiB in all (https://github.com/OE4T/meta-tegra/pull/2243)."""
UNPLANNED_BYTES = 341 * 2**20
"""Error bar of memory: measured memory that is in no part of a plan.

A process with Python took 74 MiB before it built anything (``edgert run --dry-run``). Kernels that libraries loaded for
the demo's detector on an H200 took 267 MiB (docs/budgets.md). Nothing was measured on a Jetson."""
_CONTEXT_NOTE = "modeled: context of a Jetson Nano; less since CUDA 12.2"


def row_memory(file: PipelineFile, machine_bytes: int, parts_of: Callable[[PipelineFile], Sequence[Part]]) -> Footprint:
    """Return a row's memory, with queues shortened until it fits the budget and the machine.

    Args:
        file: pipeline file.
        machine_bytes: maximum memory for programs.
        parts_of: pipeline file → memory parts; also called with files that have shorter queues.
    """
    budget_bytes = file.config.budgets.memory
    return shrunk(file, lambda one: Footprint(tuple(parts_of(one)), budget_bytes, machine_bytes), [QUEUES])[1]


def board_parts(file: PipelineFile, networks: Sequence[Network], placement: Placement) -> tuple[Part, ...]:
    """Return the memory parts of a placement on a board; ``networks`` are in the order of the placement."""
    engines = [
        part
        for network, placed in zip(networks, placement.networks, strict=True)
        for engine in placed.engines
        for part in _engine_parts(network, engine.assignment)
    ]
    context = Part("CUDA", "gpu", "runtime", CONTEXT_BYTES, _CONTEXT_NOTE)
    return (*engines, context, *frame_parts(file))


def host_parts(file: PipelineFile, networks: Sequence[Network], placement: Placement) -> tuple[Part, ...]:
    """Return the memory parts of a placement on this machine's cores, with ONNX Runtime."""
    config = file.config
    engines = [
        part
        for placed in placement.networks
        for part in engine_parts(placed.name, sizes_of(config, placed.name), len(placed.engines))
    ]
    return (*engines, *frame_parts(file))


def _engine_parts(network: Network, assignment: Assignment) -> list[Part]:
    weights: dict[str, int] = {}
    for unit, name in zip(network.units, assignment, strict=True):
        weights[name] = weights.get(name, 0) + unit.weight_bytes
    changes = [0] * (len(network.units) + 1)  # bytes allocated minus bytes freed before each unit
    for edge in network.edges:
        start = 0 if edge.producer is None else edge.producer
        last = len(network.units) - 1 if edge.is_output else max(edge.consumers, default=start)
        changes[start] += edge.size_bytes
        changes[last + 1] -= edge.size_bytes
    parts = [Part(network.name, name, "weights", count) for name, count in weights.items()]
    most = max(accumulate(changes))
    return [*parts, Part(network.name, "+".join(weights), "activations", most, "including inputs and outputs")]


# Plans for this machine from profiles measured on it.

PROFILED_ERROR = 0.2
"""Assumed relative error of times from profiles; other programs on the machine increase it."""


def plan_host(file: PipelineFile, profiles: Sequence[Profile], objective: Objective) -> BoardPlan:
    """Return the plan for this machine, with rows for one core and for all cores; power is unknown.

    Cores slow one another down as measured with the complete model. Work around the models is not included.

    Args:
        file: pipeline file.
        profiles: profile of each model, from ``edgert bench --units``.
        objective: what placements are optimized for.

    Raises:
        ConfigError: a model has no profile.
        PlacementError: a profile does not match its model.
    """
    check_demands(file)
    known = {one.digest: one for one in profiles}
    levels = [(at, demands(at.config)) for at in levels_of(file)]
    first = profile_of(file, levels[0][1][0].model, known)
    found, *others = [list(_host_rows(at, models, known, tuple(first.whole), objective)) for at, models in levels]
    rows = [with_fallbacks(file, row, [counterpart(row, one) for one in others]) for row in found]
    machine = Machine(HOST, first.machine.get("cpu", "this machine"), system_memory().most_bytes)
    return judge_rows(machine, rows, file.config.budgets, objective)


def profile_of(file: PipelineFile, model: str, profiles: Mapping[str, Profile]) -> Profile:
    """Return the profile of one of a pipeline's models.

    Args:
        file: pipeline file.
        model: name of the model in the file.
        profiles: digest of a model file → profile.

    Raises:
        ConfigError: the model has no profile.
    """
    onnx = file.config.models[model].onnx
    found = profiles.get(load(onnx).digest)
    if found is None:
        raise ConfigError(
            f"there is no profile of model {model!r}",
            why="no board file describes this machine, so its times must be measured",
            where=file.where("models", model),
            fix=f"edgert bench --units {onnx} -o profile.json, then --profile profile.json",
        )
    return found


def _host_rows(
    file: PipelineFile,
    models: Sequence[Demand],
    profiles: Mapping[str, Profile],
    cores: Sequence[str],
    objective: Objective,
) -> Iterator[Row]:
    """Yield one row on the first core, except units that the file puts elsewhere, and one row on all cores."""
    networks = []
    for demand in models:
        config = file.config.models[demand.model]
        profiled = network_of(profile_of(file, demand.model, profiles), static_graph(config))
        network = replace(profiled, name=demand.model, rate_hz=demand.rate_hz)
        networks.append(restrict_to_section(network, config, file.where("models", demand.model), first_is_default=True))
    mixed = ("mixed", tuple(limit_accelerators(network, set(cores).__contains__) for network in networks))
    one = (cores[0], tuple(limit_accelerators(network, cores[0].__eq__) for network in networks))
    choices = [one, mixed] if len(cores) > 1 else [one]
    if any(network.shares for network in networks):
        choices = choices[-1:]  # the file dispatches frames to several cores
    maker = RowMaker(file, HOST, "", system_memory().most_bytes, host_parts)
    for choice, placement in distinct_placements(choices, partial(_solve_on_cores, objective, cores)):
        row = maker.row(choice, placement, Platform(contention=MEASURED), lambda _: PROFILED_ERROR)
        yield replace(row, name=row.models[0].engines[0].accelerators[0]) if row.name != "mixed" else row


def _solve_on_cores(objective: Objective, cores: Sequence[str], choice: Choice) -> Placement:
    """Return the best placement with one segment per core and model; more transitions gain nothing."""
    name, networks = choice
    limits = Limits(loadables=dict.fromkeys(cores if name == "mixed" else (name,), len(networks)))
    most = solve(networks, "throughput", limits, contention=MEASURED, time_limit_s=2.0)
    if objective != "latency" or most.value < 1:
        return most
    return solve(networks, "latency", limits, contention=MEASURED, time_limit_s=2.0)
