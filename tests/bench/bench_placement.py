"""Bar 3: throughput as predicted from a profile within 15 %, and the chosen placement within 5 % of the best.

Every placement is written to a pipeline file and runs as such, on two pinned cores: the whole model on one, replicated
on both, and split at several places, in turn. On a shared machine neighbours slow a core for seconds, by half and more,
each core by itself. So a placement is timed when both cores run as fast as they did for the profile, right before and
right after; what was timed otherwise is thrown away and done again.

python tests/bench/bench_placement.py [--json FILE]
EDGERT_BENCH_MODELS=squeezenet_fp32 EDGERT_BENCH_ROUNDS=3 python tests/bench/bench_placement.py     # quickly
"""

from __future__ import annotations

import json
import statistics
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter_ns, thread_time_ns
from typing import Any

from calm import Calm
from report import main, needs
from zoo import chosen, model_config, model_path, rounds

from edgert.assemble import assemble
from edgert.bench.measure import Figure
from edgert.bench.overhead import Still, lane_of
from edgert.bench.profile import profile
from edgert.board.core import core_accelerators
from edgert.config import load_pipeline
from edgert.graph.clean import clean
from edgert.graph.load import load
from edgert.graph.node import Graph, read
from edgert.place.choose import solve
from edgert.place.limit import Limits
from edgert.place.partition import Part, partition
from edgert.place.predict import replicated_ms, split_ms
from edgert.place.profile import Profile, network_of
from edgert.place.request import assign, weights_of
from edgert.place.written import as_written
from edgert.ready import build_engine
from edgert.runtime import Result, Runner

MODELS = ("squeezenet_fp32", "yolox_nano_416", "nanodet_m_320")
SHARES = (0.35, 0.5, 0.65)
"""Parts of the work in the first segment of the splits that are measured besides the best one."""
FRAMES = 60
FIRST, SECOND = "cpu0", "cpu1"
TRIES = 8


@dataclass(frozen=True)
class Candidate:
    """A placement as the file says it; ``parts`` for one that is split, else ``weights``."""

    name: str
    placement: Any
    weights: Mapping[str, int] | None = None
    parts: tuple[Part, ...] = ()

    def predicted_ms(self, found: Profile, graph: Graph, edges: Edges) -> float:
        """Milliseconds between frames."""
        if self.weights:
            return replicated_ms(found, self.weights, edges.first_ms + edges.last_ms)
        return split_ms(found, graph, self.parts, edges.first_ms, edges.last_ms)


@dataclass(frozen=True)
class Edges:
    """What a stage does besides running the model: filling the input, reading the outputs; processor time."""

    first_ms: float
    last_ms: float


def measure() -> Iterator[Figure]:
    """Per model: the error of each prediction, and the solver's placement against the best of all."""
    needs("models")
    if len(core_accelerators()) < 2:
        print("skipped: this process may use one core only")
        return
    for name in chosen(MODELS):
        yield from _model(name)


def _model(name: str) -> Iterator[Figure]:
    model = load(model_path(name))
    graph = read(clean(model)[0])
    found = profile(model)
    edges = _edges(name)
    candidates = _candidates(found, graph, edges)
    times = _in_turn(name, candidates, Calm(found, build_engine(model, model_config(name), 1)))
    predicted = [candidate.predicted_ms(found, graph, edges) for candidate in candidates]
    measured = [statistics.median(one) for one in times]
    for candidate, expected, actual, all_ms in zip(candidates, predicted, measured, times, strict=True):
        detail = {"measured_fps": 1e3 / actual, "predicted_fps": 1e3 / expected, "measured_ms": actual}
        error = abs(actual / expected - 1)  # of throughputs: predicted over measured
        bar = None if candidate.name == "whole" else 0.15
        yield Figure(f"{name} {candidate.name}: error", error, "of measured", bar, n=len(all_ms), detail=detail)
    best = candidates[measured.index(min(measured))].name
    what = f"{name} {candidates[0].name}, as solved, against {best}"
    yield Figure(what, min(measured) / measured[0], "of its fps", 0.95, "higher", len(times[0]))


def _candidates(found: Profile, graph: Graph, edges: Edges) -> list[Candidate]:
    splits = _splits(found, graph)
    best = min(splits, key=lambda split: split[1].predicted_ms(found, graph, edges))[1]
    some = [min(splits, key=lambda split: abs(split[0] - share))[1] for share in SHARES]
    names = {candidate.name: candidate for candidate in (best, *some)}
    replicated = _whole({FIRST: 1, SECOND: 1})
    answer = _solved(found, graph)
    if answer.placement == replicated.placement:
        answer = replicated
    everything = (answer, _whole({FIRST: 1}), replicated, *names.values())
    return list({id(candidate): candidate for candidate in everything}.values())


