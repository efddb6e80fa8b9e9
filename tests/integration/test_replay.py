"""Recorded runs replayed: the same bits, in this process and in another, and whatever differs is named."""

import json
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgert import Pipeline
from edgert.clock import time_of_day_ns
from edgert.config import load_pipeline
from edgert.errors import ArtifactError, ConfigError, EdgertError, StageError
from edgert.memory import Counter
from edgert.recording import mcap_messages as messages
from edgert.recording.cdr import decode
from edgert.recording.definitions import IMAGE
from edgert.recording.recording import Piece, open_recording
from edgert.replayer.expectation import Expectation
from edgert.replayer.replayed import Options, replay, shortest_window, window_of
from edgert.runtime.records import Detections, Result
from edgert.stages.decode.record_check import CheckedRecords
from edgert.stages.source.recorded_frames import RecordedStream
from edgert.stages.zones.rules import EventsStage
from tests.helpers.clips import write_clip
from tests.helpers.command import edgert, in_process
from tests.helpers.errors import raises
from tests.helpers.frames import frame_of
from tests.helpers.recordings import (
    ASSETS,
    MODEL,
    STAGES,
    conveyor,
    conveyor_units,
    messages_of,
    record_belts,
    record_tiny,
    rewritten,
)
from tests.helpers.ros_bags import write_depth_bag
from tests.helpers.rtsp_server import RtspServer
from tests.helpers.virtual_clock import VirtualClock
from tests.helpers.waiting import wait_until

EXACT = Options(must_be_exact=True)
FRAMES = 20 + 13
"""Frames of :func:`record_belts`."""


@pytest.fixture(scope="module")
def belts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record_belts(tmp_path_factory.mktemp("belts"))


def test_a_run_is_replayed_bit_for_bit_twice(belts: Path) -> None:
    for _ in range(2):
        made = replay(belts, EXACT)
        assert (made.different, made.missing, made.notes, made.first) == (0, 0, (), None)
        assert made.same == made.frames == FRAMES


