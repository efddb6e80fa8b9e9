"""Pipelines that are called: what they return, what else happens to a frame, and what cannot be."""

import json
import os
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edgert
from edgert.control.client import running_pipelines
from edgert.errors import DeviceError, StageError
from tests.helpers.command import ROOT
from tests.helpers.errors import Exactly, raises
from tests.helpers.gpu_pipeline import CalledRig
from tests.helpers.growth import growth, no_collector
from tests.helpers.interrupted_lock import InterruptedLock
from tests.helpers.pipeline_text import parts_pipeline
from tests.helpers.small_pipeline import small_pipeline

TRACKED = "  track: {track: bytetrack, from: find}\n"


def write(folder: Path, more: str = TRACKED, find: str = "", top: str = "") -> Path:
    top += "engines: [onnxruntime]\n"
    return parts_pipeline(folder, "{source: api}", more, model=", replicas: 1", find=find, top=top)


@pytest.fixture(scope="module")
def images() -> list[Any]:
    from edgert.installation import demo_images
    from edgert.user_code import load_object

    make = load_object(demo_images().removeprefix("python:"), "", ROOT)
    scene, found = make(width=320, height=240, fps=30.0, seed=3), []
    for index in range(0, 60, 5):
        image = np.empty((240, 320, 3), np.uint8)
        scene.render(index, image)
        found.append(image)
    return found


def records(results: list[edgert.Result]) -> list[Any]:
    return [(r.frame.index, {name: one.boxes.tolist() for name, one in r.outputs.items()}, _ids(r)) for r in results]


def _ids(result: edgert.Result) -> Any:
    return None if result.detections.ids is None else result.detections.ids.tolist()


def started(path: Path, images: list[Any], stage: str) -> list[edgert.Result]:
    with edgert.Pipeline(path) as pipeline:
        results, found = pipeline.results(stage, timeout=20), []
        for image in images:
            pipeline.submit(image)
            found.append(next(results))
    return found


def test_a_call_with_a_batch_returns_a_result_for_each_of_its_frames(tmp_path: Path, images: list[Any]) -> None:
    wanted = records(started(write(tmp_path), images, "track"))
    with edgert.Pipeline(write(tmp_path)) as pipeline, pipeline.buffer((320, 240), batch=3) as buffer:
        buffer.array[:] = images[5:8]
        found = [
            one
            for frames in (np.stack(images[:5]), buffer, [np.stack(images[8:])])
            for one in pipeline.call_batch(frames)
        ]
        assert records(found) == wanted
        with pytest.raises(StageError, match="without images"):
            pipeline.call_batch(np.stack(images)[:0])
        assert len(pipeline.call_batch(images[0][None])) == 1
        for batch in (images, images[0][None], buffer):
            with raises(StageError, r"a call takes one frame", fix="pipeline.call_batch(frames)"):
                pipeline(batch)


def test_a_call_says_what_submit_and_results_say(tmp_path: Path, images: list[Any]) -> None:
    wanted = records(started(write(tmp_path), images, "track"))
    assert sum(len(outputs["find"]) for _, outputs, _ in wanted) > 10
    with edgert.Pipeline(write(tmp_path)) as pipeline:
        assert records([pipeline(image) for image in images]) == wanted
    with edgert.Pipeline(write(tmp_path)) as pipeline:
        assert (
            records([*pipeline.call_batch(images[:5]), pipeline(images[5]), *pipeline.call_batch(images[6:])]) == wanted
        )
        assert pipeline.call_batch([]) == []


def test_frames_of_one_call_are_one_batch(tmp_path: Path, images: list[Any]) -> None:
    text = "engines: [onnxruntime]\n" + SMALL.format(find=", batch: {max: 4, wait: 1us}")
    path = small_pipeline(tmp_path, text, ("n", 3, 16, 16), photos=0)
    with edgert.Pipeline(path) as pipeline:
        runs: list[int] = []
        inference = pipeline._assembly.task("find").stage.inference  # type: ignore[union-attr]
        run = inference.run
        inference.run = lambda *rows: runs.append(len(rows)) or run(*rows)
        together = pipeline.call_batch(images[:6])
        alone = [pipeline(image) for image in images[:6]]
    assert runs == [4, 2, 1, 1, 1, 1, 1, 1]
    for one, other in zip(together, alone, strict=True):
        np.testing.assert_allclose(one.outputs["find"].vector, other.outputs["find"].vector, rtol=1e-5)


