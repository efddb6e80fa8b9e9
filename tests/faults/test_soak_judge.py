"""What the soak takes for growth: all that goes on for ever, and not what settles."""

import math
import random
from collections.abc import Callable

import pytest

from tests.bench.bench_soak import Sample, judge

MB, KEPT_S = 1e6, 4 * 3600.0


def run(hours: float, rss: Callable[[float], float], files: Callable[[float], int] = lambda at_s: 15) -> list[Sample]:
    """Samples of a run, with noise of pages that come and go."""
    chance = random.Random(5)
    return [
        Sample(
            at, int(200 * MB + rss(at)) + chance.randrange(20_000), 0, 0, files(at), 24, at / 4, at / 9, at * 8, 50.0
        )
        for at in range(10, int(hours * 3600), 10)
    ]


def settling(at_s: float) -> float:
    return 1.5 * MB * (1 - math.exp(-at_s / 600))


@pytest.mark.parametrize("hours", [1.5, 4.0])
@pytest.mark.parametrize("leak", [0.8, 1.2, 7.0])
def test_a_leak_is_seen_however_long_the_run_is(hours: float, leak: float) -> None:
    verdict = judge(run(hours, lambda at_s: leak * MB * at_s / KEPT_S + settling(at_s)))
    assert verdict.rss_bytes == pytest.approx(leak * MB, abs=0.15 * MB)
    assert bool(verdict.faults()) == (leak > 1)


def test_what_settles_is_no_leak_and_is_printed() -> None:
    verdict = judge(run(1.5, settling))
    assert not verdict.faults() and verdict.rss_bytes < 0.2 * MB < verdict.rss_all_bytes
    assert "by all after the warm-up +0." in verdict.lines()[1]


def test_four_hours_are_judged_as_a_whole() -> None:
    verdict = judge(run(4.0, lambda at_s: 2 * MB * math.sqrt(at_s / KEPT_S)))
    assert verdict.faults() and verdict.rss_bytes == verdict.rss_all_bytes


def test_a_leak_that_begins_late_is_seen() -> None:
    assert judge(run(1.5, lambda at_s: 6 * MB * max(at_s - 4000, 0) / KEPT_S)).faults()


def test_one_more_file_is_a_fault() -> None:
    assert judge(run(1.0, lambda at_s: 0.0, lambda at_s: 15 + (at_s > 3400))).faults() == ["1 files more"]
