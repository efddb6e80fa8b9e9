"""No more threads, or no more memory, while a pipeline runs: what works goes on, and all does afterwards."""

import http.client
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.clips import h264_units
from tests.helpers.command import environment, free_port
from tests.helpers.rtsp_server import RtspProgram, save
from tests.helpers.waiting import wait_until

PIDS = Path("/sys/fs/cgroup/pids")
PATIENCE_S = 60.0
PIPELINE = """
stages:
  one: {{source: '{one}', timeout: 2s}}
  two: {{source: '{two}', timeout: 2s}}
  video: {{sink: video, from: [one, two], path: "out/{{stream}}-{{time}}.mp4", rotate: {{every: 2s}}}}
  events: {{sink: jsonl, from: [one, two], path: out/events.jsonl}}
  page: {{sink: http, from: one, port: {port}}}
"""


class Running:
    def __init__(self, folder: Path, ready: Callable[[], None]) -> None:
        file = save(h264_units(30, size=(256, 64)), folder / "units")
        self.cameras = [RtspProgram(file, 15), RtspProgram(file, 15)]
        self.port = free_port()
        one, two = (camera.url for camera in self.cameras)
        (folder / "p.yaml").write_text(PIPELINE.format(one=one, two=two, port=self.port))
        for camera in self.cameras:
            camera.start()
        command = [sys.executable, "-m", "edgert", "run", "p.yaml", "--plain", "--json", "summary.json"]
        self._log, self._folder = folder / "log", folder
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                command, cwd=folder, env=environment(), stdout=log, stderr=log, preexec_fn=ready
            )

    @property
    def log(self) -> str:
        return self._log.read_text()

    def ask(self, path: str) -> str:
        with suppress(OSError, http.client.HTTPException):
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
            connection.request("GET", path)
            answer = connection.getresponse().read().decode(errors="replace")  # an image, too
            connection.close()
            return answer
        return ""

    def lines(self, stream: str) -> int:
        with suppress(FileNotFoundError):
            return (self._folder / "out" / "events.jsonl").read_text().count(f'"stream":"{stream}"')
        return 0

    def wait(self, until: Callable[[], object]) -> None:
        wait_until(lambda: self.process.poll() is not None or until(), PATIENCE_S)
        assert self.process.poll() is None, self.log

    def more(self) -> None:
        before = [self.lines(stream) for stream in ("one", "two")]
        self.wait(
            lambda: all(self.lines(name) >= count + 15 for name, count in zip(("one", "two"), before, strict=True))
        )

    def films(self) -> int:
        return len(list((self._folder / "out").glob("*.mp4")))

    def end(self) -> dict[str, Any]:
        self.process.send_signal(signal.SIGINT)
        self.process.wait(20)
        assert "Traceback" not in self.log, self.log
        return json.loads((self._folder / "summary.json").read_text())


@contextmanager
def running(folder: Path, ready: Callable[[], None] = lambda: None) -> Iterator[Running]:
    made = Running(folder, ready)
    try:
        made.wait(lambda: made.lines("one") and made.lines("two"))
        yield made
    finally:
        made.process.kill()
        made.process.wait()
        for camera in made.cameras:
            camera.kill()


@pytest.fixture
def group() -> Iterator[Path]:
    """A control group whose threads can be limited."""
    folder = PIDS / f"edgert-{os.getpid()}"
    try:
        folder.mkdir()
    except OSError:
        pytest.skip("needs root, and the pids controller of control groups, version 1")
    yield folder
    with suppress(OSError):
        folder.rmdir()


@pytest.mark.box
def test_no_more_threads(group: Path, tmp_path: Path) -> None:
    """Cameras come back, recordings begin again, and the page answers, as soon as there are threads again."""

    def ready() -> None:
        (group / "cgroup.procs").write_text(str(os.getpid()))

    with running(tmp_path, ready) as run:
        run.more()
        (group / "pids.max").write_text(str(int((group / "pids.current").read_text()) - 3))  # none for one that ends
        run.cameras[0].kill()
        refused = [run.ask("/metrics") for _ in range(4)].count("")
        run.cameras[0].start()
        time.sleep(6)
        run.more()
        print(f"{refused} of 4 requests were refused")
        (group / "pids.max").write_text("max")
        run.wait(lambda: "edgert_source_up" in run.ask("/metrics"))
        run.more()
        films = run.films()
        run.wait(lambda: run.films() >= films + 4)
        summary = run.end()
    print(run.log)
    assert not any(stage["failing"] for stage in summary["stages"].values())


@pytest.mark.slow
def test_no_more_memory(tmp_path: Path) -> None:
    """Nothing more can be mapped; it goes on, or ends with an error of a few lines, and every file is whole."""
    with running(tmp_path) as run:
        run.more()
        used = int((Path("/proc") / str(run.process.pid) / "statm").read_text().split()[0]) * 4096
        resource.prlimit(run.process.pid, resource.RLIMIT_AS, (used + (1 << 20), resource.RLIM_INFINITY))
        run.cameras[0].kill()
        for _ in range(8):
            run.ask("/snapshot.jpg")
        run.cameras[0].start()
        time.sleep(6)
        if run.process.poll() is None:
            resource.prlimit(run.process.pid, resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            run.more()
            run.end()
        assert "Traceback" not in run.log, run.log
    assert run.process.returncode in (0, 1), run.log
    text = (tmp_path / "out" / "events.jsonl").read_text()
    assert all(json.loads(line) for line in text.splitlines()) and text.endswith("\n")
