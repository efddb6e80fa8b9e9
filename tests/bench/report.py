"""What the benchmarks of this folder share: arguments in, a table and JSON out."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from edgert.benchmark.measure import Figure, machine

DATA = Path(os.environ.get("EDGERT_DATA", Path(__file__).parents[2] / ".." / "shared" / "data")).resolve()


def needs(*names: str) -> None:
    """Leaves, saying so, where the evaluation data is missing."""
    missing = [name for name in names if not (DATA / name).exists()]
    if missing:
        print(f"skipped: {missing[0]} is not in {DATA}; set EDGERT_DATA")
        sys.exit(0)


def main(title: str, measure: Callable[[], Iterable[Figure]]) -> None:
    """Runs a benchmark, prints its figures as they come, writes JSON, and exits 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description=title)
    parser.add_argument("--json", type=Path, help="write the figures here")
    arguments = parser.parse_args()
    print(title)
    figures = []
    for figure in measure():
        figures.append(figure)
        bar = "" if figure.bar is None else f"(bar {'≤' if figure.better == 'lower' else '≥'} {figure.bar:g})"
        told = {key: value for key, value in figure.detail.items() if isinstance(value, (int, float))}
        mark = "ok  " if figure.holds else "MISS"
        print(f"  {mark} {figure.name}: {figure.value:.3f} {figure.unit} {bar} n={figure.n}")
        if told:
            print("       " + ", ".join(f"{key} {value:.4g}" for key, value in told.items()))
    if arguments.json:
        data = {"machine": machine(), "figures": [figure.to_json() for figure in figures]}
        arguments.json.write_text(json.dumps(data, indent=2))
    sys.exit(not all(figure.holds for figure in figures))
