"""A trace read by Perfetto's own schema."""

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import pytest


@dataclass
class Slice:
    track: str
    name: str
    category: str
    begin_ns: int
    flows: list[int]
    about: dict[str, Any]
    end_ns: int = -1


@dataclass
class Read:
    slices: list[Slice] = field(default_factory=list)
    moments: list[Slice] = field(default_factory=list)
    counters: dict[str, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    tracks: dict[int, str] = field(default_factory=dict)

    def of(self, category: str) -> list[Slice]:
        return [one for one in self.slices if one.category == category]


def read(content: bytes) -> Read:
    """Return a trace; fails for one of which a slice begins or ends alone, or outlives the one around it."""
    schema = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2", reason="needs perfetto")
    trace = schema.Trace()
    trace.ParseFromString(content)
    event_kinds = schema.TrackEvent
    found = Read()
    stacks: dict[int, list[Slice]] = defaultdict(list)
    last_ns = 0
    for packet in trace.packet:
        if packet.HasField("track_descriptor"):
            own = packet.track_descriptor
            found.tracks[own.uuid] = own.name or own.thread.thread_name or own.process.process_name
        if not packet.HasField("track_event"):
            continue
        event, at_ns = packet.track_event, packet.timestamp
        assert at_ns >= last_ns and event.track_uuid in found.tracks
        last_ns, track = at_ns, found.tracks[event.track_uuid]
        if event.type == event_kinds.TYPE_COUNTER:
            found.counters[track].append((at_ns, event.counter_value))
            continue
        if event.type == event_kinds.TYPE_SLICE_END:
            stacks[event.track_uuid].pop().end_ns = at_ns
            continue
        about = {one.name: one.string_value or one.int_value for one in event.debug_annotations}
        made = Slice(track, event.name, event.categories[0], at_ns, [*event.flow_ids], about)
        if event.type == event_kinds.TYPE_INSTANT:
            found.moments.append(made)
        else:
            assert event.type == event_kinds.TYPE_SLICE_BEGIN
            stacks[event.track_uuid].append(made)
            found.slices.append(made)
    assert not any(stacks.values()), "a slice has no end"
    return found
