"""Results for programs with a rate of their own, for asyncio, and of several stages; pipelines written as mappings."""

import asyncio
from contextlib import aclosing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edgert
from edgert.backend.ort.runtime import OrtEngine
from edgert.errors import ConfigError, EdgertError, StageError
from tests.helpers.errors import raises
from tests.helpers.interrupted_lock import InterruptedLock
from tests.helpers.pipeline_text import ASSETS, parts_pipeline
from tests.helpers.waiting import wait_until
from tests.integration.test_pipeline_api import SCENE, threads

IMAGE = np.full((240, 320, 3), 90, np.uint8)


def mapping(source: Any, **more: Any) -> dict[str, Any]:
    task = {"detect": "yolox", "labels": ASSETS / "parts.txt"}
    stages = {"belt": source, "find": {"infer": "parts", "from": "belt"}, **more}
    return {"models": {"parts": {"onnx": ASSETS / "parts.onnx", "task": task, "input": {"std": 255}}}, "stages": stages}


def test_the_newest_result_is_there_at_once_and_stays_until_there_is_a_newer_one(tmp_path: Path) -> None:
    with edgert.Pipeline(parts_pipeline(tmp_path, "{source: api}")) as pipeline:
        for timeout, said in ((0.01, "0.01"), (-0.5, "0")):  # what is left until a deadline may be negative
            for ask in (pipeline.latest, lambda *of, timeout: next(pipeline.results(*of, timeout=timeout))):
                with pytest.raises(edgert.ResultTimeout, match=f"no result from 'find' within {said} s"):
                    ask("find", timeout=timeout)
        for _ in range(5):
            pipeline.submit(IMAGE)
        wait_until(lambda: pipeline.latest("find", timeout=20).frame.index == 4)
        first, second = pipeline.latest("find"), pipeline.latest("find", timeout=0)
        assert first is second and first.stage == "find" and np.asarray(first.frame).shape == IMAGE.shape
        pipeline.finish()
        assert pipeline.wait(20) and pipeline.latest("find").frame.index == 4
    assert not threads() and not first.frame.lease.alive


def test_asking_for_the_newest_result_holds_up_no_file(tmp_path: Path) -> None:
    with edgert.Pipeline(parts_pipeline(tmp_path, SCENE.format(limit=60))) as pipeline:
        pipeline.latest("find", timeout=20)
        assert pipeline.wait(60) and pipeline.latest("find").frame.index == 59


def test_ctrl_c_while_the_newest_result_is_asked_for_does_not_keep_the_pipeline_from_closing(tmp_path: Path) -> None:
    with edgert.Pipeline(parts_pipeline(tmp_path, SCENE.format(limit=5))) as pipeline:
        pipeline.latest("find", timeout=20)
        newest: Any = pipeline._newest["find"]
        newest._turn = InterruptedLock(newest._turn, "acquire")
        with pytest.raises(KeyboardInterrupt):
            pipeline.latest("find")
    assert not threads()


def test_what_ended_without_a_result_says_so(tmp_path: Path) -> None:
    with edgert.Pipeline(parts_pipeline(tmp_path, "{source: api}")) as pipeline:
        pipeline.start()
        pipeline.finish()
        with raises(StageError, "there is no result from 'find'", why="ended before"):
            pipeline.latest("find", timeout=20)
        assert list(pipeline.results("find")) == []  # it has ended, and is not closed yet
    for use in (pipeline.latest, pipeline.results):
        with pytest.raises(StageError, match="was closed"):
            use("find")


def test_a_pipeline_that_was_closed_before_its_start_starts_no_more(tmp_path: Path) -> None:
    pipeline = edgert.Pipeline(parts_pipeline(tmp_path, SCENE.format(limit=3)))
    pipeline.close()
    for use in (pipeline.start, lambda: pipeline.results("find"), lambda: pipeline.latest("find")):
        with pytest.raises(StageError, match="was closed"):
            use()


async def later(result: edgert.Result) -> None: ...


@pytest.mark.parametrize(
    ("function", "message"),
    [(later, "got an async function"), (3, "cannot be called"), (lambda: None, "too many positional arguments")],
)
def test_a_callback_that_cannot_work_is_refused_before_the_start(tmp_path: Path, function: Any, message: str) -> None:
    with raises(ConfigError, message, says="the callback of 'find'"):
        edgert.Pipeline(parts_pipeline(tmp_path, "{source: api}"), callbacks={"find": function})


def test_several_stages_in_one_iterator_come_as_they_arrive_and_name_their_stage(tmp_path: Path) -> None:
    with edgert.Pipeline(parts_pipeline(tmp_path, SCENE.format(limit=12))) as pipeline:
        found = [(one.stage, one.frame.index) for one in pipeline.results("belt", "find", timeout=20)]
    for stage in ("belt", "find"):
        assert [index for name, index in found if name == stage] == list(range(12))
    with edgert.Pipeline(parts_pipeline(tmp_path, SCENE.format(limit=12))) as pipeline:
        with pytest.raises(StageError, match=r"no stage 'fnid'; did you mean 'find'\?"):
            pipeline.results("belt", "fnid")  # which connects to neither
        with pytest.raises(StageError, match="no stage is named"):
            pipeline.results(timeout=1.0)
        assert [one.frame.index for one in pipeline.results("find", timeout=20)] == list(range(12))


