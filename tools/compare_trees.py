"""Runs benchmarks of two trees alternately and prints how much faster or slower this one is.

    make bench BEFORE=../before                                every benchmark that both trees have, except the soak
    scripts/bench --before ../before runtime track -n 5        two of them, five rounds

The machine's speed drifts, so the trees alternate and ratios are computed within a round; above 1 is better.
Exits with 1 if the median of a time or rate is under 0.97. Figures are matched by name, or by position where names were
changed. Counts and sizes are not compared, as they have bars elsewhere. In rows of other forms, and beside figures in
other units, fields whose names end in a unit of time are compared, except those of a peer.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).resolve().parents[1]
BENCHES = Path("tests/bench")
LEAST = 0.97
ALLOCATION = {"MALLOC_MMAP_THRESHOLD_": str(1 << 26), "MALLOC_TRIM_THRESHOLD_": str(1 << 28)}
"""Thresholds of glibc, which otherwise adapts them to earlier frees; arrays near them then cost 1.6 times as much."""
TIMED = ("s", "ms", "µs", "us", "ns", "fps", "frames/s", "images/s", "of its fps", "×", "x", "ratio")
FIELD = re.compile(r"(?!theirs|plain|peer|bar)(?!.*p99)(?:.*_)?(ns|us|ms|s|fps)")
"""Name of a time or rate in a row, with its unit; without those of peers, and 99th percentiles, which are noise."""
Figures = Mapping[str, Mapping[str, Any]]


def figures(root: Path, bench: str) -> dict[str, Mapping[str, Any]]:
    """Return the figures of one run of a tree's benchmark, by name; empty if it failed."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "figures.json"
        command = [sys.executable, str(root / BENCHES / f"bench_{bench}.py"), "--json", str(path)]
        paths = [str(root), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = os.environ | ALLOCATION | {"PYTHONPATH": os.pathsep.join(paths), "PYTHONDONTWRITEBYTECODE": ""}
        done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
        if not path.exists():
            print(f"  {root}: {(done.stdout + done.stderr).strip().splitlines()[-1:] or 'no output'}")
            return {}
        return {figure["name"]: figure for figure in rows(json.loads(path.read_text()))}


def rows(data: Any, place: str = "") -> Iterator[Mapping[str, Any]]:
    """Yield the figures in a benchmark's output: listed ones, and timed fields of rows, named by their place."""
    if isinstance(data, dict) and "figures" in data:
        for figure in data["figures"]:
            yield figure
            if figure["unit"] not in TIMED:  # for example a ratio to a peer, with both times in its detail
                yield from rows(figure.get("detail", {}), f"{figure['name']}: ")
    elif isinstance(data, dict | list):
        for key, value in data.items() if isinstance(data, dict) else enumerate(data):
            unit = FIELD.fullmatch(str(key))
            if isinstance(value, int | float) and unit:
                better = "higher" if unit[1] == "fps" else "lower"
                yield {"name": f"{place}{key}", "value": value, "unit": unit[1], "better": better}
            else:
                yield from rows(value, f"{place}{key} ")


def paired(before: Figures, now: Figures) -> dict[str, tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Return name → figure of both trees, by the current name."""
    if len(before) == len(now):
        return {name: (one, now[name]) for name, one in zip(now, before.values(), strict=True)}
    return {name: (before[name], now[name]) for name in now if name in before}


def speed(before: Mapping[str, Any], now: Mapping[str, Any]) -> float | None:
    """Return the ratio to before, above 1 for better; None for other units, and for values that are not positive."""
    if now["unit"] not in TIMED or before["value"] <= 0 or now["value"] <= 0:
        return None
    ratio = float(now["value"]) / float(before["value"])
    return ratio if now.get("better") == "higher" else 1 / ratio


def compare(before: Path, now: Path, bench: str, rounds: int) -> bool:
    """Print a line for every time and rate of a benchmark, and return whether none of them is slower."""
    ratios: dict[str, list[float]] = {}
    for number in range(rounds):
        order = (before, now) if number % 2 == 0 else (now, before)
        found = {root: figures(root, bench) for root in order}
        for name, (one, other) in paired(found[before], found[now]).items():
            ratio = speed(one, other)
            ratios.setdefault(name, []).extend([] if ratio is None else [ratio])
    print(f"{bench}: {rounds} rounds")
    slower = False
    for name, measured in ratios.items():
        if measured:
            is_slower = median(measured) < LEAST
            slower |= is_slower
            spread = f"{min(measured):.2f} to {max(measured):.2f}"
            print(f"  {'SLOWER' if is_slower else 'ok    '} {median(measured):5.2f} ×  ({spread})  {name}", flush=True)
    return not slower


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="Benchmarks of two trees in turns.")
    parser.add_argument("before", type=Path, help="root of the other tree")
    parser.add_argument("bench", nargs="*", help="names of benchmarks, without bench_; all by default")
    parser.add_argument("-n", type=int, default=3, help="rounds [3]")
    given = parser.parse_args(arguments)
    before = given.before.resolve()
    every = sorted(path.stem.removeprefix("bench_") for path in (HERE / BENCHES).glob("bench_*.py"))
    names = given.bench or [name for name in every if name != "soak"]  # the soak takes hours
    known = [name for name in names if (before / BENCHES / f"bench_{name}.py").exists()]
    verdicts = [compare(before, HERE, name, given.n) for name in known]  # all are run, even after a slower one
    return int(not all(verdicts))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
