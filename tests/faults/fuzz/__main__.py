"""Damaged inputs of every kind, given to every verb that takes them: ``scripts/fuzz [FORMAT...]``.

For some minutes, as the nightly tests do; or, with ``--hours``, a campaign up to the counts of
:data:`tests.faults.fuzz.campaign.GOALS`, which goes on where the last one was ended.
"""

import argparse
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.faults.fuzz.campaign import GOAL, GOALS, Campaign, Count
from tests.faults.fuzz.formats import FORMATS
from tests.faults.fuzz.sitting import ROOT, Result, fuzz, keep

_OUT = ROOT / "out" / "fuzz"
_LONGEST_LINE = 300
_HEAD = f"{'format':<10} {'cases':>7} {'of':>7} {'taken':>7} {'failed':>6} {'each':>9} {'slowest':>9} {'memory':>9}"


def _row(name: str, count: Count, goal: int | None) -> str:
    each_ms = 1e3 * count.cpu_s / max(count.cases, 1)
    return (
        f"{name:<10} {count.cases:>7} {goal or '':>7} {count.taken:>7} {count.failures:>6} "
        f"{each_ms:>6.1f} ms {count.slowest_s:>7.2f} s {count.most_bytes / 2**20:>5.0f} MiB"
    )


def _failures(counts: Mapping[str, Count]) -> int:
    return sum(count.failures for count in counts.values())


def _show_failures(name: str, result: Result) -> None:
    for where, numbers in result.failed.items():
        last = " ".join(result.details[where].strip().splitlines()[-1:])
        print(f"    {name} {len(numbers)} × {where}: {last[:_LONGEST_LINE]}", flush=True)


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="scripts/fuzz", description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("formats", metavar="FORMAT", nargs="*", help=f"of {', '.join(FORMATS)}; all when left out")
    parser.add_argument("--minutes", type=float, default=5.0, help="for all together (default: 5)")
    parser.add_argument("--hours", type=float, help="at most this long, up to all counts; goes on where it was ended")
    parser.add_argument("--jobs", type=int, default=1, help="processes at once, with --hours (default: 1)")
    parser.add_argument("--cases", type=int, help="at most this many of each format")
    parser.add_argument("--seed", type=int, default=0, help="of the cases; the same seed gives the same (default: 0)")
    parser.add_argument("--keep", type=Path, default=_OUT, help="folder for inputs that fail (default: out/fuzz)")
    parser.add_argument("--counts", type=Path, help="with --hours: of what was done (default: state.json beside them)")
    return parser


def main() -> int:
    """Exit code 1 where something failed that has not been right since."""
    parser = _options()
    given = parser.parse_args()
    if unknown := set(given.formats) - set(FORMATS):
        parser.error(f"unknown format {min(unknown)!r}; formats: {', '.join(FORMATS)}")
    chosen = given.formats or list(FORMATS)
    os.nice(15)
    counts = dict[str, Count]()
    goals = {name: given.cases or GOALS.get(name, GOAL) for name in chosen}
    if given.hours is not None:
        campaign = Campaign(given.counts or given.keep / "state.json", given.seed, goals)
        counts = campaign.counts
        if given.hours > 0:
            campaign.run(3600 * given.hours, given.jobs, given.keep, _show_failures)
    for name in chosen if given.hours is None else ():
        result = fuzz(name, given.seed, 60 * given.minutes / len(chosen), given.cases)
        keep(name, result, given.keep)
        counts[name] = Count()
        counts[name].add(result)
        _show_failures(name, result)
    print(_HEAD)
    for name, count in counts.items():
        print(_row(name, count, goals[name] if given.hours is not None else given.cases))
    return int(_failures(counts) > 0)


if __name__ == "__main__":
    sys.exit(main())
