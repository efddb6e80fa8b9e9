"""A model swapped while its pipeline runs: no frame is lost, bad models never take over, and the old one comes back."""

import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import edgert
from edgert import Pipeline, Result
from edgert.errors import ConfigError, EdgertError, ModelError, StageError
from edgert.graph import Model, load, to_bytes
from edgert.graph.batch_size import with_open_batch
from edgert.installation import demo_images
from edgert.swap import candidate, model_trial
from edgert.swap.shadow import SHOWN_DISAGREEMENTS
from edgert.swap.swap_page import render_page
from tests.helpers.bad_models import BAD, GOOD, LATER, OPERATORS, written
from tests.helpers.command import ROOT, in_process, start
from tests.helpers.gpu import gpu_or_skip
from tests.helpers.growth import growth
from tests.helpers.http_request import answer_of
from tests.helpers.models import make, node
from tests.helpers.operators import only_here
from tests.helpers.waiting import wait_until

FPS = 30
MODEL = {
    "onnx": GOOD,
    "task": {"detect": "yolox", "labels": GOOD.with_suffix(".txt"), "score": 0.4},
    "input": {"std": 255},
}
CAMERA = {"source": "python:conveyor:Conveyor", "size": "320x240", "fps": FPS, "realtime": True, "seed": 7}


class Seen:
    """A callback that notes of each result its number, its model, and the ids of its tracks."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, str, frozenset[int]]] = []

    def __call__(self, result: Result) -> None:
        ids = () if result.detections.ids is None else result.detections.ids.tolist()
        self.rows.append((result.frame.index, result.models.get("find", ""), frozenset(ids)))

    @property
    def numbers(self) -> list[int]:
        return [number for number, _, _ in self.rows]

    @property
    def model(self) -> str:
        return self.rows[-1][1]

    @property
    def models(self) -> set[str]:
        return {model for _, model, _ in self.rows}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a good model, and operators that misbehave."""
    monkeypatch.chdir(ROOT / "pipelines")  # of the demo's source
    monkeypatch.setattr(
        candidate, "measure_memory", lambda *_: 0
    )  # a process of its own, which takes seconds: see own_process
    shutil.copy(GOOD, tmp_path / "same.onnx")
    # A file that an earlier test imported would not be imported again.
    (tmp_path / f"{tmp_path.name}_ops.py").write_text(f"# {tmp_path}\n{OPERATORS}")
    with only_here():
        yield tmp_path


