"""``keep: 30s``: the seconds before an event, a failure or the end of a run, in files that can be replayed."""

import errno
import json
import logging
import os
import signal
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from edgert import Pipeline
from edgert.config import load_pipeline
from edgert.errors import ConfigError, EdgertError, StageError
from edgert.recording import mcap_messages as messages
from edgert.recording.recording import open_recording
from edgert.replayer.replayed import Options, Replay, replay
from edgert.runtime.records import Detections
from edgert.stages.decode.record_check import CheckedRecords
from edgert.stages.sink.output_file import OutputFile
from tests.helpers.clips import write_clip
from tests.helpers.recordings import LEFT, MODEL, conveyor, messages_of, record_tiny, rewritten
from tests.helpers.waiting import wait_until

EXACT = Options(must_be_exact=True)
RULES = {"long": {"zone": "left", "count": 1, "for": "2s"}, "other": {"zone": "left"}}
PAST = "alarm, areas, track have no past here, and are not compared"


@pytest.fixture(scope="module")
def belt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("belt") / "belt.mp4"
    write_clip(path, conveyor(1, 60), size=(320, 240), options={"g": "10", "preset": "ultrafast"})
    return path


def pipeline(belt: Path, folder: Path, frames: int, keep: Any, **changes: Any) -> dict[str, Any]:
    """Return a pipeline of a camera that shows the belt, with a tracker and events, whose last seconds are kept."""
    stages: dict[str, Any] = {
        "cam": {"source": str(belt), "realtime": True, "loop": True, "limit": frames},
        "find": {"infer": "parts", "from": "cam"},
        "track": {"track": "bytetrack", "from": "find"},
        "areas": {"stage": "zones", "from": "track", "zones": LEFT},
        "alarm": {"stage": "events", "from": "areas", "rules": {"never": {"zone": "left", "count": 60}}},
        "box": {"sink": "mcap", "from": "alarm", "path": str(folder / "{date}-{time}.mcap"), "keep": keep},
    }
    for name, keys in changes.items():
        stages[name] = {**stages.get(name, {}), **keys}
    return {"models": {"parts": MODEL}, "stages": stages}


