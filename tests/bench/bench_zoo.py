"""What ``edgert new`` writes for models that their authors' own packages exported: the right task and decoder?

FOLDER is what tools/zoo_exports.py filled, in an environment of its own; that script says what is right for each. A
model that nothing here reads is right where ``new`` refuses it. The night fails where fewer than 95 % are right, where
one is wrong and sure of it, or where one takes ``new`` more than a minute of processor time. What is kept,
tests/bench/measured/zoo.json, is a table of docs/benchmarks.md.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from report import main

from edgert.benchmark.measure import Figure
from edgert.config.model_section import value_of, verb_of
from edgert.errors import EdgertError
from edgert.wiring.inferred import infer

RIGHT = 0.95
"""Bar: of all models, those with the right task and decoder."""
CPU_SECONDS = 60.0
"""Bar: processor time of ``new``, of all threads together, for the slowest model."""


def found_in(model: Path, photos: list[Path]) -> tuple[str, bool, str]:
    """The task and decoder that ``new`` writes, whether it is sure of them, and why; empty where it refuses."""
    try:
        made = infer(model, photos)
    except EdgertError as error:
        return "", False, error.what
    return f"{verb_of(made.setting.task)}: {value_of(made.setting.task)}", made.task_sure, made.task_notes[0]


def measure(options: argparse.Namespace) -> Iterator[Figure]:
    """A figure for each model, 1 where it is right, then the shares."""
    rows: list[tuple[bool, bool, float]] = []
    for file in sorted(options.folder.glob("*.json")):
        known, started = json.loads(file.read_text()), time.process_time()
        found, sure, why = found_in(file.with_suffix(".onnx"), options.photos)
        right, seconds = found in known["task"].split("|"), time.process_time() - started
        rows.append((right, sure, seconds))
        detail = {"package": known["package"], "right": known["task"] or "refused", "found": found or "refused",
                  "sure": sure, "why": why, "seconds": round(seconds, 1)}  # fmt: skip
        yield Figure(file.stem, float(right), "", n=1, better="higher", detail=detail)
        if not right:
            print(f"       {found or 'refused'}{' (sure)' if sure else ''} for {known['task'] or 'nothing'}: {why}")
    if not rows:
        sys.exit(f"no export in {options.folder}: tools/zoo_exports.py makes them")
    yield Figure("right", sum(right for right, *_ in rows) / len(rows), "", RIGHT, "higher", len(rows))
    wrong = sum(sure and not right for right, sure, _ in rows)
    yield Figure("wrong, and sure of it", wrong, "models", 0, "lower", len(rows))
    slowest = max(seconds for *_, seconds in rows)
    yield Figure("processor time of the slowest", slowest, "s", CPU_SECONDS, "lower", len(rows))


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path)
    parser.add_argument("--photos", type=Path, nargs="*", default=[], help="try settings on them, too")


if __name__ == "__main__":
    main(str(__doc__), measure, arguments)
