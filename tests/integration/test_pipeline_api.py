"""The Python API: pull, push and callbacks, and what leaving the block gives back."""

import copy
import gc
import threading
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edgert
from edgert.errors import ConfigError, StageError
from edgert.installation import demo_images
from edgert.validation import validate
from tests.helpers.pipeline_text import ASSETS, parts_pipeline
from tests.helpers.waiting import wait_until

SCENE = '{{source: "' + demo_images() + '", size: 320x240, fps: 30, limit: {limit}}}'


def threads() -> set[str]:
    return {thread.name for thread in threading.enumerate() if thread.name.startswith("edgert:")}


def test_pulling_gives_every_frame_of_a_file_in_order(tmp_path: Path) -> None:
    with edgert.Pipeline(parts_pipeline(tmp_path, SCENE.format(limit=12))) as pipeline:
        results = list(pipeline.results("find", timeout=20))
        assert pipeline.wait(10)
        summary = pipeline.summary()
    assert [result.frame.index for result in results] == list(range(12))
    assert all(result.detections.labels for result in results)
    assert [r.timestamp_ns for r in results] == sorted(r.timestamp_ns for r in results)
    assert (summary.frames_in, summary.dropped, summary.memory.copies_per_frame) == (12, 0, 0.0)
    assert not threads()


def test_a_kept_array_stays_as_it_is(tmp_path: Path) -> None:
    with edgert.Pipeline(parts_pipeline(tmp_path, SCENE.format(limit=40))) as pipeline:
        results = pipeline.results("belt", timeout=20)
        kept = np.asarray(next(results).frame)
        before = kept.copy()
        assert sum(1 for _ in results) == 39
    np.testing.assert_array_equal(kept, before)


@pytest.mark.parametrize("hold", [True, False], ids=["held", "dropped"])
def test_a_reader_who_stops_reading_holds_nobody_up(tmp_path: Path, hold: bool) -> None:
    with edgert.Pipeline(parts_pipeline(tmp_path, SCENE.format(limit=100_000))) as pipeline:
        results = pipeline.results("find", timeout=20)
        next(results)
        if not hold:
            del results
            assert next(pipeline.results("find", timeout=20)).frame.index > 0
    assert not threads()


def test_asking_again_and_again_leaves_nothing_behind(tmp_path: Path) -> None:
    with edgert.Pipeline(parts_pipeline(tmp_path, SCENE.format(limit=100_000))) as pipeline:
        for _ in range(5):
            next(pipeline.results("find", timeout=20))
        assert len(pipeline._assembly.task("find").wiring.outlets) == 0


@pytest.mark.timing
def test_leaving_waits_for_no_look_at_the_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgert.stages.source.api._POLL_S", 60.0)
    with edgert.Pipeline(parts_pipeline(tmp_path, "{source: api}")) as pipeline:
        results = pipeline.results("find", timeout=20)
        pipeline.submit(np.full((240, 320, 3), 90, np.uint8))
        next(results)
        asked = time.monotonic()
    assert time.monotonic() - asked < 5
    assert not threads()


def test_pushing_copies_nothing(tmp_path: Path) -> None:
    image = np.full((240, 320, 3), 90, np.uint8)
    with edgert.Pipeline(parts_pipeline(tmp_path, "{source: api}")) as pipeline:
        results = pipeline.results("find", timeout=20)
        for index in range(3):
            pipeline.submit(image)
            result = next(results)
            assert result.frame.index == index
            assert np.shares_memory(np.asarray(result.frame), image)
            assert np.shares_memory(np.from_dlpack(result.frame), image)
        pipeline.finish()
        assert list(results) == []
        assert pipeline.summary().memory.copies_per_frame == 0


def test_pushing_from_several_threads(tmp_path: Path) -> None:
    image = np.zeros((240, 320, 3), np.uint8)
    with edgert.Pipeline(parts_pipeline(tmp_path, "{source: api, queue: 4}")) as pipeline:
        results = pipeline.results("find", timeout=20)
        with ThreadPoolExecutor(3) as pool:
            for _ in range(3):
                pool.submit(lambda: [pipeline.submit(image) for _ in range(10)])
            assert [next(results).frame.index for _ in range(30)] == list(range(30))


def test_callbacks_get_every_result(tmp_path: Path) -> None:
    seen: dict[str, list[int]] = {"find": [], "tell": []}
    path = parts_pipeline(tmp_path, SCENE.format(limit=10), "  tell: {sink: callback, from: find}\n")
    callbacks = {name: (lambda result, to=to: to.append(result.frame.index)) for name, to in seen.items()}
    with edgert.Pipeline(path, callbacks=callbacks) as pipeline:
        pipeline.run()
    assert seen == {"find": list(range(10)), "tell": list(range(10))}


def test_an_error_in_a_callback_stops_the_run_and_is_raised(tmp_path: Path) -> None:
    def fail(result: edgert.Result) -> None:
        raise ZeroDivisionError("no parts")

    with (
        pytest.raises(StageError, match="ZeroDivisionError: no parts"),
        edgert.Pipeline(parts_pipeline(tmp_path, SCENE.format(limit=100_000)), callbacks={"find": fail}) as pipeline,
    ):
        pipeline.run()
    assert not threads()


def test_waiting_too_long_is_a_timeout(tmp_path: Path) -> None:
    with edgert.Pipeline(parts_pipeline(tmp_path, "{source: api}")) as pipeline:
        with pytest.raises(TimeoutError, match="no result from 'find' within"):
            next(pipeline.results("find", timeout=0.05))
        with pytest.raises(StageError, match="did you mean 'find'"):
            pipeline.results("fnd")
        with pytest.raises(StageError, match="None is not the name of a stage"):
            pipeline.results(None)  # type: ignore[arg-type]
        for timeout in (float("nan"), "soon"):
            with pytest.raises(StageError, match="it is no number"):
                pipeline.latest("find", timeout=timeout)  # type: ignore[arg-type]
        results = pipeline.results("find", timeout=1e300)
        pipeline.submit(np.zeros((240, 320, 3), np.uint8), timeout=float("inf"))
        assert next(results).frame.index == 0


