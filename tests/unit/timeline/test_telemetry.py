"""Spans of OpenTelemetry: one frame a second as a tree, every error, and one trace across machines."""

import logging
import socket
import sys
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from edgert import Pipeline, Result
from edgert.errors import ConfigError
from edgert.runtime.frame import NO_EXTRA, Delivery, FrameExtra
from edgert.runtime.trace_ids import SAMPLED, span_of, trace_of
from edgert.stages.sink.send.nats import headers_of
from edgert.stages.source.sent_images import parse_traceparent
from edgert.timeline import telemetry
from edgert.timeline.telemetry import Sampler, Telemetry, telemetry_of
from edgert.tracing import Recorder, TaskTrace, Tracing
from tests.helpers.brokers import Receiver
from tests.helpers.waiting import wait_until

pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="needs opentelemetry-exporter-otlp-proto-http")
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

PIPELINE = {"name": "gate", "stages": {"cam": {"source": "api"}, "out": {"sink": "callback", "from": "cam"}}}
FRAME = np.zeros((8, 8, 3), np.uint8)
SECOND = 10**9


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_SERVICE_NAME"):
        monkeypatch.delenv(name, raising=False)
    SAMPLED.clear()


class Own:
    """Telemetry into memory, of a recorder whose clock stands."""

    def __init__(self) -> None:
        self.exporter, self.now_ns = InMemorySpanExporter(), 0
        tracing = Tracing(lambda recorder: None, lambda: self.now_ns)
        self.telemetry = Telemetry(tracing, "gate", SimpleSpanProcessor(self.exporter), Resource.get_empty())
        self.recorder = Recorder(lambda: self.now_ns)
        self.recorder.sampler = self.telemetry.sampler

    def step(self, index: int, at_ns: int, **more: Any) -> SimpleNamespace:
        """One frame through a source and a stage with a part."""
        frame = SimpleNamespace(stream="cam", index=index, timestamp_ns=at_ns, extra=NO_EXTRA, **more)
        find = TaskTrace(self.recorder, "find")
        self.now_ns = at_ns
        TaskTrace(self.recorder, "cam").give([frame], at_ns + 10, 5)
        find.put(frame, 0)
        ring = find.begin()
        self.now_ns = at_ns + 40
        ring.part("engine", at_ns + 30)
        find.end(ring, "step", at_ns + 20, at_ns + 50, frame)
        return frame

    def spans(self) -> list[Any]:
        """What was exported by two looks."""
        self.telemetry.export(self.recorder)
        self.telemetry.export(self.recorder)
        found = [*self.exporter.get_finished_spans()]
        self.exporter.clear()
        return found


def test_the_way_of_a_frame_is_a_tree() -> None:
    own = Own()
    frame = own.step(7, 100)
    root, *below = own.spans()
    assert root.name == "cam" and root.parent is None and f"{root.context.trace_id:032x}" == trace_of(frame)
    assert f"{root.context.span_id:016x}" == span_of(trace_of(frame))
    assert root.attributes["edgert.frame"] == 7 and root.end_time - root.start_time == 50
    by_name = {one.name: one for one in below}
    assert set(by_name) == {"cam", "find", "engine", "wait for find"}
    assert by_name["engine"].parent.span_id == by_name["find"].context.span_id
    assert {by_name[name].parent.span_id for name in ("cam", "find", "wait for find")} == {root.context.span_id}
    assert {one.context.trace_id for one in below} == {root.context.trace_id}
    assert all(one.start_time <= one.end_time for one in (root, *below))


