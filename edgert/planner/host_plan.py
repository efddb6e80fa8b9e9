"""Plans for this machine, or any other without a DLA, from profiles that were measured on it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from edgert.board.host import system_memory
from edgert.config import PipelineFile
from edgert.errors import ConfigError, PlacementError
from edgert.graph import Graph, clean, load, read, with_shapes
from edgert.model_engine import default_profile
from edgert.placement.constraints import Limits, Placement, streams
from edgert.placement.contention import MEASURED
from edgert.placement.plan_record import BoardPlan, EngineRow, ModelRow, Objective, Row
from edgert.placement.problem import Network, Unit
from edgert.placement.profile import Profile, network_of
from edgert.placement.schedule import play
from edgert.placement.solver import solve
from edgert.planner.plan_memory import host_parts, row_memory
from edgert.planner.planned_model import bound_to
from edgert.planner.selection import Machine, frame_rate_hz, judged, longest_ms
from edgert.simulator.design import Demand, counterpart, demands, levels_of, with_fallbacks

HOST = "host"
_PLAYED_RUNS = 120
_HEADROOM_RUNS, _ROUNDS, _KEPT_UP = 500, 5, 0.995
_IN_FLIGHT = 4


@dataclass(frozen=True, eq=False)
class _Measured:
    demand: Demand
    graph: Graph
    profile: Profile
    network: Network


def plan_host(file: PipelineFile, profiles: Sequence[Profile], objective: Objective) -> BoardPlan:
    """Rows for one core, and for all cores together; times are those of the profiles, power is not known.

    Cores that are busy at the same time slow one another as the whole model was measured to be slowed. Frames per
    second are those of the engines, played with as many as go through; the host's work around them is not in it.

    Args:
        profiles: one of each model, from ``edgert bench --units``.

    Raises:
        ConfigError: a model has no profile.
        PlacementError: a profile does not fit its model.
    """
    known = {one.digest: one for one in profiles}
    levels = [(at, [_measured(at, demand, known) for demand in demands(at.config)]) for at in levels_of(file)]
    measured = levels[0][1]
    if not measured:
        raise ConfigError("no stage runs a model", where=file.where("stages"), fix="add one: {infer: MODEL, from: ...}")
    found, *others = [list(_rows(at, ones, objective)) for at, ones in levels]
    rows = [with_fallbacks(file, row, [counterpart(row, one) for one in others]) for row in found]
    machine = Machine(HOST, measured[0].profile.machine.get("cpu", "this machine"), system_memory().most_bytes)
    return judged(machine, rows, file.config.budgets, objective)


def _measured(file: PipelineFile, demand: Demand, profiles: Mapping[str, Profile]) -> _Measured:
    config, where = file.config.models[demand.model], file.where("models", demand.model)
    model = load(config.onnx)
    found = profiles.get(model.digest)
    if found is None:
        raise ConfigError(
            f"there is no profile of model {demand.model!r}",
            why="times of a machine that no board file describes are measured, not modeled",
            where=where,
            fix=f"edgert bench --units {config.onnx} -o profile.json, then --profile profile.json",
        )
    shapes = next(iter((config.profiles or default_profile(model, config)).values()))
    graph = read(clean(with_shapes(model, shapes))[0])
    network = replace(network_of(found, graph), name=demand.model, rate_hz=demand.rate_hz)
    return _Measured(demand, graph, found, bound_to(network, config, where, first_is_default=True))


def _rows(file: PipelineFile, measured: Sequence[_Measured], objective: Objective) -> Iterator[Row]:
    names = list(measured[0].profile.whole)
    choices = [(name, [name]) for name in names[:1]] + ([("mixed", names)] if len(names) > 1 else [])
    if any(one.network.shares for one in measured):
        choices = choices[-1:]  # the file dispatches frames to several
    seen = set()
    for name, used in choices:
        networks = [_restricted(one, used) for one in measured]
        try:
            placement = _solved(networks, objective, used)
        except PlacementError:
            if name == choices[-1][0]:
                raise
            continue
        key = tuple(engine.assignment for one in placement.networks for engine in one.engines)
        if key not in seen:
            seen.add(key)
            yield _row(file, measured, networks, placement, name)


def _solved(networks: Sequence[Network], objective: Objective, names: Sequence[str]) -> Placement:
    """One segment per core and model: more are transitions that gain nothing."""
    limits = Limits(loadables=dict.fromkeys(names, len(networks)))
    most = solve(networks, "throughput", limits, contention=MEASURED, time_limit_s=2.0)
    if objective != "latency" or most.value < 1:
        return most
    return solve(networks, "latency", limits, contention=MEASURED, time_limit_s=2.0)


def _restricted(one: _Measured, used: Sequence[str]) -> Network:
    """The network on these cores; units that the file puts elsewhere stay there."""

    def only(unit: Unit) -> Unit:
        return replace(unit, costs={name: cost for name, cost in unit.costs.items() if name in used} or unit.costs)

    return replace(one.network, units=tuple(map(only, one.network.units)))


def _headroom(networks: Sequence[Network], placement: Placement) -> float:
    """How many times the rates asked for go through, played: with all cores busy they slow one another the most."""
    met = min(one.fps / (network.rate_hz or 1.0) for network, one in zip(networks, placement.networks, strict=True))
    wanted = met / max(*placement.utilization.values(), 1e-9)
    for _ in range(_ROUNDS):
        faster = [replace(network, rate_hz=(network.rate_hz or 1.0) * wanted) for network in networks]
        duration_ms = 1e3 * _HEADROOM_RUNS / min(network.rate_hz or 1.0 for network in faster)
        flows = play(streams(faster, placement), duration_ms, MEASURED).streams
        met = min(flow.fps / (network.rate_hz or 1.0) for network, flow in zip(networks, flows, strict=True))
        if met > _KEPT_UP * wanted:
            break
        wanted = met
    return met


def _row(
    file: PipelineFile, measured: Sequence[_Measured], networks: Sequence[Network], placement: Placement, name: str
) -> Row:
    asked = [replace(one, in_flight=_IN_FLIGHT) for one in streams(networks, placement)]
    duration_ms = 1e3 * _PLAYED_RUNS / min(one.demand.rate_hz for one in measured)
    flows = play(asked, duration_ms, MEASURED).streams
    models = []
    for one, network, placed, flow in zip(measured, networks, placement.networks, flows, strict=True):
        engines = tuple(EngineRow(engine.assignment, engine.weight) for engine in placed.engines)
        rate_hz = one.demand.rate_hz
        models.append(
            ModelRow(network.name, network, engines, rate_hz, placed.latency_ms, flow.p50_ms, flow.p99_ms, 0.0, {})
        )
    headroom = _headroom(networks, placement)
    memory = row_memory(file, system_memory().most_bytes, lambda one: host_parts(one, placement))
    return Row(
        board=HOST,
        mode="",
        name=models[0].engines[0].accelerators[0] if name != "mixed" else name,
        models=tuple(models),
        headroom=headroom,
        fps=frame_rate_hz(file.config) * headroom,
        p99_ms=longest_ms(file.config, {model.name: model.p99_ms for model in models}),
        power_w=None,
        memory_bytes=memory.total_bytes,
        energy_mj=None,
        busy=dict(placement.utilization),
        error=None,
        memory=memory.parts,
        steps=memory.steps,
    )
