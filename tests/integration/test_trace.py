"""Time lines of real pipelines: a whole run, a window of one, and what refuses them."""

import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgert import Pipeline, Result
from edgert.control.client import find_socket, send_request
from edgert.control.request import Request
from edgert.errors import ConfigError, EdgertError, StageError
from edgert.graph import to_bytes
from edgert.tracing import HERE
from tests.helpers import models
from tests.helpers.command import ROOT, edgert, in_process
from tests.helpers.perfetto_trace import Read, Slice, read
from tests.helpers.waiting import wait_until

ASSETS = ROOT / "pipelines" / "assets"
FRAME = np.zeros((48, 64, 3), np.uint8)
MODEL = {
    "onnx": ASSETS / "parts.onnx",
    "task": {"detect": "yolox", "labels": ASSETS / "parts.txt"},
    "input": {"std": 255},
    "replicas": 1,
}
TWO = """\
name: two
stages:
  one: {source: "synthetic:counter", size: 256x48, limit: 40}
  two: {source: "synthetic:counter", size: 256x48, limit: 20}
  draw: {draw: [stats], from: [one, two]}
  out: {sink: jsonl, path: out.jsonl, from: draw}
"""
LIVE = """\
stages:
  cam: {source: "synthetic:blank", size: 64x48, realtime: true, fps: 100}
  out: {sink: "null", from: cam}
"""


@pytest.fixture(autouse=True)
def own_sockets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


def joined(**stages: Any) -> dict[str, Any]:
    """Return a model, another one on crops of its tracks beside a drawing, and a join of both."""
    made = {
        "cam": {"source": "api"},
        "find": {"infer": "parts", "from": "cam"},
        "track": {"track": "bytetrack", "from": "find"},
        "look": {"infer": "parts", "from": "track", "crop": {"limit": 4}},
        "draw": {"draw": ["boxes"], "from": "find"},
        "both": {"sink": "callback", "from": ["look", "draw"]},
        **stages,
    }
    return {"name": "joined", "models": {"parts": MODEL}, "stages": made}


def way(found: Read, stream: str, index: int) -> list[Slice]:
    """Return the steps of a frame that its flow connects, by begin."""
    (first,) = [one for one in found.of("source") if (one.about["stream"], one.about["frame"]) == (stream, index)]
    steps = [one for one in (*found.slices, *found.moments) if first.flows[0] in one.flows]
    return sorted(steps, key=lambda one: one.begin_ns)


def traced(pipeline: Pipeline, folder: Path, count: int) -> Read:
    with pipeline, pipeline.control.traced(folder / "run.pftrace"):
        for _ in range(count):
            pipeline.submit(FRAME)
        pipeline.finish()
        pipeline.wait()
    return read((folder / "run.pftrace").read_bytes())


def test_a_whole_run_is_written(tmp_path: Path) -> None:
    (tmp_path / "two.yaml").write_text(TWO)
    done = edgert("run", "two.yaml", "--quiet", "--trace", "run.pftrace", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "run.pftrace: open it in https://ui.perfetto.dev" in done.stdout
    found = read((tmp_path / "run.pftrace").read_bytes())
    steps = found.of("stage")
    assert {one.name for one in steps} == {"draw", "out"} and len(found.of("source")) == 60
    assert [len([one for one in steps if one.name == name]) for name in ("draw", "out")] == [60, 60]
    assert {one.track for one in steps} <= {"edgert:draw", "edgert:out"}  # the sink may run in the other's thread
    assert len([one for one in found.of("wait") if one.track == "queue before draw"]) == 60
    assert [one.name for one in way(found, "one", 39)] == ["one", "draw", "out"]
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    captured = {(one["stream"], one["frame"]): one["timestamp_ns"] for one in lines}
    begun = {(one.about["stream"], one.about["frame"]): one.begin_ns for one in found.of("frame")}
    assert begun == captured


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (("--trace", "run.txt"), "'run.txt' does not end like a trace"),
        (("--trace", "none/run.json"), "there is no such folder"),
        (("--trace", "run.json", "--dry-run"), "nothing is run"),
        (("--trace", "run.json", "--set", "stages.one.source=videos:*.mp4"), "each file has a run of its own"),
    ],
)
def test_what_cannot_be_traced_is_refused_before_it_runs(tmp_path: Path, options: tuple[str, ...], what: str) -> None:
    (tmp_path / "two.yaml").write_text(TWO)
    done = in_process("run", "two.yaml", "--quiet", *options, cwd=tmp_path)
    assert done.returncode and what in " ".join((done.stderr + done.stdout).split())
    assert not (tmp_path / "out.jsonl").exists() and not list(tmp_path.glob("run.*"))


