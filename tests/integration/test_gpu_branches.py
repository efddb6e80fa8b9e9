"""A whole pipeline beside models on the GPU: who looks at pixels on the host gets a copy, and nobody holds a camera's
buffers who does not look. The GPU is a double; its kernels compute nothing, and its copies are real."""

import json
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from edgert.backend.base import EngineOptions
from edgert.backend.ort import OrtBackend
from edgert.config import InputConfig, flow
from edgert.config.stages import DrawStage, SourceStage
from edgert.errors import DeviceError, StageError
from edgert.graph import load
from edgert.memory import Counts
from edgert.memory.cuda import CudaDevice
from edgert.runtime import Result
from edgert.runtime.frame import has_pixels, yuv_planes
from edgert.runtime.summary import Summary
from edgert.stages.context import Context
from edgert.stages.gpu.infer_gpu import SLOTS
from edgert.stages.kinds import Images
from edgert.stages.preprocess import Preprocessor
from edgert.stages.sink.results import NullSink
from edgert.stages.source.kinds import source_for
from tests.helpers.clips import write_clip
from tests.helpers.frames import frame_of
from tests.helpers.gpu import gpu_or_skip
from tests.helpers.gpu_pipeline import HEIGHT, NBYTES, RECORD_BYTES, WIDTH, CalledRig, GpuEngine, Rig, VideoRig
from tests.helpers.waiting import wait_until

QUIET = "  out: {sink: jsonl, from: find, path: out.jsonl}\n"


@pytest.fixture(autouse=True)
def here(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        flow, "_TASKS_WITH_BOXES", (*flow._TASKS_WITH_BOXES, "embed")
    )  # the small network stands for a detector, too
    if request.node.get_closest_marker("gpu"):
        return

    def capture(*_: object) -> None:
        raise DeviceError("there is no CUDA driver")

    monkeypatch.setattr(CudaDevice, "capture", capture)


@pytest.fixture
def rigged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Rig]:
    return partial(Rig, tmp_path, monkeypatch)


def lines(path: str = "out.jsonl") -> list[int]:
    return [json.loads(line)["frame"] for line in Path(path).read_text().splitlines()]


def copied(rig: Rig | VideoRig, **given: Any) -> tuple[Summary, int, Counts]:
    """Run the rig's pipeline; return its summary, the bytes copied once it was warm, and all counts."""
    with rig.pipeline(**given) as pipeline:
        warm = pipeline._assembly.counter.read()
        summary = pipeline.run()
        counts = pipeline._assembly.counter.read()
    return summary, counts.bytes_copied - warm.bytes_copied, counts