SMALL = """
name: small
models: {{parts: {{onnx: parts.onnx, task: {{embed: none}}, input: {{resize: stretch}}, precision: fp32}}}}
stages:
  cam: {{source: api}}
  find: {{infer: parts, from: cam{find}}}
"""


def test_sinks_and_callbacks_get_the_result_in_the_callers_thread(tmp_path: Path, images: list[Any]) -> None:
    seen: list[tuple[str, int, str]] = []

    def note(name: str) -> Any:
        return lambda result: seen.append((name, result.frame.index, threading.current_thread().name))

    more = (
        TRACKED
        + f"  log: {{sink: jsonl, from: track, path: {tmp_path}/o.jsonl}}\n  tell: {{sink: callback, from: find}}\n"
    )
    callbacks = {"track": note("track"), "tell": note("tell")}
    with edgert.Pipeline(write(tmp_path, more), callbacks=callbacks) as pipeline:
        stages = {thread.name for thread in threading.enumerate() if thread.name.startswith("edgert:")}
        for index, image in enumerate(images[:3]):
            assert pipeline(image).frame.index == index
            assert len((tmp_path / "o.jsonl").read_text().splitlines()) == index + 1
        left = {thread.name for thread in threading.enumerate() if thread.name.startswith("edgert:")}
    here = threading.current_thread().name
    assert sorted(seen, key=lambda one: one[1]) == [
        (name, index, here) for index in range(3) for name in ("tell", "track")
    ]
    beside = {"edgert:control", "edgert:control client", "edgert:supervisor"}  # for edgert top, and the watchdog
    assert left - stages <= beside
    assert [json.loads(line)["frame"] for line in (tmp_path / "o.jsonl").read_text().splitlines()] == [0, 1, 2]


def test_cascades_drawings_and_stages_of_ones_own(tmp_path: Path, images: list[Any]) -> None:
    (tmp_path / "odd.py").write_text(
        "class Odd:\n    def __call__(self, result):\n"
        "        return result.with_output('odd', result.frame.index) if result.frame.index % 2 else None\n"
    )
    more = (
        "  again: {infer: parts, from: find, crop: {limit: 2}}\n  look: {draw: boxes, from: again, width: 160}\n"
        "  odd: {python: 'odd:Odd', from: belt}\n  part: {crop: [0, 0, 0.5, 0.5], from: belt}\n"
        "  there: {infer: parts, from: part}\n"
    )
    with edgert.Pipeline(write(tmp_path, more)) as pipeline:
        results = [pipeline(image) for image in images[:4]]
    for index, result in enumerate(results):
        assert set(result.outputs) == {"find", "again", "there"} | ({"odd"} if index % 2 else set())
        assert isinstance(result.image, np.ndarray) and result.image.shape == (120, 160, 3)
        assert (result.frame.width, result.frame.height) == (320, 240)
        assert len(result.outputs["again"].records) == min(2, len(result.outputs["find"]))


def test_every_nth_frame_and_limit(tmp_path: Path, images: list[Any]) -> None:
    path = write(tmp_path, "", ", every: 3")
    with edgert.Pipeline(path, overrides=["stages.belt.limit=4"]) as pipeline:
        assert [list(pipeline(image).outputs) for image in images[:4]] == [["find"], [], [], ["find"]]
        with pytest.raises(StageError, match="no more frames are taken") as caught:
            pipeline(images[0])
        assert "limit" in caught.value.why and not pipeline.running
        with pytest.raises(StageError, match="no more frames are taken"):
            pipeline(images[0])


