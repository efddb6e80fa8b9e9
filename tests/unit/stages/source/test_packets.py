"""What recorders are given of packets: times that hold across connections, formats, and bounded inboxes."""

import threading
from dataclasses import replace
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import pytest

from edgert.stages.source import packets as packets_
from edgert.stages.source.packets import Format, Inbox, Sample, Tap, _parameter_sets
from edgert.stages.source.timeline import MediaClock
from tests.helpers.virtual_clock import VirtualClock

S, HZ, NEVER = 10**9, 90_000, threading.Event()
FORMAT = Format("h264", Fraction(1, HZ), (), None)
SPS, PPS, SEI, IDR = b"\x67\x42\x1f", b"\x68\xce\x01", b"\x06\x05\x01", b"\x65\x88\x84"


def sample(number: int, is_key: bool = False, nbytes: int = 100) -> Sample:
    return Sample(b"", nbytes, number, number, 1, is_key, number, 0, FORMAT)


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture(autouse=True)
def _no_container(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Format, "of_stream", lambda *_: replace(FORMAT))
    monkeypatch.setattr(Format, "followed_by", lambda self, packet: self)


def packet(pts_s: float | None, is_key: bool = False, dts_s: float | None = None) -> Any:
    pts = None if pts_s is None else round(pts_s * HZ)
    dts = pts if dts_s is None else round(dts_s * HZ)
    return SimpleNamespace(pts=pts, dts=dts, duration=HZ // 10, size=1, is_keyframe=is_key)


def listened(tap: Tap) -> Inbox:
    return tap.listen(1 << 20, threading.Event())


def passed(tap: Tap, inbox: Inbox, *given: Any) -> list[Sample]:
    assert list(tap.passing(given, SimpleNamespace())) == list(given)  # type: ignore[arg-type]
    return list(inbox.take())


def positions(found: list[Sample]) -> list[float]:
    return [one.at_ns / S for one in found]


def test_nobody_who_listens_costs_nothing(clock: VirtualClock) -> None:
    tap = Tap(clock, MediaClock(True), live=True, waits=False)
    inbox = listened(tap)
    tap.leave(inbox)
    assert passed(tap, inbox, packet(0.0, True)) == []


def test_the_first_packet_of_a_network_stream_has_no_time(clock: VirtualClock) -> None:
    tap = Tap(clock, MediaClock(True), live=True, waits=False)
    found = passed(tap, listened(tap), packet(None, True), packet(0.05), packet(0.1), packet(None))
    assert [one.dts for one in found] == [0, 4500, 9000, 18000]
    assert positions(found) == [0.0, 0.05, 0.1, 0.2]
    assert [one.is_key for one in found] == [True, False, False, False]


def test_a_file_without_any_times(clock: VirtualClock) -> None:
    """As a file of nothing but images is: one follows the other."""
    tap = Tap(clock, MediaClock(False), live=False, waits=True)
    inbox = listened(tap)
    for total in (5, 200):
        found = passed(tap, inbox, *(packet(None, number == 0) for number in range(total)))
        assert [one.dts for one in found] == [number * HZ // 10 for number in range(total)]


def test_b_frames_keep_their_times(clock: VirtualClock) -> None:
    tap = Tap(clock, MediaClock(False), live=False, waits=True)
    given = (packet(0.0, True, -0.2), packet(0.4, False, -0.1), packet(0.2, False, 0.0), packet(0.1, False, 0.1))
    found = passed(tap, listened(tap), *given)
    assert [(one.pts, one.dts) for one in found] == [(one.pts, one.dts) for one in given]
    assert len({one.format for one in found}) == 1


def test_positions_go_on_over_a_reconnection_and_files_over_their_end(clock: VirtualClock) -> None:
    camera = Tap(clock, MediaClock(True), live=True, waits=False)
    inbox = listened(camera)
    first = passed(camera, inbox, packet(0.0, True), packet(1.0))
    clock.wait(NEVER, 4.0)
    second = passed(camera, inbox, packet(700.0, True), packet(701.0))
    assert positions([*first, *second]) == [0.0, 1.0, 5.0, 6.0]
    assert first[0].format is not second[0].format
    looped = Tap(clock, MediaClock(False), live=False, waits=True)
    inbox = listened(looped)
    given = packet(0.0, True), packet(0.1)
    assert positions([*passed(looped, inbox, *given), *passed(looped, inbox, *given)]) == [0.0, 0.1, 0.2, 0.3]


def test_a_camera_that_sets_its_clock_begins_another_file(clock: VirtualClock) -> None:
    tap = Tap(clock, MediaClock(True), live=True, waits=False)
    found = passed(tap, listened(tap), packet(100.0, True), packet(100.1), packet(3.0, True), packet(3.1))
    assert [one.format is found[0].format for one in found] == [True, True, False, False]
    assert positions(found)[2:] == pytest.approx([100.1, 100.2])


def test_a_frame_is_found_among_the_packets(clock: VirtualClock) -> None:
    """Over a reconnection, whatever the camera calls its times."""
    media = MediaClock(True)
    tap = Tap(clock, media, live=True, waits=False)
    inbox = listened(tap)
    for begin_s in (50.0, 9000.0, 2.0):
        media.restart()
        given = [packet(begin_s + number / 10, number == 0) for number in range(20)]
        for one, put in zip(given, tap.passing(given, SimpleNamespace()), strict=True):  # type: ignore[arg-type]
            assert put is one
            clock.wait(NEVER, 0.1)
            now_ns = clock.now_ns()
            position = media.at(one.pts * S // HZ, now_ns)
            assert tap.place(now_ns, position) == list(inbox.take())[-1].at_ns
        clock.wait(NEVER, 7.0)


def test_a_connection_that_was_given_up_is_not_recorded_any_more(clock: VirtualClock) -> None:
    tap = Tap(clock, MediaClock(True), live=True, waits=False)
    inbox = listened(tap)
    left = tap.passing([packet(0.0, True), packet(0.1)], SimpleNamespace())  # type: ignore[arg-type]
    next(left)
    passed(tap, inbox, packet(5.0, True))
    next(left)
    assert list(inbox.take()) == []


def test_an_inbox_that_is_full_loses_up_to_the_next_keyframe() -> None:
    inbox = Inbox(250, False, threading.Event())
    for number in range(10):
        inbox.put(sample(number, number % 4 == 0))
    assert [one.pts for one in inbox.take()] == [0, 1, 2] and inbox.lost == 7
    inbox.put(sample(10))
    inbox.put(sample(12, True))
    assert [one.pts for one in inbox.take()] == [12] and inbox.lost == 8


def test_or_waits_for_room_and_not_for_ever() -> None:
    woken = threading.Event()
    inbox, done = Inbox(250, True, woken), threading.Event()

    def put() -> None:
        for number in range(10):
            inbox.put(sample(number, number == 0))
        done.set()

    threading.Thread(target=put, daemon=True).start()
    found = list[int]()
    while len(found) < 5:
        assert woken.wait(20.0)
        found += [one.pts for one in inbox.take()]
    inbox.close()
    assert done.wait(20.0) and found == list(range(len(found))) and inbox.lost == 0


def test_parameter_sets_are_those_in_front_of_the_image() -> None:
    start = b"\0\0\0\1"
    unit = start + SPS + b"\0\0\1" + PPS + start + SEI + start + IDR + start + SPS
    assert _parameter_sets(unit, "h264") == (SPS, PPS)
    assert _parameter_sets(start + IDR, "h264") == ()
    assert _parameter_sets(b"\x01\x64\x00\x1f" + SPS, "h264") == ()  # lengths, as in an mp4
    assert _parameter_sets(start + b"\x40\x01\x0c" + start + b"\x42\x01" + start + b"\x26\x01" + SPS, "hevc") == (
        b"\x40\x01\x0c",
        b"\x42\x01",
    )
    assert _parameter_sets(unit, "vp9") == ()
    assert packets_._parameter_sets(start, "h264") == ()