def test_one_that_ended_by_itself_counts_no_more_time_and_keeps_no_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgert.runtime.watchdog._POLL_S", 0.02)
    pipeline = edgert.Pipeline(parts_pipeline(tmp_path, SCENE.format(limit=3)))
    assert pipeline.summary().recent.seconds < 1
    with pytest.raises(StageError, match="not started"):
        pipeline.wait(1)
    with pytest.raises(StageError, match="cannot be copied or pickled"):
        copy.deepcopy(pipeline)
    assert len(list(pipeline.results("find", timeout=20))) == 3
    wait_until(lambda: not threads())
    seconds = [pipeline.summary().seconds, pipeline.summary().seconds]
    pipeline.close()
    assert {*seconds} == {pipeline.summary().seconds}


def test_one_model_alone(tmp_path: Path) -> None:
    with edgert.load_engine(ASSETS / "parts.onnx") as engine:
        array = np.zeros(engine.inputs[0].shape, np.float32)
        first = engine(array)
        assert isinstance(first, np.ndarray)
        assert first.shape == engine.outputs[0].shape
        np.testing.assert_array_equal(first, engine(**{engine.inputs[0].name: array}))
        with pytest.raises(edgert.EdgertError, match="got float64"):
            engine(array.astype(np.float64))
        with pytest.raises(edgert.EdgertError, match="is missing"):
            engine()
        with ThreadPoolExecutor(3) as pool:
            assert all(np.array_equal(first, other) for other in pool.map(engine, [array] * 3))


@pytest.mark.parametrize(
    ("stage", "keys"),
    [
        ("infer: parts, crop: {classes: [gearr]}", "crop."),
        ("crop: {classes: [gearr]}", "crop."),
        ("stage: zones, zones: {yard: {points: [[0, 0], [1, 0], [1, 1]], classes: [1, gearr]}}", "zones.yard."),
        ("stage: events, rules: {many: {classes: gearr, count: 1}}", "rules.many."),
        ("stage: privacy, classes: [gearr]", ""),
    ],
)
def test_a_class_that_nobody_finds_is_an_error_before_the_start(tmp_path: Path, stage: str, keys: str) -> None:
    path = parts_pipeline(tmp_path, SCENE.format(limit=1), f"  look: {{{stage}, from: find}}\n")
    for load in (validate, edgert.Pipeline):
        with pytest.raises(ConfigError, match="no class 'gearr'; did you mean 'gear'") as caught:
            load(path)
        assert caught.value.where.endswith(f"p.yaml:6 stages.look.{keys}classes")
    validate(path, overrides=[f"stages.look.{keys}classes=gear"])


def test_classes_of_ones_own_decoder_are_ones_own_affair(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def decode(outputs, geometry):\n    return None\n")
    path = parts_pipeline(tmp_path, SCENE.format(limit=1), "  cut: {crop: {classes: [own]}, from: find}\n")
    text = path.read_text().replace(f"{{detect: yolox, labels: {ASSETS}/parts.txt}}", '{python: "mine:decode"}')
    path.write_text(text)
    assert str(validate(path)).startswith("3 stages, 1 model")
    edgert.Pipeline(path).close()


@pytest.fixture
def without_collector() -> Iterator[None]:
    """Python's garbage collector does nothing: what goes, goes because nobody refers to it."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def parts_of(pipeline: edgert.Pipeline) -> dict[str, weakref.ref[Any]]:
    assembly = pipeline._assembly
    works = {node.name: node.stage for node in assembly.tasks}
    return {name: weakref.ref(part) for name, part in ({"pipeline": pipeline} | works | dict(assembly.engines)).items()}


@pytest.mark.usefixtures("without_collector")
@pytest.mark.parametrize("use", ["run", "read", "stop", "nothing"])
def test_a_closed_pipeline_is_gone_at_once(tmp_path: Path, use: str) -> None:
    """Nothing of it is left to the garbage collector, which runs at any time: on a GPU, while the next one records a
    CUDA graph, which freeing memory breaks."""
    page = (
        "  page: {sink: http, from: find, port: 0}\n  log: {sink: jsonl, from: find, path: " + f"{tmp_path}/o.jsonl}}\n"
    )
    pipeline = edgert.Pipeline(parts_pipeline(tmp_path, SCENE.format(limit=4), page + "engines: [onnxruntime]\n"))
    parts = parts_of(pipeline)
    with pipeline:
        if use == "run":
            pipeline.run()
        elif use == "read":
            with pipeline.results("find", timeout=20) as results:
                assert next(results).frame.index == 0
        elif use == "stop":
            pipeline.start()
            pipeline.stop()
    assert pipeline.summary().frames_in >= 0
    del pipeline
    if use == "read":
        del results
    assert [name for name, part in parts.items() if part() is not None] == []


@pytest.mark.usefixtures("without_collector")
def test_close_frees_the_engines_as_leaving_the_block_does(tmp_path: Path) -> None:
    pipeline = edgert.Pipeline(parts_pipeline(tmp_path, SCENE.format(limit=4)))
    parts = parts_of(pipeline)
    pipeline.run()
    pipeline.close()
    pipeline.close()
    assert pipeline.summary().frames_in == 4
    del pipeline
    assert [name for name, part in parts.items() if part() is not None] == []