def test_the_summary_and_edgert_top_count_it(tmp_path: Path, images: list[Any]) -> None:
    path = write(tmp_path, TRACKED + '  out: {sink: "null", from: track, drop: oldest, queue: 1}\n')
    with edgert.Pipeline(path) as pipeline:
        assert not pipeline.running and pipeline.summary().frames_in == 0
        pipeline.call_batch(images)
        pipeline(images[0])
        (state,) = [one.state for one in running_pipelines() if one.pid == os.getpid()]
        assert pipeline.running and isinstance(state, dict) and state["stats"]["frames_in"] == len(images) + 1
        summary = pipeline.summary()
    assert not pipeline.running
    count = len(images) + 1
    assert (summary.frames_in, summary.frames_out, summary.dropped, summary.memory.copies_per_frame) == (
        count,
        count,
        0,
        0,
    )
    assert summary.latency_ms.count == count and 0 < summary.latency_ms.p50 < 1e3 * summary.seconds
    assert all(
        (one.results_in, one.results_out) == (count, count) for name, one in summary.stages.items() if name != "out"
    )
    assert summary.stages["find"].busy_ms_per_result > 0
    assert not [one for one in running_pipelines() if one.pid == os.getpid()]


def test_budgets_are_kept_and_watched(tmp_path: Path, images: list[Any]) -> None:
    top = "budgets: {latency: 10s, cpu: 30}\n"
    with edgert.Pipeline(write(tmp_path, top=top)) as pipeline:
        pipeline(images[0])
        assert any(thread.name == "edgert:governor" for thread in threading.enumerate())
        limiter = pipeline._assembly.task("belt").execution.limiter
        assert limiter is not None
        limiter.share, limiter._learned = 0.0, 100  # as if the budget left no room, after some frames
        threading.Timer(0.3, pipeline.stop).start()
        with raises(StageError, "no more frames are taken", why=Exactly("the pipeline was stopped")):
            pipeline(images[0])
        assert pipeline.summary().budgets["throttled"] == 1
    assert not any(thread.name == "edgert:governor" for thread in threading.enumerate())


def test_a_fallback_model_takes_the_place_of_the_first(tmp_path: Path, images: list[Any]) -> None:
    less = "less: {onnx: less.onnx, task: {embed: none}, input: {resize: stretch}, precision: fp32}"
    text = SMALL.format(find="").replace("models: {parts: {", f"models: {{{less}, parts: {{degrade_to: less, ")
    text = f"engines: [onnxruntime]\n{text}"
    path = small_pipeline(tmp_path, text, photos=0)
    small_pipeline(tmp_path / "other", text, (1, 3, 8, 8), photos=0)
    (tmp_path / "less.onnx").write_bytes((tmp_path / "other" / "parts.onnx").read_bytes())
    with edgert.Pipeline(path) as pipeline:
        first = pipeline(images[0]).outputs["find"].vector
        pipeline._assembly.choice.level = 1
        assert not np.allclose(pipeline(images[0]).outputs["find"].vector, first)
        pipeline._assembly.choice.level = 0
        np.testing.assert_array_equal(pipeline(images[0]).outputs["find"].vector, first)


def test_what_is_no_image_changes_nothing(tmp_path: Path, images: list[Any]) -> None:
    with edgert.Pipeline(write(tmp_path)) as pipeline:
        buffer = pipeline.buffer((320, 240))
        buffer.array[:] = 0
        for bad in (images[0].astype(np.float32), [buffer, images[0], images[0][:, :, 0]], "belt.mp4"):
            with pytest.raises(StageError):
                pipeline(bad)
        assert pipeline.summary().frames_in == 0
        assert [result.frame.index for result in pipeline.call_batch([buffer, images[0]])] == [0, 1]
        with pytest.raises(StageError, match="after its end"):
            pipeline(buffer)
        assert pipeline(images[1], format="rgb", timestamp_ns=5).timestamp_ns == 5


def test_a_buffer_is_lent_until_the_next_call(tmp_path: Path) -> None:
    with edgert.Pipeline(write(tmp_path)) as pipeline:
        seen = set[int]()
        for value in range(12):
            with pipeline.buffer((320, 240), format="nv12") as buffer:
                buffer.array[:] = value
                seen.add(buffer.array.ctypes.data)
                result = pipeline(buffer)
            assert result.frame.lease.alive and (result.frame.planes[0] == value).all()
        assert len(seen) <= 3 and pipeline.summary().memory.copies_per_frame == 0
        held = result
    assert not held.frame.lease.alive


