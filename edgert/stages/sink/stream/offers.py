"""The addresses of WHEP: who wants to watch makes an offer to a stream's, and deletes the one that it was answered."""

import asyncio
from collections.abc import Mapping
from http import HTTPStatus
from urllib.parse import quote, unquote

from edgert import limits
from edgert.stages.sink import http_answers as answers
from edgert.stages.sink import http_request as asked
from edgert.stages.sink.connections import Connection
from edgert.stages.sink.stream import webrtc
from edgert.stages.sink.stream.broadcast import Broadcast

PATH = "/whep/"
_SDP = "application/sdp"


async def body_of(request: asked.Request, client: Connection) -> str | answers.Answer:
    """Return what follows the head of a request, or why it is not read."""
    try:
        length = int(request.headers.get("content-length", "0"))
    except ValueError:
        return answers.text(HTTPStatus.BAD_REQUEST, "no such request")
    if not 0 <= length <= limits.WHEP_BYTES:
        return answers.text(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"at most {limits.WHEP_BYTES} bytes")
    try:
        body = await asyncio.wait_for(client.exactly(length), limits.PAGE_HEAD_S)
    except (asyncio.TimeoutError, asyncio.IncompleteReadError):
        return answers.text(HTTPStatus.REQUEST_TIMEOUT, "the offer did not come whole")
    return body.decode("utf-8", "replace")


async def answered(
    streams: Mapping[str, Broadcast], sessions: webrtc.Sessions, request: asked.Request, body: str, peer: str
) -> answers.Answer:
    """Return what an address under :data:`PATH` gives to the client at ``peer``. For the thread of the sessions' event
    loop."""
    stream, _, number = (unquote(part) for part in request.path.removeprefix(PATH).partition("/"))
    if request.method == "DELETE" and number:
        ended = await sessions.end(number)
        return answers.text(HTTPStatus.OK if ended else HTTPStatus.NOT_FOUND, "ended" if ended else "no session")
    if request.method != "POST" or number:
        return *answers.text(HTTPStatus.METHOD_NOT_ALLOWED, "POST an offer")[:3], {"Allow": "POST, DELETE"}
    if stream not in streams:
        known = ", ".join(sorted(streams)) or "none yet"
        return answers.text(HTTPStatus.NOT_FOUND, f"no such stream; known: {known}")
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != _SDP:
        return answers.text(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"expected {_SDP}")
    try:
        number, answer = await sessions.begin(streams[stream], body, peer)
    except webrtc.FullError as error:
        return *answers.text(HTTPStatus.SERVICE_UNAVAILABLE, str(error))[:3], {"Retry-After": "10"}
    except webrtc.RefusedError as error:
        return answers.text(HTTPStatus.NOT_ACCEPTABLE, f"H.264 cannot be agreed upon: {error}")
    return HTTPStatus.CREATED, _SDP, answer.encode(), {"Location": f"{PATH}{quote(stream, safe='')}/{number}"}