def test_another_process_gives_the_same(belts: Path, tmp_path: Path) -> None:
    done = edgert("replay", str(belts), "--expect", "--json", "-", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["different"] == 0
    assert f"all {FRAMES} results are the recorded ones" in done.stderr


def test_a_window_and_the_shortest_one_on_the_command_line(belts: Path, tmp_path: Path) -> None:
    other = str(_other_model(tmp_path))
    window = "--from", "0.05s", "--for", "100s", "--within", "1e-9"
    done = in_process("replay", str(belts), *window, "--expect", "--minimise", "--model", other, cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    assert "shortest window that shows it: 1 frames, 0.000 s, from 20" in done.stdout


def test_batches_branches_joins_and_pixels_are_replayed(tmp_path: Path) -> None:
    stages = {
        "look": {"infer": "parts", "from": "find", "every": 3},
        "both": {"draw": ["boxes"], "from": ["track", "look"]},
        "rec": {"from": ["alarm", "both"], "pixels": True},
    }
    path = record_belts(tmp_path, **stages)
    made, image = replay(path), messages_of(path, "/a/image")[0]
    assert (made.different, made.missing, made.same) == (0, 0, FRAMES)
    assert decode(IMAGE, image.data)["header.stamp.sec"] == image.publish_ns // 10**9  # as Foxglove shows it


def test_depth_images_are_replayed(tmp_path: Path) -> None:
    """Of a robot that follows: each object's position comes from the depth image of its frame."""
    write_depth_bag(tmp_path / "run.db3", list(conveyor(3, 8)))
    source = {"source": f"bag:{tmp_path}/run.db3#/camera/color", "options": {"depth": "/camera/depth"}}
    stages = {"cam": source, "find": {"infer": "parts", "from": "cam"}, "near": {"stage": "distance", "from": "find"}}
    stages["rec"] = {"sink": "mcap", "path": str(tmp_path / "run.mcap"), "from": "near"}
    with Pipeline({"models": {"parts": MODEL}, "stages": stages}) as pipeline:
        pipeline.run()
    made = replay(tmp_path / "run.mcap")
    assert (made.different, made.missing, made.same) == (0, 0, 8)
    assert "position" in results_of(tmp_path / "run.mcap")[-1]["outputs"]["near"]["objects"][0]
    (depth, *_) = messages_of(tmp_path / "run.mcap", "/cam/depth")
    assert decode(IMAGE, depth.data)["encoding"] in ("16UC1", "32FC1")
    stream = RecordedStream("cam", Counter())
    for piece in (one for one in open_recording([tmp_path / "run.mcap"]).events() if isinstance(one, Piece)):
        stream.add(replace(piece, data=piece.data[:9]) if piece.kind == "depth" else piece)
    for number in range(8):
        image = stream.image(number)
        assert image is not None and image.depth is None
        image.lease.release()


def results_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(bytes(one.data)) for one in messages_of(path, messages.RESULTS)]


def test_a_bug_in_a_decoder_is_found_at_its_frame_alone(belts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bug moves the boxes of frames with most objects by the least that a float can, and that no digit shows."""
    counts = {(one["stream"], one["frame"]): len(one["outputs"]["find"]["objects"]) for one in results_of(belts)}
    own, most = CheckedRecords.__call__, max(counts.values())

    def bugged(checked: CheckedRecords, *arguments: Any) -> Any:
        record: Detections = own(checked, *arguments)
        moved = np.nextafter(record.boxes, np.float32(1e9))
        moved = np.where(moved.round(2) == record.boxes.round(2), moved, record.boxes)
        return replace(record, boxes=moved) if len(record) == most else record

    monkeypatch.setattr(CheckedRecords, "__call__", bugged)
    made = replay(belts)
    first = made.first
    assert first is not None
    assert (first.stream, first.frame) == next(key for key, count in counts.items() if count == most)
    assert (first.stage, first.where) == ("find", "the records differ in digits that are not written")
    assert first.image is not None and first.image.shape == (240, 320, 3)
    assert (first.png() or b"").startswith(b"\x89PNG")
    assert first.recorded == first.replayed
    shortest = shortest_window(open_recording([belts]), Options(), first)
    assert shortest is not None and (shortest.frames, shortest.seconds) == (1, 0)


def test_the_verb_shows_the_difference_and_exits_1(belts: Path, tmp_path: Path) -> None:
    """The model itself is another one, of other weights."""
    done = in_process("replay", str(belts), "--expect", "--model", f"parts={_other_model(tmp_path)}", cwd=tmp_path)
    assert done.returncode == 1
    assert "results are" not in done.stdout
    assert "stage find" in done.stdout
    folder = tmp_path / "replay-difference"
    assert sorted(one.name for one in folder.iterdir()) == ["frame.png", "recorded.json", "replayed.json"]
    assert json.loads((folder / "recorded.json").read_text())["type"] == "detections"


def test_a_window_is_compared_after_all_before_it_was_run(belts: Path) -> None:
    recording = open_recording([belts])
    window = window_of(recording, "0.1s", "100s")
    made = replay(recording, Options(window_ns=window))
    assert 0 < made.same < FRAMES
    assert made.frames == FRAMES
    assert made.different == 0
    begin = time.localtime((recording.span_ns[0] + recording.head["offset_ns"]) / 1e9)
    assert window_of(recording, time.strftime("%H:%M:%S", begin), None)[0] <= recording.span_ns[0]
    wrong = {"23:61": "no time of the day", "soon": "write 10:02:14", "9000s": "outside of the recording"}
    for text, why in wrong.items():
        with raises(ConfigError, says=why):
            window_of(recording, text, None)
    with pytest.raises(ConfigError, match="--for 0s: expected more than 0 s"):
        window_of(recording, None, "0s")


def test_another_model_or_version_is_named(belts: Path, tmp_path: Path) -> None:
    def older(payload: bytes) -> bytes:
        head = json.loads(payload)
        head["edgert"], head["packages"]["onnxruntime"] = "0.0.1", "1.0"
        return json.dumps(head).encode()

    made = replay(rewritten(belts, tmp_path / "old.mcap", {messages.RUN: older}))
    assert any(note.startswith("recorded with edgert 0.0.1, replayed with ") for note in made.notes)
    assert any(note.startswith("recorded with onnxruntime 1.0, replayed with ") for note in made.notes)

    def other(payload: bytes) -> bytes:
        head = json.loads(payload)
        head["models"]["parts"]["sha256"] = "0" * 64
        return json.dumps(head).encode()

    changed = rewritten(belts, tmp_path / "other.mcap", {messages.RUN: other})
    with pytest.raises(ArtifactError, match="another model 'parts'") as raised:
        replay(changed)
    assert "its SHA-256 was 000000000000… and is " in raised.value.why
    assert "--model parts=" in raised.value.fix
    with pytest.raises(ConfigError, match="no model 'find'"):
        replay(belts, Options({"find": Path(MODEL["onnx"])}))


def test_files_that_moved_are_found_beside_the_recording(belts: Path, tmp_path: Path) -> None:
    def elsewhere(payload: bytes) -> bytes:
        head = json.loads(payload.replace(str(ASSETS).encode(), b"/srv/of/the/robot"))
        return json.dumps({**head, "path": f"/{'a name that is too long ' * 20}/p.yaml"}).encode()

    moved = rewritten(belts, tmp_path / "run.mcap", {messages.RUN: elsewhere})
    with raises(ArtifactError, r"parts\.onnx", fix="or beside the recording"):
        replay(moved)
    for name in ("parts.onnx", "parts.txt"):
        shutil.copy(ASSETS / name, tmp_path)
    made = replay(moved, EXACT)
    assert (made.same, made.different, made.missing) == (FRAMES, 0, 0)


def test_a_format_of_another_version_is_refused(belts: Path, tmp_path: Path) -> None:
    newer = rewritten(
        belts, tmp_path / "a.mcap", {messages.RUN: lambda data: data.replace(b'"format":1', b'"format":2')}
    )
    with pytest.raises(ArtifactError, match="its format is 2"):
        replay(newer)


def test_an_engine_that_cannot_be_exact_is_refused_by_expect_alone(belts: Path, tmp_path: Path) -> None:
    def inexact(payload: bytes) -> bytes:
        return payload.replace(b'"is_exact":true', b'"is_exact":false')

    changed = rewritten(belts, tmp_path / "gpu.mcap", {messages.RUN: inexact})
    with raises(StageError, "cannot compare bits of model 'parts'", fix="--within 0.01"):
        replay(changed, EXACT)
    assert replay(changed, replace(EXACT, within=0.01)).different == 0


def test_a_recording_without_frames_is_named(tmp_path: Path) -> None:
    empty = rewritten(record_tiny(tmp_path), tmp_path / "empty.mcap", {messages.DECISIONS: lambda data: None})
    with pytest.raises(ArtifactError, match="has no frame to replay"):
        replay(empty)


def test_a_recording_without_images_says_what_is_missing(tmp_path: Path) -> None:
    bare = rewritten(record_tiny(tmp_path), tmp_path / "bare.mcap", {"/packets/video": lambda data: None})
    made = replay(bare)
    assert made.missing > 0
    assert made.different == 0
    assert f"{made.missing} frames are not in the recording" in made.notes


def test_parts_of_a_run_are_replayed_together_and_one_says_what_it_lacks(tmp_path: Path) -> None:
    record_belts(tmp_path, frames=36, rec={"rotate": {"size": "64KiB"}})
    parts = sorted(tmp_path.glob("run*.mcap"))
    assert len(parts) > 2
    made = replay(open_recording(parts))
    assert (made.different, made.missing, made.notes) == (0, 0, ())
    order = open_recording(parts).paths
    made = replay(order[1])
    assert made.different == 0
    assert any("track have no past here, and are not compared" in note for note in made.notes)
    with pytest.raises(ArtifactError, match="a part of the recording is missing"):
        open_recording([order[2], order[0]])
    with pytest.raises(ArtifactError, match="not parts of one recording"):
        open_recording([parts[0], record_tiny(tmp_path)])


def test_a_recording_is_a_source_of_any_pipeline(belts: Path, tmp_path: Path) -> None:
    seen = list[tuple[int, int, int]]()
    recorded = results_of(belts)
    stages: dict[str, Any] = {
        "again": {"source": str(belts), "options": {"stream": "a"}},
        "find": {"infer": "parts", "from": "again"},
        "seen": {"sink": "callback", "from": "find"},
    }

    def note(result: Any) -> None:
        seen.append((result.frame.index, result.timestamp_ns, len(result.detections)))

    with Pipeline({"models": {"parts": MODEL}, "stages": stages}, callbacks={"seen": note}) as pipeline:
        pipeline.run()
    own = [(one["frame"], one["timestamp_ns"], len(one["outputs"]["find"]["objects"]))
           for one in recorded if one["stream"] == "a"]  # fmt: skip
    assert sorted(seen) == sorted(own)
    stages["again"]["options"] = {}
    with pytest.raises(StageError, match="has several streams"):
        Pipeline({"models": {"parts": MODEL}, "stages": stages})


def test_a_recording_of_another_machine_keeps_its_times_of_day(belts: Path, tmp_path: Path) -> None:
    """Rules with during: go by them; the monotonic clock of another machine began at another time."""
    day_ns = 86_400 * 10**9

    def earlier(payload: bytes) -> bytes:
        head = json.loads(payload)
        return json.dumps({**head, "offset_ns": head["offset_ns"] - day_ns}).encode()

    changed = rewritten(belts, tmp_path / "other.mcap", {messages.RUN: earlier})
    own = {one["time_ns"] for one in results_of(belts) if one["stream"] == "a"}
    cam = {"source": str(changed), "options": {"stream": "a"}, "limit": 3}
    with Pipeline({"stages": {"cam": cam, "out": {"sink": "null", "from": "cam"}}}) as pipeline:
        frames = [one.frame for one in pipeline.results("cam", timeout=20)]
    off_ns = time_of_day_ns(frames[0].timestamp_ns) + day_ns - min(own)
    assert -(10**8) < off_ns < 10**9  # two clocks are read one after the other, between which a thread may wait
    assert [one.media_ns for one in frames] == sorted(one.media_ns for one in frames)


def test_a_swapped_model_ends_the_comparison(belts: Path, tmp_path: Path) -> None:
    """A swap is noted as a replacement in the model's task, before the file that it makes."""
    other = json.loads(bytes(messages_of(belts, messages.RUN)[0].data))["pipeline"]
    other["models"]["parts"]["onnx"] = str(_other_model(tmp_path))

    def swapped(payload: bytes) -> bytes:
        data = json.loads(payload)
        for row in data["entries"]:
            if row[1:4] == ["step", "find", "a"] and row[4] == 9:
                number, at_ns = row[0], row[5]
                data["entries"].append([number, "replace", "find", "", -1, at_ns, None])
                data["entries"].append([number + 1, "file", "", "", -1, at_ns, other])
                break
        return json.dumps(data).encode()

    changed = rewritten(belts, tmp_path / "swapped.mcap", {messages.DECISIONS: swapped})
    made = replay(changed)
    assert made.different == 0
    assert 0 < made.same < FRAMES


def recorded_belt(folder: Path, count: int) -> dict[str, Any]:
    write_clip(folder / "belt.mp4", conveyor(1, count), size=(320, 240))
    return {
        "cam": {"source": str(folder / "belt.mp4"), "realtime": True},
        "find": {"infer": "parts", "from": "cam"},
        **{name: STAGES[name] for name in ("track", "areas", "alarm")},
        "rec": {"sink": "mcap", "path": str(folder / "run.mcap"), "from": "alarm"},
    }


def test_a_clock_that_is_set_back_while_it_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Events have the time of day. Order and length of the recording are by a clock that nobody sets."""
    own = time.time_ns
    stages = recorded_belt(tmp_path, 75)
    with Pipeline({"models": {"parts": MODEL}, "stages": stages}) as pipeline:
        pipeline.start()
        wait_until(lambda: pipeline.summary().stages["rec"].results_in > 20)
        monkeypatch.setattr(time, "time_ns", lambda: own() - 3600 * 10**9)
        pipeline.wait()
    monkeypatch.undo()
    times = [one["time_ns"] for one in results_of(tmp_path / "run.mcap")]
    assert sum(after < before for before, after in pairwise(times)) == 1
    assert times[0] - times[-1] > 3590 * 10**9
    made = replay(tmp_path / "run.mcap", EXACT)
    assert (made.different, made.missing, made.first, made.notes) == (0, 0, None, ())
    recording = open_recording([tmp_path / "run.mcap"])
    assert 2 < (recording.span_ns[1] - recording.span_ns[0]) / 1e9 < 10


def test_a_change_that_was_undone_is_replayed_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other zones are there until the second stage of the change fails to open; a later change is another file."""
    stages = recorded_belt(tmp_path, 60)
    with Pipeline({"models": {"parts": MODEL}, "stages": stages}) as pipeline:
        pipeline.start()

        def done() -> int:
            return pipeline.summary().stages["areas"].results_out

        def fails(stage: EventsStage) -> None:
            before = done()
            wait_until(lambda: done() > before, 10)
            raise StageError("no room")

        wait_until(lambda: done() > 3)
        monkeypatch.setattr(EventsStage, "open", fails)
        wanted = json.loads(json.dumps(stages))
        wanted["areas"]["zones"]["left"][1] = wanted["areas"]["zones"]["left"][2] = [0.9, 0.5]
        wanted["areas"]["zones"]["left"].pop(2)
        wanted["alarm"]["rules"]["many"]["count"] = 2
        data = {"models": {"parts": MODEL}, "stages": wanted}
        with pytest.raises(StageError, match="no room"):
            pipeline.control.apply(data, pipeline.control.apply(data)["plan"])
        monkeypatch.undo()
        pipeline.control.set("models.parts.task.score", 0.5)
        pipeline.wait()
    made = replay(tmp_path / "run.mcap", EXACT)
    assert (made.different, made.first, made.notes) == (0, None, ())
    kinds = [row[1] for one in messages_of(tmp_path / "run.mcap", messages.DECISIONS)
             for row in json.loads(bytes(one.data))["entries"] if row[1] in ("replace", "file")]  # fmt: skip
    assert kinds[:4] == ["replace", "file", "replace", "file"]


def test_two_recorders_of_one_run_are_refused(tmp_path: Path) -> None:
    data = {"cam": {"source": "api"}, "one": {"sink": "mcap", "path": "a.mcap", "from": "cam"},
            "two": {"sink": "mcap", "path": "b.mcap", "from": "cam"}}  # fmt: skip
    with pytest.raises(ConfigError, match="both record the run"):
        load_pipeline({"stages": data})


def _other_model(folder: Path) -> Path:
    import onnx
    from onnx import numpy_helper

    proto = onnx.load(MODEL["onnx"])
    weights = max(proto.graph.initializer, key=lambda one: len(one.raw_data))
    weights.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weights) * np.float32(1.01), weights.name))
    onnx.save(proto, folder / "other.onnx")
    return folder / "other.onnx"


