"""The time of day jumps by years while a pipeline runs, as where a board without a battery reaches a time server."""

import json
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import av
import cv2
import pytest

from tests.helpers.command import environment
from tests.helpers.waiting import wait_until

LIBRARY = next(iter(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1")), None)
JUMPS = ("+1y", "-2y", "+0")
PIPELINE = """
stages:
  cam: {source: "synthetic:counter", size: 256x64, fps: 20, realtime: true}
  paint: {draw: [stats], from: cam}
  video: {sink: video, from: paint, path: "out/{date}-{time}.mp4", rotate: {every: 2s}, keep: {age: 1h}}
  newest: {sink: video, from: paint, path: out/newest.mkv, rotate: {every: 2s}, keep: {age: 1h}}
  events: {sink: jsonl, from: cam, path: out/events.jsonl, rotate: {every: 2s}, keep: {age: 1h}}
  stills: {sink: images, from: paint, path: "out/{date}/{time}-{frame:06d}.png", keep: {age: 1h}}
  page: {sink: http, from: paint, port: 0}
"""


@pytest.mark.timing
@pytest.mark.slow
@pytest.mark.skipif(LIBRARY is None, reason="no libfaketime: sudo apt-get install faketime")
@pytest.mark.parametrize("files", ["their dates jump, too", "their dates stay"])
def test_nothing_is_lost_or_late_when_the_time_of_day_jumps(tmp_path: Path, files: str) -> None:
    """A year forward, two back, and home again: no file counts as old, and times of frames take no notice."""
    (tmp_path / "p.yaml").write_text(PIPELINE)
    (tmp_path / "now").write_text("+0\n")
    fake = {
        "LD_PRELOAD": str(LIBRARY),
        "FAKETIME_TIMESTAMP_FILE": str(tmp_path / "now"),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        **({"NO_FAKE_STAT": "1"} if "stay" in files else {}),
    }
    command = [sys.executable, "-m", "edgert", "run", "p.yaml", "--plain", "--json", "summary.json"]
    process = subprocess.Popen(
        [*command, "--duration", "14"], cwd=tmp_path, env=environment(fake), stderr=subprocess.PIPE, text=True
    )
    events = tmp_path / "out" / "events.jsonl"
    wait_until(lambda: events.exists() or process.poll() is not None)
    for jump in JUMPS:
        time.sleep(3)
        (tmp_path / "now").write_text(f"{jump}\n")
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert "Traceback" not in errors

    summary = json.loads((tmp_path / "summary.json").read_text())
    stages = summary["stages"]
    assert 13 <= summary["seconds"] <= 20 and 0 <= summary["latency_ms"]["p99"] < 5000
    lines = [json.loads(line) for path in (tmp_path / "out").glob("events*") for line in path.read_text().splitlines()]
    lines.sort(key=lambda line: line["frame"])
    assert len(lines) == stages["events"]["results_in"]
    assert all(0 < later["media_s"] - one["media_s"] < 5 for one, later in pairwise(lines))
    assert frames(tmp_path / "out", "*.mp4") == stages["video"]["results_in"]
    assert frames(tmp_path / "out", "*.mkv") == stages["newest"]["results_in"]
    stills = list((tmp_path / "out").glob("*/*.png"))
    assert len(stills) == stages["stills"]["results_in"] and all(cv2.imread(str(path)) is not None for path in stills)
    years = {path.parent.name[:4] for path in stills}
    assert len(years) == 3, "the time of day did not jump"


def frames(folder: Path, pattern: str) -> int:
    total = 0
    for path in folder.glob(pattern):
        with av.open(str(path)) as file:
            total += sum(1 for _ in file.decode(video=0))
    return total
