"""Client of the control sockets of runs: find them, send a request, return its result."""

from __future__ import annotations

import json
import logging
import os
import socket
import ssl
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from http import HTTPStatus
from http.client import HTTPException, RemoteDisconnected
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request as HttpRequest, urlopen

from edgert import limits
from edgert.control.control_socket import check_folder, is_answered, peer_of, socket_folders
from edgert.control.request import VERBS, Request, result_of
from edgert.errors import ConfigError, DeviceError, EdgertError, StageError, cause, nearest

_LOG = logging.getLogger(__name__)
_CONNECTING_S, _LOOK_S = 10.0, 1.0
_ANSWER_S = 130.0
"""A stage may take as long to open; see :data:`edgert.runtime.graph.OPENING_S`."""
SERVICES = Path("/run/edgert")
"""Folder with a folder for each service: RuntimeDirectory= of ``configs/systemd/edgert@.service``."""
STRANGE = "does not answer like a pipeline of edgert"


@dataclass(frozen=True, slots=True)
class RunningPipeline:
    """A running pipeline.

    Attributes:
        key: identifies it as long as it runs.
        pid: its process, from the kernel; 0 for one in a container whose processes are not seen from here.
        state: what ``show`` says of it; or why that is not known.
    """

    key: str
    pid: int
    state: Mapping[str, Any] | str


def running_pipelines() -> tuple[RunningPipeline, ...]:
    """Return all running pipelines of this user, by process, and for root those of services.

    Those that end meanwhile are left out. Waits up to a second for each that does not answer.
    """
    found = []
    for path in _sockets():
        try:
            with _connected(path, _LOOK_S) as own:
                pid, user = peer_of(own)
                if os.geteuid() in (user, 0):
                    found.append(RunningPipeline(str(path), pid, _shown(own)))
        except OSError as error:
            _LOG.debug("%s: %s", path, error)
    return tuple(sorted(found, key=lambda one: one.pid))


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
    runs: dict[str, Path] = {}
    for path in filter(is_answered, _sockets()):
        runs.setdefault(path.stem, path)
    if name is None and len(runs) == 1:
        return next(iter(runs.values()))
    if name in runs:
        return runs[name]
    if not runs:
        why = f"none of user {os.geteuid()} has a socket in {' or '.join(map(str, socket_folders()))}"
        services = sorted(folder.name for folder in SERVICES.glob("*")) if os.geteuid() else []
        fix = f"sudo edgert ctl asks services: {', '.join(services)}" if services else "edgert run PIPELINE"
        raise StageError("no pipeline is running", why=why, fix=f"{fix}; or --name PATH")
    what = f"{len(runs)} pipelines are running" if name is None else f"no pipeline {name!r} is running"
    fix = f"edgert ctl --name {next(iter(runs))} show; running: {', '.join(runs)}"
    raise StageError(what + nearest(name or "", runs), fix=fix)


def send_request(path: Path, request: Request) -> Any:
    """Return the result of a request to the run with that socket.

    Raises:
        ConfigError: the request is none.
        EdgertError: it was refused.
        DeviceError: nobody answers, or it is another user's socket.
    """
    request.values()
    kinds = VERBS[request.verb].words.split()
    words = [str(Path(word).absolute()) if kind == "PATH" else word
             for word, kind in zip(request.words, kinds, strict=False)]  # fmt: skip
    request = replace(request, words=tuple(words))
    try:
        with _connected(path, _CONNECTING_S) as own:
            if peer_of(own)[1] not in (os.geteuid(), 0) and os.geteuid() != 0:
                raise DeviceError(f"{path} is another user's socket", fix="run this as the user of the run")
            answer = json.loads(_exchanged(own, request, _ANSWER_S, _most_bytes(request)))
    except OSError as error:
        why = error.strerror or str(error) or "it took too long"
        raise DeviceError(f"{path} does not answer", why=why, fix="edgert top shows what runs") from error
    except (ValueError, RecursionError) as error:
        raise DeviceError(f"{path} {STRANGE}") from error
    return result_of(answer)


