"""Many videos on the workers of a Dask cluster: all results once, whatever dies, and clear words for what is wrong."""

import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import edgert
from edgert import cluster as door
from edgert._version import __version__
from edgert.cluster import Cluster
from edgert.config import load_pipeline
from edgert.errors import ConfigError, DeviceError
from edgert.graph import to_bytes
from edgert.video_player import HiddenOutputs
from edgert.videos import videos_of
from tests.helpers import models
from tests.helpers.clips import write_clip
from tests.helpers.command import edgert as command, environment, in_process
from tests.helpers.dask_cluster import DaskCluster, dask_cluster, hides
from tests.helpers.waiting import wait_until

TEXT = """
models: {net: {onnx: net.onnx, task: {embed: none}}}
stages:
  cam: {source: "videos:vids/*.mp4"}
  find: {infer: net, from: cam}
  lines: {sink: jsonl, from: find, path: "FOLDER/out/{file}.jsonl"}
"""
FRAMES, ROUNDS = 8, 5


def write(folder: Path, videos: int, frames: int = FRAMES) -> Path:
    (folder / "vids").mkdir()
    first = write_clip(folder / "vids" / "clip0.mp4", frames)
    for number in range(1, videos):
        (folder / "vids" / f"clip{number}.mp4").write_bytes(first.read_bytes())
    (folder / "net.onnx").write_bytes(to_bytes(models.means((1, 3, 8, 8))))
    (folder / "p.yaml").write_text(TEXT.replace("FOLDER", str(folder)))
    return folder / "p.yaml"


def lines_of(folder: Path) -> dict[str, int]:
    return {path.stem: len(path.read_text().splitlines()) for path in (folder / "out").glob("*.jsonl")}


def left_over(folder: Path) -> list[str]:
    return [path.name for path in (folder / "out").iterdir() if path.name.endswith((".part", ".lock"))]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaskCluster]:
    with dask_cluster(tmp_path_factory.mktemp("cluster")) as made:
        yield made


