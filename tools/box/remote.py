"""A box that is reached over ssh, as a board is: ``edgert build --remote`` of this machine compiles in it."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

from edgert.errors import DeviceError
from tests.helpers.sshd import CLIENT, SERVER, SHIM, free_port, keygen
from tools.box.box import VENV, Box, Done, Step, outcome
from tools.box.identity import BARE
from tools.box.system import ROOT

_PLACE = "/etc/box"
_WAIT_S = 60.0


def do(box: Box, step: Step) -> Done:
    """Run one step on this machine while the box's sshd runs; ``$BOX`` is the folder of the box."""
    here, there, port = box.folder / "ssh", box.upper / _PLACE.strip("/"), free_port()
    shutil.rmtree(here, ignore_errors=True)
    shutil.rmtree(there, ignore_errors=True)
    for folder in (here / "bin", there):
        folder.mkdir(parents=True)
    keygen(here / "user_key")
    keygen(there / "host_key")
    shutil.copy(here / "user_key.pub", there / "authorized_keys")
    variables = f"SetEnv QEMU_LD_PREFIX={BARE} PATH={VENV}/bin:/usr/sbin:/usr/bin:/sbin:/bin\n"
    (there / "sshd_config").write_text(SERVER.format(port=port, folder=_PLACE) + variables)
    (here / "ssh_config").write_text(CLIENT.format(port=port, folder=here, user="root"))
    (here / "known_hosts").write_text(f"[127.0.0.1]:{port} {(there / 'host_key.pub').read_text()}")
    (here / "bin/ssh").write_text(SHIM.format(folder=here, ssh=shutil.which("ssh")))
    (here / "bin/ssh").chmod(0o755)
    environment = {**os.environ, "PATH": f"{here / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"}
    environment |= {"NO_COLOR": "1", "COLUMNS": "120", "BOX": str(box.folder)}
    server = f"mkdir -p /run/sshd && exec /usr/sbin/sshd -D -e -f {_PLACE}/sshd_config"
    with box.alone(), (here / "sshd.log").open("wb") as log:
        sshd = subprocess.Popen(box.command(["sh", "-c", server]), stdout=log, stderr=log)
        try:
            _await(port, sshd, here / "sshd.log")
            done = outcome(step, ["sh", "-c", step.command], cwd=ROOT, env=environment)
            return replace(done, printed=done.printed.replace(str(box.folder), "$BOX"))
        finally:
            sshd.kill()  # what runs in its namespace ends with it
            sshd.wait()


def _await(port: int, sshd: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + _WAIT_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError as error:
            if time.monotonic() > until or sshd.poll() is not None:
                why = " / ".join(log.read_text().splitlines()[-3:])
                raise DeviceError("the box's sshd does not listen", why=why, where=str(log)) from error
            time.sleep(0.2)
