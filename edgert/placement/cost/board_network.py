"""Placement problem of a graph on a board: every unit's cost on every accelerator, and every transition."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from itertools import permutations

from edgert.board.record import Board
from edgert.board.sections import Mode, Precision
from edgert.errors import ModelError
from edgert.graph import Graph
from edgert.placement.cost import formulas
from edgert.placement.cost.coefficients import Coefficients, GpuCost
from edgert.placement.cost.power import Power, power
from edgert.placement.cost.work import Numbers, Table, Work, table, units
from edgert.placement.problem import GPU, Cost, Edge, Network, Transition, Unit, weighted, with_costs


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
    rate_hz: float = 1.0,
    works: Sequence[Work] | None = None,
    launch: formulas.Launch = "graph",
) -> Network:
    """Return the placement problem of one model in one power mode.

    Accelerators are ``gpu`` and the mode's DLA cores, ``dla0`` and ``dla1``. The start of an engine is part of the cost
    of the first unit on the GPU, and the start of a loadable part of the transition into the DLA.

    Args:
        name: name of the model.
        graph: graph with static shapes.
        board: board to place it on.
        mode: power mode of the board.
        coefficients: coefficients of the board's chip.
        precision: precision of all units; a DLA has no ``"fp32"``.
        batch: frames per run; the graph's own first dimension may differ.
        allowed: names of nodes that the DLA can run; None for all. Other nodes do not join a unit that could run on the
            DLA without them.
        rate_hz: requested runs per second.
        works: ``units(graph, allowed)``, from callers that plan many modes; None to compute it.
        launch: how kernels of the GPU are started.

    Raises:
        ModelError: a shape is not static, or the graph has no layers.
        ConfigError: a clock of the mode is unknown.
    """
    works = units(graph, allowed) if works is None else works
    if not works:
        raise ModelError(f"model {name!r} has no layers to place", why="its outputs are inputs or stored tensors")
    first = graph.inputs[0].shape[0] if graph.inputs and graph.inputs[0].shape else 1
    scale = batch / (first if isinstance(first, int) and first else 1)
    watts, value_bytes = power(board, mode), formulas.PRECISION_BYTES[precision]
    costs = _costs(table(works, scale), board, mode, coefficients, precision, watts, launch)
    speed = formulas.gpu_speed(board, mode, precision)

    def transitions(size_bytes: int) -> Mapping[tuple[str, str], Transition]:
        """Return every transition that a tensor of this size may take."""
        return {
            pair: formulas.transition(size_bytes, *pair, coefficients, speed, watts) for pair in permutations(costs, 2)
        }

    problem = []
    for index, work in enumerate(works):
        is_free = allowed is None or all(node in allowed for node in work.nodes)
        own = {name: each[index] for name, each in costs.items() if name == GPU or is_free}
        problem.append(Unit(work.name, work.nodes, own, int(work.weights * value_bytes)))
    edges = _edges(graph, works, scale * value_bytes, transitions)
    return Network(name, tuple(problem), edges, GPU, rate_hz)


def per_frame(batched: Network, frames: int) -> Network:
    """Return a network with the costs of one frame, as part of a full batch.

    The frames of a run share launches, weights and a product's last tiles. Tensors keep the size of a full batch.
    """
    part = 1 / frames
    edges = tuple(replace(edge, transitions=weighted(edge.transitions, part)) for edge in batched.edges)
    return replace(with_costs(batched, lambda unit: weighted(unit.costs, part)), edges=edges)


def _costs(
    columns: Table,
    board: Board,
    mode: Mode,
    coefficients: Coefficients,
    precision: Precision,
    watts: Power,
    launch: formulas.Launch,
) -> dict[str, list[Cost]]:
    speed, dla = formulas.gpu_speed(board, mode, precision), coefficients.dla
    recorded = formulas.recorded_share(mode, launch)
    seconds = formulas.gpu_seconds(columns, speed, coefficients.gpu, recorded)
    enqueue_s = columns.launches * (1 - recorded) * coefficients.gpu.enqueue_us * 1e-6
    running, at_peak = gpu_work(columns, seconds - enqueue_s, speed, coefficients.gpu)
    seconds[:1] += coefficients.gpu.run_us * 1e-6
    found = {GPU: (seconds, formulas.gpu_bytes(columns, speed, coefficients.gpu), running, at_peak)}
    for core in range(mode.dla_cores):
        own = formulas.dla_speed(board, mode, precision, core, dla.fp16_share) if dla is not None else None
        if dla is not None and own is not None:
            time_s = formulas.dla_seconds(columns, own, dla)
            found[f"dla{core}"] = time_s, formulas.dla_bytes(columns, own, dla), time_s, 0 * time_s
    return {
        name: [
            Cost(1e3 * time_s, watts.energy_mj(name, 1e3 * running_s, traffic, 1e3 * peak_s), traffic)
            for time_s, traffic, running_s, peak_s in zip(*(column.tolist() for column in each), strict=True)
        ]
        for name, each in found.items()
    }


def gpu_work(columns: Table, seconds: Numbers, speed: formulas.Speed, cost: GpuCost) -> tuple[Numbers, Numbers]:
    """Return every unit's seconds while a kernel runs on the GPU, and those for its multiply-adds at the GPU's peak."""
    launch_s = cost.launch_us * 1e-6 + cost.launch_kcycles * 1e3 / speed.clock_hz
    macs = columns.rows * columns.groups * columns.channels * columns.columns * columns.taps
    running = (seconds - columns.launches * launch_s).clip(0.0)
    return running, ((columns.is_dense + columns.is_attention) * macs / speed.macs_per_s).clip(0.0, running)


def _edges(
    graph: Graph,
    works: Sequence[Work],
    value_bytes: float,
    transitions: Callable[[int], Mapping[tuple[str, str], Transition]],
) -> tuple[Edge, ...]:
    """Return every tensor between units, into the network and out of it.

    ``value_bytes`` is the size of one value, multiplied by the batch and divided by the graph's own.
    """
    producers = {name: index for index, work in enumerate(works) for name in work.outputs}
    consumers: dict[str, list[int]] = {name: [] for name in (*(spec.name for spec in graph.inputs), *producers)}
    for index, work in enumerate(works):
        for name in work.inputs:
            consumers.setdefault(name, []).append(index)
    shapes = {name: graph.shape(name) for name in consumers}
    sizes = {name: 0 if shape is None else int(math.prod(shape) * value_bytes) for name, shape in shapes.items()}
    return tuple(
        Edge(
            name=name,
            producer=producers.get(name),
            consumers=tuple(readers),
            is_output=name in graph.output_names,
            transitions=transitions(sizes[name]),
            size_bytes=sizes[name],
        )
        for name, readers in consumers.items()
    )
