"""OpenTelemetry export by OTLP: one frame a second as a tree of spans, and every error.

A thread reads the recorder's rings once a second, and exports the frame that was sampled a second before, whose work is
done by then. The only work in the path of a frame is sampling.
"""

from __future__ import annotations

import logging
import os
import random
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import TimeoutError as NotInTime
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from edgert import installation
from edgert.errors import ConfigError
from edgert.runtime.frame import Frame
from edgert.runtime.trace_ids import SAMPLED, span_of, trace_of
from edgert.runtime.worker import OneJobWorker
from edgert.timeline.timeline_spans import Span, Track, spans_of
from edgert.tracing import Event, Recorded, Recorder, Ring, ThreadEvents, Tracing

_LOG = logging.getLogger(__name__)
_EVERY_NS = 1_000_000_000
_REPEAT_NS = 1_000_000_000
"""Least time between two exports of an error that a stage repeats."""
_MOST_ERRORS = 256
_CLOSE_S = 1.0
_MISSING = "the packages of OpenTelemetry are not installed"
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_OFF = {"OTEL_SDK_DISABLED": "true", "OTEL_TRACES_EXPORTER": "none"}


@dataclass(frozen=True, slots=True)
class PendingExport:
    """A sampled frame, or an error, that is not exported yet.

    Attributes:
        trace: trace id; empty where there is none.
        parent: id of the span of the machine that sent the frame; empty where there is none.
        stream, index: stream and index of the frame; ``""`` and -1 for an error without a frame.
        task, error, at_ns: task, text and time of an error.
    """

    trace: str = ""
    parent: str = ""
    stream: str = ""
    index: int = -1
    task: str = ""
    error: str = ""
    at_ns: int = 0

    @classmethod
    def from_frame(cls, frame: Frame | None, *more: Any) -> PendingExport:
        """Return the record of a frame; ``more`` is task, text and time of an error."""
        if frame is None:
            return cls("", "", "", -1, *more)
        parent = "" if frame.extra.delivery is None else frame.extra.delivery.parent
        return cls(trace_of(frame), parent, frame.stream, frame.index, *more)


class Sampler:
    """Sampler of one frame a second, and of all frames that the machine which sent them has sampled.

    Attributes:
        chosen: sampled frames that are not exported yet.
        failures: errors that are not exported yet.
    """

    def __init__(self) -> None:
        self.chosen, self.failures = deque[PendingExport](maxlen=8), deque[PendingExport](maxlen=_MOST_ERRORS)
        self._next_ns = 0
        self._failed_ns: dict[tuple[str, str], int] = {}

    def sample(self, frame: Frame, now_ns: int) -> None:
        """Sample a frame of a source if it is due. Called in threads of sources."""
        is_sent = frame.extra.delivery is not None and frame.extra.delivery.is_sampled
        if now_ns < self._next_ns and not is_sent:
            return
        self._next_ns = now_ns + _EVERY_NS
        chosen = PendingExport.from_frame(frame)
        SAMPLED.append(chosen.trace)
        self.chosen.append(chosen)

    def add_error(self, frame: Frame | None, task: str, error: str, now_ns: int) -> None:
        """Record an error, unless it repeats within a second."""
        if now_ns - self._failed_ns.get((task, error), -_REPEAT_NS) < _REPEAT_NS:
            return
        if len(self._failed_ns) > _MOST_ERRORS:
            self._failed_ns.clear()
        self._failed_ns[task, error] = now_ns
        self.failures.append(PendingExport.from_frame(frame, task, error, now_ns))


