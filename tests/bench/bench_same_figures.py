"""The same figures of six shipped pipelines on three boards: planned, simulated, and emulated on this machine.

Frames per second, p99 and watts of a plan's row, of ``edgert simulate`` and of ``edgert run --as``, with drawn frames
in place of cameras and a model that computes nothing. The emulation runs so slowly that what threads and queues cost
here hardly shows, and its p99 is the 95th percentile of the run: in a plan no frame waits for other programs of this
machine. Needs a machine that nobody else uses; medians of several rounds.

python tests/bench/bench_same_figures.py [--json FILE]
EDGERT_BENCH_ROUNDS=1 python tests/bench/bench_same_figures.py      # quickly
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from report import main
from zoo import rounds

sys.path.insert(0, str(Path(__file__).parents[2]))

from edgert.benchmark.measure import Figure
from edgert.emulation import emulate
from edgert.pipeline import Pipeline
from edgert.planner import plan
from edgert.planner.simulation import Scenario, simulate
from tests.helpers.shipped_cameras import BOARDS, PIPELINES, shipped

BAR, ROUNDS, FRAMES, FPS, SLOWER = 0.05, 3, 30, 60.0, 30.0


def measure() -> Iterator[Figure]:
    """How far the simulation and the emulation of each are from the plan, at most."""
    for name in PIPELINES:
        for board, mode in BOARDS.items():
            with tempfile.TemporaryDirectory(prefix="edgert-") as folder, pytest.MonkeyPatch.context() as patch:
                file = shipped(name, Path(folder), FRAMES, patch, FPS)
                row = plan(file, board=board, mode=mode).boards[0].best
                assert row is not None and row.power_w is not None
                planned = (row.fps, row.p99_ms, row.power_w)
                made = simulate(file, board=board, mode=mode, scenario=Scenario(seconds=FRAMES / FPS)).played
                simulated = (FRAMES * row.fps / FPS / (made.frames_out / made.fps), made.latency_ms.p99, made.power_w)
                runs = []
                for _ in range(rounds(ROUNDS)):
                    place = emulate(file, board, mode, slower=SLOWER)
                    with Pipeline.within(place.environment, place.file) as running:
                        run = running.run()
                    last_s = run.frames_out / run.fps - run.latency_ms.p50 / 1e3
                    watts = place.report(run.frames_out)["power_w"]
                    runs.append(((FRAMES - 1) * row.fps / FPS / last_s, run.latency_ms.p95, watts))
                emulated = tuple(map(statistics.median, zip(*runs, strict=True)))
            for how, values in (("simulated", simulated), ("emulated", emulated)):
                off = {
                    what: abs((value or 0.0) / wanted - 1)
                    for what, value, wanted in zip(("fps", "p99", "W"), values, planned, strict=True)
                }
                yield Figure(f"{name} on {board}, {how}", max(off.values()), "of it", BAR, n=len(runs), detail=off)


if __name__ == "__main__":
    main(__doc__.splitlines()[0] if __doc__ else "", measure)
