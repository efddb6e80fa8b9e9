"""Which time of a frame is right, and where a file's clock was set."""

import itertools
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from edgert.stages.source.frame_times import BestTimes, TimestampJoiner

HZ = 1000
PERIOD_NS = 100_000_000
times = st.lists(st.tuples(*[st.one_of(st.none(), st.integers(-(2**40), 2**40))] * 2, st.booleans()), max_size=30)


def packets(*shown: tuple[int | None, int | None], key: int = 0) -> list[Any]:
    """With pts and dts in milliseconds; the first is a key frame."""
    found = [SimpleNamespace(pts=pts, dts=dts, duration=100, is_keyframe=False) for pts, dts in shown]
    found[key].is_keyframe = True
    return found


def joined(given: list[Any], *, may_leap: bool = True) -> list[tuple[int | None, int | None]]:
    seams = TimestampJoiner(Fraction(1, HZ), PERIOD_NS, may_leap)
    for packet in given:
        seams.join(packet)
    return [(packet.pts, packet.dts) for packet in given]


REORDERED = (0, -200), (300, -100), (100, 0), (200, 100), (400, 200)


def test_images_out_of_order_are_no_seam() -> None:
    assert joined(packets(*REORDERED)) == list(REORDERED)


@pytest.mark.parametrize("offset", [0, 5_000, -5_000, 900_000])
def test_the_next_recording_goes_on_behind_the_one_before(offset: int) -> None:
    second = [(pts + offset, dts + offset) for pts, dts in REORDERED]
    expected = 5_000 if offset == 5_000 else 500  # a gap of less than ten seconds is one
    found = joined([*packets(*REORDERED), *packets(*second)])
    assert found[5:] == [(pts + expected, dts + expected) for pts, dts in REORDERED]


def test_an_hour_without_frames_is_a_gap_where_clocks_do_not_leap() -> None:
    given = packets((0, 0), (3_600_000, 3_600_000))
    assert joined(given, may_leap=False) == [(0, 0), (3_600_000, 3_600_000)]
    assert joined(packets((0, 0), (3_600_000, 3_600_000))) == [(0, 0), (100, 100)]
    two_days = packets((0, 0), (172_800_000, 172_800_000))
    assert joined(two_days, may_leap=False) == [(0, 0), (100, 100)]


def test_one_wild_time_changes_nothing_but_its_own() -> None:
    given = packets(*((at, at) for at in (0, 100, 7_000_000, 200, 300)))
    assert [pts for pts, _ in joined(given)] == [0, 100, 200, 300, 400]


def test_where_only_times_of_decoding_are_known_they_count() -> None:
    first, second = packets((None, 0), (None, 100)), packets((None, 0), (None, 100))
    assert [dts for _, dts in joined([*first, *packets((None, -9000)), *second])] == [0, 100, 200, 9200, 9300]


def test_packets_without_any_time_stay_so() -> None:
    assert joined(packets((None, None), (50, 50), (None, None))) == [(None, None), (50, 50), (None, None)]


@given(times)
def test_seams_leave_no_time_out(given: list[tuple[int | None, int | None, bool]]) -> None:
    made = [SimpleNamespace(pts=pts, dts=dts, duration=0, is_keyframe=key) for pts, dts, key in given]
    found = joined(made, may_leap=True)
    assert [(pts is None, dts is None) for pts, dts in found] == [(pts is None, dts is None) for pts, dts, _ in given]


def test_a_frames_own_time_counts_where_it_is_right() -> None:
    best = BestTimes()
    assert [best.choose(pts, dts) for pts, dts in ((0, 5), (1, 6), (2, None), (3, 8))] == [0, 1, 2, 3]


def test_of_frames_whose_own_times_run_backward_the_packets_count() -> None:
    """As of AVI files whose muxer wrote times of decoding as if they were those of display."""
    best = BestTimes()
    found = [best.choose(pts, dts) for pts, dts in ((1, 2), (3, 3), (4, 4), (2, 5), (6, 6), (7, 7), (5, 8))]
    assert found == [1, 3, 4, 5, 6, 7, 8]
    assert all(one < other for one, other in itertools.pairwise(found))


def test_what_has_one_time_has_that() -> None:
    best = BestTimes()
    assert [best.choose(*pair) for pair in ((None, 3), (None, 4), (None, None), (9, None))] == [3, 4, None, 9]
