"""What hangs: a stop ends the run within 5 s all the same, names it, and closes every other file."""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgert import Pipeline
from edgert.backend import EngineOptions, backend, trial_run
from edgert.backend.ort.cpu import Function
from edgert.errors import BuildError, StageError
from edgert.graph import load, to_bytes
from edgert.runtime import Frame, Result, Runner, Task
from tests.helpers.models import make, node
from tests.helpers.stages import Does, Numbers, chain, link
from tests.helpers.waiting import wait_until

MOST_S = 5.0
CODE = """
import threading
def hang(result):
    if result.frame.index >= 5:
        threading.Event().wait()
    return result
def forever(result):
    while True:
        yield result
"""
FILE = """
schema: 1
name: hangs
{models}
stages:
  cam: {{source: "synthetic:noise", size: 64x48, fps: 60, limit: 2000, realtime: true}}
  kept: {{sink: jsonl, path: kept.jsonl, from: cam}}
{stages}
"""
STUCK = {
    "find": '  find: {python: "own:hang", from: cam}\n  behind: {sink: jsonl, path: behind.jsonl, from: find}',
    "pipe": "  pipe: {sink: jsonl, path: pipe, from: cam}",  # nobody reads it, as on a server that is gone
    "model": "  model: {infer: long, from: cam}\n  behind: {sink: jsonl, path: behind.jsonl, from: model}",
}


def endless(at_once: bool = False) -> bytes:
    """A model that loops 2^55 times and more for any picture that is not black; or for every one."""
    body = helper.make_graph(
        [node("Identity", ["more"], ["on"]), node("Add", ["sum", "one"], ["next"])],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("more", TensorProto.BOOL, []),
            helper.make_tensor_value_info("sum", TensorProto.FLOAT, [1, 1]),
        ],
        [
            helper.make_tensor_value_info("on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("next", TensorProto.FLOAT, [1, 1]),
        ],
        [numpy_helper.from_array(np.ones((1, 1), np.float32), "one")],
    )
    nodes = [
        node("ReduceMax", ["x"], ["most"], keepdims=0),
        node("Ceil", ["most"], ["any"]),
        node("Cast", ["any"], ["count"], to=TensorProto.INT64),
        node("Add" if at_once else "Mul", ["count", "many"], ["times"]),
        node("Loop", ["times", "", "zero"], ["y"], body=body),
    ]
    weights = {"many": np.array(2**55, np.int64), "zero": np.zeros((1, 1), np.float32)}
    return to_bytes(make(nodes, {"x": (1, 3, 48, 64)}, {"y": (1, 1)}, weights))


def write(folder: Path, what: str) -> Path:
    (folder / "own.py").write_text(CODE)
    models = ""
    if what == "model":
        (folder / "long.onnx").write_bytes(endless())
        models = "models: {long: {onnx: long.onnx, task: {embed: none}, input: {std: 1}}}"
    if what == "pipe":
        os.mkfifo(folder / "pipe")
    (folder / "p.yaml").write_text(FILE.format(models=models, stages=STUCK[what]))
    return folder / "p.yaml"


@pytest.mark.timing
@pytest.mark.parametrize("how", ["signal", "duration"])
def test_runs_that_hang_end_within_5_s_of_a_stop(how: str, tmp_path: Path) -> None:
    with ThreadPoolExecutor(len(STUCK)) as together:  # each waits most of the time
        for _ in together.map(partial(stop_what_hangs, how, tmp_path), STUCK):
            pass


def stop_what_hangs(how: str, parent: Path, what: str) -> None:
    folder = parent / what
    folder.mkdir()
    command = [sys.executable, "-m", "edgert", "run", str(write(folder, what)), "--json", "summary.json", "--plain"]
    command += ["--duration", "2"] if how == "duration" else []
    run = subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        kept = folder / "kept.jsonl"
        wait_until(lambda: run.poll() is not None or (kept.exists() and kept.read_bytes().count(b"\n") > 20))
        assert run.poll() is None, run.communicate()
        began = time.monotonic()
        if how == "signal":
            run.send_signal(signal.SIGTERM)
        _, errors = run.communicate(timeout=60)
        took_s = time.monotonic() - began - (2.0 if how == "duration" else 0.0)
    finally:
        run.kill()
    assert run.returncode == 1 and f"stage {what} does not end" in errors, errors
    assert took_s < MOST_S
    summary = json.loads((folder / "summary.json").read_text())
    assert f"stage {what} does not end" in summary["error"]["what"] and summary["frames_in"] > 20
    for file in folder.glob("*.jsonl"):
        assert all(json.loads(line) for line in file.read_text().splitlines())
        assert file.read_bytes().endswith(b"\n") or not file.stat().st_size