# Cameras, which lose frames and are changed while they run.


@pytest.fixture(scope="module")
def cameras() -> Iterator[dict[str, RtspServer]]:
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(RtspServer(conveyor_units(seed, 45), fps=fps))
            for seed, (name, fps) in enumerate({"slow": 11, "usual": 25, "fast": 60}.items())
        }


def record_cameras(path: Path, cameras: dict[str, RtspServer], frames: int) -> int:
    """Record a run that is changed in the middle; return how many frames were dropped."""
    stages: dict[str, Any] = {
        **{name: {"source": server.url} for name, server in cameras.items()},
        "find": {"infer": "parts", "from": list(cameras)},
        **STAGES,
        "rec": {"sink": "mcap", "path": str(path), "from": ["alarm", "look"]},
    }
    with Pipeline({"models": {"parts": MODEL}, "stages": stages}) as pipeline:
        pipeline.start()

        def done() -> int:
            return pipeline.summary().stages["rec"].results_in

        wait_until(lambda: done() > frames / 4, 30)
        pipeline.control.set("models.parts.task.score", 0.5)
        wait_until(lambda: done() > frames / 2, 30)
        pipeline.control.set("stages.find.every", 2)
        pipeline.control.set("stages.alarm.rules.many.count", 2)
        wait_until(lambda: done() > frames, 30)
        pipeline.stop()
        pipeline.wait()
        return sum(stage.dropped for stage in pipeline.summary().stages.values())


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_twenty_runs_of_three_cameras_under_load_are_replayed_bit_for_bit(
    cameras: dict[str, RtspServer], tmp_path: Path
) -> None:
    dropped = 0
    for number in range(20):
        path = tmp_path / f"{number}.mcap"
        dropped += record_cameras(path, cameras, 160)
        made = replay(path, EXACT)
        assert (made.different, made.missing, made.first, made.notes) == (0, 0, None, ()), number
        assert made.same >= 160
    assert dropped > 20
    done = edgert("replay", str(path), "--expect", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_a_cut_recording_of_cameras_is_replayed_up_to_its_last_chunk(
    cameras: dict[str, RtspServer], tmp_path: Path
) -> None:
    whole, cut = tmp_path / "run.mcap", tmp_path / "cut.mcap"
    record_cameras(whole, cameras, 160)
    shutil.copy(whole, cut)
    with cut.open("r+b") as file:
        file.truncate(whole.stat().st_size * 2 // 3)
    made = replay(cut)
    assert made.same > 20
    assert made.different == 0
    assert any("at most 1 s of the run" in note for note in made.notes)


def test_errors_are_edgerts_own(tmp_path: Path) -> None:
    (tmp_path / "a.mcap").write_bytes(b"no recording")
    with pytest.raises(EdgertError, match="is not an MCAP file"):
        replay(tmp_path / "a.mcap")


def test_few_images_of_results_that_were_not_recorded_are_held() -> None:
    expectation = Expectation(VirtualClock())
    for n in range(70):
        expectation.process(Result(frame_of(64, 48, index=n), {}))
    assert sum(waiting[0].image is not None for waiting in expectation._results.values()) == 64
