import numpy as np
import pytest
from hypothesis import given, strategies as st

from edgert.runtime import LatencyHistogram
from edgert.runtime.metrics import RecentLatency


def filled(durations_ns: list[int]) -> LatencyHistogram:
    histogram = LatencyHistogram()
    for duration in durations_ns:
        histogram.add(duration)
    return histogram


def test_nothing_counted_is_zero() -> None:
    empty = LatencyHistogram().percentiles()
    assert (empty.p50, empty.p95, empty.p99, empty.mean, empty.count) == (0, 0, 0, 0, 0)


@given(st.lists(st.integers(100, 10**12), min_size=1, max_size=300))
def test_percentiles_are_right_to_their_promise(durations_ns: list[int]) -> None:
    found = filled(durations_ns).percentiles()
    exact = np.percentile(durations_ns, [50, 95, 99], method="inverted_cdf") / 1e6
    assert (found.p50, found.p95, found.p99) == pytest.approx(tuple(exact), rel=0.011)
    assert found.mean == pytest.approx(np.mean(durations_ns) / 1e6, rel=0.011)
    assert found.count == len(durations_ns)


def test_several_histograms_count_together() -> None:
    fast, slow = filled([1_000_000] * 90), filled([100_000_000] * 10)
    both = fast.percentiles(slow)
    assert both.count == 100
    assert both.p50 == pytest.approx(1, rel=0.011) and both.p95 == pytest.approx(100, rel=0.011)


@pytest.mark.parametrize("duration", [-5, 0, 1, 2**63])
def test_the_ends_of_the_scale_are_counted_too(duration: int) -> None:
    assert filled([duration]).percentiles().count == 1


def test_recent_latency_forgets_what_is_long_past() -> None:
    histogram = LatencyHistogram()
    recent = RecentLatency([histogram], looks=2)
    histogram.add(50_000_000)
    assert recent.percentiles().p99 == pytest.approx(50, rel=0.011)
    histogram.add(10_000_000)
    assert (recent.percentiles().count, recent.percentiles().count, recent.percentiles().count) == (2, 1, 0)
    histogram.add(10_000_000)
    assert recent.percentiles().p99 == pytest.approx(10, rel=0.011)