def test_a_frame_is_followed_through_a_cascade_and_a_join(tmp_path: Path) -> None:
    seen: list[Result] = []
    found = traced(Pipeline(joined(), callbacks={"both": seen.append}), tmp_path, 5)
    for index in range(5):
        names = [one.name for one in way(found, "cam", index)]
        assert names[:2] == ["cam", "find"] and sorted(names[2:-1]) == ["draw", "look", "track"] and names[-1] == "both"
    parts = [one for one in found.of("part") if one.track == "edgert:find"]
    assert [one.name for one in sorted(parts, key=lambda one: one.begin_ns)] == ["preprocess", "engine", "decode"] * 5
    steps = [one for one in found.of("stage") if one.name == "find"]
    assert all(any(s.begin_ns <= p.begin_ns and p.end_ns <= s.end_ns for s in steps) for p in parts)


def test_runs_of_batches_are_seen(tmp_path: Path) -> None:
    (tmp_path / "net.onnx").write_bytes(to_bytes(models.means(("n", 3, 8, 8))))
    net = {"onnx": tmp_path / "net.onnx", "task": {"classify": "logits"}, "replicas": 1}
    find = {"infer": "net", "from": "cam", "batch": {"max": 4, "wait": "50ms"}}
    stages = {"cam": {"source": "api"}, "find": find, "out": {"sink": "null", "from": "find"}}
    found = traced(Pipeline({"models": {"net": net}, "stages": stages}), tmp_path, 8)
    assert found.of("run") and {one.track for one in found.of("run")} == {"find: runs under way"}
    assert [one.name for one in way(found, "cam", 7)][:3] == ["cam", "find: submit", "find: collect"]
    both = [one for one in (*found.slices, *found.moments) if one.name == "find: collect"]
    assert sum(len(one.flows) for one in both) == 8


def test_a_stage_that_fails_is_in_the_trace(tmp_path: Path) -> None:
    def fails(result: Result) -> None:
        if result.frame.index == 2:
            raise ValueError("no such belt")

    stages = {"cam": {"source": "api"}, "out": {"sink": "callback", "from": "cam"}}
    found = traced(Pipeline({"stages": stages}, callbacks={"out": fails}), tmp_path, 3)
    (failed,) = [one for one in found.moments if one.category == "fail"]
    assert failed.about == {"stream": "cam", "frame": 2, "error": "ValueError: no such belt"}


def test_the_trace_is_written_also_where_the_program_fails(tmp_path: Path) -> None:
    pipeline = Pipeline({"stages": {"cam": {"source": "api"}, "out": {"sink": "null", "from": "cam"}}})
    with pytest.raises(ZeroDivisionError), pipeline, pipeline.control.traced(tmp_path / "t.json"):
        pipeline.submit(FRAME)
        raise ZeroDivisionError
    assert json.loads((tmp_path / "t.json").read_text())["traceEvents"]


def test_a_called_pipeline_is_traced_in_the_thread_that_calls(tmp_path: Path) -> None:
    with Pipeline(joined(), callbacks={"both": lambda result: None}) as pipeline:
        pipeline(FRAME)
        with pipeline.control.traced(tmp_path / "run.pftrace"):
            for _ in range(3):
                pipeline(FRAME)
        assert HERE.ring is None
        pipeline(FRAME)
    found = read((tmp_path / "run.pftrace").read_bytes())
    assert {one.track for one in found.of("stage")} == {threading.current_thread().name}
    assert [one.about["frame"] for one in found.of("source")] == [1, 2, 3]