def send_to_page(url: str, request: Request, token: str) -> Any:
    """Return the result of a request to the run with that live page.

    Raises:
        ConfigError: the request is none, the address is none, or there is no token.
        EdgertError: it was refused.
        DeviceError: nobody answers, or the page takes no changes.
    """
    request.values()
    if not url.startswith(("http://", "https://")):
        raise ConfigError(f"{url!r} is no web address", fix="--url https://HOST:PORT")
    if not token:
        why = "a page takes changes from those who have its token alone"
        raise ConfigError("there is no token", why=why, fix="export EDGERT_TOKEN=..., or --token-file FILE")
    headers = {"Content-Type": "application/json"}
    sent = HttpRequest(f"{url.rstrip('/')}/control", request.line(), headers, method="POST")  # noqa: S310 - above
    sent.add_unredirected_header("Authorization", f"Bearer {token}")
    try:
        with urlopen(sent, timeout=_ANSWER_S) as answer:  # noqa: S310 - as above
            text = answer.read(_most_bytes(request))
    except HTTPError as error:
        text = error.read(limits.STATE_BYTES)
        if error.code != HTTPStatus.BAD_REQUEST:
            why = text.decode("utf-8", "replace").strip() or str(error)
            raise DeviceError(f"{url} takes no changes", why=why, fix="its token: in EDGERT_TOKEN") from error
    except (HTTPException, OSError) as error:
        raise DeviceError(f"{url} does not answer", why=unanswered(error), fix="curl -v shows more") from error
    try:
        return result_of(json.loads(text))
    except (ValueError, RecursionError) as error:
        raise DeviceError(f"{url} {STRANGE}") from error


def unanswered(error: Exception) -> str:
    """Return why a page gave no answer, and where that is known, what helps."""
    reason = error.reason if isinstance(error, URLError) and not isinstance(error, HTTPError) else error
    if isinstance(reason, HTTPError) and reason.code == HTTPStatus.UNAUTHORIZED:
        return "EDGERT_TOKEN is not its token" if os.environ.get("EDGERT_TOKEN") else "EDGERT_TOKEN is not set"
    if isinstance(reason, ssl.SSLCertVerificationError):
        return f"{reason.verify_message}; trust its cert: by SSL_CERT_FILE=page.pem"
    if isinstance(reason, ssl.SSLError) and reason.reason == "WRONG_VERSION_NUMBER":
        return "it does not speak TLS; try http://"
    if isinstance(reason, RemoteDisconnected):
        return "it closed the connection without an answer; with tls: it has https://"
    return (cause(reason) if isinstance(reason, Exception) else str(reason)) or type(error).__name__


def _shown(own: socket.socket) -> Mapping[str, Any] | str:
    """Return what a run shows, or why that is not known."""
    try:
        state = result_of(json.loads(_exchanged(own, Request("show"), _LOOK_S)))
    except TimeoutError:
        return "does not answer"
    except (ValueError, RecursionError, EdgertError):
        return STRANGE
    return state if isinstance(state, dict) else STRANGE


def _sockets() -> Iterator[Path]:
    """Yield the sockets of this user, and for root those of all services; those of killed runs too.

    Raises:
        DeviceError: a folder is another user's.
    """
    for folder in socket_folders():
        if folder.exists():
            check_folder(folder)
            yield from sorted(folder.glob("*.sock"))
    for folder in sorted(SERVICES.glob("*/edgert")):
        if os.geteuid() in (folder.lstat().st_uid, 0):
            yield from sorted(folder.glob("*.sock"))


def _connected(path: Path, timeout_s: float) -> socket.socket:
    own = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    # With a timeout of Python's own, connecting fails at once where as many wait as may.
    own.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", int(timeout_s), 0))
    try:
        own.connect(str(path))
    except BaseException:
        own.close()
        raise
    return own


def _most_bytes(request: Request) -> int:
    """Return how long an answer may be; a recording comes as text, a third longer."""
    return limits.STATE_BYTES + (2 * limits.TRACE_BYTES if VERBS[request.verb].is_long else 0)


def _exchanged(own: socket.socket, request: Request, timeout_s: float, most_bytes: int = limits.STATE_BYTES) -> bytes:
    """Return the line that answers a request."""
    own.settimeout(timeout_s)
    own.sendall(request.line())
    text = bytearray()
    while not text.endswith(b"\n") and len(text) <= most_bytes and (more := own.recv(1 << 16)):
        text += more
    return bytes(text)
