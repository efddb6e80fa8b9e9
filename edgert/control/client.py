"""Client of the control sockets of runs: find them, send a request, return its result."""

import json
import logging
import os
import socket
import ssl
import struct
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from http import HTTPStatus
from http.client import HTTPException, RemoteDisconnected
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request as HttpRequest, urlopen

from edgert import limits
from edgert.control.control_socket import check_folder, is_answered, peer_of, socket_folders
from edgert.control.request import VERBS, Request, get_result
from edgert.errors import ConfigError, DeviceError, EdgertError, StageError, cause, nearest

_LOG = logging.getLogger(__name__)
_CONNECT_TIMEOUT_S, _STATE_TIMEOUT_S = 10.0, 1.0
_ANSWER_TIMEOUT_S = 130.0
"""Longest wait for an answer: a stage may take as long to open, see :data:`edgert.runtime.graph.OPENING_S`."""
SERVICES = Path("/run/edgert")
"""Folder with a folder for each service, as RuntimeDirectory= in ``configs/systemd/edgert@.service`` creates it."""
NOT_EDGERT = "does not answer like a pipeline of edgert"


@dataclass(frozen=True, slots=True)
class RunningPipeline:
    """A running pipeline: the path of its socket, its process, and the result of ``show`` or why that is not known.

    The process is 0 in a container that is not visible from here.
    """

    key: str
    pid: int
    state: Mapping[str, Any] | str


def running_pipelines() -> tuple[RunningPipeline, ...]:
    """Return the running pipelines of this user, and for root those of services, sorted by process number.

    Pipelines that end meanwhile are left out. Waits up to a second for each one that does not answer.
    """
    found = []
    for path in _find_sockets():
        try:
            with _connect(path, _STATE_TIMEOUT_S) as own:
                pid, user = peer_of(own)
                if os.geteuid() in (user, 0):
                    found.append(RunningPipeline(str(path), pid, _read_state(own)))
        except OSError as error:
            _LOG.debug("%s: %s", path, error)
    return tuple(sorted(found, key=lambda one: one.pid))


def find_socket(name: str | None) -> Path:
    """Return the socket of a run, given its name or the path; None for the only run.

    Raises StageError where there is no such run, or there are several.
    """
    if name is not None and "/" in name:
        return Path(name)
    runs: dict[str, list[Path]] = {}
    for path in filter(is_answered, _find_sockets()):
        runs.setdefault(path.stem, []).append(path)
    found = [path for paths in runs.values() for path in paths if name in (None, path.stem)]
    if len(found) == 1:
        return found[0]
    if not runs:
        why = f"none of user {os.geteuid()} has a socket in {' or '.join(map(str, socket_folders()))}"
        services = sorted(folder.name for folder in SERVICES.glob("*")) if os.geteuid() else []
        fix = f"sudo edgert ctl asks services: {', '.join(services)}" if services else "edgert run PIPELINE"
        raise StageError("no pipeline is running", why=why, fix=f"{fix}; or --name PATH")
    named = "" if name is None else f" named {name!r}"
    what = f"{len(found)} pipelines{named} are running" if found else f"no pipeline {name!r} is running"
    known = [own if len(paths) == 1 else str(path) for own, paths in runs.items() for path in paths]
    what += "" if found else nearest(name or "", runs)
    raise StageError(what, fix=f"--name {known[0]}; running: {', '.join(known)}")


def send_request(path: Path, request: Request) -> Any:
    """Send a request to the run with a socket, and return the result. Raises DeviceError where no run answers."""
    request.values()
    named = VERBS[request.verb].with_names(request.words)
    words = (str(Path(word).absolute()) if kind == "PATH" else word for word, kind in named)
    request = replace(request, words=tuple(words))
    try:
        with _connect(path, _CONNECT_TIMEOUT_S) as own:
            if peer_of(own)[1] not in (os.geteuid(), 0) and os.geteuid() != 0:
                raise DeviceError(f"{path} is another user's socket", fix="run this as the user of the run")
            answer = json.loads(_exchange(own, request, _ANSWER_TIMEOUT_S, _answer_limit(request)))
    except OSError as error:
        why = cause(error) or "it took too long"
        raise DeviceError(f"{path} does not answer", why=why, fix="edgert top shows what runs") from error
    except (ValueError, RecursionError) as error:
        raise DeviceError(f"{path} {NOT_EDGERT}") from error
    return get_result(answer)


