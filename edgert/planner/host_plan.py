"""Plans for this machine, or any other without a DLA, from profiles that were measured on it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from edgert.board import HOST
from edgert.board.host import system_memory
from edgert.config import PipelineFile
from edgert.errors import ConfigError
from edgert.graph import load
from edgert.placement.constraints import Limits, Placement, streams
from edgert.placement.contention import MEASURED
from edgert.placement.plan_record import BoardPlan, Objective, Row
from edgert.placement.problem import Network
from edgert.placement.profile import Profile, network_of
from edgert.placement.schedule import play
from edgert.placement.solver import solve
from edgert.planner.plan_rows import Choice, RowMaker, distinct, host_parts, limited
from edgert.planner.planned_model import bound_to
from edgert.planner.selection import Machine, judged
from edgert.simulator.board_platform import static_graph
from edgert.simulator.design import Demand, check_demands, counterpart, demands, levels_of, with_fallbacks

_HEADROOM_RUNS, _ROUNDS, _KEPT_UP = 500, 5, 0.995


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
    check_demands(file)
    known = {one.digest: one for one in profiles}
    levels = [(at, demands(at.config)) for at in levels_of(file)]
    first = profile_of(file, levels[0][1][0].model, known)
    found, *others = [list(_rows(at, models, known, tuple(first.whole), objective)) for at, models in levels]
    rows = [with_fallbacks(file, row, [counterpart(row, one) for one in others]) for row in found]
    machine = Machine(HOST, first.machine.get("cpu", "this machine"), system_memory().most_bytes)
    return judged(machine, rows, file.config.budgets, objective)


def profile_of(file: PipelineFile, model: str, profiles: Mapping[str, Profile]) -> Profile:
    """The profile of one of a pipeline's models.

    Args:
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
    """All on the first core, units that the file puts elsewhere excepted, and all cores."""
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
        row = maker.row(choice, placement, _headroom(choice[1], placement))
        yield replace(row, name=row.models[0].engines[0].accelerators[0]) if row.name != "mixed" else row


def _solved(objective: Objective, cores: Sequence[str], choice: Choice) -> Placement:
    """One segment per core and model: more are transitions that gain nothing."""
    name, networks = choice
    limits = Limits(loadables=dict.fromkeys(cores if name == "mixed" else (name,), len(networks)))
    most = solve(networks, "throughput", limits, contention=MEASURED, time_limit_s=2.0)
    if objective != "latency" or most.value < 1:
        return most
    return solve(networks, "latency", limits, contention=MEASURED, time_limit_s=2.0)


def _headroom(networks: Sequence[Network], placement: Placement) -> float:
    """How many times the rates asked for go through, played: with all cores busy they slow one another the most."""
    met = min(one.fps / network.rate_hz for network, one in zip(networks, placement.networks, strict=True))
    wanted = met / max(*placement.utilization.values(), 1e-9)
    for _ in range(_ROUNDS):
        faster = [replace(network, rate_hz=network.rate_hz * wanted) for network in networks]
        duration_ms = 1e3 * _HEADROOM_RUNS / min(network.rate_hz for network in faster)
        flows = play(streams(faster, placement), duration_ms, MEASURED).streams
        met = min(flow.fps / network.rate_hz for network, flow in zip(networks, flows, strict=True))
        if met > _KEPT_UP * wanted:
            break
        wanted = met
    return met
