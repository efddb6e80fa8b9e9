"""The live page: one file with everything in it."""

from __future__ import annotations

import base64
import hashlib
import importlib.resources
import re
from functools import lru_cache


@lru_cache(maxsize=1)
def page() -> tuple[bytes, str]:
    """The page and its Content-Security-Policy, which lets it run its own script and style and fetch from its own
    origin, and nothing else."""
    text = importlib.resources.files("edgert.stages.sink").joinpath("page.html").read_text(encoding="utf-8")
    policy = (
        "default-src 'none'; img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
        f"frame-ancestors 'none'; script-src {_hash_of(text, 'script')}; style-src {_hash_of(text, 'style')}"
    )
    return text.encode(), policy


def _hash_of(text: str, tag: str) -> str:
    """What Content Security Policy Level 3 calls a hash source, of the content of the one ``tag`` in the page."""
    (content,) = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"
