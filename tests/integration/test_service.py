"""A run that reports to systemd: with a real process and a socket like systemd's."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from pathlib import Path

from tests.helpers.command import environment

TEXT = """
name: p
stages:
  cam: {source: "synthetic:noise", size: 64x48, fps: 30, realtime: true}
  slow: {python: "own:Slow", from: cam}
  out: {sink: "null", from: slow}
"""
CODE = """
import pathlib, time
class Slow:
    def open(self):
        while not pathlib.Path("opens").exists():
            time.sleep(0.01)
    def process(self, result):
        return result
    def close(self):
        pass
"""


def test_it_is_ready_when_the_last_stage_is_open_and_lives_until_it_stops(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(CODE)
    (tmp_path / "p.yaml").write_text(TEXT)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(60)
        env = environment({"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "600000"})
        command = [sys.executable, "-m", "edgert", "run", "p.yaml", "--json", "s.json", "-q"]
        run = subprocess.Popen(command, cwd=tmp_path, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        try:
            assert systemd.recv(4096) == b"STATUS=starting"
            while b"slow: not open yet" not in (told := systemd.recv(4096)) or b"cam" in told:
                assert b"READY" not in told and b"EXTEND_TIMEOUT_USEC=60000000" in told
            (tmp_path / "opens").touch()
            while b"READY=1\nWATCHDOG=1" not in (told := systemd.recv(4096)):
                assert b"WATCHDOG" not in told
            for _ in range(3):
                told = systemd.recv(4096)
                assert told.startswith(b"STATUS=") and b" fps, p99 " in told and told.endswith(b"\nWATCHDOG=1")
            run.send_signal(signal.SIGTERM)
            while not (told := systemd.recv(4096)).startswith(b"STOPPING=1"):
                assert told.startswith(b"STATUS=")
            run.wait(30)
        finally:
            run.kill()
            run.communicate()
    assert run.returncode == 0 and json.loads((tmp_path / "s.json").read_text())["frames_out"] > 0