def test_an_error_of_a_stage_ends_the_pipeline(tmp_path: Path, images: list[Any]) -> None:
    def fail(result: edgert.Result) -> None:
        if result.frame.index == 1:
            raise ZeroDivisionError("no parts")

    pipeline = edgert.Pipeline(write(tmp_path), callbacks={"find": fail})
    pipeline(images[0])
    for _ in range(2):
        with pytest.raises(StageError, match="ZeroDivisionError: no parts") as caught:
            pipeline(images[0])
        assert "callback of find" in caught.value.where and not pipeline.running
    with pytest.raises(StageError, match="ZeroDivisionError: no parts"):
        pipeline.close()


def test_started_or_called_and_never_both(tmp_path: Path, images: list[Any]) -> None:
    with edgert.Pipeline(write(tmp_path)) as pipeline:
        pipeline(images[0])
        uses: list[tuple[str, Any]] = [
            ("started", pipeline.start),
            ("started", pipeline.run),
            ("started", lambda: pipeline.submit(images[0])),
            ("listened to", lambda: pipeline.results("find")),
            ("finished", pipeline.finish),
            ("waited for", pipeline.wait),
        ]
        for done, one in uses:
            with pytest.raises(StageError, match=f"a pipeline that is called cannot be {done}"):
                one()
        assert pipeline(images[0]).frame.index == 1
    for name, use in {"was started": lambda p: p.submit(images[0]), "has ended": lambda p: p.close()}.items():
        with edgert.Pipeline(write(tmp_path)) as pipeline:
            use(pipeline)
            with pytest.raises(StageError, match=f"a pipeline that {name} cannot be called"):
                pipeline(images[0])
    with edgert.Pipeline(write(tmp_path)) as pipeline:
        pipeline(images[0])
        pipeline.close()
        with pytest.raises(StageError, match="a pipeline that has ended cannot be called"):
            pipeline(images[0])


def test_a_pipeline_that_cannot_be_called_says_why_and_can_still_be_started(tmp_path: Path) -> None:
    from edgert.installation import demo_images

    scene = f'{{source: "{demo_images()}", size: 320x240, fps: 30, limit: 3}}'
    with edgert.Pipeline(write(tmp_path), overrides=[f"stages.belt={scene}"]) as pipeline:
        with pytest.raises(StageError, match="this pipeline cannot be called") as caught:
            pipeline(np.zeros((4, 4, 3), np.uint8))
        assert caught.value.why == "'belt' brings its own frames" and "results" in caught.value.fix
        assert pipeline.run().frames_in == 3
    with edgert.Pipeline(write(tmp_path), overrides=["models.parts.placement=cpu0"]) as pipeline:
        with pytest.raises(StageError) as caught:
            pipeline(np.zeros((4, 4, 3), np.uint8))
        assert caught.value.why.startswith("the model of 'find' is placed on cores")


def test_a_stage_must_not_call_its_own_pipeline(tmp_path: Path, images: list[Any]) -> None:
    errors: list[str] = []

    def again(result: edgert.Result) -> None:
        for use in (lambda: pipeline(images[0]), pipeline.close):
            with pytest.raises(StageError) as caught:
                use()
            errors.append(caught.value.what)

    with edgert.Pipeline(write(tmp_path), callbacks={"find": again}) as pipeline:
        pipeline(images[0])
    assert errors == [f"a pipeline was {done} by one of its own stages" for done in ("called", "closed")]


def test_calls_of_several_threads_wait_for_each_other(tmp_path: Path, images: list[Any]) -> None:
    inside, most = [0], [0]

    def note(result: edgert.Result) -> None:
        inside[0] += 1
        most[0] = max(most[0], inside[0])
        inside[0] -= 1

    callbacks = {"find": note, "track": note}
    with edgert.Pipeline(write(tmp_path), callbacks=callbacks) as pipeline, ThreadPoolExecutor(4) as pool:
        found = [result.frame.index for result in pool.map(pipeline, images[:5] * 4)]
    assert sorted(found) == list(range(20)) and most[0] == 1


