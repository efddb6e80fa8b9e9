"""Profiles of models on the cores of this machine, with pinned threads, alone and with all other cores busy."""

import platform
import statistics
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np

from edgert.backend import Engine, EngineOptions, Session, ort
from edgert.backend.base import Array
from edgert.backend.ort.cpu import Kernel, kernel_times
from edgert.benchmark.measure import Figure, once_ms, timed_ms
from edgert.benchmark.overhead import hop
from edgert.board import HOST
from edgert.board.host import core_accelerators, cpu_name, pinned
from edgert.errors import DeviceError
from edgert.files import FileStore, cache_folder
from edgert.graph import Graph, Model, clean, inputs, read
from edgert.placement.cost.work import Work, units
from edgert.placement.cutting import Part, cut, partition
from edgert.placement.profile import MAX_GAP, MeasuredTransition, ModelTimes, Profile, ProfiledUnit, tensor_bytes

_CUTS = 4
"""Number of places where a model is cut in two to measure the cost of a cut."""
_ROUNDS = 6
"""Number of rounds of a measurement. On a shared machine others slow a core for seconds, by half and more. The fastest
round is that of an idle machine, which a profile describes."""


def machine_identity() -> dict[str, str]:
    """Return the properties of this machine that times of a profile depend on."""
    version = ort.OrtBackend().version
    return {"cpu": cpu_name(), "system": f"{platform.system()} {platform.machine()}", "runtime": f"ort {version}"}


def profile(model: Model, runs: int = 12) -> Profile:
    """Measure a model on every core this process may use, in the time of about ``runs`` × 25 runs per core.

    Raises DeviceError where threads cannot be pinned, ModelError for dynamic dimensions.
    """
    cores = core_accelerators()
    if not cores:
        raise DeviceError("this system cannot pin a thread to a core", fix="measure on Linux")
    ready = clean(model)[0]
    graph = read(ready)
    works = units(graph)
    bench = _Bench(ready, runs)
    rounds = [{name: bench.measure(name, cores) for name in cores} for _ in range(_ROUNDS)]
    whole, found = {}, {}
    for name in cores:
        kernels, alone_ms, busy_ms = zip(*(one[name] for one in rounds), strict=True)
        quickest = min(kernels, key=_sum_ms)
        whole[name] = ModelTimes(min(alone_ms), min(busy_ms), _sum_ms(quickest))
        found[name] = unit_times(works, graph, quickest, min(alone_ms))
    profiled = tuple(
        ProfiledUnit(work.name, work.nodes, {name: found[name][index] for name in cores})
        for index, work in enumerate(works)
    )
    transition = bench.transition(graph, works, next(iter(cores.values())))
    return Profile(model.path.stem, model.digest, HOST, "", machine_identity(), runs, whole, profiled, transition)


def figures_of(found: Profile) -> list[Figure]:
    """Return the main figures of a profile."""
    figures = []
    for name, whole in found.whole.items():
        detail = {"busy_ms": whole.busy_ms, "kernels_ms": whole.kernels_ms}
        figures.append(Figure(f"{found.model} on {name}", whole.alone_ms, "ms", n=found.runs, detail=detail))
        figures.append(Figure(f"times as long with all cores busy, {name}", whole.contention, "×", n=found.runs))
        gap = f"sum of kernels against the whole, {name}"
        figures.append(Figure(gap, whole.gap, "of the whole", MAX_GAP, n=found.runs))
    transition = found.transition
    per_mib = {"tensor_ms": transition.tensor_ms, "ms_per_mib": transition.ms_per_mib}
    figures.append(Figure("passing a frame to the next thread", transition.hop_ms, "ms", detail=per_mib))
    return figures


def _sum_ms(kernels: Sequence[Kernel]) -> float:
    return sum(kernel.time_ms for kernel in kernels)


Cut = tuple[float, int, float]
"""Additional milliseconds of one cut, and number and MiB of the tensors that cross it."""