def is_whole(result: Result) -> bool:
    """Whether a frame is on the host, and every pixel as the camera wrote it."""
    luma, chroma = result.frame.planes
    is_here = (
        isinstance(luma, np.ndarray) and luma.shape == (HEIGHT, WIDTH) and chroma.shape == (HEIGHT // 2, WIDTH // 2, 2)
    )
    return is_here and all((plane == result.frame.index % 256).all() for plane in (luma, chroma))


def test_without_anybody_who_looks_on_the_host_nothing_but_records_comes_down(rigged: Callable[..., Rig]) -> None:
    rig = rigged(QUIET)
    summary, nbytes, _ = copied(rig)
    assert lines() == list(range(40)) and rig.camera.device_asked is rig.device
    assert summary.notes.frames == {"cam": "on the GPU"} == summary.to_json()["frames"]
    assert nbytes == 43 * RECORD_BYTES, "of 40 frames, and of 3 slots that were warmed up"
    assert rig.camera.leased == 0


SEEN = list[tuple[int, bool]]()


def look(result: Result) -> Result:
    SEEN.append((result.frame.index, is_whole(result)))
    return result.with_output("own", 1)


def test_everybody_who_looks_on_the_host_gets_the_one_copy_of_a_frame(rigged: Callable[..., Rig]) -> None:
    SEEN.clear()
    stages = (
        "  own: {python: tests.integration.test_gpu_branches:look, from: find}\n"
        "  again: {python: tests.integration.test_gpu_branches:look, from: own}\n"
        "  slow: {infer: host, from: cam}\n"
        "  slows: {sink: jsonl, from: slow, path: slow.jsonl}\n"
        "  late: {sink: jsonl, from: again, path: late.jsonl}\n"
    )
    rig, called = rigged(stages + QUIET), list[bool]()
    _, nbytes, counts = copied(rig, callbacks={"find": lambda result: called.append(is_whole(result))})
    indices = list(range(40))
    assert lines() == lines("late.jsonl") == lines("slow.jsonl") == indices
    assert sorted(SEEN) == sorted([(index, True) for index in indices] * 2)
    assert called == [True] * 40
    assert nbytes - 43 * RECORD_BYTES == 40 * NBYTES, "for own and what is behind it, slow and the callback"
    assert rig.camera.leased == 0 and counts.escaped == 0
    assert rig.device.live_bytes == rig.camera.pool * NBYTES, "all memory for copies is given back"


def test_the_copies_are_named(monkeypatch: pytest.MonkeyPatch, rigged: Callable[..., Rig]) -> None:
    stages = "  paint: {draw: boxes, from: find}\n  files: {sink: images, from: paint, path: images}\n"
    for kind in (DrawStage, Images):
        monkeypatch.setattr(kind, "takes_gpu", False)
    with rigged(stages).pipeline(callbacks={"find": print}) as pipeline:
        why = "'paint' draws on them and your own code sees them behind 'find'"
        assert pipeline.summary().notes.frames == {"cam": f"on the GPU, and a copy on the host, since {why}"}
        reads = {node.name: node.execution.reads for node in pipeline._assembly.tasks}
    assert reads == {
        "cam": "nothing",
        "find": "anywhere",
        "paint": "host",
        "files": "drawn",
        "callback of find": "host",
    }


def test_a_region_comes_down_alone_for_a_model_on_the_processor(rigged: Callable[..., Rig]) -> None:
    stages = (
        "  cut: {crop: [0.0, 0.0, 0.5, 0.5], from: find}\n"
        "  slow: {infer: host, from: cut}\n"
        "  slows: {sink: jsonl, from: slow, path: slow.jsonl}\n"
    )
    rig = rigged(stages + QUIET)
    _, nbytes, _ = copied(rig)
    assert lines("slow.jsonl") == list(range(40))
    session = OrtBackend().compile(load(rig.path.with_name("parts.onnx")), EngineOptions(threads=1)).session()
    preprocessor = Preprocessor(InputConfig(resize="stretch"), session.inputs["x"], "parts.onnx")
    for line in Path("slow.jsonl").read_text().splitlines():
        found = json.loads(line)
        gray = tuple(
            np.full(shape, found["frame"], np.uint8) for shape in ((HEIGHT, WIDTH), (HEIGHT // 2, WIDTH // 2, 2))
        )
        preprocessor.into(0, frame_of(WIDTH, HEIGHT, "nv12", pixels=gray).crop(0, 0, WIDTH // 2, HEIGHT // 2))
        assert found["outputs"]["slow"]["vector"] == pytest.approx(session.run(1)[0].ravel(), abs=1e-3)
    assert 0 < nbytes - 43 * RECORD_BYTES <= 40 * NBYTES // 2, "half as high, the gaps between its rows included"


def test_parts_of_a_frame_that_meet_again_go_on(rigged: Callable[..., Rig]) -> None:
    SEEN.clear()
    stages = (
        "  own: {python: tests.integration.test_gpu_branches:look, from: cam}\n"
        "  both: {sink: jsonl, from: [own, find], path: both.jsonl}\n"
        "  third: {infer: parts, from: [own, find], every: 2}\n"
        "  last: {python: tests.integration.test_gpu_branches:look, from: [third, find]}\n"
        "  lasts: {sink: jsonl, from: last, path: lasts.jsonl}\n"
    )
    rig = rigged(stages)
    with rig.pipeline() as pipeline:
        pipeline.run()
    assert lines("both.jsonl") == lines("lasts.jsonl") == list(range(40))
    outputs = [json.loads(line)["outputs"] for line in Path("lasts.jsonl").read_text().splitlines()]
    assert [sorted(one) for one in outputs[:2]] == [["find", "own", "third"], ["find", "own"]]
    assert len(SEEN) == 80 and all(whole for _, whole in SEEN) and rig.camera.leased == 0


def test_batches_of_the_gpu_and_several_models_hold_nothing_behind_them(rigged: Callable[..., Rig]) -> None:
    text = "  more: {infer: parts, from: find, batch: {max: 4, wait: 5ms}}\n" + QUIET.replace("find", "more")
    rig = rigged(text, count=200, pool=16)
    with rig.pipeline() as pipeline:
        pipeline.run()
    assert lines() == list(range(200)) and rig.camera.leased == 0 and not rig.camera.starved


@pytest.mark.parametrize("live", [False, True])
def test_a_file_alone_fills_batches_and_a_camera_waits_for_none(live: bool, rigged: Callable[..., Rig]) -> None:
    stages = "  more: {infer: parts, from: cam, batch: {max: 4, wait: 500ms}}\n" + QUIET.replace("find", "more")
    rig = rigged(stages, count=42, live=live)
    if live:
        rig.path.write_text(rig.path.read_text().replace("source: api", "source: rtsp://camera/stream"))
    with rig.pipeline() as pipeline:
        sessions = cast("GpuEngine", pipeline._assembly.engines["parts"]).sessions[SLOTS:]  # those of the second stage
        summary = pipeline.run()
    ran = [size for one in sessions for size in one.sizes[-3:]]
    kept = lines()
    assert kept == sorted(set(kept)) and summary.frames_out >= len(kept)
    assert len(kept) == 42 or (live and len(kept) + summary.dropped >= 42)  # a busy machine lets a camera wait
    why = "of those that came while it was busy, as cam is live" if live else "which a free model waits for"
    assert summary.engine["parts"]["batch"] == f"up to 4 frames a run, {why}"
    assert len(ran) == 3 * SLOTS and (ran.count(4) > 6) is not live


PLANES: dict[int, list[Any]] = {}


def note(result: Result) -> Result:
    assert isinstance(result.frame.planes[0], np.ndarray)
    PLANES[result.frame.index] = [plane.copy() for plane in yuv_planes(result.frame)]
    return result


@pytest.fixture(params=["stand-ins", pytest.param("gpu", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> Iterator[CudaDevice | None]:
    if request.param == "stand-ins":
        yield None
        return
    made = gpu_or_skip()
    yield made
    assert made.leaked == 0


def test_pixels_of_a_video_that_the_gpu_decodes_are_those_of_the_processor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: CudaDevice | None
) -> None:
    PLANES.clear()
    clip = write_clip(tmp_path / "clip.mp4", 60, options={"preset": "ultrafast", "g": "10", "bf": "2"})
    stages = (
        "  own: {python: tests.integration.test_gpu_branches:note, from: find}\n"
        "  slow: {infer: host, from: cam}\n"
        "  slows: {sink: jsonl, from: slow, path: slow.jsonl}\n"
    )
    rig = VideoRig(tmp_path, monkeypatch, stages + QUIET, device)
    summary, nbytes, counts = copied(rig)
    assert lines() == lines("slow.jsonl") == list(range(60)) and summary.dropped == 0
    assert summary.notes.frames["cam"].startswith("on the GPU, and a copy on the host, since ")
    records = 60 + (3 if device is None else 6)  # the slots are warmed up, and where there are graphs recorded
    assert nbytes == 60 * 320 * 240 * 3 // 2 + records * RECORD_BYTES
    assert counts.escaped == 0
    source = source_for("cam", SourceStage(source=str(clip), decode="cpu"), Context(tmp_path))
    for frame in source.frames(threading.Event()):
        wanted = list(yuv_planes(frame))
        assert all(np.array_equal(one, other) for one, other in zip(PLANES.pop(frame.index), wanted, strict=True))
        frame.lease.release()
    assert not PLANES


class Stuck:
    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.go, self.taken = threading.Event(), 0
        patch.setattr(NullSink, "process", self._take)

    def _take(self, result: Result) -> None:
        self.taken += 1
        assert self.go.wait(20)


def test_a_sink_that_is_stuck_holds_none_of_a_cameras_buffers(
    monkeypatch: pytest.MonkeyPatch, rigged: Callable[..., Rig]
) -> None:
    """As with a disk that hangs: the live camera goes on, and frames are dropped where that is counted."""
    stuck = Stuck(monkeypatch)
    rig = rigged('  out: {sink: "null", from: find}\n', count=300, pool=4, live=True)
    with rig.pipeline() as pipeline:
        pipeline.start()
        wait_until(lambda: rig.camera.given + rig.camera.starved == 300)
        wait_until(lambda: rig.camera.leased <= 1 and stuck.taken == 1)  # the newest waits for the model
        assert not rig.camera.starved
        stuck.go.set()
        pipeline.wait()
        summary = pipeline.summary()
    assert summary.dropped + summary.frames_out == 300 and rig.camera.leased == 0


def test_listeners_get_frames_on_any_stage_while_they_listen(rigged: Callable[..., Rig]) -> None:
    text = "  same: {track: bytetrack, from: find}\n  out: {sink: jsonl, from: same, path: out.jsonl}\n"
    rig = rigged(text, count=60)
    with rig.pipeline() as pipeline:
        with pipeline.results("same", timeout=10) as results:
            for _, result in zip(range(20), results, strict=False):
                assert result.frame.is_on_gpu and result.frame.lease.alive
                assert (result.frame.to_host().planes[0] == result.frame.index).all()
        assert [node.wiring.releases_pixels for node in pipeline._assembly.tasks if node.name == "same"] == [True]
        late = [result.frame.index for result in pipeline.results("same", timeout=10) if has_pixels(result.frame)]
        assert late == list(range(late[0], 60))
    assert lines() == list(range(60)) and rig.camera.leased == 0


def test_a_stage_of_another_package_that_said_it_does_not_look_gets_a_clear_error(
    monkeypatch: pytest.MonkeyPatch, rigged: Callable[..., Rig]
) -> None:
    monkeypatch.setattr(NullSink, "process", lambda self, result: result.frame.to_bgr())
    rig = rigged('  out: {sink: "null", from: find, on_error: stop}\n')
    with pytest.raises(StageError, match="after their release") as caught, rig.pipeline() as pipeline:
        pipeline.run()
    assert "stage 'out'" in caught.value.where


def test_own_code_in_front_of_the_model_keeps_frames_on_the_host(rigged: Callable[..., Rig]) -> None:
    text = "  own: {python: tests.integration.test_gpu_branches:look, from: cam}\n" + QUIET
    rig = rigged(text)
    rig.path.write_text(rig.path.read_text().replace("infer: parts, from: cam", "infer: parts, from: own"))
    with rig.pipeline() as pipeline:
        frames: dict[str, Any] = dict(pipeline.summary().notes.frames)
    assert frames == {"cam": "on the host: before a model does, your own code sees them at 'own'"}
    assert rig.camera.device_asked is None


@pytest.mark.parametrize("live", [False, True])
def test_beside_a_camera_crops_are_waited_for_asleep_too(live: bool, rigged: Callable[..., Rig]) -> None:
    rig = rigged(QUIET, live=live)
    with rig.pipeline() as pipeline:
        assert [one.is_patient for one in pipeline._assembly.inferences] == [live]


@pytest.mark.parametrize(
    ("live", "cameras", "batch"), [(True, 1, ""), (True, 2, ""), (False, 1, ""), (True, 1, "max: 2")]
)
def test_of_a_lone_camera_all_that_follows_a_frame_is_one_graph(
    live: bool, cameras: int, batch: str, rigged: Callable[..., Rig]
) -> None:
    rig = rigged(QUIET, live=live)
    text = rig.path.read_text()
    if cameras == 2:
        camera = next(line for line in text.splitlines() if line.strip().startswith("cam:"))
        text = text.replace(camera, f"{camera}\n{camera.replace('cam:', 'other:')}").replace(
            "from: cam}", "from: [cam, other]}"
        )
    if batch:
        text = text.replace("from: cam}", f"from: cam, batch: {{{batch}}}}}")
    rig.path.write_text(text)
    with rig.pipeline() as pipeline:
        (inference,) = pipeline._assembly.inferences
    own = {slot.session.stream for slot in inference._slots}
    is_one = {slot._reading for slot in inference._slots} == {slot._feeding for slot in inference._slots} == own
    assert is_one == (live and cameras == 1 and not batch)


CHAIN = """  one: {infer: parts, from: find, crop: {limit: 4}}
  two: {infer: parts, from: one, crop: {limit: 4}}
  out: {sink: jsonl, from: two, path: out.jsonl}
"""


def test_models_that_look_at_crops_behind_each_other_are_run_together(rigged: Callable[..., Rig]) -> None:
    rig = rigged(CHAIN, count=12)
    with rig.pipeline() as pipeline:
        works = {node.name: type(node.stage).__name__ for node in pipeline._assembly.tasks}
        pipeline.run()
        stages = pipeline.summary().stages
    assert (works["one"], works["two"]) == ("InferCropsOfModels", "AlreadyInferred")
    assert lines() == list(range(12)) and stages["two"].results_out == 12 and stages["two"].thread == "one"
    found = [json.loads(line)["outputs"] for line in Path("out.jsonl").read_text().splitlines()]
    assert all(list(one) == ["find", "one", "two"] and one["one"] == one["two"] for one in found)
    assert rig.camera.leased == 0


SIBLINGS = """  one: {infer: parts, from: find, crop: {limit: 4}}
  two: {infer: parts, from: find, crop: {limit: 4}}
  three: {infer: parts, from: one, crop: {limit: 4}}
"""


def outputs(path: str) -> list[dict[str, Any]]:
    return [json.loads(line)["outputs"] for line in Path(path).read_text().splitlines()]


def test_models_that_look_at_crops_beside_each_other_are_run_together_and_keep_their_records_apart(
    rigged: Callable[..., Rig],
) -> None:
    ends = [
        f"  {name}_out: {{sink: jsonl, from: {listens}, path: {name}.jsonl}}\n"
        for name, listens in (("two", "two"), ("three", "three"), ("both", "[three, two]"))
    ]
    rig = rigged(SIBLINGS + "".join(ends), count=12)
    with rig.pipeline() as pipeline:
        works = {node.name: type(node.stage).__name__ for node in pipeline._assembly.tasks}
        pipeline.run()
        stages = pipeline.summary().stages
    assert works["one:0"] == "InferCropsOfModels"
    assert [works[name] for name in ("one", "two", "three")] == ["AlreadyInferred"] * 3
    assert [stages[name].thread for name in ("one:0", "one", "two", "three")] == ["", *["one:0"] * 3]
    assert all(list(one) == ["find", "two"] for one in outputs("two.jsonl"))
    assert all(list(one) == ["find", "one", "three"] for one in outputs("three.jsonl"))
    joined = outputs("both.jsonl")
    assert len(joined) == 12 and all(sorted(one) == ["find", "one", "three", "two"] for one in joined)
    assert all(one["one"] == one["two"] == one["three"] for one in joined)
    assert rig.camera.leased == 0


def test_siblings_that_drop_frames_otherwise_run_by_themselves(rigged: Callable[..., Rig]) -> None:
    text = SIBLINGS.replace("two: {infer: parts,", "two: {infer: parts, drop: oldest,")
    rig = rigged(text + "  out: {sink: jsonl, from: [three, two], path: out.jsonl}\n", count=4)
    with rig.pipeline() as pipeline:
        works = {node.name: type(node.stage).__name__ for node in pipeline._assembly.tasks}
        pipeline.run()
    assert works["one"] == works["two"] == "InferCropsOfModels" and "one:0" not in works


def test_a_call_has_the_records_of_all_siblings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = CalledRig(tmp_path, monkeypatch, SIBLINGS)
    with rig.pipeline() as pipeline:
        results = pipeline.call_batch([np.full((HEIGHT, WIDTH, 3), level, np.uint8) for level in range(3)])
    assert [list(result.outputs) for result in results] == [["find", "one", "three", "two"]] * 3