def test_ctrl_c_in_a_call_ends_the_pipeline_without_an_error(tmp_path: Path, images: list[Any]) -> None:
    def interrupted(result: edgert.Result) -> None:
        raise KeyboardInterrupt

    with edgert.Pipeline(write(tmp_path), callbacks={"find": interrupted}) as pipeline:
        with pytest.raises(KeyboardInterrupt):
            pipeline(images[0])
        with pytest.raises(StageError, match="no more frames are taken"):
            pipeline(images[0])


@pytest.mark.parametrize("at", ["acquire", "release", "enter"])
def test_ctrl_c_between_two_lines_of_a_call_does_not_keep_it_from_closing(
    tmp_path: Path, images: list[Any], at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def enter() -> None:
        raise KeyboardInterrupt

    with edgert.Pipeline(write(tmp_path)) as pipeline:
        pipeline(images[0])
        calling: Any = pipeline._running.calling
        if at == "enter":
            monkeypatch.setattr(calling._caller, at, enter)
        monkeypatch.setattr(calling, "_turn", InterruptedLock(calling._turn, at))
        with pytest.raises(KeyboardInterrupt):
            pipeline(images[0])
        monkeypatch.undo()
        pipeline.close()


# On a GPU that is this process's memory.


HOST = "  count: {python: 'seen:seen', from: find}\n  host: {infer: host, from: cam}\n"


@pytest.mark.parametrize("stages", ["", HOST])
@pytest.mark.parametrize("way", ["call", "list", "submit"])
def test_tensors_go_through_as_they_lie(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stages: str, way: str) -> None:
    rig = CalledRig(tmp_path, monkeypatch, stages)
    (tmp_path / "seen.py").write_text(
        "def seen(result):\n    return result.with_output('count', int(result.frame.planes[0].max()))\n"
    )
    tensors = [rig.tensor(value) for value in range(1, 6)]
    with rig.pipeline() as pipeline:
        if way == "call":
            results = [pipeline(tensor) for tensor in tensors]
        elif way == "list":
            results = pipeline.call_batch(list(tensors))
        else:
            results = []
            with pipeline.results("count" if stages else "find", timeout=20) as taken:
                for tensor in tensors:
                    pipeline.submit(tensor)
                    results.append(next(taken))
        copied = pipeline.summary().memory.bytes_copied_per_frame
    assert [tensor.given_back for tensor in tensors] == [True] * 5
    assert all(tensor.asked for tensor in tensors)
    if stages:
        assert [result.outputs["count"] for result in results] == [1, 2, 3, 4, 5]  # of copies on the host
    else:
        assert copied < 20  # the record
    assert rig.gpu.allocations and len({result.outputs["find"].vector[0] for result in results}) >= 1


def test_a_batch_goes_through_the_gpu_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = CalledRig(tmp_path, monkeypatch)
    rig.path.write_text(rig.path.read_text().replace("from: cam}", "from: cam, batch: {max: 4}}", 1))
    with rig.pipeline() as pipeline:
        pipeline(rig.tensor())
        sessions = pipeline._assembly.engines["parts"].sessions  # type: ignore[union-attr]
        before = [len(session.sizes) for session in sessions]
        tensors = [rig.tensor(value) for value in range(6)]
        results = pipeline.call_batch([*tensors, np.zeros((48, 64, 3), np.uint8)])
        sizes = [session.sizes[count:] for session, count in zip(sessions, before, strict=True)]
    assert [result.frame.index for result in results] == list(range(1, 8))
    assert sorted(size for each in sizes for size in each) == [4, 4]  # of seven, the second is filled up to a size
    assert all(tensor.given_back for tensor in tensors)
    assert all(isinstance(result.outputs["find"].vector, np.ndarray) for result in results)


def test_a_lent_buffer_goes_up_once_and_an_array_takes_a_copy_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig, nbytes = CalledRig(tmp_path, monkeypatch), 48 * 64 * 3
    with rig.pipeline() as pipeline:
        before = rig.device.counter.read()
        pipeline(np.zeros((48, 64, 3), np.uint8))
        first = rig.device.counter.read()
        with pipeline.buffer((64, 48)) as buffer:
            buffer.array[:] = 5
            pipeline(buffer)
        second = rig.device.counter.read()
    assert first.bytes_copied - before.bytes_copied >= 2 * nbytes
    assert second.bytes_copied - first.bytes_copied == nbytes + 8


def test_tensors_of_another_gpu_and_of_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, images: list[Any]) -> None:
    rig = CalledRig(tmp_path, monkeypatch)
    tensor = rig.tensor()
    tensor.ordinal = 1
    with rig.pipeline() as pipeline:
        with pytest.raises(DeviceError, match="a tensor on GPU 1"):
            pipeline(tensor)
        assert pipeline(rig.tensor()).frame.is_on_gpu
    with edgert.Pipeline(write(tmp_path)) as other:
        with pytest.raises(StageError, match="Tensor on a GPU cannot be submitted here"):
            other(rig.tensor())
        assert other(images[0]).frame.index == 0


