"""Takes passwords out of text that people will read."""

from __future__ import annotations

import re

_NAMES_OF_SECRETS = r"(?:pass(?:word|wd)?|pwd|pw|token|secret|api[_-]?key|key|auth|signature|sig)"
# Up to the last @ without a space in between: a password may itself hold @, : or / that nobody escaped.
_USERINFO = re.compile(r"(?<=://)[^\s'\"]*@")
_VALUE = re.compile(rf"(?i)((?:^|[^a-z]){_NAMES_OF_SECRETS}=)(\"[^\"]*\"|'[^']*'|[^\s&'\"]+)")


def redact(text: str) -> str:
    """``rtsp://user:secret@host/x`` → ``rtsp://***@host/x``, for every URL in ``text``; also the values of
    parameters such as ``password=`` and ``user-pw=``. More is hidden than needed rather than less."""
    return _VALUE.sub(r"\1***", _USERINFO.sub("***@", text))
