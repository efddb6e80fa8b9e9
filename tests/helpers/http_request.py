"""One HTTP request on a connection of its own."""

import http.client
from contextlib import closing
from urllib.parse import urlsplit


def answer_of(
    url: str, path: str, method: str = "GET", body: str | None = None, **headers: str
) -> tuple[int, http.client.HTTPMessage, bytes]:
    with closing(http.client.HTTPConnection(urlsplit(url).netloc, timeout=20)) as connection:
        connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()