# Again and again.


def test_a_called_pipeline_is_gone_at_once(tmp_path: Path, images: list[Any]) -> None:
    more = "  again: {infer: parts, from: track, crop: {limit: 2}}\n  page: {sink: http, from: again, port: 0}\n"
    with no_collector():
        pipeline = edgert.Pipeline(write(tmp_path, TRACKED + more))
        works: dict[str, Any] = {node.name: node.stage for node in pipeline._assembly.tasks}
        parts = {name: weakref.ref(part) for name, part in {**works, "pipeline": pipeline}.items()}
        parts |= {name: weakref.ref(engine) for name, engine in pipeline._assembly.engines.items()}
        del works
        with pipeline:
            result = pipeline(images[0])
            result = pipeline.call_batch([images[0], pipeline.buffer((320, 240))])[1]
        del pipeline, result
        assert [name for name, part in parts.items() if part() is not None] == []


def use(pipeline: edgert.Pipeline, index: int, image: Any) -> None:
    with pipeline:
        if index % 2:
            pipeline(image)
            with pipeline.buffer((64, 48)) as buffer:
                buffer.array[:] = 0
                pipeline.call_batch([image, buffer])
        else:
            with pipeline.results("find", timeout=20) as results:
                pipeline.submit(image)
                next(results)


@pytest.mark.parametrize(
    ("where", "count", "most_mib"),
    [("processor", 20, 1), pytest.param("processor", 200, 2, marks=pytest.mark.slow), ("gpu's double", 60, 2)],
)
def test_many_pipelines_leave_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, count: int, most_mib: int
) -> None:
    rig = CalledRig(tmp_path, monkeypatch) if where != "processor" else None
    path = (
        small_pipeline(tmp_path, "engines: [onnxruntime]\n" + SMALL.format(find=""), photos=0) if rig is None else None
    )
    image = np.zeros((48, 64, 3), np.uint8)
    before, after, rss = growth(
        lambda index: use(edgert.Pipeline(path) if rig is None else rig.pipeline(), index, image),  # type: ignore[arg-type]
        20,
        count,
    )
    assert after.more_than(before) <= 0, (before, after)
    assert rss < most_mib * 2**20 and after.rss_bytes - before.rss_bytes < 8 * 2**20
    if rig is not None:
        assert rig.device.live_bytes == 0 and rig.device.leaked == 0


def test_map_gives_what_calls_give_in_their_order(tmp_path: Path, images: list[Any]) -> None:
    wanted = records(started(write(tmp_path), images, "track"))
    asked: list[int] = []

    def bring(pipeline: edgert.Pipeline) -> Any:
        for index, image in enumerate(images[:6]):
            asked.append(index)
            with pipeline.buffer((320, 240)) as buffer:
                buffer.array[:] = image
                yield buffer
        yield np.stack(images[6:9])
        yield from images[9:]

    with edgert.Pipeline(write(tmp_path)) as pipeline:
        found = []
        for result in pipeline.map(bring(pipeline)):
            assert result.frame.lease.alive and len(asked) <= result.frame.index + 1
            found.append(result)
            assert not any(one.frame.lease.alive for one in found[:-1] if one.frame.index < 6)
        assert records(found) == wanted and asked == [0, 1, 2, 3, 4, 5]
        assert list(pipeline.map([])) == [] and pipeline(images[0]).frame.index == len(images)
        assert pipeline.summary().frames_out == len(images) + 1


