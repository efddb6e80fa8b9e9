"""Bar 3: throughput as planned from a profile within 15 %, and the planned placement within 5 % of the best.

Predictions are those of ``edgert plan --board host``: engines only, without the host's work around them.
Every placement is written to a pipeline file and runs as such, on two pinned cores: the whole model on one, replicated
on both, and split at several places, in turn. On a shared machine neighbors slow a core for seconds, by half and more,
each core by itself. So a placement is timed when both cores run as fast as they did for the profile, right before and
right after; what was timed otherwise is thrown away and done again.

python tests/bench/bench_placement.py [--json FILE]
EDGERT_BENCH_MODELS=squeezenet_fp32 EDGERT_BENCH_ROUNDS=3 python tests/bench/bench_placement.py     # quickly
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter_ns
from typing import Any

from calm import Calm
from pydantic import BaseModel
from report import main, needs
from zoo import ROOT, chosen, model_config, model_path, rounds

sys.path.insert(0, str(ROOT))

from edgert.assemble import assemble
from edgert.benchmark.core_profile import profile
from edgert.benchmark.measure import Figure
from edgert.board.host import core_accelerators
from edgert.config import load_pipeline
from edgert.engine import build_engine
from edgert.graph import Graph, clean, load, read
from edgert.placement.cutting import partition
from edgert.placement.plan_record import Row
from edgert.placement.profile import Profile
from edgert.planner.plan_rows import plan_host
from edgert.runtime import Result, Runner
from tests.helpers.written import as_written

MODELS = ("squeezenet_fp32", "yolox_nano_416", "nanodet_m_320")
SHARES = (0.35, 0.5, 0.65)
"""Parts of the work in the first segment of the splits that are measured."""
FRAMES = 60
FIRST, SECOND = "cpu0", "cpu1"
TRIES = 8


@dataclass(frozen=True)
class Candidate:
    """A placement as the file says it, and the frames per second that are planned for it."""

    name: str
    placement: Any
    planned_fps: float


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
    found = profile(model)
    with tempfile.TemporaryDirectory(prefix="edgert-") as folder:
        path = Path(folder) / "p.yaml"
        candidates = _candidates(name, path, found, read(clean(model)[0]))
        times = _in_turn(name, path, candidates, Calm(found, build_engine(model, model_config(name), 1)))
    measured = [statistics.median(one) for one in times]
    for candidate, actual, all_ms in zip(candidates, measured, times, strict=True):
        detail = {"measured_fps": 1e3 / actual, "planned_fps": candidate.planned_fps, "measured_ms": actual}
        error = abs(candidate.planned_fps * actual / 1e3 - 1)  # of throughputs: planned over measured
        bar = None if candidate.name == "whole" else 0.15
        yield Figure(f"{name} {candidate.name}: error", error, "of measured", bar, n=len(all_ms), detail=detail)
    best = candidates[measured.index(min(measured))].name
    what = f"{name} {candidates[0].name}, as planned, against {best}"
    yield Figure(what, min(measured) / measured[0], "of its fps", 0.95, "higher", len(times[0]))


def _candidates(name: str, path: Path, found: Profile, graph: Graph) -> list[Candidate]:
    """The planned one first, then the whole model on one core, on both, and splits."""

    def planned(shown: str, placement: Any) -> Candidate:
        return Candidate(shown, placement, _plan(name, path, placement, found).fps)

    answer = _plan(name, path, "auto", found)
    chosen_one = as_written(answer.models[0])
    shown = chosen_one.model_dump() if isinstance(chosen_one, BaseModel) else chosen_one
    others = {"whole": FIRST, "replicated": {"replicate": {FIRST: 1, SECOND: 1}}, **_splits(found, graph)}
    same = [other for other, placement in others.items() if placement == shown]
    first = Candidate(same[0] if same else "split", shown, answer.fps)
    return [first, *(planned(other, placement) for other, placement in others.items() if other not in same)]


def _plan(name: str, path: Path, placement: Any, found: Profile) -> Row:
    """The plan's row for both cores together; the only one where all of the model is on one."""
    _write(path, name, placement)
    return plan_host(load_pipeline(path), [found], "throughput").rows[-1]


def _splits(found: Profile, graph: Graph) -> dict[str, dict[str, str]]:
    """The model cut in two, as closely as there is a cut to each of the shares."""
    total = sum(unit.time_ms[FIRST] for unit in found.units)
    splits, done = [], 0.0
    for number, unit in enumerate(found.units[:-1]):
        done += unit.time_ms[FIRST]
        second = {name for other in found.units[number + 1 :] for name in other.nodes}
        places = {node.name: SECOND if node.name in second else FIRST for node in graph.nodes}
        if len(partition(graph, places)) == 2:
            globs = {"*": FIRST, **dict.fromkeys(sorted(second), SECOND)}
            splits.append((done / total, f"split behind {unit.name}", globs))
    nearest = [min(splits, key=lambda split: abs(split[0] - share)) for share in SHARES]
    return {shown: globs for _, shown, globs in nearest}


def _in_turn(name: str, path: Path, candidates: Sequence[Candidate], calm: Calm) -> list[list[float]]:
    """Milliseconds per frame of every candidate, round after round, in calm moments."""
    times: list[list[float]] = [[] for _ in candidates]
    for _ in range(rounds(5)):
        for taken, candidate in zip(times, candidates, strict=True):
            taken.append(_calm_ms(path, name, candidate, calm))
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
    _write(path, name, candidate.placement)
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


def _write(path: Path, name: str, placement: Any) -> None:
    config = model_config(name, placement=placement)
    width, height = _size(config.onnx)
    path.write_text(json.dumps({
        "models": {"m": json.loads(config.model_dump_json(exclude_none=True, exclude_unset=True))},
        "stages": {
            "belt": {"source": "synthetic:blank", "size": f"{width}x{height}", "limit": FRAMES},
            "find": {"infer": "m", "from": "belt"},
            "end": {"sink": "callback", "from": "find"},
        },
    }))  # fmt: skip


def _size(path: Path) -> tuple[int, int]:
    shape = read(clean(load(path))[0]).inputs[0].shape
    return int(str(shape[3])), int(str(shape[2]))


if __name__ == "__main__":
    main(__doc__.splitlines()[0], measure)