def test_one_frame_a_second_is_exported() -> None:
    own, roots = Own(), []
    for second in range(3):
        for number in range(30):
            own.step(30 * second + number, second * SECOND + number * SECOND // 30)
        roots += [one for one in own.spans() if one.parent is None]
    roots += [one for one in own.spans() if one.parent is None]
    assert [one.attributes["edgert.frame"] for one in roots] == [0, 30, 60]


def test_every_error_is_exported_and_a_repeated_one_once_a_second() -> None:
    own = Own()
    frame, task = own.step(1, 100), TaskTrace(own.recorder, "find")
    task.fail([frame], "no such layer")
    task.fail([frame], "no such layer")
    task.fail([], "the camera is gone")
    own.now_ns += 2 * SECOND
    task.fail([frame], "no such layer")
    failed = [one for one in own.spans() if not one.status.is_ok and one.status.description]
    assert [one.status.description for one in failed] == ["no such layer", "the camera is gone", "no such layer"]
    assert failed[0].events[0].attributes["exception.message"] == "no such layer"
    assert f"{failed[0].context.trace_id:032x}" == trace_of(frame)
    assert f"{failed[0].parent.span_id:016x}" == span_of(trace_of(frame)) and failed[1].parent is None


def test_a_trace_goes_on_on_the_next_machine() -> None:
    sender, receiver = Own(), Own()
    frame = sender.step(7, 100)
    (root, *_) = sender.spans()
    message = SimpleNamespace(id="1", body=b'{"trace":"%s"}' % trace_of(frame).encode())
    trace, parent, is_sampled = parse_traceparent(headers_of(message)["traceparent"])
    assert is_sampled and int(parent, 16) == root.context.span_id
    delivery = Delivery(trace, {}, None, parent, is_sampled)
    for index in (448, 449):  # two crops of that frame
        crop = SimpleNamespace(stream="north", index=index, timestamp_ns=200, extra=FrameExtra(delivery=delivery))
        TaskTrace(receiver.recorder, "crops").give([crop], 210, 10)
    roots = [one for one in receiver.spans() if one.name == "north"]
    assert {one.context.trace_id for one in roots} == {root.context.trace_id} and len(roots) == 2
    assert {one.parent.span_id for one in roots} == {root.context.span_id}
    assert len({one.context.span_id for one in roots}) == 2


def test_a_frame_that_is_not_exported_says_so_in_its_header() -> None:
    own = Own()
    own.step(0, 100)
    frame = own.step(1, 200)
    message = SimpleNamespace(id="1", body=b'{"trace":"%s"}' % trace_of(frame).encode())
    assert parse_traceparent(headers_of(message)["traceparent"])[2] is False


def test_errors_are_bounded() -> None:
    sampler = Sampler()
    for number in range(10_000):
        sampler.add_error(None, "find", f"error {number}", number)
    assert len(sampler.failures) == telemetry._MOST_ERRORS and len(sampler._failed_ns) <= telemetry._MOST_ERRORS + 1


class Collector(Receiver):
    """A collector of OTLP over HTTP."""

    @property
    def sent(self) -> list[Any]:
        """What was sent to ``/v1/traces``: a resource with its spans each."""
        bodies = [body for headers, body in self.requests if headers[":path"] == "/v1/traces"]
        return [one for body in bodies for one in ExportTraceServiceRequest.FromString(body).resource_spans]

    @property
    def spans(self) -> list[Any]:
        return [span for resource in self.sent for scope in resource.scope_spans for span in scope.spans]


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as own:
        yield own
        own.shutdown()


def run(pipeline: dict[str, Any], done: Callable[[], bool]) -> None:
    """Run a pipeline of which every third frame fails, until something is so."""

    def take(result: Result) -> None:
        if result.frame.index % 3 == 2:
            raise ValueError("no such belt")

    with Pipeline(pipeline, callbacks={"out": take}) as made:
        for _ in range(9):
            made.submit(FRAME)
        wait_until(done, 20)
    assert made._running.tracing.recorder is None


@pytest.mark.parametrize("by", ["file", "environment"])
def test_a_pipeline_exports_to_a_collector(collector: Collector, monkeypatch: pytest.MonkeyPatch, by: str) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "200")
    pipeline = PIPELINE
    if by == "file":
        pipeline = {**PIPELINE, "telemetry": f"http://127.0.0.1:{collector.port}"}
    else:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{collector.port}")
        monkeypatch.setenv("OTEL_SERVICE_NAME", "gate-3")
    run(pipeline, lambda: {"cam", "out"} <= {one.name for one in collector.spans})
    resource = {one.key: one.value.string_value for one in collector.sent[0].resource.attributes}
    assert resource["service.name"] == ("gate" if by == "file" else "gate-3")
    errors = [one for one in collector.spans if one.status.code == 2]
    assert [one.status.message for one in errors] == ["ValueError: no such belt"]
    (root,) = [one for one in collector.spans if not one.parent_span_id and one not in errors]
    assert {one.trace_id for one in collector.spans if one not in errors} == {root.trace_id}


@pytest.mark.parametrize("is_listening", [False, True])
def test_a_collector_that_does_not_answer_holds_up_nothing(monkeypatch: pytest.MonkeyPatch, is_listening: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        if not is_listening:
            silent.close()
        began_s = time.monotonic()
        run(PIPELINE, lambda: True)
        assert time.monotonic() - began_s < 10, "closing waits for the export a second, not for its timeout"


@pytest.mark.parametrize(("name", "value"), [("OTEL_SDK_DISABLED", "true"), ("OTEL_TRACES_EXPORTER", "none")])
def test_the_environment_turns_it_off(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv(name, value)
    assert telemetry_of(None, Tracing(lambda recorder: None, lambda: 0), "gate") is None


def test_without_the_packages_the_file_is_refused_and_the_environment_warned_of(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(ConfigError, match="packages of OpenTelemetry are not installed") as found:
        Pipeline({**PIPELINE, "telemetry": "http://127.0.0.1:4318"}, callbacks={"out": print})
    assert "otel" in found.value.fix and found.value.where
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    with caplog.at_level(logging.WARNING):
        Pipeline(PIPELINE, callbacks={"out": lambda result: None}).close()
    assert "OTEL_EXPORTER_OTLP_ENDPOINT is set, but the packages" in caplog.text


@pytest.mark.parametrize("url", ["collector:4318", "ftp://collector", "http://user:secret@collector:4318", "http://"])
def test_the_collector_is_a_web_address_without_a_password(url: str) -> None:
    with pytest.raises(ConfigError, match="telemetry") as found:
        Pipeline({**PIPELINE, "telemetry": url}, callbacks={"out": lambda result: None})
    assert "secret" not in str(found.value)