@pytest.fixture
def own_process(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Models are tried in a process of their own first, as always outside of tests."""
    monkeypatch.setattr(candidate, "measure_memory", model_trial.measure_memory)
    monkeypatch.setattr(model_trial, "LONGEST_S", 30.0)


def pipeline_of(folder: Path, **keys: Any) -> dict[str, Any]:
    camera = {**CAMERA, "queue": 8, "drop": "never"}
    stages = {
        "belt": camera,
        "find": {"infer": "parts", "from": "belt"},
        "track": {"track": "bytetrack", "from": "find"},
        "out": {"sink": "callback", "from": "track"},
    }
    return {"models": {"parts": MODEL}, "ops": [next(folder.glob("*_ops.py"))], "stages": stages, **keys}


def state(pipeline: Pipeline) -> dict[str, Any]:
    return pipeline._running.swaps["parts"].state.to_json()


def ended(pipeline: Pipeline, timeout_s: float = 60) -> dict[str, Any]:
    """The state of the newest swap once it has ended."""
    swap = pipeline._running.swaps["parts"]
    assert swap.wait(timeout_s), swap.state
    return dict(pipeline.control.show()["swaps"]["parts"])


def whole(seen: Seen) -> bool:
    return seen.numbers == list(range(len(seen.rows)))


@pytest.fixture
def seen() -> Seen:
    return Seen()


@pytest.fixture
def running(folder: Path, seen: Seen) -> Iterator[Pipeline]:
    """A pipeline at 30 frames a second; at its end, no frame was lost."""
    with edgert.Pipeline(pipeline_of(folder), callbacks={"out": seen}) as pipeline:
        pipeline.start()
        wait_until(lambda: len(seen.rows) > 3, 30)
        yield pipeline
    assert whole(seen)


def test_an_equal_model_takes_over_and_results_name_it(
    running: Pipeline, seen: Seen, folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(type(running._assembly.engines["parts"]), "close", lambda engine: 1 / 0)
    asked = running.control.swap("parts", folder / "same.onnx", shadow=20, keep=0.5)
    assert asked["phase"] == "loading" and running.file.config.models["parts"].onnx == GOOD
    with pytest.raises(StageError, match="a swap is under way"):
        running.control.swap("parts", folder / "same.onnx")
    found = ended(running)
    assert "ZeroDivisionError" in caplog.text and "memory of one model is not freed" in caplog.text
    monkeypatch.undo()
    assert found["phase"] == "done" and found["frames"] == 20 and found["agreement"] == {"mean": 1.0, "low": 1.0}
    assert running.file.config.models["parts"].onnx == folder / "same.onnx"
    wait_until(lambda: seen.model == found["digests"][0], 10)
    at = next(number for number, row in enumerate(seen.rows) if row[1])
    assert len(seen.rows[at - 1][2] & seen.rows[at][2]) >= len(seen.rows[at][2]) - 1 > 0  # tracks went on
    with pytest.raises(StageError, match="the old model is no longer loaded"):
        running.control.back("parts")


def test_the_old_model_comes_back_when_it_is_asked_for(running: Pipeline, seen: Seen, folder: Path) -> None:
    worse = written(folder / "worse.onnx", BAD["finds nothing"])
    running.control.swap("parts", worse, shadow=0, keep=60)
    wait_until(lambda: state(running)["phase"] == "switched", 30)
    new, old = state(running)["digests"]
    wait_until(lambda: seen.model == new, 10)
    running.control.set("models.parts.task.score", 0.5)
    assert running.control.back("parts")["phase"] == "back"
    wait_until(lambda: seen.model == old, 10)
    assert ended(running)["reason"] == "edgert ctl back requested it"
    config = running.file.config.models["parts"]
    assert (config.onnx, config.task.score) == (GOOD, 0.5)
    running.control.set("models.parts.task.score", 0.4)  # and its decoder still follows
    running.control.swap("parts", folder / "same.onnx", shadow=20, keep=0)
    assert ended(running)["phase"] == "done"


@pytest.mark.slow
@pytest.mark.timing
@pytest.mark.timeout(600)
def test_200_swaps_pause_for_a_frame_and_a_run_of_the_model_at_most(folder: Path) -> None:
    """Time in which the pipeline's threads could run, and other programs had the processors, does not count."""
    notes: list[tuple[int, float, float]] = []

    def note(result: Result) -> None:
        threads = [one.native_id for one in threading.enumerate() if one.name in names]
        waited = [Path(f"/proc/self/task/{one}/schedstat").read_text().split()[1] for one in threads]
        notes.append((result.frame.index, time.monotonic(), sum(map(int, waited)) / 1e9))

    names = {f"edgert:{stage}" for stage in ("belt", "find", "track", "out")}
    with edgert.Pipeline(pipeline_of(folder), callbacks={"out": note}) as pipeline:
        pipeline.start()
        wait_until(lambda: len(notes) > FPS, 30)
        for number in range(200):
            pipeline.control.swap("parts", (folder / "same.onnx", GOOD)[number % 2], shadow=0, keep=0.05)
            assert ended(pipeline)["phase"] == "done"
        meter, rows = pipeline._assembly.task("find").meter, notes[FPS:]
    pauses = [later[1] - before[1] - (later[2] - before[2]) - 1 / FPS for before, later in pairwise(rows)]
    assert max(pauses) <= 1 / FPS + meter.busy_ns / 1e9 / meter.results_in
    assert [number for number, _, _ in notes] == list(range(len(notes)))


@pytest.mark.parametrize("kind", ["other size", "not a number", "wrong classes"])
def test_bad_models_never_take_over(running: Pipeline, seen: Seen, folder: Path, kind: str) -> None:
    _refused(running, seen, folder, kind)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.usefixtures("own_process")
def test_no_kind_of_bad_model_takes_over(running: Pipeline, seen: Seen, folder: Path) -> None:
    assert len(BAD) >= 20
    for kind in BAD:
        _refused(running, seen, folder, kind)


@pytest.mark.usefixtures("own_process")
def test_an_operator_that_crashes_ends_only_its_own_process(running: Pipeline, seen: Seen, folder: Path) -> None:
    _refused(running, seen, folder, "crashing operator")
    assert "SIGABRT" in state(running)["reason"]


def _refused(pipeline: Pipeline, seen: Seen, folder: Path, kind: str) -> None:
    file = pipeline.file
    try:
        pipeline.control.swap("parts", written(folder / "bad.onnx", BAD[kind]), shadow=40)
    except EdgertError as error:
        assert error.why or error.fix, kind
    else:
        found = ended(pipeline)
        assert found["phase"] == "refused" and found["reason"], (kind, found)
    assert pipeline.file is file and seen.models == {""}, kind


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*LATER])
def test_one_that_becomes_bad_goes_back(running: Pipeline, seen: Seen, folder: Path, kind: str) -> None:
    running.control.swap("parts", written(folder / "later.onnx", LATER[kind]), shadow=0, keep=60)
    found = ended(running)
    assert found["phase"] == "back" and found["reason"], found
    wait_until(lambda: seen.model == found["digests"][1], 20)
    assert running.file.config.models["parts"].onnx == GOOD


