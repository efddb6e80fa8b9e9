"""Positions never run backwards, pacing waits by the clock, thinning is even."""

import itertools
import threading

import pytest
from hypothesis import given, strategies as st

from edgert.stages.source.timeline import JUMP_NS, MediaClock, Pacer, Thinner
from tests.helpers.virtual_clock import VirtualClock

SECOND_NS = 1_000_000_000


def test_positions_start_at_zero_and_follow_the_stream() -> None:
    media = MediaClock(live=False)
    assert [media.at(start, 0) for start in (700, 800, 950)] == [0, 100, 250]


def test_a_loop_goes_on_one_period_after_the_last_frame() -> None:
    media = MediaClock(live=False, period_ns=40)
    first = [media.at(place, 0) for place in (0, 40, 80)]
    media.restart()
    assert first + [media.at(place, 0) for place in (0, 40)] == [0, 40, 80, 120, 160]


def test_a_reconnect_is_bridged_by_the_time_that_passed() -> None:
    media = MediaClock(live=True)
    media.at(5 * SECOND_NS, 100 * SECOND_NS)
    media.restart()
    assert media.at(0, 103 * SECOND_NS) == 3 * SECOND_NS
    assert media.at(SECOND_NS, 104 * SECOND_NS) == 4 * SECOND_NS


def test_a_camera_that_sets_its_clock_does_not_move_the_stream() -> None:
    media = MediaClock(live=True)
    media.at(0, 0)
    assert media.at(500 * JUMP_NS, SECOND_NS) == SECOND_NS
    assert media.at(500 * JUMP_NS + SECOND_NS, 2 * SECOND_NS) == 2 * SECOND_NS
    assert media.at(0, 3 * SECOND_NS) == 3 * SECOND_NS


@pytest.mark.parametrize(
    ("given", "positions"),
    [
        pytest.param((0, 100, 0, 100), (0, 100, 200, 300), id="begins anew"),
        pytest.param((0, 100, 200, 150, 250), (0, 100, 200, 300, 400), id="goes back"),
        pytest.param((0, 100, 100, 200), (0, 100, 100.001, 200), id="twice the same"),
        pytest.param((0, 100, 100, 100, 100, 200), (0, 100, 100.001, 200.001, 300.001, 400.001), id="stands still"),
        pytest.param((0, 100, None, None, 400), (0, 100, 200, 300, 400), id="unknown for a while"),
        pytest.param((None, None, 1500, 1600), (0, 40, 80, 180), id="unknown at first"),
        pytest.param((0, 100, None, 0), (0, 100, 200, 300), id="begins anew behind one that is unknown"),
        pytest.param((0, 100, 90_000, 90_100), (0, 100, 90_000, 90_100), id="a gap"),
    ],
)
def test_times_of_a_file_go_on(given: tuple[int | None, ...], positions: tuple[float, ...]) -> None:
    """Milliseconds. Rules and tracks count them."""
    media = MediaClock(live=False, period_ns=40_000_000)
    found = [media.at(None if at is None else at * 1_000_000, 0) / 1e6 for at in given]
    assert found == pytest.approx(positions)


def test_a_cameras_times_do_not_stand_still() -> None:
    media = MediaClock(live=True)
    found = [media.at(7, number * 100_000_000) / 1e6 for number in range(5)]
    assert found == pytest.approx([0, 0.001, 100.001, 200.001, 300.001])


def test_times_that_a_program_gives_its_images_are_taken_as_they_are() -> None:
    media = MediaClock(live=False)
    assert [media.at(at, 0) for at in (50, 50, 60, 55, 70)] == [0, 0, 10, 10, 20]


def test_streams_without_times_take_the_wall_clock_or_the_period() -> None:
    live, file = MediaClock(live=True), MediaClock(live=False, period_ns=40)
    assert [live.at(None, now) for now in (10, 25, 30)] == [0, 15, 20]
    assert [file.at(None, now) for now in (10, 25, 30)] == [0, 40, 80]


