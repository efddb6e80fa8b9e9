"""How well the governor keeps a power cap on plants made by chance, and what governor and meters cost.

Three minutes each of 200 scenarios (tests/helpers/plant.py). A load step and the start have 5 s to settle; after that a
cap may be exceeded for 2 s in all, and switches may come once per 10 s of steady load. Throughput is over the whole
time, against the best setting that would have kept the cap, looked for among all settings at every half second; a
governor may run a setting at a share of its frames, too, so the best of all shares is told beside it. Three more sets
of 200 scenarios are held to the same. Costs are CPU time of one core at two
looks a second, meters on the files of an AGX Orin and on this machine.
"""

import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import report

sys.path.insert(0, str(Path(__file__).parents[2]))

from edgert.benchmark.measure import Figure
from edgert.budget.governor import Governor
from edgert.budget.rules import Budget, Observation, Rules, Setting
from edgert.meters.all import Meters
from tests.helpers.plant import Outcome, play, scenario
from tests.helpers.sysfs import plant

COUNT, LOOKS, LOOKS_PER_S = 200, 400, 2
SETS = {"": 0, ", second set": 100_000, ", third set": 200_000, ", fourth set": 300_000}
"""Name → first seed."""
OVER_BAR_S, SHARE_BAR, RATE_BAR, COST_BAR = 2.0, 0.9, 1.0, 0.5


def kept() -> Iterator[Figure]:
    """The worst of all scenarios for each promise."""
    for name, first in SETS.items():
        yield from _figures(name, [play(scenario(seed)) for seed in range(first, first + COUNT)])


def _figures(name: str, outcomes: Sequence[Outcome]) -> Iterator[Figure]:
    over = [outcome.over_s for outcome in outcomes]
    shares = [outcome.share for outcome in outcomes]
    rates = [outcome.rate for outcome in outcomes]
    finest = [outcome.finest_share for outcome in outcomes]
    n = len(outcomes)
    detail = {"mean": sum(over) / n, "scenarios above 2 s": sum(value > OVER_BAR_S for value in over)}
    yield Figure(f"cap exceeded after settling, worst{name}", max(over), "s", OVER_BAR_S, n=n, detail=detail)
    below = sum(share < SHARE_BAR for share in shares)
    at_any = {"of the best at any share, worst": min(finest), "of the best at any share, mean": sum(finest) / n}
    detail = {"mean": sum(shares) / n, "scenarios below 0.9": below, **at_any}
    yield Figure(f"of best throughput, worst{name}", min(shares), "", SHARE_BAR, "higher", n, detail)
    detail = {
        "switches per scenario": sum(outcome.switches for outcome in outcomes) / n,
        "scenarios with two in 10 s": sum(outcome.pairs > 0 for outcome in outcomes),
    }
    yield Figure(f"switches per 10 s of steady load, worst{name}", max(rates), "", RATE_BAR, "lower", n, detail)


def costs() -> Iterator[Figure]:
    yield _cost("governor, 16 settings", _looking(16))
    yield _cost("governor, 128 settings", _looking(128))
    with tempfile.TemporaryDirectory() as folder:
        plant(Path(folder), "agx-orin-jp6")
        yield _cost("meters, AGX Orin's files", Meters(Path(folder)).sample)
    yield _cost("meters, this machine", Meters().sample)


def _looking(count: int) -> Callable[[], object]:
    """One look after the other, with so many settings to choose among: 16 is a camera with clocks to lower, 128 are
    seven cameras whose models have stand-ins."""
    settings = tuple(Setting(f"s{n}", 40 - 30 * n / count, 100 - 75 * n / count, idle_w=5.0) for n in range(count))
    rules = Rules(Budget(30.0, when_exceeded="degrade"), settings)
    governor = Governor(rules)
    state, number = governor.start(), 0

    def look() -> None:
        nonlocal state, number
        number += 1
        state, _ = governor.step(state, Observation(number * 500_000_000, 28.0 + number % 3 / 10, 90.0))

    return look


def _cost(name: str, work: Callable[[], object]) -> Figure:
    work()
    start_ns = time.process_time_ns()
    for _ in range(LOOKS):
        work()
    each_ms = (time.process_time_ns() - start_ns) / LOOKS / 1e6
    return Figure(name, each_ms * LOOKS_PER_S / 10, "% of a core", COST_BAR, n=LOOKS, detail={"ms each": each_ms})


def measure() -> Iterator[Figure]:
    yield from kept()
    yield from costs()


if __name__ == "__main__":
    report.main(__doc__.splitlines()[0] if __doc__ else "", measure)