def test_bad_requests_change_nothing(running: Pipeline, folder: Path) -> None:
    control, same, file = running.control, folder / "same.onnx", running.file
    (folder / "cut.onnx").write_bytes(GOOD.read_bytes()[:2000])
    cases: list[tuple[Callable[[], object], type[EdgertError], str]] = [
        (lambda: control.swap("part", same), ConfigError, "did you mean 'parts'"),
        (lambda: control.swap("parts", folder / "none.onnx"), EdgertError, "none.onnx"),
        (lambda: control.swap("parts", folder / "cut.onnx"), EdgertError, "cut.onnx"),
        (lambda: control.swap("parts", same, shadow=5), ConfigError, "--shadow 5 is out of range"),
        (lambda: control.swap("parts", same, min_agreement=1.5), ConfigError, "a number from 0 to 1"),
        (lambda: control.swap("parts", same, keep=1e9), ConfigError, "is out of range"),
        (
            lambda: control.swap("parts", written(folder / "two.onnx", BAD["a second input"])),
            ModelError,
            "other inputs",
        ),
        (lambda: control.back("parts"), StageError, "was not swapped"),
        (lambda: control.back("none"), StageError, "unknown model 'none'"),
    ]
    for request, kind, what in cases:
        with pytest.raises(kind, match=what):
            request()
    assert running.file is file and running.control.show()["swaps"] == {}


@pytest.mark.parametrize(
    "changes, why",
    [({"engines": {}}, "it runs from a bundle"), ({"label": "simulated: board"}, "it emulates a board")],
)
def test_models_that_were_prepared_before_stay(
    running: Pipeline, folder: Path, changes: dict[str, Any], why: str
) -> None:
    run = running._running
    run._environment = replace(run._environment, **changes)
    with pytest.raises(StageError, match=why):
        running.control.swap("parts", folder / "same.onnx")
    with pytest.raises(StageError, match=why):
        running.control.save()


