"""Every file in pipelines/ is one a user can run, or at least validate where it needs hardware."""

import base64
import json
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import av
import cv2
import numpy as np
import numpy.typing as npt
import pytest

from pipelines.conveyor import Conveyor
from tests.helpers import brokers
from tests.helpers.clips import write_clip
from tests.helpers.command import ROOT, edgert, environment, in_process
from tests.helpers.waiting import wait_until
from tests.integration.test_sink_record import packets

PIPELINES = sorted(path.stem for path in (ROOT / "pipelines").glob("*.yaml"))
NEEDS = {
    "usb-camera": "a camera",
    "rtsp": "a network camera",
    "clips": "a network camera",
    "csi": "a Jetson's camera",
    "four-cameras": "network cameras",
    "alarm": "a broker",
    "arm": "a program that pushes images",
}
JOBS = ("usb-camera", "four-cameras", "cascade", "embedding", "counting", "arm", "alarm")
"""What users want first: a camera on a page, cameras into a file, crops, names, counting, control, an alarm."""
SOURCES = {
    "hello": ["belt"],
    "cascade": ["belt"],
    "counting": ["belt"],
    "embedding": ["belt"],
    "multi-camera": ["north", "south"],
    "my-model": ["camera"],
}
CAMERA = {"CAMERA_PASSWORD": "s3cret-word", "CAMERA_HOST": "camera.invalid"}
FRAMES = 20
QUICK = "--set=models.parts.calibrate.limit=16"
"""INT8 of the demo's model from a quarter of its images."""


@pytest.mark.parametrize("name", PIPELINES)
def test_validates(name: str, tmp_path: Path) -> None:
    done = in_process("validate", name, cwd=tmp_path, env=CAMERA)
    assert done.returncode == 0, done.stderr
    assert "fine" in done.stdout
    assert CAMERA["CAMERA_PASSWORD"] not in done.stdout + done.stderr


