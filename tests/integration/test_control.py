"""A running pipeline that is changed: a refused change changes nothing, and streams left alone lose no frame."""

from __future__ import annotations

import errno
import gc
import json
import random
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edgert
from edgert import Pipeline, Result
from edgert.config import SourceStage
from edgert.control import operations
from edgert.control.change_plan import live_values
from edgert.control.client import send_request
from edgert.control.request import Request
from edgert.errors import ConfigError, EdgertError, StageError
from edgert.graph import to_bytes
from edgert.swap import candidate
from edgert.swap.model_swap import ModelSwap
from edgert.validation import validate
from tests.helpers.command import ROOT
from tests.helpers.growth import Holds, use_one_heap
from tests.helpers.models import constant
from tests.helpers.waiting import wait_until

ASSETS = ROOT / "pipelines" / "assets"
FRAME = np.zeros((48, 64, 3), np.uint8)
STILL, CHANGED = ("a", "b", "c", "d"), ("e", "f", "g", "h")
TASK = {"detect": "yolox", "labels": ASSETS / "parts.txt"}
MODEL = {"onnx": ASSETS / "parts.onnx", "task": TASK, "input": {"std": 255}}
STAGES = {
    "find": {"infer": "parts", "from": ["a"]},
    "track": {"track": "bytetrack", "from": "find"},
    "count": {"stage": "zones", "from": "track", "zones": {"half": [[0, 0], [1, 0], [1, 1]]}},
    "draw": {"draw": ["boxes"], "from": "find"},
    "both": {"sink": "callback", "from": ["count", "draw"]},
}


def pipeline_of(*sources: str, **stages: Any) -> dict[str, Any]:
    """Return a pipeline of ``source: api`` stages before a model, a join of two paths, and a callback."""
    made = {**{name: {"source": "api"} for name in sources}, **STAGES, **stages}
    return {"models": {"parts": MODEL}, "stages": {**made, "find": {**made["find"], "from": list(sources)}}}


class Seen:
    def __init__(self) -> None:
        self.numbers = defaultdict[str, list[int]](list)

    def __call__(self, result: Result) -> None:
        self.numbers[result.frame.stream].append(result.frame.index)


class Counted:
    """A callback that counts the frames of each stream, and notes where one is missing; it takes no more memory."""

    def __init__(self) -> None:
        self.counts, self.gaps = defaultdict[str, int](int), list[tuple[str, int]]()

    def __call__(self, result: Result) -> None:
        stream, index = result.frame.stream, result.frame.index
        if stream in STILL and index != self.counts[stream]:
            self.gaps.append((stream, index))
        self.counts[stream] += 1


class Submitters:
    """A thread for each stream that submits frames until the block ends, also while its source is paused or gone."""

    def __init__(self, pipeline: Pipeline, names: tuple[str, ...]) -> None:
        self._pipeline, self._over = pipeline, threading.Event()
        self.counts = dict.fromkeys(names, 0)
        self._threads = [threading.Thread(target=self._submit, args=(name,)) for name in names]

    def __enter__(self) -> Submitters:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _submit(self, name: str) -> None:
        while not self._over.wait(0.03):
            try:
                self._pipeline.submit(FRAME, stage=name, timeout=2.0 if name in STILL else 0.05)
                self.counts[name] += 1
            except StageError:
                assert name not in STILL


@pytest.fixture
def small() -> Iterator[Pipeline]:
    with edgert.Pipeline(pipeline_of("a", "b"), callbacks={"both": Seen()}) as pipeline:
        pipeline.start()
        yield pipeline


def state_of(pipeline: Pipeline) -> object:
    assembly, file = pipeline._assembly, pipeline.file
    limiters = {name: task.execution.limiter for name, task in assembly.ends.items()}
    paused = {name for name, limiter in limiters.items() if limiter is not None and limiter.paused}
    tasks = [(task.name, task.stage, len(task.wiring.outlets)) for task in assembly.tasks]
    return file.config, file.document.data, live_values(pipeline._running), paused, tasks