def test_a_swap_is_given_up_while_it_is_judged(running: Pipeline, seen: Seen, folder: Path) -> None:
    running.control.swap("parts", folder / "same.onnx", shadow=100_000)
    wait_until(lambda: state(running)["frames"] > 3, 60)
    assert "shadow " in state(running)["text"]
    assert running.control.back("parts")["phase"] == "refused"
    assert ended(running)["reason"] == "edgert ctl back requested it" and seen.models == {""}
    threads = {thread.name for thread in threading.enumerate()}
    assert not any("swap" in name or "shadow" in name for name in threads)


def test_the_pipeline_may_end_at_any_point_of_a_swap(folder: Path) -> None:
    for wait in ("loading", "shadow", "switched"):
        with edgert.Pipeline(pipeline_of(folder), callbacks={"out": Seen()}) as pipeline:
            pipeline.start()
            pipeline.control.swap("parts", folder / "same.onnx", shadow=0 if wait == "switched" else 1000)
            wait_until(lambda wait=wait, pipeline=pipeline: state(pipeline)["phase"] == wait, 30)
            swap = pipeline._running.swaps["parts"]
        assert swap.wait(10), wait


@pytest.mark.parametrize("batch", [{"max": 4, "wait": "20ms"}])
def test_a_batched_model_is_swapped_for_several_cameras(folder: Path, seen: Seen, batch: dict[str, Any]) -> None:
    file = pipeline_of(folder)
    rows: dict[str, list[int]] = {"belt": [], "yard": []}
    file["stages"]["yard"] = {**file["stages"]["belt"], "seed": 3}
    file["stages"]["find"] = {"infer": "parts", "from": ["belt", "yard"]}
    del file["stages"]["track"]
    file["stages"]["out"]["from"] = "find"
    open_batch(folder)
    file["models"]["parts"] = {**MODEL, "onnx": folder / "open.onnx"}
    file["stages"]["find"]["batch"] = batch
    shutil.copy(folder / "open.onnx", folder / "same.onnx")
    with edgert.Pipeline(
        file, callbacks={"out": lambda one: rows[one.frame.stream].append(one.frame.index)}
    ) as pipeline:
        pipeline.start()
        pipeline.control.swap("parts", folder / "same.onnx", shadow=20, keep=60)
        wait_until(lambda: state(pipeline)["phase"] == "switched", 60)
        _goes_on(rows["yard"])
        pipeline.control.back("parts")
        assert ended(pipeline)["phase"] == "back"
        _goes_on(rows["yard"])
    assert all(numbers == list(range(len(numbers))) for numbers in rows.values())


def _goes_on(rows: list[int]) -> None:
    count = len(rows) + 5
    wait_until(lambda: len(rows) > count, 20)


def open_batch(folder: Path) -> None:
    (folder / "open.onnx").write_bytes(to_bytes(with_open_batch(load(GOOD))))


def test_the_live_page_shows_where_they_disagree_to_who_has_the_token(folder: Path, seen: Seen) -> None:
    file = pipeline_of(folder)
    file["stages"]["page"] = {"sink": "http", "from": "find", "port": 0, "token": "secret-of-the-page"}
    with edgert.Pipeline(file, callbacks={"out": seen}) as pipeline:
        pipeline.start()
        wait_until(lambda: len(seen.rows) > 3, 30)
        url: str = pipeline._assembly.task("page").stage.url  # type: ignore[union-attr]
        assert page(url, "secret-of-the-page")[0] == 404 and page(url, "")[0] == 401
        pipeline.control.swap("parts", written(folder / "wrong.onnx", BAD["wrong classes"]), shadow=40)
        found = ended(pipeline)
        status, text = page(url, "secret-of-the-page")
        assert status == 200 and page(url, "wrong")[0] == 401
    assert found["reason"] in text and found["digests"][0] in text
    assert 2 <= text.count("data:image/jpeg;base64,") <= 2 * SHOWN_DISAGREEMENTS and len(text) < 1_000_000


