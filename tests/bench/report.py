"""What the benchmarks of this folder share: arguments in, a table and JSON out."""

import argparse
import json
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from edgert.benchmark.measure import Figure, machine
from edgert.board.devices import cuda_driver
from tests.helpers.evaluation_data import FOLDER as DATA


def needs(*names: str) -> None:
    """Leaves, saying so, where the evaluation data is missing."""
    missing = [name for name in names if not (DATA / name).exists()]
    if missing:
        print(f"skipped: needs {missing[0]} of the evaluation data; set EDGERT_DATA to the folder that has it")
        sys.exit(0)


def main(
    title: str,
    measure: Callable[..., Iterable[Figure]],
    options: Callable[[argparse.ArgumentParser], None] | None = None,
) -> None:
    """Runs a benchmark, prints its figures as they come, writes JSON after each, and exits 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description=title, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the figures here")
    if options is not None:
        options(parser)
    arguments = parser.parse_args()
    print(title)
    figures = list[Figure]()

    def write() -> None:
        if arguments.json:
            data = {"machine": {**machine(), **gpu()}, "figures": [each.to_json() for each in figures]}
            arguments.json.write_text(json.dumps(data, indent=2))

    write()
    for figure in measure(*([arguments] if options is not None else [])):
        figures.append(figure)
        bar = "" if figure.bar is None else f"(bar {'≤' if figure.better == 'lower' else '≥'} {figure.bar:g})"
        numbers = {key: value for key, value in figure.detail.items() if isinstance(value, (int, float))}
        mark = "ok  " if figure.holds else "MISS"
        print(f"  {mark} {figure.name}: {figure.value:.3f} {figure.unit} {bar} n={figure.n}", flush=True)
        if numbers:
            print("       " + ", ".join(f"{key} {value:.4g}" for key, value in numbers.items()), flush=True)
        write()
    sys.exit(not all(figure.holds for figure in figures))


def gpu() -> dict[str, Any]:
    driver = cuda_driver()
    if driver is None or not driver.gpus:
        return {}
    names = ("onnxruntime-gpu", "tensorrt-rtx-cu13-libs", "torch", "pycuda")
    versions = {}
    for name in names:
        with suppress(PackageNotFoundError):
            versions[name] = version(name)
    return {"gpu": driver.gpus[0].name, "cuda_driver": driver.version, "packages": versions}