@pytest.mark.parametrize("name", [name for name in PIPELINES if name not in NEEDS])
def test_runs_and_leaves_whole_files(name: str, tmp_path: Path) -> None:
    options = [f"--set=stages.{source}.limit={FRAMES}" for source in SOURCES[name]]
    options += [QUICK] if name == "hello" else []
    done = in_process("run", name, *options, "--json", "summary.json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr

    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["frames_in"] == FRAMES * len(SOURCES[name])
    assert summary["dropped"] == 0
    assert summary["fps"] > 0
    lines = (tmp_path / "out" / f"{name}.jsonl").read_text().splitlines()
    assert lines
    assert all(json.loads(line)["outputs"] for line in lines)
    for video in tmp_path.glob("out/*.mp4"):
        with av.open(str(video)) as container:
            assert sum(1 for _ in container.decode(video=0)) == FRAMES


def test_the_demo_finds_parts_and_follows_them(tmp_path: Path) -> None:
    done = in_process("run", "hello", QUICK, "--set=stages.belt.limit=60", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in (tmp_path / "out" / "hello.jsonl").read_text().splitlines()]
    assert len(lines) == 60
    tracked = [line["outputs"]["track"]["objects"] for line in lines]
    assert max(len(objects) for objects in tracked) >= 2
    ids = [{one["id"] for one in objects} for objects in tracked]
    followed = [len(now & before) / len(before) for before, now in pairwise(ids[10:]) if before]
    assert sum(followed) / len(followed) > 0.8  # parts stay the same parts from frame to frame


def test_tiles_and_a_model_that_looks_now_and_then(tmp_path: Path) -> None:
    """Every third frame in tiles; between them objects are where BoT-SORT expects them."""
    changed = {"belt.limit": "60", "find.tiles": "2x2", "find.every": "3", "track.track": "botsort"}
    options = ["--set=models.parts.precision=fp32", *(f"--set=stages.{key}={value}" for key, value in changed.items())]
    done = in_process("run", "hello", *options, "--json", "summary.json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    tracks = json.loads((tmp_path / "summary.json").read_text())["tracks"]["track"]
    assert tracks.startswith("botsort: tracks start at a score of 0.5 and continue from 0.4 (by the model's score)")
    lines = [json.loads(line) for line in (tmp_path / "out" / "hello.jsonl").read_text().splitlines()]
    assert len(lines) == 60
    records = [line["outputs"]["track"] for line in lines]
    assert [record.get("predicted", False) for record in records] == [n % 3 != 0 for n in range(60)]
    seen = [{one["id"]: one["box"] for one in record["objects"]} for record in records]
    shared = [(before[number], now[number]) for before, now in pairwise(seen[9:]) for number in before.keys() & now]
    assert len(shared) > 60
    steps = [abs(now[0] - before[0]) for before, now in shared]
    assert sorted(steps)[len(steps) // 2] < 8  # they move on from frame to frame, and do not jump every third
    assert all("find" in line["outputs"] for line in lines[::3])


def test_what_is_private_is_never_recorded_and_models_rest_while_nothing_moves(tmp_path: Path) -> None:
    """A camera over which a square passes now and then; its left third is private, and so is whatever is found."""
    (tmp_path / "yard.py").write_text(
        "import numpy as np\n"
        "def images():\n"
        "    for n in range(120):\n"
        "        image = np.full((240, 320, 3), 90, np.uint8)\n"
        "        if 40 <= n < 60:\n"
        "            image[100:140, 10 * (n - 40) : 10 * (n - 40) + 40] = 250\n"
        "        yield image\n"
    )
    (tmp_path / "p.yaml").write_text(
        "stages:\n"
        "  cam: {source: 'python:yard:images', fps: 30}\n"
        "  hide: {stage: privacy, from: cam, areas: {left: [[0, 0], [0.33, 0], [0.33, 1], [0, 1]]}}\n"
        "  moving: {stage: motion, from: hide, hold: 100ms, heartbeat: 1s}\n"
        "  events: {sink: jsonl, from: moving, path: out.jsonl}\n"
        "  shots: {sink: images, from: hide, path: 'out/{frame:03d}.png'}\n"
    )
    done = edgert("run", "p.yaml", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    passed = [json.loads(line)["frame"] for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert 0 in passed and len(passed) < 45
    assert set(range(48, 58)) <= set(passed)  # it is not noticed where it is private
    images = [cv2.imread(str(path)) for path in sorted((tmp_path / "out").glob("*.png"))]
    assert len(images) == 120 and all((image[:, :104] == 0).all() for image in images)
    assert images[50][120, 115].tolist() == [250, 250, 250]


def shown(count: int) -> Iterator[npt.NDArray[np.uint8]]:
    belt, image = Conveyor(640, 480, 30.0, 7), np.empty((480, 640, 3), np.uint8)
    for index in range(count):
        belt.render(index, image)
        yield image


@pytest.mark.slow
def test_clips_are_the_recording_s_own_packets(tmp_path: Path) -> None:
    """The demo's scene as a video file, in the place of the camera."""
    belt = write_clip(tmp_path / "belt.mp4", shown(300), size=(640, 480))
    options = f"--set=stages.camera.source={belt}", "--set=stages.clips.clips={before: 1s, after: 1s}"
    done = edgert("run", "clips", *options, cwd=tmp_path, env=CAMERA)
    assert done.returncode == 0, done.stderr
    whole = [json.loads(line) for line in (tmp_path / "out" / "film" / "everything.jsonl").read_text().splitlines()]
    assert sum(one["images"] for one in whole) == 300
    own, wanted = packets(belt), set[str]()
    for clip in map(json.loads, (tmp_path / "out" / "clips" / "clips.jsonl").read_text().splitlines()):
        found = packets(tmp_path / "out" / "clips" / clip["path"])
        start = own.index(found[0])
        assert found == own[start : start + len(found)] and 30 <= len(found) == clip["images"]
        wanted |= {event["id"] for event in clip["events"]}
    lines = [json.loads(line) for line in (tmp_path / "out" / "clips.jsonl").read_text().splitlines()]
    events = [event for line in lines for event in line["outputs"].get("alarm", {"events": []})["events"]]
    assert wanted == {event["id"] for event in events if event["phase"] == "begin"} and wanted


def test_a_camera_that_is_not_there(tmp_path: Path) -> None:
    absent = ("run", "usb-camera", "--set=stages.camera.source=v4l2:///dev/video99")
    waited = edgert(*absent, "--duration=1", "--plain", cwd=tmp_path)
    assert waited.returncode == 0 and "no /dev/video99: no such device" in " ".join(waited.stderr.split())
    done = edgert(*absent, "--set=stages.camera.start=fail", cwd=tmp_path)
    assert done.returncode == 1
    assert "/dev/video99" in done.stderr
    assert "usb-camera.yaml:" in done.stderr


def test_a_control_loop_calls_the_demo(tmp_path: Path) -> None:
    program = [sys.executable, str(ROOT / "pipelines" / "control_loop.py"), "12"]
    done = subprocess.run(program, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("12 results, 0 dropped, ") and "turned 0.00" not in done.stdout
    assert len((tmp_path / "out" / "arm.jsonl").read_text().splitlines()) == 12


@pytest.mark.parametrize("name", JOBS)
def test_a_job_takes_fifteen_lines(name: str) -> None:
    lines = (ROOT / "pipelines" / f"{name}.yaml").read_text().splitlines()
    assert sum(bool(line.strip()) and not line.startswith("#") for line in lines) <= 15


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "cameras"), [("usb-camera", ["camera"]), ("four-cameras", ["north", "east", "south", "west"])]
)
def test_jobs_of_cameras_run_on_drawn_ones(name: str, cameras: list[str], tmp_path: Path) -> None:
    keys = {"source": "python:conveyor:Conveyor", "size": "640x480", "fps": "30", "limit": str(FRAMES)}
    options = [f"--set=stages.{camera}.{key}={value}" for camera in cameras for key, value in keys.items()]
    if name == "usb-camera":
        options.append("--set=stages.page.port=0")
    done = edgert("run", name, *options, cwd=tmp_path, env=CAMERA)
    assert done.returncode == 0, done.stderr
    files = sorted((tmp_path / "out").glob("*.jsonl"))
    assert len(files) == len(cameras)
    for path in files:
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        assert lines and 1 <= max(len(one["outputs"]["track"]["objects"]) for one in lines) < 20


def ran(name: str, folder: Path) -> list[dict[str, Any]]:
    done = edgert("run", name, cwd=folder, timeout_s=600)
    assert done.returncode == 0, done.stderr
    return [json.loads(line)["outputs"] for line in (folder / "out" / f"{name}.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_parts_are_counted_and_gears_reported(tmp_path: Path) -> None:
    frames = ran("counting", tmp_path)
    assert len(frames) == 300
    events = [event for outputs in frames for event in outputs.get("alarm", {"events": []})["events"]]
    begun = [event for event in events if event["phase"] == "begin"]
    places = {(event["place"], event["label"]) for event in events}
    assert begun and places == {("packing", "gear")}
    assert len({event["track"] for event in begun}) == len(begun)  # once each
    assert all(event["seconds"] >= 0.5 for event in begun)


@pytest.mark.slow
def test_a_second_model_looks_at_every_part(tmp_path: Path) -> None:
    frames = ran("cascade", tmp_path)
    assert len(frames) == 120
    agrees = list[bool]()
    for outputs in frames:
        parts, looks = outputs["track"]["objects"], outputs["look"]["items"]
        assert len(looks) == min(4, len(parts))
        for look in looks:
            found = {one["label"] for one in look["record"]["objects"]}
            agrees.append(parts[look["row"]]["label"] in found)
    assert sum(agrees) > len(agrees) / 2  # the same detector, of parts four times as large as it was trained on


@pytest.mark.slow
def test_parts_are_named_by_a_gallery(tmp_path: Path) -> None:
    frames = ran("embedding", tmp_path)
    assert len(frames) == 300
    pairs = [
        (look["record"]["name"], outputs["track"]["objects"][look["row"]]["label"])
        for outputs in frames
        for look in outputs["who"]["items"]
    ]
    assert len(pairs) > 3000
    assert sum(name == label for name, label in pairs) > 0.93 * len(pairs)


@pytest.mark.slow
def test_an_alarm_reaches_the_broker_with_a_picture(tmp_path: Path) -> None:
    with brokers.mosquitto(tmp_path) as broker:
        listener = brokers.MqttListener(broker.port)
        own = {"BROKER": f"127.0.0.1:{broker.port}", "XDG_STATE_HOME": str(tmp_path / "state")}
        done = edgert("run", "alarm", "--set=stages.belt.limit=120", cwd=tmp_path, env=own, timeout_s=600)
        assert done.returncode == 0, done.stderr
        wanted = (tmp_path / "out" / "alarm.jsonl").read_text().count('"rule":"gear"')
        wait_until(lambda: len(listener.of_kind("event")) >= wanted)
        listener.close()
    events = listener.of_kind("event")
    assert 0 < len(events) == wanted < 30 and {one["event"]["rule"] for one in events} == {"gear"}
    begun = next(one for one in events if one["event"]["phase"] == "begin")
    image = cv2.imdecode(np.frombuffer(base64.b64decode(begun["image"]["data"]), np.uint8), cv2.IMREAD_COLOR)
    assert image is not None and 20 < min(image.shape[:2]) < 300
    cv2.imwrite(str(tmp_path / "gear.jpg"), image)