def page(url: str, token: str) -> tuple[int, str]:
    status, _, body = answer_of(url, "/swap", **({"Authorization": f"Bearer {token}"} if token else {}))
    return status, body.decode()


def test_images_stay_private_where_a_later_stage_hides_parts(folder: Path, seen: Seen) -> None:
    file = pipeline_of(folder)
    file["stages"]["hide"] = {"stage": "privacy", "from": "find", "classes": ["bolt"]}
    file["stages"]["track"]["from"] = "hide"
    with edgert.Pipeline(file, callbacks={"out": seen}) as pipeline:
        pipeline.start()
        pipeline.control.swap("parts", written(folder / "wrong.onnx", BAD["wrong classes"]), shadow=40)
        ended(pipeline)
        found = pipeline._running.swaps["parts"].disagreements
        text = render_page("belt", pipeline._running.swaps["parts"].state, found)
    assert found and all(one.images == () for one in found)
    assert "jpeg" not in text and "hides parts of them" in text


def embedding(seed: int) -> Model:
    """A model that writes vectors of four numbers."""
    random = np.random.default_rng(seed)
    weights = {"w": random.standard_normal((4, 3, 3, 3)).astype("f4"), "b": random.standard_normal(4).astype("f4")}
    nodes = [
        node("Conv", ["x", "w", "b"], ["c"], pads=[1, 1, 1, 1]),
        node("GlobalAveragePool", ["c"], ["mean"]),
    ]
    return make(nodes, {"x": (1, 3, 32, 32)}, {"mean": (1, 4, 1, 1)}, weights)


def test_vectors_of_another_space_are_refused(folder: Path, seen: Seen) -> None:
    for name, seed in (("old", 0), ("same", 0), ("other", 1)):
        (folder / f"{name}.onnx").write_bytes(to_bytes(embedding(seed)))
    file = pipeline_of(folder)
    task = {"onnx": folder / "old.onnx", "task": {"embed": "l2"}, "input": {"resize": "stretch", "std": 255}}
    file["models"]["parts"] = task
    del file["stages"]["track"]
    file["stages"]["out"]["from"] = "find"
    with edgert.Pipeline(file, callbacks={"out": seen}) as pipeline:
        pipeline.start()
        for terms in ({"shadow": 0}, {"min_agreement": 0.5}):
            with pytest.raises(StageError, match="must be judged before it takes over"):
                pipeline.control.swap("parts", folder / "other.onnx", **terms)  # type: ignore[arg-type]
        pipeline.control.swap("parts", folder / "other.onnx", shadow=20)
        assert ended(pipeline)["phase"] == "refused"
        pipeline.control.swap("parts", folder / "same.onnx", shadow=20, keep=0)
        assert ended(pipeline)["phase"] == "done"
    assert whole(seen)


def test_crops_of_a_cascade_are_compared_crop_by_crop(folder: Path, seen: Seen) -> None:
    file = pipeline_of(folder)
    file["models"]["again"] = MODEL
    file["stages"]["again"] = {"infer": "again", "from": "find", "crop": {"limit": 3, "min_size": 16}}
    file["stages"]["track"]["from"] = "again"
    with edgert.Pipeline(file, callbacks={"out": seen}) as pipeline:
        pipeline.start()
        pipeline.control.swap("again", folder / "same.onnx", shadow=20, keep=0)
        swap = pipeline._running.swaps["again"]
        assert swap.wait(60) and swap.state.phase == "done", swap.state
        pipeline.control.swap("again", written(folder / "wrong.onnx", BAD["wrong classes"]), shadow=20)
        swap = pipeline._running.swaps["again"]
        assert swap.wait(60) and swap.state.phase == "refused", swap.state
    assert whole(seen)


