"""A running pipeline whose model is on a GPU is changed: sources come and go, and streams left alone lose no frame."""

import gc
import json
import signal
from collections import defaultdict
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edgert
from edgert import Result
from edgert.backend.ort import cuda
from edgert.errors import ConfigError, StageError
from edgert.graph import to_bytes
from edgert.installation import demo_images
from edgert.memory.cuda import CudaDevice
from tests.helpers import models
from tests.helpers.command import ROOT, edgert as edgert_command, start
from tests.helpers.gpu import gpu_or_skip
from tests.helpers.gpu_pipeline import HEIGHT, WIDTH, CalledRig
from tests.helpers.perfetto_trace import read
from tests.helpers.waiting import wait_until

ASSETS = ROOT / "pipelines" / "assets"
EIGHT = [f"cam{number}" for number in range(8)]
FEW, MANY = 40, 200
ENGINES = ["tensorrt", "onnxruntime-cuda"]


PARTS = {
    "onnx": str(ASSETS / "parts.onnx"),
    "task": {"detect": "yolox", "labels": str(ASSETS / "parts.txt"), "score": 0.4, "iou": 0.5},
    "input": {"resize": "letterbox", "color": "rgb", "std": 255},
    "precision": "fp32",
}
MEANS = {"onnx": "means.onnx", "task": {"classify": "logits", "top": 4}, "input": {"resize": "stretch", "std": 255}}


@pytest.fixture(autouse=True)
def means(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A classifier whose batch size is open, in the current folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "means.onnx").write_bytes(to_bytes(models.means(("n", 3, 8, 8))))


def pipeline_of(engine: str, is_batched: bool, **sources: Any) -> dict[str, Any]:
    """Return a pipeline of sources before one model, which runs in batches of eight or frame by frame."""
    find: dict[str, Any] = {"infer": "net", "from": list(sources)}
    if is_batched:
        find["batch"] = {"max": 8, "wait": "5ms"}
    return {"engines": [engine], "models": {"net": MEANS if is_batched else PARTS}, "stages": {**sources, "find": find}}


def images(seed: int, **more: Any) -> dict[str, Any]:
    """Return a source that draws the demo's parts for ever, the same ones for a seed, as fast as they are taken."""
    return {"source": demo_images(), "size": "320x240", "seed": seed, "realtime": False, **more}


def needs(engine: str) -> None:
    gpu_or_skip().close()
    missing = cuda.why_not() if engine == "onnxruntime-cuda" else ""
    if engine == "tensorrt" and not (find_spec("tensorrt") or find_spec("tensorrt_rtx_bindings")):
        missing = "TensorRT is not installed"
    if missing:
        pytest.skip(missing)


class Seen:
    def __init__(self) -> None:
        self.records = defaultdict[str, dict[int, Any]](dict)

    def __call__(self, result: Result) -> None:
        self.records[result.frame.stream][result.frame.index] = result.outputs.get(
            "find"
        )  # none where `every` leaves it out

    def wait_for(self, count: int, *names: str) -> None:
        wanted = {name: len(self.records[name]) + count for name in names}
        wait_until(lambda: all(len(self.records[name]) >= number for name, number in wanted.items()), 60)


def are_alike(one: Any, other: Any) -> bool:
    """Whether two records say the same, as far as batches of different sizes compute the same."""
    found, wanted = np.sort(one.scores), np.sort(other.scores)
    return found.shape == wanted.shape and bool(np.allclose(found, wanted, atol=0.02))