@pytest.mark.parametrize("on_error", ["stop", "restart"])
def test_a_model_that_hangs_is_ended_and_has_failed(
    on_error: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("edgert.runtime.watchdog.FIRST_S", 0.5)
    overrides = ["stages.model.watchdog=500ms", f"stages.model.on_error={on_error}"]
    with contextlib.ExitStack() as stack:
        if on_error == "stop":
            stack.enter_context(pytest.raises(BuildError, match="a run of the model was ended"))
        pipeline = stack.enter_context(Pipeline(write(tmp_path, "model"), overrides=overrides))
        pipeline.start()
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and pipeline.summary().stages["model"].state.restarts < 2:
            pipeline.wait(0.1)
        stages = pipeline.summary().stages
        assert stages["model"].state.errors >= 2 and stages["kept"].results_in > 20
        assert "a run of the model was ended: it took too long" in stages["model"].state.failing
    assert "stage 'model' has been in one call for" in caplog.text


KINDS = ("stage", "generator", "sink", "open", "close", "source")


def rounds(count: int, monkeypatch: pytest.MonkeyPatch, scale: float) -> None:
    for name, seconds in (("DRAIN_S", 1.2), ("_GRACE_S", 1.8), ("_CLOSE_S", 1.0)):
        monkeypatch.setattr(f"edgert.runtime.runner.{name}", seconds * scale)
    chance = random.Random(3)
    for number in range(count):
        kind, release = chance.choice(KINDS), threading.Event()
        one_round(kind, release, chance.uniform(0, 0.05), f"round {number}: {kind}")
        release.set()


def one_round(kind: str, release: threading.Event, wait_s: float, about: str) -> None:
    entered = threading.Event()

    def hang(*_: object) -> None:
        entered.set()
        release.wait()

    class Hanging(Numbers):
        def frames(self, stop: threading.Event) -> Iterator[Frame]:
            for frame in super().frames(stop):
                yield frame
                if self.given == 4:
                    hang()

    source, middle, end, other = Numbers(count=None), Does(), Does(), Does()
    name = {"sink": "2", "source": "0"}.get(kind, "1")
    if kind == "stage":
        middle.function = lambda result: hang() if result.frame.index == 3 else result  # type: ignore[func-returns-value]
    elif kind == "generator":
        middle.function = lambda result: (result for _ in range(2) if hang() is None)  # type: ignore[func-returns-value]
    elif kind == "sink":
        end.function = hang  # type: ignore[assignment]
    elif kind == "open":
        middle.opening = hang
    elif kind == "close":
        middle.closing = hang
    else:
        source = Hanging(count=None)
    nodes = chain(source, middle, end)
    nodes.append(Task("other", other))
    link(nodes[0], nodes[-1], drop="oldest")
    runner = Runner(nodes)
    runner.start()
    assert kind == "close" or entered.wait(20), about
    time.sleep(wait_s)
    began = time.monotonic()
    with pytest.raises(StageError, match=f"stage {name} does not end"):
        runner.shut_down()
    assert time.monotonic() - began < MOST_S, about
    assert other.closed == 1 and (kind == "sink" or end.closed == 1), about


def test_10_stops_while_anything_hangs_close_the_others_and_name_it(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds(10, monkeypatch, 0.1)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_1000_stops_while_anything_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds(1000, monkeypatch, 0.2)


@pytest.mark.timing
def test_a_callback_that_hangs_is_named_by_close(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    entered, release = threading.Event(), threading.Event()

    def hang(result: Result) -> None:
        entered.set()
        release.wait()

    path = write(tmp_path, "find")
    path.write_text(path.read_text().replace("own:hang", "own:same"))
    (tmp_path / "own.py").write_text("def same(result): return result")
    pipeline = Pipeline(path, callbacks={"find": hang})
    pipeline.start()
    assert entered.wait(20)
    began = time.monotonic()
    with pytest.raises(StageError, match="stage callback of find does not end"):
        pipeline.close()
    assert time.monotonic() - began < MOST_S and not pipeline.running
    release.set()


def test_trial_runs_of_a_model_that_hangs_have_a_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgert.limits.TRIAL_RUN_S", 0.2)
    (tmp_path / "long.onnx").write_bytes(endless())
    (tmp_path / "at_once.onnx").write_bytes(endless(at_once=True))
    model, options = load(tmp_path / "long.onnx"), EngineOptions()
    session = backend("ort").compile(model, options).session()
    session.inputs["x"][...] = 1
    first_run = partial(backend("ort").compile, load(tmp_path / "at_once.onnx"), options)
    for run in (first_run, partial(trial_run, session), partial(Function(model), session.inputs)):
        with pytest.raises(BuildError, match="a run of the model was ended"):
            run()


def test_ctrl_c_ends_a_model_that_hangs_in_its_first_run(tmp_path: Path) -> None:
    path = write(tmp_path, "model")
    (tmp_path / "long.onnx").write_bytes(endless(at_once=True))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in a shell's background, and inherited
    run = subprocess.Popen([sys.executable, "-m", "edgert", "run", str(path)], cwd=tmp_path, stderr=-1)
    signal.signal(signal.SIGINT, before)
    with run:
        time.sleep(4)
        assert run.poll() is None
        run.send_signal(signal.SIGINT)
        try:
            assert run.wait(MOST_S) == 130
        finally:
            run.kill()


PLAIN = """
schema: 1
name: plain
stages:
  cam: {source: "synthetic:noise", size: 64x48, fps: 200, limit: 300}
  out: {sink: "null", from: cam}
"""


def plain(folder: Path) -> Path:
    (folder / "p.yaml").write_text(PLAIN)
    return folder / "p.yaml"


def test_close_in_a_callback_stops_and_is_no_error(tmp_path: Path) -> None:
    seen = list[int]()

    def done(result: Result) -> None:
        seen.append(result.frame.index)
        pipeline.close()

    pipeline = Pipeline(plain(tmp_path), callbacks={"cam": done})
    summary = pipeline.run()
    assert seen and summary.frames_in < 300 and not pipeline.running
    pipeline.close()


def test_close_while_it_starts_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first result may come before all that is beside the stages has begun."""
    closing, before = threading.Event(), threading.enumerate()

    def close(_: Result) -> None:
        pipeline.close()
        closing.set()

    def late() -> None:
        assert closing.wait(20)
        time.sleep(0.5)  # which a close that does not wait for the start takes to be through
        begin()

    pipeline = Pipeline(plain(tmp_path), callbacks={"cam": close})
    begin = pipeline._running.history.start
    monkeypatch.setattr(pipeline._running.history, "start", late)
    pipeline.start()
    wait_until(lambda: {*threading.enumerate()} <= {*before}, 20)


@pytest.mark.parametrize("what", ["wait", "run"])
def test_waiting_for_itself_in_a_callback_is_refused(what: str, tmp_path: Path) -> None:
    pipeline = Pipeline(plain(tmp_path), callbacks={"cam": lambda _: getattr(pipeline, what)()})
    with pytest.raises(StageError, match="by one of its own stages"), pipeline:
        pipeline.start()
        pipeline.wait(20)


def test_a_keyboard_interrupt_of_a_callback_ends_the_run(tmp_path: Path) -> None:
    def interrupted(_: Result) -> None:
        raise KeyboardInterrupt

    with (
        pytest.raises(StageError, match="KeyboardInterrupt"),
        Pipeline(plain(tmp_path), callbacks={"cam": interrupted}) as one,
    ):
        one.run()


def test_all_readers_of_one_iterator_end(tmp_path: Path) -> None:
    with Pipeline(plain(tmp_path)) as pipeline:
        results, seen = pipeline.results("cam"), list[int]()
        read = lambda: seen.extend(one.frame.index for one in results)  # noqa: E731
        readers = [threading.Thread(target=read, daemon=True) for _ in range(4)]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join(30)
        assert not any(reader.is_alive() for reader in readers)
    assert seen and len(seen) == len(set(seen))


def test_run_works_once(tmp_path: Path) -> None:
    with Pipeline(plain(tmp_path)) as pipeline:
        pipeline.run()
        with pytest.raises(StageError, match="ran already"):
            pipeline.run()


def test_a_forked_child_leaves_its_parents_pipeline_alone(tmp_path: Path) -> None:
    with Pipeline(plain(tmp_path), overrides=["stages.cam.limit=100000"]) as pipeline:
        pipeline.start()
        if (child := os.fork()) == 0:
            pipeline.close()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert pipeline.running and not pipeline._runner.is_stopping