@pytest.mark.parametrize("stage", ["own: {python: nowhere:f, from: find}", "out: {sink: 'null', from: find}"])
def test_what_cannot_be_made_leaves_no_engine_open(stage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = list[OrtEngine]()
    monkeypatch.setattr(OrtEngine, "close", lambda self: closed.append(self))
    with pytest.raises(EdgertError, match=r"no module 'nowhere'|no stage 'fnid'"):
        edgert.Pipeline(parts_pipeline(tmp_path, SCENE.format(limit=3), f"  {stage}\n"), callbacks={"fnid": bool})
    assert len(closed) == 1


def test_asyncio_reads_results_and_calls_without_blocking_its_loop(tmp_path: Path) -> None:
    async def read(pipeline: edgert.Pipeline) -> list[int]:
        return [one.frame.index async for one in pipeline.aresults("find", timeout=20)]

    async def leave(pipeline: edgert.Pipeline) -> int:
        async with aclosing(pipeline.aresults("find")) as results:  # type: ignore[type-var]
            async for one in results:
                return one.frame.index
        return -1

    async def give_up(pipeline: edgert.Pipeline) -> None:
        pipeline.start()
        waiting = asyncio.ensure_future(anext(pipeline.aresults("find")))  # type: ignore[arg-type]
        await asyncio.sleep(0.05)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        with pytest.raises(edgert.ResultTimeout):
            await anext(pipeline.aresults("find", timeout=0.01))

    async def call(pipeline: edgert.Pipeline) -> list[int]:
        return [one.frame.index for one in await asyncio.gather(*(pipeline.acall(IMAGE) for _ in range(4)))]

    with edgert.Pipeline(parts_pipeline(tmp_path, SCENE.format(limit=9))) as pipeline:
        pipeline.aresults("find")  # which nobody iterates over
        assert asyncio.run(read(pipeline)) == list(range(9))
    with edgert.Pipeline(parts_pipeline(tmp_path, SCENE.format(limit=100_000))) as pipeline:
        assert asyncio.run(leave(pipeline)) >= 0
    with edgert.Pipeline(parts_pipeline(tmp_path, "{source: api}")) as pipeline:
        asyncio.run(give_up(pipeline))
    with edgert.Pipeline(parts_pipeline(tmp_path, "{source: api}")) as pipeline:
        assert asyncio.run(call(pipeline)) == [0, 1, 2, 3]
        with pytest.raises(StageError, match="a call takes one frame"):
            asyncio.run(pipeline.acall([IMAGE]))
    with pytest.raises(StageError, match="has ended cannot be called"):
        asyncio.run(pipeline.acall(IMAGE))
    wait_until(lambda: not threads())


def test_a_mapping_is_a_pipeline_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FOLDER", "out")
    written = mapping({"source": "api"}, out={"sink": "jsonl", "from": "find", "path": "${FOLDER}/found.jsonl"})
    with edgert.Pipeline(written, overrides=["models.parts.task.score=0.9"]) as pipeline:
        assert pipeline(IMAGE).detections.labels[0] == "bolt"
    assert len((tmp_path / "out" / "found.jsonl").read_text().splitlines()) == 1  # relative to the current folder
    config = edgert.load_pipeline(written, ["models.parts.task.score=0.9"]).config
    assert (config.name, getattr(config.models["parts"].task, "score", 0)) == ("pipeline", 0.9)
    assert isinstance(written["models"]["parts"]["onnx"], Path)  # as it was
    assert edgert.plan(mapping({"source": "usb:0", "fps": 10}), board="orin-nx-16gb", mode="15W").boards[0].rows


@pytest.mark.parametrize(
    ("change", "message", "place"),
    [
        ({"stagse": {}}, r"unknown key 'stagse'|stagse", "<mapping>"),
        ({"stages": {"belt": {"source": "api", "fsp": 3}}}, "fsp", "<mapping> stages.belt"),
        ({"stages": {3: {"source": "api"}}}, "cannot use 3 as a key", "<mapping> stages"),
        ({"stages": {"belt": {"source": object()}}}, "cannot use object", "<mapping> stages.belt.source"),
        ({"stages": {"belt": {"source": "${NOT_SET_ANYWHERE}"}}}, "NOT_SET_ANYWHERE is not set", "stages.belt.source"),
    ],
)
def test_errors_in_a_mapping_name_the_key(change: dict[str, Any], message: str, place: str) -> None:
    with raises(ConfigError, message, where=place):
        edgert.Pipeline({**mapping({"source": "api"}), **change})


def test_a_mapping_that_holds_itself_is_refused() -> None:
    stages: dict[str, Any] = {}
    stages["belt"] = stages
    with pytest.raises(ConfigError, match="nested too deeply"):
        edgert.load_pipeline({"stages": stages})
