"""Login methods that an RTSP camera accepts, requested after FFmpeg failed to log in and did not name them."""

from __future__ import annotations

import re
import socket
import ssl
from urllib.parse import urlsplit

from edgert.clock import Clock

_PORTS = {"rtsp": 554, "rtsps": 322}
_MOST_BYTES = 1 << 14
"""Most bytes of an answer's headers."""
_KNOWN = ("MD5", "MD5-sess")
"""Algorithms of Digest that FFmpeg has (libavformat/httpauth.c)."""
_ALGORITHM = re.compile(r'\balgorithm\s*=\s*"?([\w-]+)', re.IGNORECASE)


def why_refused(url: str, timeout_s: float, clock: Clock) -> str:
    """Return why FFmpeg cannot log in with any password; empty where it can, or where the camera does not say.

    One request without user and password is sent.
    """
    try:
        offered = _challenges(_answer(url, timeout_s, clock))
    except (OSError, ValueError):  # ValueError: no address; FFmpeg's own error says more
        return ""
    digests = [name for name in offered if name != "Basic"]
    if not digests or digests[-1] in _KNOWN:  # of several, FFmpeg takes the last
        return ""
    if set(offered) == {digests[-1]}:
        return f"it logs users in by Digest with {digests[-1]} only, and FFmpeg has Digest with MD5, and Basic"
    names = ", ".join(name if name == "Basic" else f"Digest with {name}" for name in offered)
    return f"it offers {names}; FFmpeg tries the last Digest, and has that with MD5 only"


def _answer(url: str, timeout_s: float, clock: Clock) -> str:
    """Return the headers of what a camera answers to DESCRIBE. Raises OSError, or ValueError for no address."""
    address = urlsplit(url)
    requested = address._replace(netloc=address.netloc.rpartition("@")[2]).geturl()
    request = f"DESCRIBE {requested} RTSP/1.0\r\nCSeq: 1\r\nAccept: application/sdp\r\n\r\n"
    until_ns = clock.now_ns() + round(timeout_s * 1e9)
    place = address.hostname or "", address.port or _PORTS[address.scheme]
    plain = socket.create_connection(place, timeout_s)
    with _encrypted(plain) if address.scheme == "rtsps" else plain as way:
        way.sendall(request.encode("utf-8", "surrogateescape"))
        data = b""
        while b"\r\n\r\n" not in data and len(data) < _MOST_BYTES:
            way.settimeout(max((until_ns - clock.now_ns()) / 1e9, 0.001))
            part = way.recv(_MOST_BYTES)
            if not part:
                break
            data += part
    return data.partition(b"\r\n\r\n")[0].decode("latin-1")


def _encrypted(plain: socket.socket) -> ssl.SSLSocket:
    """Return a socket over TLS. As with FFmpeg, the certificate is not checked; nothing secret is sent."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context.wrap_socket(plain)


def _challenges(headers: str) -> list[str]:
    """Return the ways to log in: ``Basic``, or the algorithm of a Digest, which is MD5 where none is named."""
    found = []
    for line in headers.split("\r\n"):
        name, _, value = line.partition(":")
        scheme = value.strip().partition(" ")[0].lower()
        if name.strip().lower() == "www-authenticate" and scheme in ("basic", "digest"):
            algorithm = _ALGORITHM.search(value)
            found.append("Basic" if scheme == "basic" else algorithm[1] if algorithm else _KNOWN[0])
    return found