class Telemetry:
    """Exporter of a pipeline's spans, from :meth:`start` to :meth:`close`."""

    def __init__(self, tracing: Tracing, pipeline: str, processor: Any, resource: Any) -> None:
        self._tracing, self._pipeline, self._processor, self._resource = tracing, pipeline, processor, resource
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._counts: dict[int, int] = {}
        self._before: list[tuple[Ring, list[Event]]] = []
        self._chosen: list[PendingExport] = []
        self._roots = deque[str](maxlen=_MOST_ERRORS)
        self.sampler = Sampler()

    def start(self) -> None:
        """Start recording and exporting."""
        recorder = self._tracing.begin()
        recorder.sampler = self.sampler
        self._thread = threading.Thread(target=self._run, args=(recorder,), name="edgert:telemetry", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Export the rest, which may take about three seconds, and stop. May be called twice."""
        self._over.set()
        thread, self._thread = self._thread, None
        if thread is None:
            return
        thread.join(2 * _CLOSE_S)
        done = OneJobWorker("edgert:telemetry ends").submit(self._processor.shutdown)
        with suppress(NotInTime):
            done.result(_CLOSE_S)
        self._tracing.end()

    def _run(self, recorder: Recorder) -> None:
        while not self._over.wait(_EVERY_NS / 1e9):
            self.export(recorder)
        self.export(recorder)
        self.export(recorder)  # the frames that were sampled last

    def export(self, recorder: Recorder) -> None:
        """Export the frames that were sampled before the last call, and all errors since then."""
        day_ns = time.time_ns() - recorder.now_ns()
        now = list[tuple[Ring, list[Event]]]()
        for ring in recorder.rings[:]:
            self._counts[id(ring)], events = ring.since(self._counts.get(id(ring), 0))
            now.append((ring, events))
        for frame in self._chosen:
            for span in self._tree(frame, [*self._before, *now], day_ns):
                self._processor.on_end(span)
        self._before, self._chosen = now, _take_all(self.sampler.chosen)
        for failure in _take_all(self.sampler.failures):
            self._processor.on_end(self._error_span(failure, day_ns))

    def _tree(self, frame: PendingExport, seen: Iterable[tuple[Ring, list[Event]]], day_ns: int) -> Iterator[Any]:
        """Yield the root span of a frame, then the spans of its waits, its steps and their parts."""
        threads: dict[str, list[Event]] = {}
        for ring, events in seen:
            if found := [*_events_of_frame(frame, events)]:
                threads.setdefault(ring.thread, []).extend(found)
        each = [ThreadEvents(name, number, events) for number, (name, events) in enumerate(threads.items(), 1)]
        tracks = spans_of(Recorded(self._pipeline, 0, 0, 0, 0, each)).tracks
        spans = [(track, span) for track in tracks for span in track.spans if track.kind in ("thread", "queue", "run")]
        if not spans:
            return
        ways = [span for track in tracks if track.kind == "frame" for span in track.spans]
        begin_ns = min(span.begin_ns for span in ways) if ways else min(span.begin_ns for _, span in spans)
        end_ns = max(max(span.end_ns for _, span in spans), begin_ns)
        is_first = frame.trace not in self._roots  # crops of one image share a trace
        root = span_of(frame.trace) if is_first else _new_id()
        self._roots.append(frame.trace)
        about = {"edgert.stream": frame.stream, "edgert.frame": frame.index, "edgert.pipeline": self._pipeline}
        yield self._span(frame.trace, root, frame.parent, frame.stream, (begin_ns, end_ns), day_ns, about)
        for track in tracks:
            around = list[tuple[int, str]]()
            for span in track.spans if track.kind in ("thread", "queue", "run") else ():
                while around and around[-1][0] <= span.begin_ns:
                    around.pop()
                own, times = _new_id(), (span.begin_ns, span.end_ns)
                parent, more = (around[-1][1] if around else root), {"edgert.thread": track.name, **dict(span.about)}
                yield self._span(frame.trace, own, parent, _span_name(track, span), times, day_ns, more)
                around.append((span.end_ns, own))

    def _error_span(self, failure: PendingExport, day_ns: int) -> Any:
        about: dict[str, Any] = {"edgert.pipeline": self._pipeline, "edgert.stage": failure.task}
        if failure.trace:
            about |= {"edgert.stream": failure.stream, "edgert.frame": failure.index}
        trace = failure.trace or f"{random.getrandbits(128) or 1:032x}"
        is_exported = failure.trace in SAMPLED
        parent = span_of(trace) if is_exported else failure.parent
        times = failure.at_ns, failure.at_ns
        return self._span(trace, _new_id(), parent, failure.task, times, day_ns, about, failure.error)

    def _span(
        self,
        trace: str,
        own: str,
        parent: str,
        name: str,
        times: tuple[int, int],
        day_ns: int,
        about: dict[str, Any],
        error: str = "",
    ) -> Any:
        from opentelemetry.sdk.trace import Event as SpanEvent, ReadableSpan
        from opentelemetry.trace import SpanContext, Status, StatusCode, TraceFlags

        sampled, number = TraceFlags(TraceFlags.SAMPLED), int(trace, 16)
        above = SpanContext(number, int(parent, 16), is_remote=False, trace_flags=sampled) if parent else None
        exception = {"exception.message": error, "exception.type": "edgert"}
        return ReadableSpan(
            name,
            SpanContext(number, int(own, 16), is_remote=False, trace_flags=sampled),
            above,
            self._resource,
            about,
            (SpanEvent("exception", exception, times[1] + day_ns),) if error else (),
            status=Status(StatusCode.ERROR, error) if error else Status(),
            start_time=times[0] + day_ns,
            end_time=times[1] + day_ns,
        )


def _events_of_frame(frame: PendingExport, events: Sequence[Event]) -> Iterator[Event]:
    """Yield the events of a frame, with the parts of its steps."""
    key = frame.stream, frame.index
    parts = list[Event]()
    for event in events:
        kind = event[0]
        if kind in ("part", "copy"):
            parts.append(event)
        elif kind in ("submit", "collect"):
            parts.clear()
            if key in event[6]:
                yield (*event[:4], *key, [key])
        else:
            if event[4:6] == key:
                if kind in ("step", "give"):
                    yield from (part for part in parts if part[1] >= event[1])
                yield event
            if kind in ("step", "give"):
                parts.clear()


def _span_name(track: Track, span: Span) -> str:
    if track.kind == "queue":
        return f"lost before {track.name}" if span.category == "drop" else f"wait for {track.name}"
    return f"{track.name}: run" if track.kind == "run" else span.name


def _take_all(each: deque[Any]) -> list[Any]:
    return [each.popleft() for _ in range(len(each))]


def _new_id() -> str:
    return f"{random.getrandbits(64) or 1:016x}"


def telemetry_of(url: str | None, tracing: Tracing, pipeline: str) -> Telemetry | None:
    """Return the exporter that the pipeline file or the environment requests; None where neither does.

    Args:
        url: ``telemetry:`` of the file; None: OTEL_EXPORTER_OTLP_ENDPOINT and the like hold.
        tracing: recorder of the pipeline.
        pipeline: name of the pipeline.

    Raises:
        ConfigError: the file requests it, and OpenTelemetry is not installed.
    """
    if any(os.environ.get(name, "").lower() == value for name, value in _OFF.items()):
        return None
    if url is None and not any(os.environ.get(name) for name in _ENDPOINTS):
        return None
    if url is not None and "@" in url:
        fix = "export OTEL_EXPORTER_OTLP_HEADERS=authorization=..."
        what = "telemetry: a password may not be in the address"
        raise ConfigError(what, why="logs show addresses", where="telemetry", fix=fix)
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        fix = installation.command("otel")
        if url is not None:
            raise ConfigError(f"telemetry: {_MISSING}", why=str(error), where="telemetry", fix=fix) from error
        _LOG.warning("%s is set, but %s: %s", _ENDPOINTS[1], _MISSING, fix)
        return None
    exporter = OTLPSpanExporter() if url is None else OTLPSpanExporter(f"{url.rstrip('/')}/v1/traces")
    names = {} if os.environ.get("OTEL_SERVICE_NAME") else {"service.name": pipeline}
    return Telemetry(tracing, pipeline, BatchSpanProcessor(exporter), Resource.create(names))
