"""Budgets of CPU time and memory in a real run, while a second process loads the machine and after it is gone.

    python tests/bench/bench_budgets.py [--json FILE]

A camera at 30 fps (a synthetic scene at its own speed) and the shipped detector, in a process of its own. First without
budgets, and with one that is never reached, to see what it takes; then with 70 % of that CPU time, for 60 s: from 15 to
35 s another process keeps every core busy. All frames never fit that budget; what comes back when the neighbor is gone
is the use of all of it. Memory is planned for a file, which is worked on by several replicas, and the budget is between
what they and what one of them take. CPU time is that of the kernel, averaged over 2 s, from 8 s on: a start and
one correction take as long. Budgets of a real board are watts; CPU time stands in for them here.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import report

sys.path.insert(0, str(Path(__file__).parents[2]))

from edgert.benchmark.measure import Figure
from edgert.board.host import core_count

ASSETS = Path(__file__).parents[2] / "pipelines" / "assets"
FREE_S, RUN_S, BUSY_S, SETTLED_S, WINDOW = 12.0, 60.0, (15.0, 35.0), 8.0, 4
SHARE, PERIOD_S = 0.7, 0.5
TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")


def pipeline(folder: Path, budgets: str, source: str = "realtime: true") -> Path:
    """The file."""
    path = folder / "p.yaml"
    path.write_text(
        f"budgets: {budgets}\n"
        f"models:\n  parts: {{onnx: {ASSETS}/parts.onnx, task: {{detect: yolox, labels: {ASSETS}/parts.txt}},"
        " precision: fp32, input: {std: 255}}\n"
        'stages:\n  cam: {source: "synthetic:noise", size: 640x480, fps: 30, ' + source + "}\n"
        '  find: {infer: parts, from: cam}\n  out: {sink: "null", from: find}\n'
    )
    return path


def run(path: Path, seconds: float, each: Callable[[float], None]) -> tuple[list[float], dict[str, Any]]:
    """Cores in use at every look, and the summary. ``each`` is called with the time since the start, at every look."""
    command = [sys.executable, "-m", "edgert", "run", str(path), "-q", "--duration", str(seconds), "--json", "-"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as child:
        began, before, cores = time.monotonic(), (time.monotonic(), 0.0), list[float]()
        while child.poll() is None:
            time.sleep(PERIOD_S)
            now = (time.monotonic(), _cpu_s(child.pid))
            cores.append((now[1] - before[1]) / (now[0] - before[0]))
            before = now
            each(now[0] - began)
        assert child.stdout is not None
        return cores, json.loads(child.stdout.read())


def _cpu_s(pid: int) -> float:
    """User and system time of a process; of one that just ended, what is known of it no more."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) * TICK_S


class Neighbor:
    """Processes that keep every core busy for a while."""

    def __init__(self, first_s: float, last_s: float) -> None:
        self._first_s, self._last_s = first_s, last_s
        self._made: list[subprocess.Popen[bytes]] = []

    def at(self, now_s: float) -> None:
        """Starts or ends them."""
        is_due = self._first_s <= now_s < self._last_s
        if is_due and not self._made:
            self._made = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(core_count())]
        elif not is_due:
            self.end()

    def end(self) -> None:
        """Ends them."""
        for one in self._made:
            one.kill()
            one.wait()
        self._made = []


def windows(cores: Sequence[float], first_s: float, last_s: float) -> list[float]:
    """Means over two seconds within a stretch."""
    part = cores[round(first_s / PERIOD_S) : round(last_s / PERIOD_S)]
    return [sum(part[at : at + WINDOW]) / WINDOW for at in range(len(part) - WINDOW + 1)]


def measure() -> Iterator[Figure]:
    """Everything."""
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        yield _free(pipeline(folder, "{}"), "without budgets")
        wide = _free(pipeline(folder, "{cpu: 64, when_exceeded: degrade}"), "with a budget that is never reached")
        yield wide
        cap = round(SHARE * wide.value, 3)
        neighbor = Neighbor(*BUSY_S)
        path = pipeline(folder, f"{{cpu: {cap}, when_exceeded: degrade}}")
        try:
            cores, kept = run(path, RUN_S, neighbor.at)
        finally:
            neighbor.end()
        yield from _figures(cores, kept, cap)
        yield _memory(folder, neighbor)


def _free(path: Path, name: str) -> Figure:
    """What it takes while nothing holds it back."""
    free, told = run(path, FREE_S, lambda now_s: None)
    used = windows(free, SETTLED_S / 2, FREE_S - 1)
    return Figure(name, sum(used) / len(used), "cores", n=len(used), detail={"fps": told["fps"]})


def _figures(cores: Sequence[float], kept: dict[str, Any], cap: float) -> Iterator[Figure]:
    governed_s = sum(kept["budgets"]["governor"]["seconds"].values())
    began_s = max(SETTLED_S, len(cores) * PERIOD_S - governed_s + SETTLED_S / 2)  # a busy machine starts slowly
    settled = windows(cores, began_s, len(cores) * PERIOD_S - 2)
    over_s = sum(value > 1.02 * cap for value in settled) * PERIOD_S
    governor = kept["budgets"]["governor"]
    stretches = {"before": (began_s, BUSY_S[0]), "busy": BUSY_S, "after": (BUSY_S[1] + 5, RUN_S - 2)}
    means = {name: sum(found) / len(found) for name, span in stretches.items() if (found := windows(cores, *span))}
    mean = sum(settled) / len(settled)
    yield Figure("of the CPU budget, mean", mean / cap, "", 1.0, n=len(settled), detail={"cap": cap, **means})
    yield Figure("of the CPU budget, after the neighbor", means["after"] / cap, "", 0.9, "higher", len(settled))
    yield Figure("seconds over the CPU budget after settling", over_s, "s", n=len(settled))
    detail = {"fps": kept["fps"], "throttled": kept["budgets"]["throttled"], "seconds": governor["seconds"]}
    detail["events"] = [f"{event['at_s']:.1f} s {event['reason']}" for event in governor["events"]]
    yield Figure("switches", governor["switches"], "", n=1, detail=detail)


def _memory(folder: Path, neighbor: Neighbor) -> Figure:
    """A file under a budget that all its replicas would break."""
    path = pipeline(folder, "{}", "limit: 600")
    command = [sys.executable, "-m", "edgert", "run", str(path), "--dry-run", "--json", "-"]
    plan = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)["memory"]
    budget = plan["most_bytes"] - 2**20
    path = pipeline(folder, f"{{memory: {budget}B, when_exceeded: stop}}", "limit: 600")
    try:
        _, told = run(path, RUN_S, lambda now_s: neighbor.at(BUSY_S[0]))
    finally:
        neighbor.end()
    detail = {"budget MiB": budget / 2**20, "steps": told["budgets"]["memory"]["steps"]}
    return Figure("of the memory budget, peak", told["peak_rss_bytes"] / budget, "", 1.0, n=1, detail=detail)


if __name__ == "__main__":
    report.main(__doc__.splitlines()[0] if __doc__ else "", measure)
