"""What the addresses of the live page give."""

import base64
import hashlib
import importlib.resources
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from http import HTTPStatus
from typing import Any, Protocol

from edgert.runtime import health
from edgert.runtime.json_form import plain
from edgert.stages.sink.connections import Connection
from edgert.stages.sink.http_clips import Clips
from edgert.stages.sink.http_events import EventLog
from edgert.stages.sink.http_live import Live
from edgert.stages.sink.http_request import Request
from edgert.stages.sink.prometheus import CONTENT_TYPE, metrics_text

Answer = tuple[HTTPStatus, str, bytes, Mapping[str, str]]
"""Status, type, content and further headers."""
_SAFETY = {
    "Server": "edgert",
    "Connection": "close",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Video(Protocol):
    """What answers those who want video, by WHEP."""

    async def answer(self, request: Request, client: Connection, address: str) -> Answer:
        """Return what an address of WHEP gives.

        Args:
            client: gives the request's body.
            address: of this machine's, from which video goes out.
        """
        ...


@dataclass(frozen=True, slots=True)
class Source:
    """What there is to show: images, the state of the run, events, recordings of them, and live video."""

    live: Live
    stats: Callable[[], Mapping[str, Any]]
    events: EventLog
    clips: Clips | None = None
    video: Video | None = None


def text(status: HTTPStatus, line: str) -> Answer:
    """A line for people."""
    return status, "text/plain; charset=utf-8", f"{line}\n".encode("utf-8", "backslashreplace"), {}


UNKNOWN: Answer = (
    *text(HTTPStatus.UNAUTHORIZED, "this page wants its token, as the password or as Authorization: Bearer")[:3],
    {"WWW-Authenticate": 'Basic realm="edgert", charset="UTF-8", Bearer realm="edgert"'},
)


def head(status: HTTPStatus, kind: str, headers: Mapping[str, str] | None = None) -> bytes:
    """The beginning of an answer, RFC 9112."""
    lines = [f"HTTP/1.1 {status.value} {status.phrase}"]
    lines += [f"{name}: {value}" for name, value in {"Content-Type": kind, **_SAFETY, **(headers or {})}.items()]
    return "\r\n".join([*lines, "", ""]).encode("latin-1", "replace")


def message(answer: Answer, *, with_body: bool = True) -> bytes:
    """The whole of an answer."""
    status, kind, body, headers = answer
    return head(status, kind, {"Content-Length": str(len(body)), **headers}) + (body if with_body else b"")


@lru_cache(maxsize=1)
def page() -> Answer:
    """The page with its style and scripts in it, and its Content-Security-Policy, which lets it run these and fetch
    from its own origin, and nothing else."""
    folder = importlib.resources.files("edgert.stages.sink").joinpath("page")
    policy = (
        "default-src 'none'; img-src 'self' data:; media-src 'self'; connect-src 'self'; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'"
    )
    hashes: dict[str, str] = {"script": "", "style": ""}

    def content(tag: str, name: str) -> str:
        data = folder.joinpath(name).read_bytes()
        # A hash source of Content Security Policy Level 3.
        hashes[tag] += f" 'sha256-{base64.b64encode(hashlib.sha256(data).digest()).decode()}'"
        return f"<{tag}>{data.decode()}</{tag}>"

    html = folder.joinpath("page.html").read_text(encoding="utf-8")
    html = re.sub(r'<link rel="stylesheet" href="([\w.]+)">', lambda found: content("style", found[1]), html)
    html = re.sub(r'<script src="([\w.]+)"></script>', lambda found: content("script", found[1]), html)
    policy += "".join(f"; {tag}-src{found}" for tag, found in hashes.items())
    return HTTPStatus.OK, "text/html; charset=utf-8", html.encode(), {"Content-Security-Policy": policy}


def _json(data: object) -> Answer:
    content = json.dumps(plain(data), allow_nan=False, separators=(",", ":")).encode()
    return HTTPStatus.OK, "application/json", content, {}


def _state(source: Source, stream: str) -> Answer:
    shown = {key: value for key, value in source.stats().items() if key not in ("totals", "folders")}
    live, changes = source.live, source.events.count
    if source.clips is not None:
        source.clips.look()
        changes += source.clips.count
    about = {"streams": live.streams(), "events": changes, "video": source.video is not None}
    return _json({"stats": shown, "latest": live.table(stream), **about})


def _metrics(source: Source, stream: str) -> Answer:
    return HTTPStatus.OK, CONTENT_TYPE, metrics_text(plain(source.stats())).encode(), {}


def _events(source: Source, stream: str) -> Answer:
    clips = source.clips
    shown = [{**one, "clip": clips.address(one["id"]) if clips else ""} for one in source.events.newest_first()]
    return _json({"events": shown})


MADE: Mapping[str, Callable[[Source, str], Answer]] = {
    "/stats.json": _state,
    "/metrics": _metrics,
    "/events.json": _events,
}
"""Address → what takes a while to make, of a camera or, without its name, of all."""
JUDGED = {"/healthz": health.stuck, "/readyz": health.unready}


def judged(source: Source, path: str, is_known: bool) -> Answer:
    """Whether the pipeline is well, for whoever asks; what is wrong, for who has the token."""
    missing = JUDGED[path](source.stats())
    lines = (missing if is_known else ["not well"]) if missing else ["ok"]
    return text(HTTPStatus.SERVICE_UNAVAILABLE if missing else HTTPStatus.OK, "\n".join(lines))


def event(source: Source, path: str) -> Answer | None:
    """The image of an event; None for any other address."""
    found = re.fullmatch(r"/events/([0-9a-f]{1,64})\.jpg", path)
    image = source.events.image(found[1]) if found else None
    lasting = {"Cache-Control": "private, max-age=86400, immutable"}
    return None if image is None else (HTTPStatus.OK, "image/jpeg", image, lasting)
