"""Client of a run's control socket: find the socket, send a request, return its result."""

from __future__ import annotations

import json
import os
import socket
import struct
from pathlib import Path
from typing import Any

from edgert.control.control_socket import check_folder, is_answered, socket_folder
from edgert.control.request import Request, result_of
from edgert.errors import DeviceError, StageError, nearest
from edgert.runtime.announce import MOST_BYTES, peer_of

_CONNECTING_S = 10
_ANSWER_S = 130.0
"""A stage may take as long to open; see :data:`edgert.runtime.graph.OPENING_S`."""


def find_socket(name: str | None) -> Path:
    """Return the socket of a run.

    Args:
        name: of the pipeline, or the path of its socket; None: there is only one run.

    Raises:
        StageError: no such run, or several.
        DeviceError: the folder is another user's.
    """
    if name is not None and "/" in name:
        return Path(name)
    folder = socket_folder()
    if folder.exists():
        check_folder(folder)
    runs = {path.stem: path for path in sorted(folder.glob("*.sock")) if is_answered(path)}
    if name is None and len(runs) == 1:
        return next(iter(runs.values()))
    if name in runs:
        return runs[name]
    if not runs:
        why = f"none of user {os.geteuid()} has a socket in {folder}"
        raise StageError("no pipeline is running", why=why, fix="edgert run PIPELINE, or --name PATH")
    what = f"{len(runs)} pipelines are running" if name is None else f"no pipeline {name!r} is running"
    raise StageError(what + nearest(name or "", runs), fix=f"--name with one of {', '.join(runs)}")


def send_request(path: Path, request: Request) -> Any:
    """Return the result of a request to the run with that socket.

    Raises:
        ConfigError: the request is none.
        EdgertError: it was refused.
        DeviceError: nobody answers, or it is another user's socket.
    """
    request.values()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as own:
        # With a timeout of Python's own, connecting fails at once where as many wait as may.
        own.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", _CONNECTING_S, 0))
        try:
            own.connect(str(path))
            own.settimeout(_ANSWER_S)
            if peer_of(own)[1] not in (os.geteuid(), 0) and os.geteuid() != 0:
                raise DeviceError(f"{path} is another user's socket", fix="run this as the user of the run")
            own.sendall(request.line())
            text = bytearray()
            while not text.endswith(b"\n") and len(text) <= MOST_BYTES and (more := own.recv(1 << 16)):
                text += more
        except OSError as error:
            why = error.strerror or str(error) or "it took too long"
            raise DeviceError(f"{path} does not answer", why=why, fix="edgert top shows what runs") from error
    try:
        answer = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DeviceError(f"{path} does not answer like a pipeline of edgert") from error
    return result_of(answer)