def _whole(weights: Mapping[str, int]) -> Candidate:
    shown = " ".join(f"{name}:{weight}" for name, weight in weights.items())
    name = f"replicated {shown}" if len(weights) > 1 else "whole"
    return Candidate(name, {"replicate": dict(weights)}, weights)


def _solved(found: Profile, graph: Graph) -> Candidate:
    """What the solver chooses for throughput, with one segment per core at most."""
    network = network_of(found, graph)
    answer = solve([network], "throughput", Limits(loadables={FIRST: 1, SECOND: 1})).networks[0]
    written = as_written(answer, network)
    if not isinstance(written, dict):
        return _whole(weights_of(written))
    places = assign(graph, written, [node.name for node in graph.nodes])
    return Candidate("split as solved", written, parts=partition(graph, places))


def _splits(found: Profile, graph: Graph) -> list[tuple[float, Candidate]]:
    """The model cut in two behind every unit, with the first segment's part of the work."""
    total = sum(unit.time_ms[FIRST] for unit in found.units)
    splits, done = [], 0.0
    for number, unit in enumerate(found.units[:-1]):
        done += unit.time_ms[FIRST]
        second = {name for other in found.units[number + 1 :] for name in other.nodes}
        places = {node.name: SECOND if node.name in second else FIRST for node in graph.nodes}
        parts = partition(graph, places)
        if len(parts) == 2:
            globs = {"*": FIRST, **dict.fromkeys(sorted(second), SECOND)}
            splits.append((done / total, Candidate(f"split behind {unit.name}", globs, parts=parts)))
    return splits


def _in_turn(name: str, candidates: Sequence[Candidate], calm: Calm) -> list[list[float]]:
    """Milliseconds per frame of every candidate, round after round, in calm moments."""
    times: list[list[float]] = [[] for _ in candidates]
    with tempfile.TemporaryDirectory(prefix="edgert-") as folder:
        for _ in range(rounds(5)):
            for taken, candidate in zip(times, candidates, strict=True):
                taken.append(_calm_ms(Path(folder) / "p.yaml", name, candidate, calm))
    return times


def _calm_ms(path: Path, name: str, candidate: Candidate, calm: Calm) -> float:
    for _ in range(TRIES):
        taken = _frame_ms(path, name, candidate, calm.is_soon)
        if calm.is_now():
            return taken
    print(f"  this machine is never calm for {FRAMES} frames of {candidate.name}; the last try counts")
    return taken


def _frame_ms(path: Path, name: str, candidate: Candidate, wait: Callable[[], bool]) -> float:
    """Milliseconds between frames of a pipeline with this placement, from the first result to the last."""
    config = model_config(name, placement=candidate.placement)
    width, height = _size(config.onnx)
    path.write_text(json.dumps({
        "models": {"m": json.loads(config.model_dump_json(exclude_none=True, exclude_unset=True))},
        "stages": {
            "belt": {"source": "synthetic:blank", "size": f"{width}x{height}", "limit": FRAMES},
            "find": {"infer": "m", "from": "belt"},
            "end": {"sink": "callback", "from": "find"},
        },
    }))  # fmt: skip
    seen: list[int] = []

    def note(result: Result) -> None:
        seen.append(perf_counter_ns())

    assembly = assemble(load_pipeline(path), callbacks={"end": note})
    runner = Runner(assembly.nodes)
    wait()
    runner.start()
    runner.wait()
    assembly.close()
    skipped = FRAMES // 6  # until all segments are full
    return (seen[-1] - seen[skipped]) / 1e6 / (len(seen) - 1 - skipped)


def _size(path: Path) -> tuple[int, int]:
    shape = read(clean(load(path))[0]).inputs[0].shape
    return int(str(shape[3])), int(str(shape[2]))


def _edges(name: str, runs: int = 30) -> Edges:
    """Processor time of filling and reading, by taking the engine's away from that of the whole stage."""
    config = model_config(name)
    lane, session = lane_of(config, build_engine(load(config.onnx), config, 1))
    frame = next(iter(Still(*lane.network, 1).frames(threading.Event())))
    fills, runs_ms, bare = [], [], []
    for _ in range(runs):
        started = thread_time_ns()
        geometry = lane.fill(frame)
        filled = thread_time_ns()
        lane.run(geometry)
        done = thread_time_ns()
        session.run()
        fills.append(filled - started)
        runs_ms.append(done - filled)
        bare.append(thread_time_ns() - done)
    last = statistics.median(whole - engine for whole, engine in zip(runs_ms, bare, strict=True))
    return Edges(statistics.median(fills) / 1e6, max(0.0, last / 1e6))


if __name__ == "__main__":
    main(__doc__.splitlines()[0], measure)
