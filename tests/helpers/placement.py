"""Placement problems made by chance, and their best answers by trying every assignment."""

import itertools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from edgert.placement.problem import Cost, Edge, Network, Transition, Unit
from edgert.placement.run_load import Price

F64 = npt.NDArray[np.float64]
GPU_DLA = ("gpu", "dla0")
BOARD = ("gpu", "dla0", "dla1")


def random_network(
    seed: int,
    units: int,
    *,
    among: Sequence[str] = GPU_DLA,
    alike: bool = True,
    forbidden: float = 0.15,
    skips: float = 0.4,
    home: str = "gpu",
    name: str = "net",
    rate_hz: float = 1.0,
    linked: bool = False,
) -> Network:
    """A DAG with skips; DLAs are 1.2 to 2.8 times slower than the GPU at a third of its energy, and cannot run some."""
    random = np.random.default_rng(seed)
    nodes = tuple(_unit(random, index, among, alike, forbidden) for index in range(units))
    readers = _readers(random, units, skips, linked)
    edges = tuple(_edge(random, index, read, among, alike) for index, read in enumerate(readers))
    others = random.integers(0, units, int(random.integers(0, 2))).tolist() if skips else []
    consumers = sorted({0, *others})
    image = Edge("image", None, tuple(consumers), transitions=_transitions(random, among, alike), size_bytes=1000)
    return Network(name, nodes, (image, *edges), home=home, rate_hz=rate_hz)


def _unit(random: np.random.Generator, index: int, among: Sequence[str], alike: bool, forbidden: float) -> Unit:
    time_ms = float(random.lognormal(-2, 0.8))
    costs = {}
    factor = random.uniform(1.2, 2.8)
    off = random.random() < forbidden
    for accelerator in among:
        if accelerator == among[0]:
            costs[accelerator] = Cost(time_ms, 15 * time_ms * random.uniform(0.7, 1.3), 2e6 * random.random())
            slow = Cost(time_ms * factor, 3 * time_ms * factor * random.uniform(0.7, 1.3), 2e6 * random.random())
        elif not off:
            scale = 1.0 if alike else random.uniform(0.7, 1.6)
            costs[accelerator] = Cost(slow.time_ms * scale, slow.energy_mj, slow.traffic_bytes)
    return Unit(f"u{index}", (f"n{index}",), costs, weight_bytes=int(random.integers(0, 1000)))


def _readers(random: np.random.Generator, units: int, skips: float, linked: bool) -> list[list[int]]:
    """Who reads each unit: the next one mostly, later ones now and then; nobody reads the last."""
    readers: list[list[int]] = []
    for index in range(units):
        near = range(index + 1, min(index + 6, units))
        chosen = {index + 1} if index + 1 < units and (linked or not skips or random.random() < 0.85) else set()
        chosen |= {reader for reader in near if random.random() < skips / 2}
        readers.append(sorted(chosen))
    return readers


def _edge(random: np.random.Generator, index: int, readers: list[int], among: Sequence[str], alike: bool) -> Edge:
    is_output = not readers or random.random() < 0.1
    transitions = _transitions(random, among, alike)
    return Edge(f"t{index}", index, tuple(readers), is_output, transitions, size_bytes=int(random.integers(1, 10**6)))


def _transitions(random: np.random.Generator, among: Sequence[str], alike: bool) -> dict[tuple[str, str], Transition]:
    made = {"in": _transition(random), "out": _transition(random), "over": _transition(random)}
    transitions = {}
    for one, other in itertools.permutations(among, 2):
        kind = "in" if one == among[0] else "out" if other == among[0] else "over"
        transitions[one, other] = made[kind] if alike else _transition(random)
    return transitions


def _transition(random: np.random.Generator) -> Transition:
    time_ms = float(random.uniform(0.02, 0.09))
    gpu_ms, energy_mj = time_ms * random.uniform(0, 1), random.uniform(0, 0.5)
    rest_ms = time_ms - gpu_ms
    return Transition(time_ms, gpu_ms, energy_mj, random.uniform(0, 1e5), 0.3 * rest_ms, 0.5 * rest_ms)


class Everything:
    """Every assignment of a small network that its units allow, with its loads; written apart from what it checks."""

    def __init__(self, network: Network, among: Sequence[str] = GPU_DLA) -> None:
        self.network, self.among = network, tuple(among)
        able = [[index for index, name in enumerate(among) if name in unit.costs] for unit in network.units]
        grids = np.meshgrid(*able, indexing="ij")
        self.labels = np.stack([grid.ravel() for grid in grids], axis=1)
        count = len(self.labels)
        self.latency_ms, self.energy_mj, self.traffic_bytes = np.zeros(count), np.zeros(count), np.zeros(count)
        self.busy_ms, self.reformat_ms = np.zeros((count, len(among))), np.zeros(count)
        for index, unit in enumerate(network.units):
            for label, name in enumerate(among):
                if cost := unit.costs.get(name):
                    here = self.labels[:, index] == label
                    self._add(here, cost)
                    self.busy_ms[here, label] += cost.time_ms
        for edge in network.edges:
            self._hand_over(edge)

    def _add(self, where: npt.NDArray[np.bool_], cost: Cost | Transition) -> None:
        self.latency_ms[where] += cost.time_ms
        self.energy_mj[where] += cost.energy_mj
        self.traffic_bytes[where] += cost.traffic_bytes

    def _hand_over(self, edge: Edge) -> None:
        home = self.among.index(self.network.home)
        count = len(self.labels)
        source = np.full(count, home) if edge.producer is None else self.labels[:, edge.producer]
        for target in range(len(self.among)):
            wanted = np.full(count, edge.is_output and target == home)
            for consumer in edge.consumers:
                wanted |= self.labels[:, consumer] == target
            for start in range(len(self.among)):
                transition = edge.transitions.get((self.among[start], self.among[target]))
                if transition and start != target:
                    where = wanted & (source == start)
                    self._add(where, transition)
                    self.busy_ms[where, start] += transition.from_ms
                    self.busy_ms[where, target] += transition.to_ms
                    if "gpu" in self.among:
                        self.busy_ms[where, self.among.index("gpu")] += transition.gpu_ms
                    else:
                        self.reformat_ms[where] += transition.gpu_ms

    def cost(self, price: Price) -> F64:
        busy = self.busy_ms @ np.array([price.busy.get(name, 0.0) for name in self.among])
        flat = price.latency * self.latency_ms + price.energy * self.energy_mj + price.traffic * self.traffic_bytes
        return np.asarray(flat + busy)

    def assignment(self, index: int) -> tuple[str, ...]:
        return tuple(self.among[label] for label in self.labels[index])
