"""A graph on a board as a placement problem: every unit's cost on every accelerator, every transition."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations

from edgert.board.record import Board
from edgert.board.sections import Mode, Precision
from edgert.graph import Graph
from edgert.placement.cost.coefficients import Coefficients
from edgert.placement.cost.fused_kernels import units
from edgert.placement.cost.speeds import PRECISION_BYTES, Power, Speed, dla_speed, gpu_speed, power
from edgert.placement.cost.times import Reformat, dla_bytes, dla_seconds, gpu_bytes, gpu_seconds, transition
from edgert.placement.cost.work import Numbers, Shapes, Table, Work, table
from edgert.placement.problem import GPU, Cost, Edge, Network, Transition, Unit


@dataclass(frozen=True, slots=True)
class _Engine:
    """One accelerator, and what every unit would cost on it."""

    name: str
    seconds: Numbers
    traffic: Numbers


def network(
    name: str,
    graph: Graph,
    board: Board,
    mode: Mode,
    coefficients: Coefficients,
    *,
    precision: Precision,
    batch: int = 1,
    allowed: Collection[str] | None = None,
    rate_hz: float | None = None,
    works: Sequence[Work] | None = None,
) -> Network:
    """The placement problem of one model in one power mode.

    Accelerators are ``gpu`` and the mode's DLA cores, ``dla0`` and ``dla1``. The engine's own start is in the cost of
    the first unit on the GPU, and a loadable's in the transition into the DLA.

    Args:
        graph: with static shapes.
        precision: of all units; a DLA has no ``"fp32"``.
        batch: frames per run; the graph's own first dimension may be another.
        allowed: names of nodes that the DLA can run; None: all of them. Nodes that it can and that it cannot run are
            never in one unit, unless the first of the unit cannot.
        rate_hz: runs a second that are asked for.
        works: ``units(graph, allowed)``, from callers that ask for many modes; None: made here.

    Raises:
        ModelError: a shape is not static.
        ConfigError: a clock of the mode is unknown.
    """
    works = units(graph, allowed) if works is None else works
    scale = batch / _own_batch(graph)
    engines = _engines(table(works, scale), board, mode, coefficients, precision)
    watts = power(board, mode, coefficients.power)
    free = {work.name for work in works if allowed is None or all(node in allowed for node in work.nodes)}
    value_bytes = PRECISION_BYTES[precision]
    problem = [_unit(index, work, engines, watts, work.name in free, value_bytes) for index, work in enumerate(works)]
    border = _Border(
        tuple(engine.name for engine in engines),
        coefficients,
        Reformat.on(gpu_speed(board, mode, precision), coefficients.gpu),
        watts,
    )
    return Network(name, tuple(problem), _edges(graph, works, border, scale * value_bytes), GPU, rate_hz, batch)


@dataclass(frozen=True, slots=True)
class _Border:
    """What transitions between these accelerators depend on."""

    names: tuple[str, ...]
    coefficients: Coefficients
    reformat: Reformat
    watts: Power

    def transitions(self, size_bytes: int) -> Mapping[tuple[str, str], Transition]:
        """Every way that a tensor of this size may go."""
        cost, dla = self.coefficients.transition, self.coefficients.dla
        run_us = dla.run_us if dla else 0.0
        return {
            pair: transition(size_bytes, *pair, cost, self.reformat, self.watts, run_us)
            for pair in permutations(self.names, 2)
        }


def _own_batch(graph: Graph) -> int:
    first = graph.inputs[0].shape[0] if graph.inputs and graph.inputs[0].shape else 1
    return first if isinstance(first, int) and first else 1


def _engines(
    columns: Table, board: Board, mode: Mode, coefficients: Coefficients, precision: Precision
) -> list[_Engine]:
    speed = gpu_speed(board, mode, precision)
    seconds = gpu_seconds(columns, speed, coefficients.gpu)
    seconds[:1] += coefficients.gpu.run_us * 1e-6
    found = [_Engine(GPU, seconds, gpu_bytes(columns, speed))]
    for core in range(mode.dla_cores if coefficients.dla else 0):
        found += _dla_engine(columns, dla_speed(board, mode, precision, core, _share(coefficients)), core, coefficients)
    return found


def _share(coefficients: Coefficients) -> float:
    return coefficients.dla.fp16_share if coefficients.dla else 1.0


def _dla_engine(columns: Table, speed: Speed | None, core: int, coefficients: Coefficients) -> list[_Engine]:
    cost = coefficients.dla
    if speed is None or cost is None:
        return []
    return [_Engine(f"dla{core}", dla_seconds(columns, speed, cost), dla_bytes(columns, speed, cost))]


def _unit(index: int, work: Work, engines: Sequence[_Engine], watts: Power, is_free: bool, value_bytes: int) -> Unit:
    costs = {engine.name: _cost(engine, index, watts) for engine in engines if engine.name == GPU or is_free}
    return Unit(work.name, work.nodes, costs, int(work.weights * value_bytes))


def _cost(engine: _Engine, index: int, watts: Power) -> Cost:
    time_ms, traffic = float(engine.seconds[index]) * 1e3, float(engine.traffic[index])
    return Cost(time_ms, watts.energy_mj(engine.name, time_ms, traffic), traffic)


def _edges(graph: Graph, works: Sequence[Work], border: _Border, value_bytes: float) -> tuple[Edge, ...]:
    """Every tensor between units, in or out; ``value_bytes`` is of one value times the batch over the graph's own."""
    shapes = Shapes(graph)
    producers = {name: index for index, work in enumerate(works) for name in work.outputs}
    consumers: dict[str, list[int]] = {name: [] for name in (*(spec.name for spec in graph.inputs), *producers)}
    for index, work in enumerate(works):
        for name in work.inputs:
            consumers.setdefault(name, []).append(index)
    sizes = {name: int(shapes.size(name) * value_bytes) for name in consumers}
    return tuple(
        Edge(
            name=name,
            producer=producers.get(name),
            consumers=tuple(readers),
            is_output=name in graph.output_names,
            transitions=border.transitions(sizes[name]),
            size_bytes=sizes[name],
        )
        for name, readers in consumers.items()
    )