@pytest.mark.gpu
@pytest.mark.parametrize("is_batched", [True, False])
@pytest.mark.parametrize("engine", ENGINES)
def test_a_source_comes_to_eight_others_on_a_gpu_and_goes_and_they_lose_no_frame(engine: str, is_batched: bool) -> None:
    needs(engine)
    seen = Seen()
    stages = pipeline_of(engine, is_batched, **{name: images(seed) for seed, name in enumerate(EIGHT)})
    with edgert.Pipeline(stages, callbacks={"find": seen}, strict=True) as pipeline:
        pipeline.start()
        seen.wait_for(FEW, *EIGHT)
        control = pipeline.control
        control.add("ninth", stages["stages"]["cam3"]["source"], like="cam3")  # with its seed: the same images
        seen.wait_for(MANY, "ninth", *EIGHT)
        assert "ninth" in pipeline.summary().notes.frames
        listened = {result.frame.stream for result in islice(pipeline.results("find", timeout=30), MANY)}
        assert "ninth" in listened and len(listened) > 1
        control.pause("ninth")
        paused = len(seen.records["ninth"])
        seen.wait_for(FEW, *EIGHT)
        assert len(seen.records["ninth"]) <= paused + 2 * 8 + 4, "what had been under way"
        control.resume("ninth")
        seen.wait_for(FEW, "ninth", *EIGHT)
        control.set("stages.find.every", 2)
        seen.wait_for(FEW, *EIGHT)
        control.set("stages.find.every", 1)
        control.remove("ninth")
        seen.wait_for(FEW, *EIGHT)  # what it gave before is still worked on
        gone = len(seen.records["ninth"])
        seen.wait_for(FEW, *EIGHT)
        assert len(seen.records["ninth"]) == gone and "ninth" not in pipeline.summary().notes.frames
        seen.records["ninth"].clear()
        control.add("ninth", stages["stages"]["cam3"]["source"], like="cam3")
        seen.wait_for(FEW, "ninth", *EIGHT)
        for name in EIGHT:
            assert sorted(seen.records[name]) == list(range(len(seen.records[name]))), name
    first, other = seen.records["cam3"], seen.records["ninth"]
    same = [are_alike(other[index], first[index]) for index in range(FEW)]
    assert sum(same) >= 0.9 * FEW and sum(len(first[index].scores) for index in range(FEW)) > FEW


@pytest.mark.gpu
@pytest.mark.parametrize("engine", ENGINES)
def test_live_cameras_on_a_gpu_come_and_go_and_every_frame_is_accounted_for(engine: str) -> None:
    needs(engine)
    seen, live = Seen(), {"source": "synthetic:counter", "size": "320x240", "fps": 60, "realtime": True}
    stages = pipeline_of(engine, True, **dict.fromkeys(("one", "two"), live))
    with edgert.Pipeline(stages, callbacks={"find": seen}, strict=True) as pipeline:
        pipeline.start()
        seen.wait_for(FEW, "one", "two")
        for _ in range(5):
            pipeline.control.add("third", "synthetic:counter")
            seen.wait_for(5, "one", "two", "third")
            pipeline.control.remove("third")
        pipeline.stop()
        pipeline.wait(30)
        summary = pipeline.summary()
    assert not pipeline.running
    for name in ("one", "two"):
        came = seen.records[name]
        missing = max(came) + 1 - len(came)
        assert missing <= sum(stage.dropped for stage in summary.stages.values()), name


