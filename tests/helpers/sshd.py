"""A board on this machine: an ``sshd`` of our own on loopback, and an ``edgert`` behind it with folders of its own."""

from __future__ import annotations

import getpass
import os
import shutil
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests.helpers import brokers
from tests.helpers.board_program import Compiler
from tests.helpers.command import free_port, write_program

if TYPE_CHECKING:
    import pytest

SERVER = """\
Port {port}
ListenAddress 127.0.0.1
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/authorized_keys
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
LogLevel VERBOSE
"""
CLIENT = """\
Host board
  HostName 127.0.0.1
  Port {port}
  User {user}
  IdentityFile {folder}/user_key
  IdentitiesOnly yes
  UserKnownHostsFile {folder}/known_hosts
  GlobalKnownHostsFile none
  StrictHostKeyChecking ask
"""
SHIM = """\
#!/bin/sh
echo $$ >> {folder}/calls
exec {ssh} -F {folder}/ssh_config "$@"
"""


@dataclass
class Board:
    """A board that ssh reaches as ``board``."""

    folder: Path
    port: int
    _server: subprocess.Popen[bytes] | None = None

    @property
    def program(self) -> str:
        return str(self.folder / "edgert")

    @property
    def cache(self) -> Path:
        return self.folder / "cache"

    @property
    def compiled(self) -> int:
        path = self.folder / "compiled"
        return len(path.read_text().splitlines()) if path.exists() else 0

    def compiler(self, **wishes: object) -> None:
        Compiler(**wishes).save(self.folder)  # type: ignore[arg-type]

    def go(self) -> None:
        (self.folder / "go").touch()

    def up(self) -> None:
        command = [str(sshd()), "-D", "-e", "-f", str(self.folder / "sshd_config")]
        with (self.folder / "sshd.log").open("ab") as log:
            self._server = subprocess.Popen(command, stderr=log, start_new_session=True)
        brokers.wait_for(self.port)

    def down(self) -> None:
        """Ends its sshd; connections that there are go on, as sshd has it."""
        if self._server is not None:
            self._server.terminate()
            self._server.wait()
            self._server = None

    def new_host_key(self) -> None:
        key = self.folder / "host_key"
        key.unlink(missing_ok=True)
        keygen(key)

    def knows_host(self) -> None:
        words = (self.folder / "host_key.pub").read_text().split()[:2]
        (self.folder / "known_hosts").write_text(f"[127.0.0.1]:{self.port} {' '.join(words)}\n")

    def cut(self) -> int:
        """Kills every ssh that runs to it; returns how many there were."""
        killed = 0
        for pid in map(int, (self.folder / "calls").read_text().split()):
            try:
                name = Path(f"/proc/{pid}/comm").read_text().strip()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if name == "ssh":
                os.kill(pid, signal.SIGKILL)
                killed += 1
        return killed

    def log(self) -> str:
        return (self.folder / "sshd.log").read_text()


def sshd() -> Path:
    """The server; skips the test, saying so, where there is none."""
    found = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
    if found is None or shutil.which("ssh-keygen") is None:
        import pytest  # programs that only write these files have none

        pytest.skip("there is no sshd here: apt install openssh-server")
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # root's sshd wants it, and nobody makes it in a container
    return Path(found)


def keygen(path: Path) -> None:
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)


def board(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Board:
    """A board, up; its ``ssh`` comes first on the path. The caller takes it down."""
    sshd()
    folder.mkdir()
    made = Board(folder, free_port())
    for name in ("host_key", "user_key"):
        keygen(folder / name)
    shutil.copy(folder / "user_key.pub", folder / "authorized_keys")
    (folder / "calls").touch()
    environment = {"EDGERT_CACHE": str(made.cache), "HOME": str(folder), "NO_COLOR": "1", "OMP_NUM_THREADS": "1"}
    code = f"from tests.helpers.board_program import main\nmain(Path({str(folder)!r}))\n"
    write_program(folder / "edgert", code, environment)
    (folder / "sshd_config").write_text(SERVER.format(port=made.port, folder=folder))
    (folder / "ssh_config").write_text(CLIENT.format(port=made.port, folder=folder, user=getpass.getuser()))
    (folder / "bin").mkdir()
    (folder / "bin" / "ssh").write_text(SHIM.format(folder=folder, ssh=shutil.which("ssh")))
    (folder / "bin" / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder / "bin"), prepend=os.pathsep)
    made.knows_host()
    made.up()
    return made