def test_nothing_is_left_of_swaps(running: Pipeline, folder: Path) -> None:
    def step(number: int) -> None:
        running.control.swap("parts", (GOOD, folder / "same.onnx")[number % 2 == 0], shadow=0, keep=0)
        assert ended(running)["phase"] == "done"

    before, after, _ = growth(step, settle=4, count=8)
    assert after.more_than(before) <= 0
    assert len(running._assembly.decoders["parts"]) == 1


@pytest.mark.gpu
@pytest.mark.parametrize("engine", ["onnxruntime-cuda", "tensorrt"])
@pytest.mark.parametrize("batch", [None, {"max": 4, "wait": "20ms"}])
def test_a_model_on_a_gpu_is_swapped_and_goes_back(
    folder: Path, seen: Seen, engine: str, batch: dict[str, Any] | None
) -> None:
    gpu_or_skip().close()
    file = pipeline_of(folder, engines=[engine])
    open_batch(folder)
    file["models"]["parts"] = {**MODEL, "onnx": folder / "open.onnx", "precision": "fp32"}
    file["stages"]["find"] |= {"batch": batch} if batch else {}
    shutil.copy(folder / "open.onnx", folder / "same.onnx")
    with edgert.Pipeline(file, callbacks={"out": seen}, strict=True) as pipeline:
        pipeline.start()
        slots = len(pipeline._assembly.inferences)
        assert slots
        pipeline.control.swap("parts", folder / "same.onnx", shadow=20, keep=120)
        wait_until(lambda: state(pipeline)["phase"] in ("switched", "refused"), 300)
        new, old = state(pipeline)["digests"]
        wait_until(lambda: seen.model == new, 20)
        pipeline.control.back("parts")
        assert ended(pipeline)["phase"] == "back" and len(pipeline._assembly.inferences) == slots
        wait_until(lambda: seen.model == old, 20)
        worse = folder / "worse.onnx"
        proto = onnx.load(str(folder / "open.onnx"))
        BAD["wrong classes"](proto)
        worse.write_bytes(proto.SerializeToString())
        pipeline.control.swap("parts", worse, shadow=20)
        assert ended(pipeline, 300)["phase"] == "refused" and len(pipeline._assembly.inferences) == slots
    assert whole(seen)


BELT = """\
name: belt
models: {parts: {onnx: "%s", task: {detect: yolox, labels: "%s"}, input: {std: 255}}}
stages:
  belt: {source: "%s", size: 320x240, fps: 30, realtime: true}
  find: {infer: parts, from: belt}
  out: {sink: jsonl, from: find, path: out.jsonl}
"""


@pytest.mark.slow
def test_the_command_swaps_and_goes_back(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    (folder / "belt.yaml").write_text(BELT % (GOOD, GOOD.with_suffix(".txt"), demo_images()))
    process = start("run", "belt.yaml", "--quiet", cwd=folder)

    def ctl(*words: str) -> str:
        ended = in_process("ctl", "--name", "belt", *words, cwd=folder)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    try:
        wait_until(lambda: (folder / "edgert" / "belt.sock").exists(), 60)
        swap = "swap", "parts", "same.onnx", "--shadow", "20", "--min-agreement=0.9", "--keep", "10m"
        assert ctl(*swap).startswith("model parts: loading\n")
        wait_until(lambda: "parts: switched, agreement 1.000" in ctl("show"), 120)
        assert ctl("back", "parts") == "model parts: went back, because edgert ctl back requested it\n"
        refused = in_process("ctl", "--name", "belt", "swap", "parts", "none.onnx", cwd=folder)
        assert refused.returncode == 1 and str(folder / "none.onnx") in refused.stderr
    finally:
        os.kill(process.pid, signal.SIGTERM)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    lines = [json.loads(line) for line in (folder / "out.jsonl").read_text().splitlines()]
    named = [line.get("models", {}).get("find", "") for line in lines]
    assert named[0] == "" and len(named[-1]) == 12 and len({*named}) == 2  # a copy has the digest of the original