@pytest.mark.gpu
def test_edgert_ctl_adds_and_removes_a_source_of_a_run_on_a_gpu(tmp_path: Path) -> None:
    gpu_or_skip().close()
    paced = {"realtime": True, "fps": 60, "drop": "never"}
    stages = pipeline_of("", True, **{name: images(seed, **paced) for seed, name in enumerate(EIGHT)})
    stages["engines"] = ENGINES
    stages["stages"]["lines"] = {"sink": "jsonl", "from": "find", "path": "lines.jsonl"}
    (tmp_path / "belts.yaml").write_text(json.dumps({"name": f"belts-{tmp_path.name}", **stages}))
    lines = tmp_path / "lines.jsonl"

    def ctl(*words: str) -> str:
        done = edgert_command("ctl", "--name", f"belts-{tmp_path.name}", *words, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def wait_for(text: str) -> None:
        wait_until(lambda: run.poll() is not None or (lines.exists() and text in lines.read_text()), 60)
        assert run.poll() is None, run.communicate()

    run = start("run", "belts.yaml", cwd=tmp_path)
    try:
        wait_for('"cam7"')
        ctl("add", "ninth", demo_images())
        wait_for('"ninth"')
        assert "ninth" in ctl("show")
        ctl("set", "stages.find.every=2")
        ctl("pause", "cam0")
        ctl("resume", "cam0")
        ctl("remove", "ninth")
        assert "ninth" not in ctl("show")
        run.send_signal(signal.SIGINT)
        _, errors = run.communicate(timeout=30)
    finally:
        run.kill()
    assert "Traceback" not in errors, errors
    numbers = defaultdict[str, list[int]](list)
    for line in lines.read_text().splitlines():
        result = json.loads(line)
        numbers[result["stream"]].append(result["frame"])
    assert set(numbers) == {*EIGHT, "ninth"}
    for name in EIGHT[1:]:  # a camera that is paused loses frames
        assert numbers[name] == list(range(len(numbers[name]))), name


@pytest.mark.gpu
@pytest.mark.parametrize("engine", ENGINES)
def test_live_keys_of_a_model_on_a_gpu_hold_between_two_batches_and_no_frame_is_lost(
    engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs(engine)
    seen, recordings, capture = Seen(), list[object](), CudaDevice.capture
    stages = pipeline_of(engine, False, **{name: images(seed) for seed, name in enumerate(EIGHT)})
    with edgert.Pipeline(stages, callbacks={"find": seen}, strict=True) as pipeline:

        def counts(key: str, value: object) -> set[int]:
            """Numbers of boxes of the newest frames, some frames after a key was set."""
            pipeline.control.set(f"models.net.task.{key}", value)
            seen.wait_for(FEW, *EIGHT)
            return {len(seen.records[name][max(seen.records[name]) - back].scores) for name in EIGHT for back in (0, 5)}

        pipeline.start()
        seen.wait_for(FEW, *EIGHT)
        monkeypatch.setattr(CudaDevice, "capture", lambda *given: recordings.append(given) or capture(*given))
        usual = counts("score", 0.41)
        assert max(usual) > 1
        assert counts("score", 1.0) == {0}
        assert max(counts("score", 0.41)) > 1
        assert counts("limit", 1) <= {0, 1}
        assert max(counts("iou", 0.6)) == 1
        assert not recordings, "numbers that a kernel reads from memory need no other graph"
        assert max(counts("limit", 301)) > 1
        assert recordings, "an answer with more room is another graph"
        with pytest.raises(StageError, match="cannot change while the pipeline runs"):
            pipeline.control.set("models.net.input.mean", [1, 1, 1])
    for name in EIGHT:
        assert sorted(seen.records[name]) == list(range(len(seen.records[name]))), name


def test_a_live_key_of_a_model_on_a_gpu_is_set_and_read_from_the_next_frame_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig, image = CalledRig(tmp_path, monkeypatch), np.zeros((HEIGHT, WIDTH, 3), np.uint8)
    with rig.pipeline() as pipeline:
        results = pipeline.results("find", timeout=10)
        pipeline.submit(image, stage="cam")
        next(results)
        key, slots = "models.parts.task.threshold", pipeline._assembly.inferences[0]._slots
        assert pipeline.control.set(key, 0.7) == {"key": key, "was": 0.5, "now": 0.7}
        pipeline.submit(image, stage="cam")
        next(results)
        assert {slot._reader._decoder.threshold for slot in slots} == {0.7}  # type: ignore[attr-defined]
        with pytest.raises(ConfigError, match="cannot use 7"):
            pipeline.control.set(key, 7)
        assert pipeline.control.show()["live"][key] == 0.7
    del results
    gc.collect()
    assert rig.device.live_bytes == 0


def test_a_source_that_is_added_takes_images_that_are_on_the_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig, image = CalledRig(tmp_path, monkeypatch), np.zeros((HEIGHT, WIDTH, 3), np.uint8)
    with rig.pipeline() as pipeline:
        results = pipeline.results("find", timeout=10)
        pipeline.submit(image, stage="cam")
        assert next(results).frame.stream == "cam"
        pipeline.control.add("more", "api")
        assert set(pipeline.summary().notes.frames) == {"cam", "more"}
        for brought in (rig.tensor(3), image, pipeline.buffer((WIDTH, HEIGHT), stage="more")):
            pipeline.submit(brought, stage="more")
            assert next(results).frame.stream == "more"
        pipeline.control.remove("more")
        assert set(pipeline.summary().notes.frames) == {"cam"}
        with pytest.raises(StageError, match="no api source 'more'"):
            pipeline.submit(image, stage="more")
        pipeline.submit(rig.tensor(5), stage="cam")
        assert next(results).frame.stream == "cam"
    del results, brought
    gc.collect()  # the tensors' doubles
    assert rig.device.live_bytes == 0


@pytest.mark.gpu
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("is_batched", [False, True])
def test_a_trace_has_the_times_of_the_gpu(tmp_path: Path, engine: str, is_batched: bool) -> None:
    gpu_or_skip()
    with edgert.Pipeline(pipeline_of(engine, is_batched, cam={"source": "api"})) as pipeline:
        results = pipeline.results("find", timeout=120)
        pipeline.submit(np.zeros((HEIGHT, WIDTH, 3), np.uint8))
        next(results)
        with pipeline.control.traced(tmp_path / "run.pftrace"):
            for _ in range(FEW):
                pipeline.submit(np.zeros((HEIGHT, WIDTH, 3), np.uint8))
                next(results)
    found = read((tmp_path / "run.pftrace").read_bytes())
    gpu, runs = found.of("gpu"), found.of("run")
    assert gpu and {one.track for one in gpu} == {"net on the GPU"}
    assert all(0 < one.end_ns - one.begin_ns < 10**9 for one in gpu)
    begun = min(one.begin_ns for one in found.of("source"))
    assert all(begun <= one.begin_ns and one.end_ns <= max(run.end_ns for run in runs) for one in gpu)