@given(
    st.lists(
        st.tuples(st.one_of(st.none(), st.integers(-(2**40), 2**40)), st.integers(0, 10 * SECOND_NS), st.booleans()),
        max_size=40,
    ),
    st.booleans(),
)
def test_positions_never_run_backwards(steps: list[tuple[int | None, int, bool]], live: bool) -> None:
    media, now_ns, last_ns = MediaClock(live, period_ns=33_000_000), 0, 0
    for media_ns, passed_ns, restarts in steps:
        if restarts:
            media.restart()
        now_ns += passed_ns
        position = media.at(media_ns, now_ns)
        assert position >= last_ns
        last_ns = position


def test_pacing_waits_until_a_frame_is_due() -> None:
    clock, stop = VirtualClock(), threading.Event()
    pacer = Pacer(clock)
    seen = []
    for media_ns in (0, SECOND_NS, 2 * SECOND_NS):
        assert pacer.wait(media_ns, stop)
        seen.append(clock.now_ns())
    assert seen == [0, SECOND_NS, 2 * SECOND_NS]


def test_pacing_catches_up_a_little_but_not_a_lot() -> None:
    clock, stop = VirtualClock(), threading.Event()
    pacer = Pacer(clock)
    pacer.wait(0, stop)
    clock.wait(stop, 0.5)
    pacer.wait(SECOND_NS // 10, stop)
    assert clock.now_ns() == SECOND_NS // 2, "a frame half a second late goes out at once"
    clock.wait(stop, 60)
    pacer.wait(SECOND_NS, stop)
    late_ns = clock.now_ns()
    pacer.wait(2 * SECOND_NS, stop)
    assert clock.now_ns() - late_ns == SECOND_NS, "after a minute's sleep it paces anew, without a burst"


def test_pacing_ends_when_told_to_stop() -> None:
    stop = threading.Event()
    stop.set()
    assert not Pacer(VirtualClock()).wait(0, stop)


@pytest.mark.parametrize(("rate", "fps", "kept"), [(30, 10, 10), (30, 12, 12), (25, 25, 25), (30, 60, 30), (30, 1, 1)])
def test_thinning_keeps_so_many_of_each_second(rate: int, fps: float, kept: int) -> None:
    thinner = Thinner(fps)
    places = [index * SECOND_NS // rate for index in range(rate)]
    picked = [place for place in places if thinner.keeps(place)]
    assert len(picked) == kept
    gaps = {round((after - before) * rate / SECOND_NS) for before, after in itertools.pairwise(picked)}
    assert not gaps or max(gaps) - min(gaps) <= 1


def test_without_fps_nothing_is_left_out() -> None:
    assert all(Thinner(None).keeps(place) for place in (0, 0, 1, 5))


def test_what_a_server_stored_does_not_put_a_live_stream_ahead() -> None:
    """Fifteen images of a second come at once at every connection, the next ones as they are taken; hundred times."""
    media, now_ns = MediaClock(live=True), 1_000_000_000
    position, period_ns = media.at(0, now_ns - 500_000_000), 1_000_000_000 // 15
    for _ in range(100):
        media.restart()
        start_ns = now_ns
        for index in range(60):
            now_ns = start_ns + max(0, index - 14) * period_ns + index * 1000
            before, position = position, media.at(index * period_ns, now_ns)
            assert position >= before
        now_ns += 500_000_000  # until the next connection
    assert abs(position - now_ns + 1_000_000_000) < 50_000_000  # the first frame came at half a second


def test_images_that_come_late_later_on_do_not_move_a_live_stream() -> None:
    media, period_ns = MediaClock(live=True), 40_000_000
    late_ns = [0] * 50 + [300_000_000, 10_000_000] * 50
    found = [media.at(index * period_ns, index * period_ns + late) for index, late in enumerate(late_ns)]
    assert found == [index * period_ns for index in range(len(late_ns))]
