"""Boards of a fleet on this machine: each an SSH server of asyncssh on loopback, with folders of its own.

Commands run as the user of the tests. ``edgert`` and the pipelines that it runs are real. ``systemctl`` is a script
that starts and ends one process.
"""

from __future__ import annotations

import asyncio
import getpass
import os
import shlex
import signal
import subprocess
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

from tests.helpers.command import free_port, write_program

_EDGERT = """\
from edgert.bundle import signature
signature.SIGNERS = Path({etc!r}, "allowed_signers")
from edgert.__main__ import main
main()
"""
_SYSTEMCTL = """\
#!/bin/sh
# What a rollout asks of systemd, for one unit whose process is in {folder}/pid.
cd {folder} || exit 1
echo "$*" >> calls
is_alive() {{ test -s pid && kill -0 "$(cat pid)" 2>/dev/null; }}
stop() {{
    is_alive || return 0
    kill "$(cat pid)"
    while is_alive; do sleep 0.05; done
}}
for word; do case "$word" in -*) ;; *) break ;; esac; shift; done
case "$1" in
    show)
        case "$*" in *--property=NRestarts*) is_alive && cat restarts || echo 1; exit 0 ;; esac
        is_alive && state=active || state=inactive
        printf 'LoadState=loaded\\nActiveState=%s\\nUnitFileState=disabled\\n' "$state" ;;
    is-enabled) test -e enabled && echo enabled || {{ echo disabled; exit 1; }} ;;
    is-active) is_alive && echo active || {{ echo inactive; exit 3; }} ;;
    enable) touch enabled ;;
    disable) rm -f enabled ;;
    stop) stop ;;
    reset-failed) echo 0 > restarts ;;
    start|restart)
        test "$1" = start && is_alive && exit 0
        stop
        if test -e etc/dock.env; then . ./etc/dock.env; export CAM; fi
        line=$(sed -n 's/^ExecStart=//p' units/*.d/bundle.conf | tail -n 1)
        setsid timeout 1800 $line >> log 2>&1 < /dev/null & # none outlives the tests for long
        echo $! > pid
        echo 0 > restarts ;;
esac
exit 0
"""


