"""Pages with their styles and scripts inside, so that a page is one request."""

import base64
import hashlib
import importlib.resources
import re
from functools import lru_cache
from http import HTTPStatus

from edgert.stages.sink.web.http_exchange import Response

_POLICY = (
    "default-src 'none'; img-src 'self' data:; media-src 'self' blob:; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)


@lru_cache(maxsize=2)
def inlined_page(name: str) -> Response:
    """Return a page of the folder ``page``.

    Its Content-Security-Policy allows only its own styles and scripts, and requests to the page's own origin.
    """
    folder = importlib.resources.files("edgert.stages.sink.web").joinpath("page")
    hashes: dict[str, str] = {"script": "", "style": ""}

    def inlined(tag: str, name: str) -> str:
        data = folder.joinpath(name).read_bytes()
        # A hash source of Content Security Policy Level 3.
        hashes[tag] += f" 'sha256-{base64.b64encode(hashlib.sha256(data).digest()).decode()}'"
        return f"<{tag}>{data.decode()}</{tag}>"

    html = folder.joinpath(name).read_text(encoding="utf-8")
    html = re.sub(r'<link rel="stylesheet" href="([\w.]+)">', lambda found: inlined("style", found[1]), html)
    html = re.sub(r'<script src="([\w.]+)"></script>', lambda found: inlined("script", found[1]), html)
    policy = _POLICY + "".join(f"; {tag}-src{found}" for tag, found in hashes.items())
    return Response(HTTPStatus.OK, "text/html; charset=utf-8", html.encode(), {"Content-Security-Policy": policy})
