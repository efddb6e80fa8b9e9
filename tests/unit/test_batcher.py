"""When batches are run, by the clock alone: those of cameras at once, those of files when they are full."""

import pytest
from hypothesis import given, settings, strategies as st

from edgert.policy import Batcher, run_sizes


@pytest.mark.parametrize(
    "rows, sizes", [(1, (1,)), (2, (1, 2)), (3, (1, 2, 3)), (8, (1, 2, 4, 8)), (9, (1, 2, 4, 8, 9))]
)
def test_a_model_of_open_size_is_run_with_powers_of_two_and_all(rows: int, sizes: tuple[int, ...]) -> None:
    assert run_sizes(rows, dynamic=True) == sizes
    assert run_sizes(rows, dynamic=False) == (rows,)


def held(batch: Batcher[int], count: int, now: float = 0.0) -> None:
    for index in range(count):
        batch.hold(index, index, now)


def test_of_cameras_a_free_engine_takes_what_has_come() -> None:
    batch = Batcher[int](4, 5.0)
    held(batch, 1)
    assert batch.is_due(0.0, idle=True) and not batch.is_due(4.9, idle=False) and batch.is_due(5.0, idle=False)
    assert batch.due(1.0, idle=True) == 1.0 and batch.due(1.0, idle=False) == 5.0


def test_of_files_a_free_engine_waits_as_long_as_frames_come() -> None:
    batch = Batcher[int](4, 5.0, fills=True)
    for index in range(3):
        batch.hold(index, index, 4.0 * index)  # the first has waited longer than that in the end
        assert not batch.is_due(4.0 * index + 3.9, idle=True) and batch.due(4.0 * index, idle=True) == 4.0 * index + 5.0
    batch.hold(3, 3, 12.0)
    assert batch.is_due(12.0, idle=False) and [item for item, _ in batch.take()] == [0, 1, 2, 3]


def test_the_last_batch_of_a_file_need_not_be_full() -> None:
    batch = Batcher[int](4, 5.0, fills=True)
    assert not batch.is_due(0.0, idle=True, last=True)
    held(batch, 3)
    assert batch.is_due(0.0, idle=False, last=True)


def pauses(full: list[bool]) -> list[int]:
    """How many batches are run at once after each try, of which some fill their batch."""
    batch, found = Batcher[int](2, 5.0, fills=True), []
    for fills in full:
        held(batch, 1)
        assert not batch.is_due(0.0, idle=True)
        held(batch, 1 if fills else 0)
        assert batch.is_due(0.0 if fills else 5.0, idle=True)
        batch.take()
        count = 0
        while True:
            held(batch, 1)
            if not batch.is_due(0.0, idle=True):
                break
            batch.take()
            count += 1
        batch.held.clear()
        batch.rows = 0
        found.append(count)
    return found


def test_who_brings_frames_one_by_one_is_held_up_ever_more_seldom() -> None:
    assert pauses([True, False, False, False, True, False]) == [0, 1, 2, 4, 0, 1]
    assert pauses([False] * 13)[-3:] == [1024, 1024, 1024]


@settings(deadline=None)
@given(st.integers(2, 8), st.integers(1, 400), st.floats(0.1, 3.0))
def test_one_frame_at_a_time_costs_little_more_than_without_batches(most: int, frames: int, took: float) -> None:
    """Of somebody who waits for each record before the next frame: at most ``wait`` for each power of two."""
    batch, now, wait = Batcher[int](most, 5.0, fills=True), 0.0, 5.0
    for index in range(frames):
        batch.hold(index, index, now)
        due = batch.due(now, idle=True)
        assert due is not None
        now = max(now, due) + took
        assert batch.is_due(now, idle=True) and len(batch.take()) == 1
    assert now <= frames * took + wait * (frames.bit_length() + 1)


@settings(deadline=None)
@given(st.integers(2, 8), st.integers(1, 100), st.floats(0.0, 4.9))
def test_a_file_comes_in_full_batches(most: int, frames: int, gap: float) -> None:
    batch, now, runs = Batcher[int](most, 5.0, fills=True), 0.0, list[int]()
    for index in range(frames):
        now += gap
        if batch.is_due(now, idle=True):
            runs.append(len(batch.take()))
        batch.hold(index, index, now)
    if batch.is_due(now, idle=True, last=True):
        runs.append(len(batch.take()))
    assert runs == [most] * (frames // most) + [frames % most] * bool(frames % most)


def file_ms(most: int, frames: int, fill_ms: float, launch_ms: float, engine_ms: list[float]) -> float:
    """How long a file takes whose frames are there at once: one thread brings each into a batch, launches batches, and
    waits where three are under way; the engine takes ``engine_ms`` for so many rows."""
    batch, now, ends = Batcher[int](most, 5.0, fills=most > 1), 0.0, [0.0] * 3
    for index in range(frames):
        now += fill_ms
        batch.hold(index, index, now)
        if batch.is_due(now, idle=ends[-1] <= now, last=index == frames - 1):
            now = max(now + launch_ms, ends[-3])
            ends.append(max(now, ends[-1]) + engine_ms[len(batch.take())])
    return max(now, ends[-1])


@settings(deadline=None)
@given(st.integers(2, 8), st.integers(1, 60), st.floats(0.02, 4.0), st.floats(0.02, 1.0), st.floats(0.1, 5.0))
def test_a_file_in_batches_is_never_slower_than_frame_by_frame(
    most: int, frames: int, fill_ms: float, launch_ms: float, engine_ms: float
) -> None:
    """Whichever is the slower half, and though more rows save the engine nothing; but for the first batch."""
    times = [engine_ms * rows for rows in range(most + 1)]
    single = file_ms(1, frames, fill_ms, launch_ms, times)
    together = file_ms(most, frames, fill_ms, launch_ms, times)
    assert together <= single + most * fill_ms + times[most] + 1e-6


@pytest.mark.parametrize("fills", [False, True])
def test_a_full_batch_that_comes_at_once_is_held_as_its_frames_one_by_one(fills: bool) -> None:
    one, other = (Batcher[str](3, wait=10.0, fills=fills) for _ in range(2))
    for turn in range(3):
        for index in range(3):
            one.hold(f"{turn}{index}", index, now=5.0)
        other.hold_all([f"{turn}{index}" for index in range(3)], now=5.0)
        assert vars(one) == vars(other) and other.is_due(5.0, idle=False)
        assert one.take() == other.take()
