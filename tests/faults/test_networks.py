"""Networks that fail: a cable that is pulled, lost and late packets, in a network namespace of the camera's own."""

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

import edgert
from edgert.runtime.stage import SourceStats
from tests.helpers.gst_server import GstServer, gst_server, python
from tests.helpers.waiting import wait_until

NAME, HERE, THERE = "edgert-camera", "10.251.7.1", "10.251.7.2"
FPS, PATIENCE_S = 15, 40.0


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False)


def remove() -> None:
    run("ip", "link", "del", "edgert-here")
    run("ip", "netns", "del", NAME)


def is_possible() -> bool:
    """Whether this machine lets us have such a network, and serve in it."""
    if os.geteuid() or not shutil.which("ip") or not shutil.which("tc") or not python():
        return False
    made = run("ip", "netns", "add", NAME).returncode == 0
    remove()
    return made


pytestmark = [
    pytest.mark.box,
    pytest.mark.skipif(
        not is_possible(), reason="needs root, network namespaces, iproute2, and GStreamer's RTSP server"
    ),
]


@pytest.fixture
def camera() -> Iterator[GstServer]:
    remove()
    try:
        for command in (
            f"ip netns add {NAME}",
            f"ip link add edgert-here type veth peer name edgert-there netns {NAME}",
            f"ip addr add {HERE}/30 dev edgert-here",
            "ip link set edgert-here up",
            f"ip -n {NAME} addr add {THERE}/30 dev edgert-there",
            f"ip -n {NAME} link set edgert-there up",
            f"ip -n {NAME} link set lo up",
        ):
            done = run(*command.split())
            assert done.returncode == 0, done.stderr
        with gst_server(THERE, ("ip", "netns", "exec", NAME)) as server:
            server.show("h264", (320, 240), FPS)
            yield server
    finally:
        remove()


def plug(way: str) -> None:
    assert run("ip", "link", "set", "edgert-here", way).returncode == 0


def shape(*rule: str) -> None:
    done = run("ip", "netns", "exec", NAME, "tc", "qdisc", "replace", "dev", "edgert-there", "root", "netem", *rule)
    if done.returncode:
        pytest.skip(f"this kernel has no netem: {done.stderr.strip()}")


def pipeline(folder: Path, server: GstServer, transport: str) -> edgert.Pipeline:
    (folder / "p.yaml").write_text(
        f"stages:\n  cam: {{source: '{server.url}', timeout: 2s, transport: {transport}}}\n"
        f"  video: {{sink: video, from: cam, path: '{folder}/film.mkv'}}\n"
    )
    return edgert.Pipeline(folder / "p.yaml")


def state(running: edgert.Pipeline) -> SourceStats:
    found = running.summary().stages["cam"].source
    assert found is not None
    return found


def frames(running: edgert.Pipeline) -> int:
    return running.summary().stages["cam"].results_out


wait = partial(wait_until, timeout_s=PATIENCE_S)


@pytest.mark.timing
@pytest.mark.parametrize("transport", ["tcp", "udp"])
def test_a_cable_that_is_pulled_and_plugged_in(camera: GstServer, transport: str, tmp_path: Path) -> None:
    with pipeline(tmp_path, camera, transport) as running:
        running.start()
        for away_s in (0.5, 4, 12):
            wait(lambda: state(running).up)
            before = frames(running)
            wait(lambda before=before: frames(running) >= before + FPS)
            plug("down")
            time.sleep(away_s)
            if away_s > 3:
                assert state(running).up is False and state(running).reason, "silent for longer than its time-out"
            plug("up")
            before = frames(running)
            assert wait(lambda before=before: frames(running) > before + 5 and state(running).up) < 15
        assert state(running).reason == ""


@pytest.mark.timing
@pytest.mark.parametrize("transport", ["tcp", "udp"])
def test_a_loose_contact(camera: GstServer, transport: str, tmp_path: Path) -> None:
    """Away for a tenth of a second, again and again; a second later its address is asked for, and found, anew."""
    with pipeline(tmp_path, camera, transport) as running:
        running.start()
        wait(lambda: frames(running) >= FPS)
        before, began_s = frames(running), time.monotonic()
        for _ in range(5):
            plug("down")
            time.sleep(0.1)
            plug("up")
            time.sleep(2.9)
        got, took_s = frames(running) - before, time.monotonic() - began_s
        print(f"{transport}: {got / (took_s * FPS):.2f} of the frames; {state(running)}")
        assert got >= took_s * FPS / 2
        wait(lambda: state(running).up)
        before = frames(running)
        wait(lambda: frames(running) >= before + FPS)


def test_a_camera_that_cannot_be_reached_at_the_start_joins(camera: GstServer, tmp_path: Path) -> None:
    plug("down")
    with pipeline(tmp_path, camera, "tcp") as running:
        running.start()
        wait(lambda: state(running).reason)
        assert state(running).up is False
        plug("up")
        wait(lambda: state(running).up)


@pytest.mark.parametrize("transport", ["tcp", "udp"])
@pytest.mark.parametrize(
    "rule", ["loss 2%", "loss 20%", "delay 80ms 60ms", "duplicate 20%", "corrupt 5%", "delay 50ms reorder 75% 50%"]
)
def test_a_bad_network(camera: GstServer, transport: str, rule: str, tmp_path: Path) -> None:
    """Frames go on as far as they come; and it is as before when the network is."""
    with pipeline(tmp_path, camera, transport) as running:
        running.start()
        wait(lambda: frames(running) >= FPS)
        shape(*rule.split())
        before = frames(running)
        time.sleep(6)
        got = frames(running) - before
        shape("delay", "0ms")
        wait(lambda: state(running).up)
        before, began_s = frames(running), time.monotonic()
        wait(lambda before=before: frames(running) >= before + 2 * FPS)
        took_s = time.monotonic() - began_s
        print(f"{transport} {rule}: {got / (6 * FPS):.2f} of the frames; {state(running)}; then in {took_s:.1f} s")
        assert got > 0