def kept(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.mcap"), key=lambda path: path.stat().st_mtime_ns)


def seconds_of(*paths: Path) -> float:
    begin_ns, end_ns = open_recording(paths).span_ns
    return (end_ns - begin_ns) / 1e9


def assert_replayed(made: Replay) -> None:
    assert (made.different, made.first) == (0, None)
    assert made.same > 10
    assert any(note == f"it begins in the middle of a run: {PAST}" for note in made.notes)


@pytest.fixture(scope="module")
def moments(belt: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("moments")
    keep = {"last": "1s", "after": "300ms", "rules": ["long"]}
    with Pipeline(pipeline(belt, folder, 110, keep, alarm={"rules": RULES})) as run:
        run.run()
    assert sorted(folder.iterdir()) == sorted(kept(folder))  # the ring is gone
    return kept(folder)


def test_an_event_leaves_one_file_of_the_seconds_around_it(moments: list[Path]) -> None:
    assert len(moments) == 2  # and one of the end of the run
    path = moments[0]
    events = [json.loads(bytes(one.data)) for one in messages_of(path, messages.EVENTS)]
    frames = {one["frame"]: one for one in (json.loads(bytes(m.data)) for m in messages_of(path, messages.RESULTS))}
    assert [one["rule"] for one in events if one["phase"] == "begin"].count("long") == 1
    assert min(frames) > 3 and max(frames) < 105
    assert 1.1 < seconds_of(path) < 2.2
    sequences = [one.sequence for one in messages_of(path, "/cam/video")]
    assert sequences == sorted(set(sequences))  # packets that two parts have are in it once


def test_both_files_are_replayed_and_say_what_has_no_past(moments: list[Path]) -> None:
    for path in moments:
        made = replay(path, EXACT)
        assert_replayed(made)
        assert made.missing < made.same  # results of frames that came before it


def test_a_bug_is_found_in_the_middle_of_a_run(moments: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    own = CheckedRecords.__call__

    def bugged(checked: CheckedRecords, *arguments: Any) -> Any:
        record: Detections = own(checked, *arguments)
        return replace(record, boxes=np.nextafter(record.boxes, np.float32(1e9)))

    monkeypatch.setattr(CheckedRecords, "__call__", bugged)
    first = replay(moments[0], EXACT).first
    assert first is not None
    assert first.stage == "find"


@pytest.mark.slow
def test_a_failure_and_a_crash_leave_a_file(belt: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="edgert.sink")
    (tmp_path / "own_code.py").write_text(
        "def check(result):\n    if result.frame.index in (30, 32, 70):\n        raise ValueError('strange')\n"
    )
    strange = {"python": "own_code:check", "from": "cam"}
    for on_error, causes in (
        ("log", ["a failure of stage 'own'", "the end of the run"]),
        ("stop", ["the end of the run"]),
    ):
        folder = tmp_path / on_error
        own = {**strange, "on_error": on_error}
        data = pipeline(belt, folder, 75, {"last": "1s", "after": "500ms"}, own=own, box={"from": ["alarm", "own"]})
        (tmp_path / "p.yaml").write_text(yaml.safe_dump(data))
        caplog.clear()
        is_crash = on_error == "stop"
        expected = pytest.raises(StageError, match="strange") if is_crash else nullcontext()
        with expected, Pipeline(tmp_path / "p.yaml") as run:
            run.run()
        said = [one.getMessage() for one in caplog.records if "has the seconds around" in one.getMessage()]
        assert [line.partition(" around ")[2] for line in said] == causes
        for path in kept(folder):
            assert replay(path, EXACT).different == 0


def test_a_changed_pipeline_is_replayed_from_its_middle(belt: Path, tmp_path: Path) -> None:
    """The head of each file is that of the pipeline by then: its keys, and settings that no entry of it has."""
    data = pipeline(belt, tmp_path, 80, "1s")
    with Pipeline(data) as run:
        run.start()
        wait_until(lambda: run.summary().stages["box"].results_in > 5)
        run.control.set("models.parts.task.score", 0.55)
        run.control.set("stages.find.every", 2)
        run.wait()
    path = kept(tmp_path)[-1]
    head = open_recording([path]).head
    assert head["pipeline"]["models"]["parts"]["task"]["score"] == 0.55
    assert head["settings"]["find" if "find" in head["settings"] else "find:dispatch"][0] == 2
    assert_replayed(replay(path, EXACT))


def started(folder: Path, data: dict[str, Any]) -> subprocess.Popen[str]:
    """Return a program that runs a pipeline, once its ring has a second of frames."""
    (folder / "p.yaml").write_text(yaml.safe_dump(data))
    command = [sys.executable, "-m", "edgert", "run", "p.yaml", "--plain"]
    run = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)

    def has_enough() -> bool:
        try:
            return bool(ring_of(folder)) and seconds_of(*ring_of(folder)) > 0.9
        except EdgertError:
            return False

    wait_until(has_enough, 30)
    return run


def ring_of(folder: Path) -> list[Path]:
    return [path for path in sorted((folder / "box-ring").glob("*.mcap")) if path.stat().st_size > 100]


@pytest.mark.slow
def test_sigterm_leaves_a_file(belt: Path, tmp_path: Path) -> None:
    run = started(tmp_path, pipeline(belt, tmp_path, 900, "1s"))
    run.send_signal(signal.SIGTERM)
    _, said = run.communicate(timeout=30)
    assert "around the end of the run" in said
    (path,) = kept(tmp_path)
    assert 0.5 < seconds_of(path) < 2.2
    assert replay(path, EXACT).different == 0
    assert not (tmp_path / "box-ring").exists()


@pytest.mark.slow
def test_kill_leaves_the_ring_and_the_next_run_makes_a_file_of_it(
    belt: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = started(tmp_path, pipeline(belt, tmp_path, 900, "1s"))
    run.kill()
    run.communicate(timeout=30)
    recording = open_recording(ring_of(tmp_path))
    assert (recording.span_ns[1] - recording.span_ns[0]) / 1e9 > 0.6
    assert replay(recording, EXACT).different == 0
    assert not kept(tmp_path)
    caplog.set_level(logging.INFO, logger="edgert.sink")
    with Pipeline(pipeline(belt, tmp_path, 8, "1s")) as again:
        again.run()
    lines = [one.getMessage() for one in caplog.records if "has the seconds around" in one.getMessage()]
    assert [line.partition(" around ")[2] for line in lines] == [
        "the sudden end of the run before",
        "the end of the run",
    ]
    first = next(path for path in kept(tmp_path) if str(path) in lines[0])
    assert open_recording([first]).span_ns == recording.span_ns
    assert replay(first, EXACT).different == 0
    assert not (tmp_path / "box-ring").exists()


def test_a_full_disk_shortens_the_ring_and_ends_nothing(
    belt: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ring gives up its oldest parts; a moment that finds no room is an error, and its parts stay."""
    own, removed = OutputFile.write, list[bool]()

    def full(file: OutputFile, data: bytes, make_room: Any = lambda: False) -> None:
        is_ring = file.path.parent.name == "box-ring"
        if is_ring and len(list(file.path.parent.iterdir())) > 3:
            removed.append(make_room())
        if not is_ring and len(data) > 1000:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        own(file, data, make_room)

    monkeypatch.setattr(OutputFile, "write", full)
    with pytest.raises(StageError, match="cannot write") as raised, Pipeline(pipeline(belt, tmp_path, 60, "1s")) as run:
        run.run()
    assert "its parts stay in " in raised.value.why
    assert any(removed) and not kept(tmp_path)
    assert 1 < len(ring_of(tmp_path)) <= 4
    assert replay(open_recording(ring_of(tmp_path)), EXACT).different == 0


def test_what_is_no_part_of_a_run_hinders_no_start(
    belt: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A power cut may leave an empty file, or one of zeros; a disk may lose what is inside."""
    ring = tmp_path / "box-ring"
    ring.mkdir()
    whole = record_tiny(tmp_path / "..")
    (ring / "2026-01-31-221010.mcap").write_bytes(b"")
    (ring / "2026-01-31-221010-2.mcap").write_bytes(bytes(4096))
    rewritten(whole, ring / "2026-01-31-221010-3.mcap", {messages.DECISIONS: lambda data: b"{"})
    with Pipeline(pipeline(belt, tmp_path, 8, "1s")) as run:
        run.run()
    assert "the last seconds of a run before are lost: a message on /edgert/decisions is damaged" in caplog.text
    (path,) = kept(tmp_path)
    assert replay(path, EXACT).different == 0


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"keep": "30"}, "like 60ms"),
        ({"keep": {"after": "5s"}}, "after: belongs to last:"),
        ({"keep": {"rules": ["long"]}}, "rules: belongs to last:"),
        ({"keep": {}}, "expected last:"),
        ({"keep": "30s", "rotate": {"every": "1m"}}, "rotate: has no meaning with keep"),
        ({"keep": {"last": "30s", "rules": ["nevr"]}}, "did you mean 'never'"),
        ({"keep": {"last": "30s", "rules": ["long"]}, "from": "track"}, "let it listen to {stage: events"),
    ],
)
def test_keys_that_cannot_be(belt: Path, tmp_path: Path, keys: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as raised:
        load_pipeline(pipeline(belt, tmp_path, 1, None, box=keys))
    assert words in str(raised.value)
