import pytest

from edgert.runtime.metrics import Meter, Percentiles, RecentLatency, latency_counts, percentiles_of


def test_nothing_counted_is_zero() -> None:
    assert (
        percentiles_of(latency_counts([])) == percentiles_of(latency_counts([Meter()])) == [Percentiles(0, 0, 0, 0, 0)]
    )


def test_tasks_and_streams_count_together() -> None:
    fast, slow = Meter(), Meter()
    for number in range(90):
        fast.done("north", 1_000_000)
        if number < 10:
            slow.done("north" if number < 4 else "south", 100_000_000)
    (both,) = percentiles_of(latency_counts([fast, slow]))
    assert both.count == 100
    assert both.p50 == pytest.approx(1, rel=0.011) and both.p95 == pytest.approx(100, rel=0.011)


@pytest.mark.parametrize("duration", [-5, 0, 1, 2**63])
def test_the_ends_of_the_scale_are_counted_too(duration: int) -> None:
    meter = Meter()
    meter.done("north", duration)
    assert percentiles_of(latency_counts([meter]))[0].count == 1


def test_recent_latency_forgets_what_is_long_past() -> None:
    meter = Meter()
    recent = RecentLatency([meter], looks=2)
    meter.done("north", 50_000_000)
    assert recent.percentiles().p99 == pytest.approx(50, rel=0.011)
    meter.done("north", 10_000_000)
    assert (recent.percentiles().count, recent.percentiles().count, recent.percentiles().count) == (2, 1, 0)
    meter.done("north", 10_000_000)
    assert recent.percentiles().p99 == pytest.approx(10, rel=0.011)