@dataclass
class FleetBoard:
    """One board; ``kind`` is the value of ``EDGERT_BOARD``, and empty for this machine."""

    name: str
    folder: Path
    kind: str = ""
    port: int = field(default_factory=free_port)
    page_port: int = field(default_factory=free_port)

    def set_up(self) -> None:
        for name in ("bin", "srv", "etc", "units", "cache", "state"):
            (self.folder / name).mkdir(parents=True)
        environment = {
            "EDGERT_CACHE": str(self.folder / "cache"),
            "EDGERT_PORT": str(self.page_port),
            "HOME": str(self.folder),
            "NO_COLOR": "1",
            "OMP_NUM_THREADS": "1",
            "XDG_RUNTIME_DIR": str(self.folder / "state"),
            **({"EDGERT_BOARD": self.kind} if self.kind else {}),
        }
        write_program(self.folder / "bin/edgert", _EDGERT.format(etc=str(self.folder / "etc")), environment)
        systemctl = self.folder / "bin/systemctl"
        systemctl.write_text(_SYSTEMCTL.format(folder=shlex.quote(str(self.folder))))
        systemctl.chmod(0o755)

    @property
    def environment(self) -> dict[str, str]:
        path = f"{self.folder / 'bin'}:{os.environ['PATH']}"
        return {"PATH": path, "HOME": str(self.folder), "LC_ALL": "C.UTF-8", "USER": "tester"}

    @property
    def variables(self) -> dict[str, Any]:
        return {
            "ansible_host": "127.0.0.1",
            "ansible_port": self.port,
            "edgert_program": str(self.folder / "bin" / "edgert"),
            "edgert_home": str(self.folder / "srv"),
            "edgert_etc": str(self.folder / "etc"),
            "edgert_cache": str(self.folder / "cache"),
            "edgert_units": str(self.folder / "units"),
            "edgert_user": getpass.getuser(),
        }

    @property
    def link(self) -> Path:
        return self.folder / "srv" / "dock" / "current"

    @property
    def release(self) -> str:
        """Digest of the release that it would start; empty for none."""
        return self.link.readlink().name if self.link.is_symlink() else ""

    @property
    def calls(self) -> list[str]:
        """What ``systemctl`` was asked, of that what starts and stops."""
        path = self.folder / "calls"
        lines = path.read_text().splitlines() if path.exists() else []
        return [line for line in lines if not {"show", "is-enabled", "reset-failed"} & set(line.split())]

    def readiness(self) -> tuple[int, str]:
        """Status and text of its ``/readyz``; 0 where nothing answers."""
        try:
            with urlopen(f"http://127.0.0.1:{self.page_port}/readyz", timeout=5) as answer:
                return answer.status, answer.read().decode()
        except HTTPError as error:
            return error.code, error.read().decode()
        except OSError:
            return 0, ""

    def begin_with(self, bundle: Path, digest: str) -> None:
        """Run a release, as an earlier rollout would have left it."""
        release = self.link.parent / "releases" / digest
        release.mkdir(parents=True)
        (release / "dock.edgert").write_bytes(bundle.read_bytes())
        for link in (self.link, self.link.with_name("ready")):
            link.symlink_to(f"releases/{digest}")
        drop_in = self.folder / "units" / "edgert@dock.service.d" / "bundle.conf"
        drop_in.parent.mkdir()
        line = f"{self.folder / 'bin' / 'edgert'} run {self.link}/dock.edgert --json summary.json"
        drop_in.write_text(f"[Service]\nExecStart=\nExecStart={line}\n")
        subprocess.run([self.folder / "bin" / "systemctl", "start", "edgert@dock.service"], check=True)
        (self.folder / "enabled").touch()

    def end(self) -> None:
        subprocess.run([self.folder / "bin" / "systemctl", "stop"], check=False)


class SshServers:
    """The SSH servers of boards, in one thread; a context."""

    def __init__(self, boards: list[FleetBoard], key: Path) -> None:
        self._boards, self._key = boards, key
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> SshServers:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(30)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(30)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    async def _listen(self) -> None:
        import asyncssh

        host_key = asyncssh.generate_private_key("ssh-ed25519")
        self._servers = [
            await asyncssh.listen(
                "127.0.0.1",
                board.port,
                server_host_keys=[host_key],
                authorized_client_keys=str(self._key),
                process_factory=lambda process, board=board: self._run(process, board),
                sftp_factory=True,
                encoding=None,
            )
            for board in self._boards
        ]

    async def _close(self) -> None:
        for server in self._servers:
            server.close()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await task

    @staticmethod
    async def _run(process: Any, board: FleetBoard) -> None:
        child = await asyncio.create_subprocess_exec(
            "/bin/sh",
            "-c",
            process.command or "/bin/sh",
            cwd=board.folder,
            env=board.environment,
            start_new_session=True,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        feeding = asyncio.ensure_future(_copy(process.stdin, child.stdin))
        try:
            await asyncio.gather(_copy(child.stdout, process.stdout), _copy(child.stderr, process.stderr))
            process.exit(await child.wait())
        finally:
            feeding.cancel()
            if child.returncode is None:
                os.killpg(child.pid, signal.SIGKILL)


async def _copy(source: Any, target: Any) -> None:
    """Pass bytes on until the source ends or the target is gone."""
    with suppress(BrokenPipeError, ConnectionError, asyncio.IncompleteReadError):
        while data := await source.read(1 << 16):
            target.write(data)
            await target.drain()
    if isinstance(target, asyncio.StreamWriter):
        target.close()


def wait_until_ready(boards: list[FleetBoard]) -> None:
    for board in boards:
        until_s = time.monotonic() + 60
        while (state := board.readiness())[0] != 200:
            assert time.monotonic() < until_s, f"{board.name}: {state}"
            time.sleep(0.1)