class Operations:
    """Random operations on the sources of CHANGED, on the stages of all, and now and then on the model."""

    def __init__(self, pipeline: Pipeline, seed: int, swaps: float, copy: Path) -> None:
        self.pipeline, self.control, self.random = pipeline, pipeline.control, random.Random(seed)
        self.swaps, self.copy = swaps, copy
        self.refused = self.swapped = self.gone_back = 0

    def step(self, _: int) -> None:
        """Do one; where it is refused, nothing has changed."""
        name, usual = self.random.choice(CHANGED), [self.set, self.pause, self.add, self.remove, self.apply, self.wrong]
        rare = [self.swap, self.swap, self.back]
        before = state_of(self.pipeline)
        try:
            self.random.choice(rare if self.random.random() < self.swaps else [self.set, *usual])(name)
        except EdgertError:
            self.refused += 1
            assert state_of(self.pipeline) == before, [str(one.state) for one in self.pipeline._running.swaps.values()]

    def set(self, name: str) -> None:
        key, values = self.random.choice(
            [
                ("models.parts.task.score", (0.2, 0.9, 2)),
                ("models.parts.task.limit", (1, 300, -1)),
                ("stages.find.every", (1, 2, 5)),
                ("stages.count.zones.half", ([[0, 0], [1, 0], [1, 1]], [[0, 0], [1, 1]])),
                ("stages.draw.draw", (["boxes"], ["labels"], ["nothing"])),
                (f"stages.{name}.fps", (1000, 500, None)),
            ]
        )
        self.control.set(key, self.random.choice(values))

    def pause(self, name: str) -> None:
        self.random.choice([self.control.pause, self.control.resume])(name)

    def add(self, name: str) -> None:
        self.control.add(name, "api")

    def remove(self, name: str) -> None:
        self.control.remove(name)

    def apply(self, name: str) -> None:
        """Apply a file with other keys and sources; now and then one that needs a restart, or by a stale plan."""
        there = [one for one in CHANGED if self.random.random() < 0.6]
        wanted = pipeline_of(*STILL, *there)
        stages = wanted["stages"]
        stages["find"]["every"] = self.random.choice([1, 1, 2])
        stages["count"] = stages["count"] | {"zones": {name: [[0, 0], [1, 0], [1, 1]]}}
        if self.random.random() < 0.2:
            stages["track"] = stages["track"] | {"queue": 2}
        plan = self.control.apply(wanted)["plan"]
        if self.random.random() < 0.2:
            plan = plan[::-1]
        self.control.apply(wanted, plan)

    def swap(self, name: str) -> None:
        """Swap the model, and wait until the new one works; how long the old one is kept after that differs."""
        path, swaps = self.random.choice([MODEL["onnx"], self.copy]), self.pipeline._running.swaps
        self.control.swap("parts", path, shadow=0, keep=self.random.choice([0, 0.2, 5]))
        wait_until(lambda: swaps["parts"].state.phase not in ("loading", "shadow"), 30)
        self.swapped += 1

    def back(self, name: str) -> None:
        self.control.back("parts")
        self.gone_back += 1

    def wrong(self, name: str) -> None:
        self.control.set(
            self.random.choice(["stages.find.from", "stages.x.every", "models.parts.input.std", name]), "[1]"
        )