def test_a_window_of_a_run_that_changes(tmp_path: Path) -> None:
    (tmp_path / "live.yaml").write_text(LIVE)
    with Pipeline(tmp_path / "live.yaml") as pipeline:
        pipeline.start()
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(pipeline.control.trace, tmp_path / "run.pftrace", 1.0)
            wait_until(lambda: pipeline._running.tracing.recorder is not None, 10)
            with pytest.raises(StageError, match="a trace is under way"):
                pipeline.control.trace(tmp_path / "other.json", 1.0)
            pipeline.control.add("gate", "synthetic:blank")
            with pytest.raises(EdgertError):
                pipeline.control.set("stages.cam.nothing", 1)
            about = answer.result(30)
        assert about["lost"] == 0 and about["events"] > 50 and 1.0 <= about["seconds"] < 5
        assert all(task.execution.trace is None for task in pipeline._assembly.tasks)
        assert pipeline._running.tracing.recorder is None
    found = read((tmp_path / "run.pftrace").read_bytes())
    assert {one.about["stream"] for one in found.of("source")} == {"cam", "gate"}
    operations = {one.name: one.about["result"] for one in found.of("control")}
    assert operations["add gate synthetic:blank"] == "done"
    assert operations["set stages.cam.nothing"].startswith("refused")
    assert not (tmp_path / "other.json").exists()


@pytest.mark.parametrize(("seconds", "what"), [(0, "the length"), (61, "the length"), (-1, "not"), ("x", "not a time")])
def test_a_window_has_a_length(tmp_path: Path, seconds: object, what: str) -> None:
    pipeline = Pipeline({"stages": {"cam": {"source": "api"}, "out": {"sink": "null", "from": "cam"}}})
    with pipeline, pytest.raises(ConfigError, match=what):
        pipeline.control.trace(tmp_path / "run.json", seconds)


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Pipeline]:
    (tmp_path / "live.yaml").write_text(LIVE)
    with Pipeline(tmp_path / "live.yaml") as pipeline:
        pipeline.start()
        yield pipeline


def test_ctl_writes_a_window_of_a_run_beside_it(tmp_path: Path, live: Pipeline) -> None:
    socket = str(find_socket(str(tmp_path / "edgert" / "live.sock")))
    done = in_process("ctl", "trace", "300ms", "-o", "late.pftrace", "--name", socket, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "s of live, " in done.stdout and "late.pftrace: open it in https://ui.perfetto.dev" in done.stdout
    found = read((tmp_path / "late.pftrace").read_bytes())
    assert found.of("source") and found.tracks[1] == "edgert live"
    for words, what in (
        (("trace", "2h"), "2h cannot be the length of a trace"),
        (("trace", "300ms", "-o", "late.txt"), "does not end like a trace"),
        (("trace", "1s", "2s"), "trace takes no words, not 2"),
        (("show", "-o", "late.json"), "it goes with trace"),
    ):
        refused = in_process("ctl", *words, "--name", socket, cwd=tmp_path)
        assert refused.returncode and what in " ".join(refused.stderr.split()), refused.stderr


def test_one_window_at_a_time_and_no_change_waits_for_it(tmp_path: Path, live: Pipeline) -> None:
    socket = tmp_path / "edgert" / "live.sock"
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(send_request, socket, Request("trace", ("1s",)))
        wait_until(lambda: live._running.tracing.recorder is not None, 10)
        began_s = time.monotonic()
        with pytest.raises(StageError, match="a trace is under way"):
            send_request(socket, Request("trace", ("1s",)))
        send_request(socket, Request("pause", ("cam",)))
        send_request(socket, Request("resume", ("cam",)))
        assert time.monotonic() - began_s < 1 and not first.done()
        assert first.result(30)["events"]


def test_a_window_ends_with_its_pipeline(tmp_path: Path) -> None:
    (tmp_path / "live.yaml").write_text(LIVE)
    with Pipeline(tmp_path / "live.yaml") as pipeline, ThreadPoolExecutor(1) as pool:
        pipeline.start()
        answer = pool.submit(pipeline.control.trace, tmp_path / "run.pftrace", 60.0)
        wait_until(lambda: pipeline._running.tracing.recorder is not None, 10)
        pipeline.stop()
        assert answer.result(10)["seconds"] < 30


def test_windows_leave_nothing_behind(live: Pipeline, tmp_path: Path) -> None:
    live.control.trace(tmp_path / "run.json", 0.01)
    files, threads = len([*Path("/proc/self/fd").iterdir()]), threading.active_count()
    for _ in range(20):
        live.control.trace(tmp_path / "run.json", 0.01)
    assert len([*Path("/proc/self/fd").iterdir()]) == files and threading.active_count() == threads