class _Bench:
    """Measurements of a model with engines of one thread."""

    def __init__(self, model: Model, runs: int) -> None:
        self._model, self._runs = model, runs
        self._engine = _engine(model)
        self._feeds = {spec.name: array for spec, array in zip(inputs(model), _arrays(self._engine), strict=True)}

    def measure(self, name: str, cores: Mapping[str, int]) -> tuple[Sequence[Kernel], float, float]:
        """Return kernels, and the milliseconds of a run alone and with all cores busy."""
        session = _filled_session(self._engine)
        with pinned(cores[name]):
            kernels = kernel_times(self._model, self._feeds, self._runs)
            alone_ms = statistics.median(timed_ms(session.run, self._runs))
            with busy_cores(self._engine, [core for other, core in cores.items() if other != name]):
                busy_ms = statistics.median(timed_ms(session.run, self._runs))
        return kernels, alone_ms, busy_ms

    def transition(self, graph: Graph, works: Sequence[Work], core: int) -> MeasuredTransition:
        """Return the cost of a cut: the time of a model that is cut in two minus that of the complete model."""
        cuts = [self._cut(graph, parts, core) for parts in _cut_in_two(graph, works)]
        tensor_ms, ms_per_mib = fit(cuts)
        return MeasuredTransition(hop(rounds=3, frames=1000).value / 1e3, tensor_ms, ms_per_mib)

    def _cut(self, graph: Graph, parts: Sequence[Part], core: int) -> Cut:
        engines = [_engine(cut(graph, part, self._model)) for part in parts]
        sessions = [_filled_session(engine) for engine in (self._engine, *engines)]
        with pinned(core):
            for session in sessions:
                timed_ms(session.run, 1)
            rounds = [[once_ms(session.run) for session in sessions] for _ in range(3 * self._runs)]
        extra_ms = statistics.median(first + second - whole for whole, first, second in rounds)
        for engine in engines:
            engine.close()
        crossed = set(parts[0].outputs).intersection(parts[1].inputs)
        return extra_ms, len(crossed), sum(tensor_bytes(graph, name) for name in crossed) / 2**20


def fit(cuts: Sequence[Cut]) -> tuple[float, float]:
    """Return the non-negative milliseconds per tensor and per MiB that fit the cuts best, by least squares."""
    extra, count, mib = np.array(cuts, float).reshape(-1, 3).T
    best, *_ = np.linalg.lstsq(np.stack([count, mib], axis=1), extra, rcond=None)
    if min(best) >= 0:
        return float(best[0]), float(best[1])
    alone = [max(0.0, float(x @ extra) / max(float(x @ x), 1e-12)) for x in (count, mib)]
    errors = [float(((x * rate - extra) ** 2).sum()) for x, rate in zip((count, mib), alone, strict=True)]
    return (alone[0], 0.0) if errors[0] <= errors[1] else (0.0, alone[1])


def _cut_in_two(graph: Graph, works: Sequence[Work]) -> list[tuple[Part, ...]]:
    """Return the model cut in two at the narrowest place of each of several stretches."""
    found: list[tuple[Part, ...]] = []
    for stretch in np.array_split(np.arange(1, len(works)), min(_CUTS, max(1, len(works) - 1))):
        halves = []
        for number in stretch.tolist():
            first = {name for work in works[:number] for name in work.nodes}
            places = {node.name: "first" if node.name in first else "second" for node in graph.nodes}
            halves.append(partition(graph, places))
        two = [parts for parts in halves if len(parts) == 2]
        if two:
            found.append(min(two, key=lambda parts: len(set(parts[0].outputs).intersection(parts[1].inputs))))
    return found


def unit_times(works: Sequence[Work], graph: Graph, kernels: Sequence[Kernel], whole_ms: float) -> list[float]:
    """Return the time of each unit's kernels, scaled so that they add up to the complete run."""
    owner = {name: index for index, work in enumerate(works) for name in work.nodes}
    found = [0.0] * len(works)
    last = 0
    for kernel in kernels:
        name = node_of(kernel.name, graph)
        last = owner[name] if name else last  # a change of layout belongs to the unit before it
        found[last] += kernel.time_ms
    scale = whole_ms / sum(found)
    return [time_ms * scale for time_ms in found]


def node_of(kernel: str, graph: Graph) -> str | None:
    """Return the node of a kernel, whose name is or begins with that of the node or one of its outputs."""
    tensors = {name: node.name for name, node in graph.producers.items()}
    nodes = {node.name: node.name for node in graph.nodes}
    exact = nodes.get(kernel) or tensors.get(kernel.removesuffix("_nchwc"))
    if exact:
        return exact
    begun = [name for name in nodes if kernel.startswith(name) and not kernel[len(name) :][:1].isalnum()]
    return max(begun, key=len, default=None)


def _engine(model: Model) -> Engine:
    return ort.OrtBackend().compile(model, EngineOptions(threads=1, store=FileStore(cache_folder() / "ort")))


def _arrays(engine: Engine) -> list[Array]:
    """Return random inputs from 0 to 1, the same every time."""
    random = np.random.default_rng(0)
    return [
        random.random(tensor.shape).astype(tensor.dtype) if tensor.dtype.startswith("float")
        else np.zeros(tensor.shape, tensor.dtype)
        for tensor in engine.inputs
    ]  # fmt: skip


def _filled_session(engine: Engine) -> Session:
    session = engine.session()
    for target, array in zip(session.inputs.values(), _arrays(engine), strict=True):
        target[...] = array
    return session


@contextmanager
def busy_cores(engine: Engine, cores: Sequence[int]) -> Iterator[None]:
    """Keep cores busy with the engine during the block."""
    stop = threading.Event()

    def work(core: int) -> None:
        with pinned(core):
            session = _filled_session(engine)
            while not stop.is_set():
                session.run()

    threads = [threading.Thread(target=work, args=(core,), daemon=True) for core in cores]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()
