"""Damaged inputs of every kind, given to every verb that takes them: ``scripts/fuzz [FORMAT...]``.

Each format is tried up to a count, as far as the time goes; what one leaves of its time is shared by those after it.
"""

import argparse
import os
import sys
import time
from pathlib import Path

from tests.faults.fuzz.formats import FORMATS
from tests.faults.fuzz.sitting import ROOT, Result, fuzz, keep

COUNTS = {"yaml": 100_000, "ros2": 100_000, "mcap": 100_000, "onnx": 20_000}
COUNT = 10_000
"""Cases of each format that is not in :data:`COUNTS`."""
_LONGEST_LINE = 300
_HEAD = f"{'format':<10} {'cases':>7} {'of':>7} {'taken':>7} {'failed':>6} {'each':>9} {'slowest':>9} {'memory':>9}"


def _show(name: str, result: Result, wanted: int) -> None:
    failures, each_ms = sum(map(len, result.failed.values())), 1e3 * result.cpu_s / max(result.cases, 1)
    print(
        f"{name:<10} {result.cases:>7} {wanted:>7} {result.taken:>7} {failures:>6} "
        f"{each_ms:>6.1f} ms {result.slowest_s:>7.2f} s {result.most_bytes / 2**20:>5.0f} MiB",
        flush=True,
    )
    for where, numbers in result.failed.items():
        last = " ".join(result.details[where].strip().splitlines()[-1:])
        print(f"    {len(numbers)} × {where}: {last[:_LONGEST_LINE]}", flush=True)


def main() -> int:
    """Exit code 1 where something failed."""
    parser = argparse.ArgumentParser(prog="scripts/fuzz", description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("formats", metavar="FORMAT", nargs="*", help=f"of {', '.join(FORMATS)}; all when left out")
    parser.add_argument("--minutes", type=float, default=5.0, help="for all together (default: 5)")
    parser.add_argument("--cases", type=int, help="at most this many of each format (default: 10,000 to 100,000)")
    parser.add_argument("--seed", type=int, default=0, help="of the cases; the same seed gives the same (default: 0)")
    parser.add_argument("--keep", type=Path, default=ROOT / "out/fuzz", help="for inputs that fail (default: out/fuzz)")
    given = parser.parse_args()
    if unknown := set(given.formats) - set(FORMATS):
        parser.error(f"unknown format {min(unknown)!r}; formats: {', '.join(FORMATS)}")
    os.nice(15)
    chosen, until, failed = given.formats or list(FORMATS), time.monotonic() + 60 * given.minutes, False
    print(_HEAD)
    for at, name in enumerate(chosen):
        wanted = given.cases or COUNTS.get(name, COUNT)
        result = fuzz(name, given.seed, (until - time.monotonic()) / (len(chosen) - at), wanted)
        keep(name, result, given.keep)
        _show(name, result, wanted)
        failed |= bool(result.failed)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