def test_workers_play_each_video_once_and_a_second_run_plays_none(tmp_path: Path, cluster: DaskCluster) -> None:
    file = write(tmp_path, 6)
    ran = command("run", str(file), "--dask", cluster.address, "--json", "r.json", cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert "6 of 6 videos are done" in ran.stdout and f"ok, {FRAMES} frames in" in ran.stderr
    assert lines_of(tmp_path) == {f"clip{number}": FRAMES for number in range(6)} and not left_over(tmp_path)
    found = json.loads((tmp_path / "r.json").read_text())["videos"]
    assert {one["state"] for one in found} == {"ok"} and {one["worker"] for one in found} <= set(cluster.names())
    again = edgert.run_videos(file, dask=cluster.address)
    assert [one.state for one in again] == ["before"] * 6


def test_a_damaged_video_is_one_result(tmp_path: Path, cluster: DaskCluster) -> None:
    file = write(tmp_path, 3)
    (tmp_path / "vids" / "clip1.mp4").write_bytes(b"no video")
    results = edgert.run_videos(file, dask=cluster.address)
    assert [one.state for one in results] == ["ok", "damaged", "ok"]
    assert "not a video" in results[1].why and set(lines_of(tmp_path)) == {"clip0", "clip2"}


@pytest.mark.slow
def test_ctrl_c_ends_what_the_workers_play_and_the_next_run_goes_on(tmp_path: Path, cluster: DaskCluster) -> None:
    file = write(tmp_path, 6, 90)
    slow = ["--set", "stages.cam.realtime=true"]
    process = subprocess.Popen(
        [sys.executable, "-m", "edgert", "run", str(file), "--dask", cluster.address, *slow],
        cwd=tmp_path, env=environment(), stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stderr is not None
    while "2 of 6" not in (line := process.stderr.readline()):
        assert line, "it ended before"
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130 and time.monotonic() - began < 8
    assert len(done := lines_of(tmp_path)) < 6 and not left_over(tmp_path)
    again = command("run", str(file), "--dask", cluster.address, *slow, cwd=tmp_path)
    assert again.returncode == 0 and f"{len(done)} of 6 videos were done before" in again.stderr
    assert lines_of(tmp_path) == {f"clip{number}": 90 for number in range(6)}


@pytest.mark.slow
@pytest.mark.timing
def test_a_second_worker_on_a_core_of_its_own_takes_most_of_its_half(tmp_path: Path) -> None:
    cores = sorted(os.sched_getaffinity(0))[:2]
    if len(cores) < 2 or shutil.which("taskset") is None:
        pytest.skip("needs two cores and taskset")
    file, took_s = write(tmp_path, 16, 1500), dict[int, list[float]]()
    for count in (1, 2):
        (tmp_path / str(count)).mkdir()
    with dask_cluster(tmp_path / "1", 0) as one, dask_cluster(tmp_path / "2", 0) as two:
        for own, count in ((one, 1), (two, 2)):
            for core in cores[:count]:
                own.worker("taskset", "-c", str(core))
        for _ in range(ROUNDS + 1):  # the first is for imports
            for own, count in ((one, 1), (two, 2)):
                shutil.rmtree(tmp_path / "out", ignore_errors=True)
                began = time.monotonic()
                edgert.run_videos(file, dask=own.address)
                took_s.setdefault(count, []).append(time.monotonic() - began)
    ratios = sorted(single / double for single, double in zip(took_s[1][1:], took_s[2][1:], strict=True))
    load = os.getloadavg()[0]
    words = f"16 videos, {ROUNDS} rounds in turns: {', '.join(f'{one:.2f}' for one in ratios)} x; load {load:.1f}"
    print(words)
    assert statistics.median(ratios) >= 1.6, words


@pytest.mark.slow
def test_forty_videos_and_a_worker_that_is_killed_in_the_middle(tmp_path: Path) -> None:
    file, results = write(tmp_path, 40, 40), list[edgert.VideoResult]()
    with dask_cluster(tmp_path) as own:

        def killed(result: edgert.VideoResult, done: int, total: int) -> None:
            results.append(result)
            if done == 12:  # it has begun another one
                wait_until(lambda: left_over(tmp_path))
                own.workers[0].send_signal(signal.SIGKILL)

        edgert.run_videos(file, dask=own.address, on_result=killed)
        assert own.workers[0].wait() == -signal.SIGKILL
    assert sorted(one.path.name for one in results) == sorted(f"clip{number}.mp4" for number in range(40))
    assert {one.state for one in results} == {"ok"}
    assert lines_of(tmp_path) == {f"clip{number}": 40 for number in range(40)} and not left_over(tmp_path)


@pytest.mark.slow
def test_a_video_that_kills_its_workers_is_one_result(tmp_path: Path) -> None:
    file = write(tmp_path, 3)
    text = file.read_text().replace("lines:", "deadly: {python: 'deadly:Deadly', from: find}\n  lines:")
    file.write_text(text.replace("from: find, path", "from: deadly, path"))
    (tmp_path / "deadly.py").write_text(
        "import os, signal\n\n\nclass Deadly:\n    def __call__(self, result):\n"
        "        if result.frame.extra.file == 'clip1.mp4':\n            os.kill(os.getpid(), signal.SIGKILL)\n"
        "        return result\n"
    )
    with dask_cluster(tmp_path, 0) as own:
        own.worker()
        ended = threading.Event()

        def keep_one() -> None:
            while not ended.wait(0.1):
                if own.workers[-1].poll() is not None:
                    own.worker(waits=False)

        keeper = threading.Thread(target=keep_one)
        keeper.start()
        try:
            results = edgert.run_videos(file, dask=own.address)
        finally:
            ended.set()
            keeper.join()
    assert [one.state for one in results] == ["ok", "damaged", "ok"]
    assert "killed every Dask worker" in results[1].why


# What is wrong.


@pytest.mark.parametrize(
    "address",
    ["nonsense", "http://127.0.0.1:1", "tcp://127.0.0.1:9", "tls://127.0.0.1:9", "tcp://no.such.host.invalid:8786"],
)
def test_an_address_that_is_none(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("distributed", reason="needs the extra: pip install -e '.[dask]'")
    monkeypatch.setattr(door, "_CONNECT_S", 0.3)
    ran = in_process("run", str(write(tmp_path, 1)), "--dask", address, cwd=tmp_path)
    assert ran.returncode == 1 and f"no Dask scheduler answers at '{address}'" in ran.stderr
    assert "like tcp://HOST:8786" in ran.stderr and not lines_of(tmp_path)


def test_a_cluster_that_is_gone_is_one_error_wherever_it_is_asked() -> None:
    distributed = pytest.importorskip("distributed", reason="needs the extra: pip install -e '.[dask]'")

    def fail(*_: Any, **__: Any) -> None:
        raise OSError("closed")

    cluster: Any = object.__new__(Cluster)
    cluster.address, cluster._placed, cluster._package = "tcp://x:1", {}, distributed
    cluster._client = SimpleNamespace(nthreads=fail, run=fail)
    for ask in (lambda: cluster.threads, cluster.jobs, lambda: cluster.submit(bool)):
        with pytest.raises(DeviceError, match="at tcp://x:1 is gone"):
            ask()


def test_a_missing_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(DeviceError, match="--dask needs an extra") as caught:
        edgert.run_videos(write(tmp_path, 1), dask="tcp://127.0.0.1:9")
    assert "[dask]" in caught.value.fix or "distributed" in caught.value.fix


def test_a_cluster_without_workers_and_workers_of_other_kinds(tmp_path: Path) -> None:
    file = write(tmp_path, 2)
    with dask_cluster(tmp_path, 0) as own:
        with pytest.raises(DeviceError, match="has no workers") as caught:
            edgert.run_videos(file, dask=own.address)
        assert caught.value.fix == f"start some: dask worker {own.address}"
        own.worker(before="import edgert._version\nedgert._version.__version__ = '0.0.1'")
        (old,) = own.names()
        with pytest.raises(DeviceError, match=f"{old} has edgert 0.0.1") as caught:
            edgert.run_videos(file, dask=own.address)
        assert f"install edgert {__version__} there" in caught.value.fix
        own.workers.pop().kill()
        wait_until(lambda: not own.names())
        own.worker(before="import sys\nsys.modules['edgert'] = None")
        (bare,) = own.names()
        with pytest.raises(DeviceError, match=f"{bare} has no edgert"):
            edgert.run_videos(file, dask=own.address)
    assert not (tmp_path / "out").exists() or not lines_of(tmp_path)


@pytest.mark.parametrize(
    ("name", "words"),
    [("clip0.mp4", "cannot read"), ("net.onnx", "cannot read"), (".videos.lock", "cannot write into")],
)
def test_a_file_that_a_worker_does_not_see_is_named(tmp_path: Path, name: str, words: str) -> None:
    file = write(tmp_path, 1)
    with dask_cluster(tmp_path, 0) as own:
        own.worker(before=hides(name))
        (worker,) = own.names()
        with pytest.raises(DeviceError, match=f"{worker} {words}") as caught:
            edgert.run_videos(file, dask=own.address)
    assert "by the same path" in caught.value.fix and not lines_of(tmp_path)


def test_what_workers_cannot_do_is_refused_before_they_are_asked(tmp_path: Path) -> None:
    file, address = write(tmp_path, 1), "tcp://127.0.0.1:9"
    with pytest.raises(ConfigError, match="callbacks cannot see"):
        edgert.run_videos(file, dask=address, callbacks={"find": lambda _: None})
    for keys, words in (
        (["stages.lines.existing=keep"], "adds to existing"),
        (["stages.lines.path=/dev/null"], "null"),
    ):
        with pytest.raises(ConfigError, match=words):
            edgert.run_videos(file, overrides=keys, dask=address)
    for arguments, words in (
        (["--jobs", "2"], "--nthreads"),
        (["--duration", "2"], "limit:"),
        (["--set", "stages.cam.source=vids/clip0.mp4"], "videos: source"),
        (["--allow-power-control"], "this machine"),
        (["--as", "orin-nx-16gb"], "emulates"),
    ):
        ran = in_process("run", str(file), "--dask", address, *arguments, cwd=tmp_path)
        assert ran.returncode == 2 and words in " ".join(ran.stderr.split())


def test_results_get_their_names_when_all_of_them_are_there(tmp_path: Path) -> None:
    file = write(tmp_path, 1)
    (video,) = videos_of(load_pipeline(file))
    torn = tmp_path / "out" / ".clip0.0badcafe.part"
    torn.mkdir(parents=True)
    with HiddenOutputs(video) as outputs:
        assert not torn.exists()
        path = outputs.video.file.config.stages["lines"].path
        path.parent.mkdir()
        path.write_text("{}\n")
        assert not lines_of(tmp_path)
        outputs.finish()
    assert lines_of(tmp_path) == {"clip0": 1} and not left_over(tmp_path)