def test_map_fills_batches_and_runs_the_last_one_as_it_is(tmp_path: Path, images: list[Any]) -> None:
    text = "engines: [onnxruntime]\n" + SMALL.format(find=", batch: {max: 4, wait: 1us}")
    path = small_pipeline(tmp_path, text, ("n", 3, 16, 16), photos=0)
    with edgert.Pipeline(path) as pipeline:
        alone = [pipeline(image).outputs["find"].vector for image in images[:6]]
        runs: list[int] = []
        inference = pipeline._assembly.task("find").stage.inference  # type: ignore[union-attr]
        run = inference.run
        inference.run = lambda *rows: runs.append(len(rows)) or run(*rows)
        found = list(pipeline.map(image for image in images[:6]))
        assert runs == [4, 2] and [one.frame.index for one in found] == list(range(6, 12))
        for one, vector in zip(found, alone, strict=True):
            np.testing.assert_allclose(one.outputs["find"].vector, vector, rtol=1e-5)
        runs.clear()
        for count in (1, 3):  # more than are lent, in batches that are never full at the same time
            taken = pipeline.map(_leased(pipeline, images[0], count, 100))
            assert sum(1 for _ in taken) == 100 * count
        assert max(runs) == 4 and sum(runs) == 400


def _leased(pipeline: edgert.Pipeline, image: Any, count: int, times: int) -> Any:
    for _ in range(times):
        buffer = pipeline.buffer((320, 240), batch=count, timeout=5.0)
        buffer.array[:] = image
        yield buffer


def test_leaving_map_early_finishes_what_was_taken(tmp_path: Path, images: list[Any]) -> None:
    text = "engines: [onnxruntime]\n" + SMALL.format(find=", batch: {max: 4, wait: 1us}")
    path, seen = small_pipeline(tmp_path, text, ("n", 3, 16, 16), photos=0), list[int]()
    with edgert.Pipeline(path, callbacks={"find": lambda result: seen.append(result.frame.index)}) as pipeline:
        taken = pipeline.map(image for image in images)
        assert next(taken).frame.index == 0
        for use in (lambda: pipeline(images[0]), lambda: next(pipeline.map(images))):
            with raises(StageError, "in the middle of map", fix="close()"):
                use()
        taken.close()
        assert seen == [0, 1, 2, 3]
        with pytest.raises(ZeroDivisionError):
            for _ in pipeline.map(one if index < 6 else 1 / 0 for index, one in enumerate(images)):
                pass
        assert seen == list(range(10)) and pipeline(images[0]).frame.index == 10
        del taken


def test_map_ends_with_the_limit_a_stop_or_the_pipeline(tmp_path: Path, images: list[Any]) -> None:
    with edgert.Pipeline(write(tmp_path), overrides=["stages.belt.limit=4"]) as pipeline:
        assert [one.frame.index for one in pipeline.map(images)] == [0, 1, 2, 3] and not pipeline.running
    for end in ("stop", "close"):
        with edgert.Pipeline(write(tmp_path)) as pipeline:
            found = []
            for one in pipeline.map(images):
                found.append(one.frame.index)
                if len(found) == 3:
                    getattr(pipeline, end)()
            assert found == [0, 1, 2]
    with pytest.raises(StageError, match="has ended cannot be called"):
        pipeline.map(images)


def test_an_error_in_map_is_that_of_the_pipeline(tmp_path: Path, images: list[Any]) -> None:
    def fail(result: edgert.Result) -> None:
        if result.frame.index == 1:
            raise ZeroDivisionError("no parts")

    pipeline = edgert.Pipeline(write(tmp_path), callbacks={"find": fail})
    taken = pipeline.map(images)
    next(taken)
    with pytest.raises(StageError, match="ZeroDivisionError: no parts"):
        next(taken)
    with pytest.raises(StageError, match="ZeroDivisionError: no parts"):
        pipeline.close()
    with edgert.Pipeline(write(tmp_path)) as pipeline:
        with pytest.raises(StageError):
            list(pipeline.map([images[0], images[0].astype(np.float32)]))
        assert pipeline(images[0]).frame.index == 1, "what is no image changes nothing"