@pytest.mark.parametrize(
    ("count", "swaps"), [(300, 0.0), pytest.param(10_000, 0.01, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])]
)
def test_random_operations_lose_no_frame_of_other_streams_and_leave_nothing(
    count: int, swaps: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(candidate, "measure_memory", lambda *_: 0)  # in a process of its own, which takes seconds
    monkeypatch.setattr(ModelSwap, "_allowed_s", 60.0)  # beside other work it is slow at times, and would go back
    seen, copy = Counted(), tmp_path / "same.onnx"
    copy.write_bytes((ASSETS / "parts.onnx").read_bytes())
    if swaps:
        use_one_heap()
    else:  # what the model finds is no matter
        copy.write_bytes(to_bytes(constant({"rows": np.zeros((1, 84, 10))}, (1, 3, 64, 64))))
        monkeypatch.setitem(MODEL, "onnx", copy)
    with edgert.Pipeline(pipeline_of(*STILL, *CHANGED), callbacks={"both": seen}) as pipeline:
        pipeline.start()
        operations = Operations(pipeline, count, swaps, copy)

        def all_there() -> None:
            """Add and resume what was removed and paused, and wait until one model is left."""
            assert all(swap.wait(30) for swap in pipeline._running.swaps.values())
            there = pipeline.control.show()["sources"]
            for name in CHANGED:
                if name not in there:
                    pipeline.control.add(name, "api")
                pipeline.control.resume(name)

        def held() -> Holds:
            """The least that is held of some readings: of models that come and go, 10 MB more or less is in pieces."""
            readings = []
            for _ in range(8 if swaps else 1):
                all_there()
                if swaps:
                    operations.swap("")
                    all_there()
                readings.append(Holds.trimmed())
            return min(readings, key=lambda one: one.rss_bytes)

        with Submitters(pipeline, (*STILL, *CHANGED)) as submitters:
            for number in range(count // 5):
                operations.step(number)
            before = held()
            for number in range(count):
                operations.step(number)
            all_there()
            wait_until(lambda: Holds.now().more_than(before) <= 0)
            after = held()
        assert operations.refused > count // 10 and min(operations.swapped, operations.gone_back) >= count * swaps / 10
        wait_until(lambda: all(seen.counts[name] == submitters.counts[name] for name in STILL))
        assert not seen.gaps and min(submitters.counts[name] for name in STILL) > count // 100
        assert after.rss_bytes - before.rss_bytes <= 5e6, (before, after)
        for name in CHANGED:  # what is there at the end works
            number = seen.counts[name]
            pipeline.submit(FRAME, stage=name, timeout=5.0)
            wait_until(lambda name=name, number=number: seen.counts[name] > number)


def test_a_live_key_holds_from_the_next_frame_on() -> None:
    boxes = dict[int, int | None]()

    def note(result: Result) -> None:
        found = result.outputs.get("find")
        boxes[result.frame.index] = None if found is None else len(result.detections)

    with edgert.Pipeline(pipeline_of("a"), callbacks={"find": note, "both": bool}) as pipeline:

        def submitted(count: int) -> list[int | None]:
            first = len(boxes)
            for index in range(first, first + count):
                pipeline.submit(FRAME, timestamp_ns=index * 50_000_000)
            wait_until(lambda: len(boxes) == first + count)
            return [boxes[index] for index in range(first, first + count)]

        assert submitted(6) == [0] * 6
        changed = pipeline.control.set("models.parts.task.score", 0.0)
        assert changed == {"key": "models.parts.task.score", "was": 0.25, "now": 0.0}
        assert all(submitted(6))
        pipeline.control.set("models.parts.task.limit", "7")
        assert submitted(6) == [7] * 6
        pipeline.control.set("stages.find.every", 3)
        assert submitted(6) == [7, None, None] * 2
        assert [one["now"] for one in pipeline.control.set_keys({"stages.a.fps": 5, "stages.find.every": 3})] == [5, 3]
        for index in range(24, 44):
            pipeline.submit(FRAME, timestamp_ns=index * 50_000_000)
        pipeline.finish()
        pipeline.wait(20)
        assert len(boxes) == 24 + 5


def test_a_live_key_of_a_fallback_model_is_set() -> None:
    models = {"parts": {**MODEL, "degrade_to": "small"}, "small": MODEL}
    with edgert.Pipeline({**pipeline_of("a"), "models": models}, callbacks={"both": Seen()}) as pipeline:
        pipeline.start()
        assert pipeline.control.set("models.small.task.score", 0.7)["now"] == 0.7


@pytest.mark.parametrize(
    ("key", "value", "kind", "words"),
    [
        ("stages.find.evry", 2, ConfigError, "did you mean 'every'"),
        ("stages.fnd.every", 2, ConfigError, "did you mean 'find'"),
        ("stages.find.every", 0, ConfigError, "expected 1 or more"),
        ("models.parts.task.score", 7, ConfigError, "cannot use 7"),
        ("stages.a.source", "b.mp4", StageError, "that opens the source again"),
        ("models.parts.input.std", 1, StageError, "the model would be loaded again: this needs a restart"),
        ("stages.find.queue", 3, StageError, "the model would be loaded again: this needs a restart"),
        ("stages.track.match", 0.5, StageError, "the stage would be opened again"),
        ("budgets.latency", "-1s", ConfigError, "cannot use"),
        ("name", "belt", StageError, "it applies from the start of a run: this needs a restart"),
        ("stages.find.every", "[", ConfigError, "YAML"),
        ("stages.find.every", "${HOME}", ConfigError, "HOME"),
    ],
)
def test_what_cannot_be_set_is_refused_and_changes_nothing(
    small: Pipeline, key: str, value: object, kind: type[EdgertError], words: str
) -> None:
    before = state_of(small)
    with pytest.raises(kind) as caught:
        small.control.set_keys({"stages.a.fps": 5, key: value})
    assert words in str(caught.value) and "--set" not in str(caught.value)
    assert state_of(small) == before


def test_sources_that_cannot_come_or_go_are_refused_and_nothing_has_changed(small: Pipeline, tmp_path: Path) -> None:
    control, before = small.control, state_of(small)
    for refused, words in (
        (lambda: control.add("find", "api"), "exists already"),
        (lambda: control.add("a", "api"), "exists already"),
        (lambda: control.add("c", "api", "nobody"), "unknown source 'nobody'"),
        (lambda: control.add("c", str(tmp_path / "none.mp4")), "none.mp4"),
        (lambda: control.add("not a name", "api"), "expected a name"),
        (lambda: control.remove("c"), "unknown source 'c'"),
        (lambda: control.remove("find"), "unknown source 'find'"),
        (lambda: control.pause("find"), "unknown source 'find'"),
        (control.save, "mapping"),
    ):
        with pytest.raises(EdgertError, match=words):
            refused()
        assert state_of(small) == before
    control.remove("a")
    before = state_of(small)
    with pytest.raises(StageError, match="last source"):
        control.remove("b")
    assert state_of(small) == before


def test_a_source_that_a_stage_needs_stays() -> None:
    alone = {"own": {"sink": "null", "from": "b"}}
    with edgert.Pipeline(pipeline_of("a", "b", **alone), callbacks={"both": Seen()}) as pipeline:
        with pytest.raises(StageError, match="cannot be removed") as caught:
            pipeline.control.remove("b")
        assert "own would listen to nothing" in str(caught.value)


def test_a_source_that_is_paused_takes_nothing_and_another_goes_on(small: Pipeline) -> None:
    assert small.control.pause("a")["state"] == "paused"
    began = time.monotonic()
    with pytest.raises(StageError, match="no room"):
        for _ in range(20):
            small.submit(FRAME, stage="a", timeout=0.2)
    assert time.monotonic() - began < 5
    small.submit(FRAME, stage="b", timeout=5.0)
    assert small.control.show()["sources"]["a"]["state"] == "paused"
    assert small.control.resume("a")["state"] == "running"
    small.submit(FRAME, stage="a", timeout=5.0)


@pytest.fixture
def unfrozen() -> Iterator[None]:
    """No object is left out of garbage collections."""
    gc.unfreeze()
    yield
    gc.freeze()


@pytest.mark.usefixtures("unfrozen")
def test_a_change_leaves_the_processor_to_frames_every_half_millisecond(
    small: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it imports and parses holds Python's lock; a full garbage collection of the whole heap does for 50 ms."""
    turns: list[float] = []

    def note(run: Any, name: str) -> dict[str, Any]:
        turns.append(sys.getswitchinterval())
        return {}

    monkeypatch.setattr(operations, "_OPERATIONS", {"pause": note})
    small.control.pause("a")
    assert turns == [pytest.approx(0.0005)] and sys.getswitchinterval() > 0.001
    assert gc.get_freeze_count() > 10_000
    with Pipeline({"stages": {"a": {"source": "api"}, "out": {"sink": "null", "from": "a"}}}) as other:
        other.start()
        other.control.pause("a")
    assert gc.get_freeze_count() > 10_000
    small.close()
    assert not gc.get_freeze_count()


@pytest.mark.usefixtures("unfrozen")
def test_what_a_program_leaves_out_of_collections_stays_out(small: Pipeline) -> None:
    gc.freeze()
    left_out = gc.get_freeze_count()
    small.control.pause("a")
    small.close()
    assert gc.get_freeze_count() > 0.9 * left_out


def test_a_source_that_was_added_is_joined_behind_both_paths(small: Pipeline) -> None:
    seen = Seen()
    with edgert.Pipeline(pipeline_of("a"), callbacks={"both": seen}) as pipeline:
        pipeline.start()
        assert pipeline.control.add("b", "api") == {"source": "b", "listeners": ["find"]}
        for _ in range(5):
            pipeline.submit(FRAME, stage="b", timeout=5.0)
        wait_until(lambda: seen.numbers["b"] == list(range(5)))  # each once: the join knows the stream
        pipeline.control.remove("b")
        with pytest.raises(StageError):
            pipeline.submit(FRAME, stage="b", timeout=1.0)
        assert pipeline.summary().frames_in == 5, "a counter that falls is a restart to Prometheus"


def test_a_source_of_another_kind_takes_over_what_has_a_meaning_for_it(caplog: pytest.LogCaptureFixture) -> None:
    like = {"source": "synthetic:noise", "size": "32x24", "seed": 7, "realtime": True, "fps": 5.0, "timeout": "3s"}
    stages = {"cam": like, "out": {"sink": "null", "from": "cam"}}
    with edgert.Pipeline({"stages": stages}) as pipeline:
        pipeline.start()
        pipeline.control.add("gate", "rtsp://127.0.0.1:1/x")
        assert "no meaning" not in caplog.text
        gate = pipeline.file.config.stages["gate"]
        assert isinstance(gate, SourceStage) and (gate.fps, gate.timeout, gate.size) == (5.0, 3.0, None)


def test_a_stage_cannot_change_its_own_pipeline_and_nobody_one_that_ended() -> None:
    errors = list[str]()

    def change(result: Result) -> None:
        try:
            pipeline.control.set("stages.find.every", 2)
        except StageError as error:
            errors.append(error.what)

    with edgert.Pipeline(pipeline_of("a"), callbacks={"both": change}) as pipeline:
        pipeline.submit(FRAME)
        pipeline.finish()
        pipeline.wait(20)
        assert errors == ["a pipeline was changed by one of its own stages"]
        with pytest.raises(StageError, match="has ended"):
            pipeline.control.set("stages.find.every", 2)


SAVED = f"""
models:
  parts: {{onnx: {ASSETS}/parts.onnx, task: {{detect: yolox, labels: {ASSETS}/parts.txt}}, input: {{std: 255}}}}
stages:
  a: {{source: api}}  # the belt
  find: {{infer: parts, from: a}}
  hook: {{sink: webhook, server: "http://127.0.0.1:9/${{SECRET}}", from: find}}
  gone: {{sink: null, from: a}}
"""


@pytest.fixture
def belt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SECRET", "s3cret-of-a-camera")
    path = tmp_path / "belt.yaml"
    path.write_text(SAVED)
    path.chmod(0o600)
    return path


def test_save_writes_what_differs_and_the_next_run_loads_it_after_the_file(
    belt: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with edgert.Pipeline(belt, overrides=["stages.find.queue=3"]) as pipeline:
        assert pipeline.control.save()["keys"] == []
        pipeline.control.set("stages.find.every", 4)
        pipeline.control.set("models.parts.task.score", 0.5)
        pipeline.control.add("b", "api")
        saved = pipeline.control.save()
        overlay = Path(saved["path"])
        assert overlay == belt.with_name("belt.live.yaml") and belt.read_text() == SAVED
        assert overlay.stat().st_mode & 0o777 == 0o600 and "s3cret" not in overlay.read_text()
        assert "stages.find.every" in saved["keys"] and not any("queue" in key for key in saved["keys"])
        pipeline.control.remove("a")
        pipeline.control.save()
        wanted = pipeline.file.config
    with edgert.Pipeline(belt, overrides=["stages.find.queue=3"]) as pipeline:
        assert f"{overlay} is loaded after belt.yaml; delete it to leave it out" in caplog.text
        assert pipeline.file.config == wanted and "a" not in wanted.stages
        assert pipeline.file.where("stages", "find", "every").startswith(f"{overlay}:")
        assert pipeline.file.where("stages", "hook").startswith(f"{belt}:")
    with pytest.raises(ConfigError, match=r"belt\.live\.yaml is not a pipeline file"):
        edgert.Pipeline(overlay)
    notes = validate(belt).notes
    assert notes[0].endswith("is loaded after belt.yaml; delete it to leave it out")
    for noise, why in (("# nothing\n", "is empty"), ("\0" * 100, "is not valid YAML")):
        overlay.write_text(noise)
        with pytest.raises(ConfigError, match=rf"belt\.live\.yaml {why}") as caught:
            edgert.load_pipeline(belt)
        assert "delete it, and belt.yaml alone holds" in caught.value.fix and "\n" not in caught.value.why


def test_a_disk_that_is_full_leaves_no_empty_overlay(belt: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with edgert.Pipeline(belt) as pipeline:
        pipeline.control.set("stages.find.every", 4)

        def full(descriptor: int) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr("edgert.control.verbs.os.fsync", full)
        with pytest.raises(EdgertError, match=r"belt\.live\.yaml"):
            pipeline.control.save()
    assert [path.name for path in belt.parent.iterdir()] == ["belt.yaml"]


def test_what_the_file_says_by_now_is_not_saved_twice_and_no_overlay_is_left(belt: Path) -> None:
    with edgert.Pipeline(belt) as pipeline:
        pipeline.control.set("stages.find.every", 4)
        overlay = Path(pipeline.control.save()["path"])
        belt.write_text(
            SAVED.replace("from: a}}", "from: a, every: 4}}").replace("{infer: parts", "{every: 4, infer: parts")
        )
        assert pipeline.control.save()["keys"] == [] and not overlay.exists()
        belt.write_text("stages: [")
        with pytest.raises(ConfigError, match="YAML"):
            pipeline.control.save()


def test_keys_that_are_set_back_leave_the_overlay_and_the_last_one_takes_it_along(belt: Path) -> None:
    with edgert.Pipeline(belt) as pipeline:
        control = pipeline.control
        control.set("stages.find.every", 4)
        control.set("models.parts.task.score", 0.5)
        control.set("budgets.latency", "2s")
        control.set("budgets.memory", "8GiB")
        control.set("budgets.latency", "")
        assert sorted(control.save()["keys"]) == ["budgets", "models.parts.task.score", "stages.find.every"]
        assert "budgets:\n  memory: 8GiB\n" in belt.with_name("belt.live.yaml").read_text()
        control.set("budgets.memory", "")
        control.set("stages.find.every", 1)
        saved = control.save()
        overlay = Path(saved["path"])
        assert saved["keys"] == ["models.parts.task.score"] and "every" not in overlay.read_text()
        assert not saved["removed"] and "budgets" not in overlay.read_text()
        control.set("models.parts.task.score", 0.25)
        assert control.save() == {"path": str(overlay), "keys": [], "removed": True} and not overlay.exists()
        assert not control.save()["removed"]
    belt.write_text(SAVED.replace("infer: parts", "every: 4, infer: parts"))
    with edgert.Pipeline(belt) as pipeline:
        pipeline.control.set("stages.find.every", 1)
        assert pipeline.control.save()["keys"] == ["stages.find.every"], "the default, where the file has another value"


def test_a_pipeline_that_comes_with_edgert_is_not_saved_beside_itself() -> None:
    plain = ["models.parts.precision=fp32"]
    with edgert.Pipeline("hello", overrides=plain) as pipeline, pytest.raises(StageError, match="cannot be saved"):
        pipeline.control.save()


@pytest.mark.timing
def test_200_clients_of_eight_streams_are_each_answered_within_a_second() -> None:
    text = json.dumps(pipeline_of(*STILL, *CHANGED), default=str)

    def ask(number: int) -> float:
        request = [
            Request("set", (f"stages.find.every={1 + number % 3}",)),
            Request("set", ("models.parts.task.score=0.4",)),
            Request("pause" if number % 2 else "resume", (CHANGED[number % 4],)),
            Request("apply", (text,)),
            Request("show"),
        ][number % 5]
        start.wait()
        began = time.monotonic()
        assert send_request(path, request)
        return time.monotonic() - began

    start = threading.Barrier(200)
    with edgert.Pipeline(pipeline_of(*STILL, *CHANGED), callbacks={"both": bool}) as pipeline:
        pipeline.start()
        own = pipeline._running._socket
        assert own is not None and own.path is not None
        path = own.path
        with ThreadPoolExecutor(200) as clients:
            took_s = list(clients.map(ask, range(200)))
    assert max(took_s) <= 1.0, sorted(took_s)[-3:]