def send_to_page(url: str, request: Request, token: str) -> Any:
    """Send a request to the run with a live page, and return the result.

    Raises DeviceError where no run answers, or the page accepts no changes.
    """
    request.values()
    if not url.startswith(("http://", "https://")):
        raise ConfigError(f"{url!r} is not a web address", fix="--url https://HOST:PORT")
    if not token:
        why = "a page accepts changes only with its token"
        raise ConfigError("the token is missing", why=why, fix="export EDGERT_TOKEN=..., or --token-file FILE")
    try:
        text = _post(f"{url.rstrip('/')}/control", request, token)
    except (HTTPException, OSError, ValueError) as error:
        raise DeviceError(f"{url} does not answer", why=unanswered(error), fix="curl -v shows more") from error
    try:
        return get_result(json.loads(text))
    except (ValueError, RecursionError) as error:
        raise DeviceError(f"{url} {NOT_EDGERT}") from error


def unanswered(error: Exception) -> str:
    """Return the reason why a page gave no answer and, where it is known, what helps."""
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


def add_token(sent: HttpRequest, token: str) -> None:
    """Add a token to a request to a page. Raises ConfigError: HTTP cannot send it."""
    if not (token.isascii() and token.isprintable()):
        why = "it has characters that HTTP does not allow"
        raise ConfigError("the token cannot be sent", why=why, fix="put the page's token into EDGERT_TOKEN")
    sent.add_unredirected_header("Authorization", f"Bearer {token}")


def _post(url: str, request: Request, token: str) -> bytes:
    """Return the answer of a page, which may be a refusal. Raises DeviceError: the page accepts no changes."""
    headers = {"Content-Type": "application/json"}
    sent = HttpRequest(url, request.line(), headers, method="POST")  # noqa: S310 - only http and https come here
    add_token(sent, token)
    try:
        with urlopen(sent, timeout=_ANSWER_TIMEOUT_S) as answer:  # noqa: S310 - as above
            return bytes(answer.read(_answer_limit(request)))
    except HTTPError as error:
        text = error.read(limits.STATE_BYTES)
        if error.code == HTTPStatus.BAD_REQUEST:
            return text
        why = text.decode("utf-8", "replace").strip() or str(error)
        raise DeviceError(f"{url} accepts no changes", why=why, fix="its token: in EDGERT_TOKEN") from error


def _read_state(own: socket.socket) -> Mapping[str, Any] | str:
    """Return the result of ``show``, or the reason why it is not known."""
    try:
        state = get_result(json.loads(_exchange(own, Request("show"), _STATE_TIMEOUT_S)))
    except TimeoutError:
        return "does not answer"
    except EdgertError as error:
        return error.what
    except (ValueError, RecursionError):
        return NOT_EDGERT
    return state if isinstance(state, dict) else NOT_EDGERT


def _find_sockets() -> Iterator[Path]:
    """Yield the sockets of this user, and for root those of all services; also those of killed runs.

    Raises DeviceError for a folder of another user.
    """
    for folder in socket_folders():
        if folder.exists():
            check_folder(folder)
            yield from sorted(folder.glob("*.sock"))
    for folder in sorted(SERVICES.glob("*/edgert")):
        if os.geteuid() in (folder.lstat().st_uid, 0):
            yield from sorted(folder.glob("*.sock"))


def _connect(path: Path, timeout_s: float) -> socket.socket:
    own = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    # With a timeout set by Python, connect() fails at once when the server's backlog is full.
    own.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", int(timeout_s), 0))
    try:
        own.connect(str(path))
    except BaseException:
        own.close()
        raise
    return own


def _answer_limit(request: Request) -> int:
    """Return the largest size of an answer in bytes; Base64 makes a recording longer by a third."""
    return limits.STATE_BYTES + (2 * limits.TRACE_BYTES if VERBS[request.verb].is_long else 0)


def _exchange(own: socket.socket, request: Request, timeout_s: float, most_bytes: int = limits.STATE_BYTES) -> bytes:
    own.settimeout(timeout_s)
    with suppress(BrokenPipeError):  # a run that refuses every request answers and closes before it has read one
        own.sendall(request.line())
    text = bytearray()
    while not text.endswith(b"\n") and len(text) <= most_bytes and (more := own.recv(1 << 16)):
        text += more
    return bytes(text)
