"""Traces as files: Perfetto's schema reads them, Chrome's JSON has the same, and what came over a wire is checked."""

import json
import random
import zlib
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from edgert import limits
from edgert.control import trace_window
from edgert.control.trace_window import pack, unpack
from edgert.errors import ArtifactError, ConfigError, DeviceError, EdgertError
from edgert.timeline.timeline_spans import spans_of
from edgert.timeline.trace_file import check_trace_path, write_trace
from edgert.timeline.trace_formats import chrome_bytes, perfetto_bytes
from edgert.tracing import Recorded
from tests.helpers.perfetto_trace import read
from tests.helpers.recorded_run import recording


@pytest.mark.parametrize("seed", range(5))
def test_perfetto_reads_it_and_every_begin_has_its_end(seed: int) -> None:
    recorded = recording(seed=seed)
    found = read(perfetto_bytes(spans_of(recorded)))
    assert all(one.end_ns >= one.begin_ns for one in found.slices)
    steps, kinds = found.of("stage"), [event[0] for thread in recorded.threads for event in thread.events]
    assert len(steps) == sum(kinds.count(kind) for kind in ("step", "submit", "collect"))
    assert len(found.of("source")) == 200 and len(found.of("frame")) == 200
    assert len(found.of("wait")) + len(found.of("drop")) == 200
    assert len([one for one in found.moments if one.category == "drop"]) == kinds.count("drop")
    assert [one.about["error"] for one in found.moments if one.category == "fail"] == ["no such layer: \N{SNOWMAN}"]
    assert {one.name: one.about for one in found.slices}["set x=1"] == {"by": "user 0", "result": "done"}
    assert [one.about["reason"] for one in found.moments if one.category == "governor"] == ["too hot"]
    assert {one.about["bytes"] for one in found.moments if one.category == "copy"} == {921_600}
    assert found.counters["waiting for find"][-1][1] == 0


def test_a_flow_follows_each_frame_through_all_stages() -> None:
    found = read(perfetto_bytes(spans_of(recording())))
    ways: dict[int, list[str]] = {}
    for one in sorted(found.slices, key=lambda one: one.begin_ns):
        for flow in one.flows:
            ways.setdefault(flow, []).append(one.name)
    whole = ["cam", "find", "parts: submit", "parts: collect"]
    assert len(ways) == 200 and {tuple(way) for way in ways.values()} == {("cam",), tuple(whole)}
    by_frame = {one.flows[0]: one.about["frame"] for one in found.of("source")}
    assert all(by_frame[one.flows[0]] == one.about["frame"] for one in found.of("stage"))


def test_all_before_a_cut_can_be_read() -> None:
    whole = perfetto_bytes(spans_of(recording(20)))
    starts, at = [], 0
    while at < len(whole):  # each packet has its length in front
        starts.append(at)
        size, shift, at = 0, 0, at + 1
        while True:
            size |= (whole[at] & 127) << shift
            shift, at = shift + 7, at + 1
            if whole[at - 1] < 128:
                break
        at += size
    assert at == len(whole) and len(starts) > 100


def test_chrome_has_the_same_spans() -> None:
    spans = spans_of(recording())
    data = json.loads(chrome_bytes(spans))
    events = data["traceEvents"]
    assert sum(one["ph"] in "Xi" for one in events) == sum(len(track.spans) for track in spans.tracks)
    begun = [one["id"] for one in events if one["ph"] == "s"]
    assert len(begun) == len(set(begun)) == 200 and data["otherData"]["lost_events"] == 17
    assert all(one["dur"] >= 0 for one in events if one["ph"] == "X")


def test_a_recording_is_the_same_on_the_other_side() -> None:
    recorded = recording()
    again = unpack(pack(recorded))
    assert perfetto_bytes(spans_of(again)) == perfetto_bytes(spans_of(recorded)) and again.lost == 17


def test_what_is_too_long_to_send_is_counted_as_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "TRACE_BYTES", 2000)
    monkeypatch.setattr(trace_window, "_UNPACKED", 10_000)
    recorded = recording(5000)
    again = unpack(pack(recorded))
    there = sum(len(thread.events) for thread in again.threads)
    assert 0 < there < 20_000 and there + again.lost == sum(len(t.events) for t in recorded.threads) + 17


@given(st.binary(max_size=200) | st.binary(max_size=200).map(zlib.compress))
def test_anything_else_that_came_is_no_recording(content: bytes) -> None:
    with pytest.raises(DeviceError, match="no recording"):
        unpack(content)


def test_a_recording_that_is_changed_is_read_or_refused() -> None:
    whole, pick = zlib.decompress(pack(recording(30))), random.Random(3)
    for _ in range(300):
        text = bytearray(whole)
        for _ in range(pick.randrange(1, 4)):
            text[pick.randrange(len(text))] = pick.randrange(256)
        with suppress(EdgertError):
            perfetto_bytes(spans_of(unpack(zlib.compress(bytes(text)))))
    with pytest.raises(DeviceError, match="incomplete, or too long"):
        unpack(pack(recording())[:-5])


def test_the_ending_says_the_form_and_is_checked_first(tmp_path: Path) -> None:
    for ending, begin in ((".pftrace", b"\x0a"), (".json", b"{"), (".html", b"<!doctype html>")):
        write_trace(recording(10), tmp_path / f"run{ending}")
        assert (tmp_path / f"run{ending}").read_bytes().startswith(begin)
    with pytest.raises(ConfigError, match=r"does not end like a trace; did you mean '\.pftrace'"):
        check_trace_path(tmp_path / "run.pftrac")
    with pytest.raises(ArtifactError, match="there is no such folder"):
        check_trace_path(tmp_path / "none" / "run.json")


def test_an_empty_recording_is_a_trace_too(tmp_path: Path) -> None:
    nothing = Recorded("belt", 42, 0, 10, 0, [])
    assert read(perfetto_bytes(spans_of(nothing))).slices == []
    write_trace(nothing, tmp_path / "run.html")
    assert "without a frame" in (tmp_path / "run.html").read_text()
