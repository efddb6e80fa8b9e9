"""A run that reports to systemd: with a real process and a socket like systemd's."""

import json
import signal
import socket
import subprocess
import sys
from pathlib import Path

from tests.helpers.command import environment, free_port
from tests.helpers.http_request import answer_of

TEXT = """
name: p
watchdog: 2s
stages:
  cam: {source: "synthetic:noise", size: 64x48, fps: 30, realtime: true}
  slow: {python: "own:Slow", from: cam}
  page: {sink: http, port: PORT, from: slow}
"""
CODE = """
import pathlib, time
class Slow:
    def open(self):
        while not pathlib.Path("opens").exists():
            time.sleep(0.01)
    def process(self, result):
        while pathlib.Path("hangs").exists():
            time.sleep(0.01)
        return result
    def close(self):
        pass
"""


def ask(port: int, path: str) -> tuple[int, str]:
    status, _, body = answer_of(f"http://127.0.0.1:{port}", path)
    return status, body.decode()


def test_it_is_ready_when_the_last_stage_is_open_and_lives_until_it_stops(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(CODE)
    port = free_port()
    (tmp_path / "p.yaml").write_text(TEXT.replace("PORT", str(port)))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(60)
        env = environment({"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "600000"})
        command = [sys.executable, "-m", "edgert", "run", "p.yaml", "--json", "s.json", "-q"]
        run = subprocess.Popen(command, cwd=tmp_path, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        try:
            assert systemd.recv(4096) == b"STATUS=starting"
            while b"slow: not open yet" not in (datagram := systemd.recv(4096)) or b"cam" in datagram:
                assert b"READY" not in datagram and b"EXTEND_TIMEOUT_USEC=60000000" in datagram
            (tmp_path / "opens").touch()
            while b"READY=1\nWATCHDOG=1" not in (datagram := systemd.recv(4096)):
                assert b"WATCHDOG" not in datagram
            for _ in range(3):
                datagram = systemd.recv(4096)
                assert (
                    datagram.startswith(b"STATUS=") and b" fps, p99 " in datagram and datagram.endswith(b"\nWATCHDOG=1")
                )
            assert (ask(port, "/healthz"), ask(port, "/readyz")) == ((200, "ok\n"), (200, "ok\n"))
            (tmp_path / "hangs").touch()
            while b"slow: in one call" not in (datagram := systemd.recv(4096)):
                assert datagram.endswith(b"\nWATCHDOG=1")
            assert b"WATCHDOG" not in datagram, "no sign of life while a stage is stuck"
            for path in ("/healthz", "/readyz"):
                status, body = ask(port, path)
                assert status == 503 and body.startswith("slow: in one call for ")
            (tmp_path / "hangs").unlink()
            while not (datagram := systemd.recv(4096)).endswith(b"\nWATCHDOG=1"):
                assert b"slow: in one call" in datagram
            run.send_signal(signal.SIGTERM)
            while not (datagram := systemd.recv(4096)).startswith(b"STOPPING=1"):
                assert datagram.startswith(b"STATUS=")
            run.wait(30)
        finally:
            run.kill()
            run.communicate()
    assert run.returncode == 0 and json.loads((tmp_path / "s.json").read_text())["frames_out"] > 0
