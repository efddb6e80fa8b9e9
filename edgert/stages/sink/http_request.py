"""One request of the live page: what a client asks for, and whether it may."""

import base64
import binascii
import hmac
import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from ssl import SSLContext
from urllib.parse import parse_qs, urlsplit


@dataclass(frozen=True, slots=True)
class Access:
    """Who may ask.

    Attributes:
        token: as ``Authorization: Bearer``, or the password of ``Basic``, which browsers ask for; empty: anybody.
        tls: the server's certificate; None: HTTP.
    """

    token: str = field(default="", repr=False)
    tls: SSLContext | None = None

    def allows(self, authorization: str) -> bool:
        """Whether a request's header has the token."""
        scheme, _, given = authorization.partition(" ")
        if scheme.lower() == "basic":
            try:
                given = base64.b64decode(given, validate=True).decode().partition(":")[2]
            except (binascii.Error, ValueError):
                return not self.token
        return not self.token or hmac.compare_digest(given.strip().encode(), self.token.encode())


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@dataclass(frozen=True, slots=True)
class Request:
    """What a client asks for; ``headers`` by name in lower case."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]


def parsed(head: bytes) -> Request:
    """A request line and headers, RFC 9112. Raises ValueError for anything else."""
    first, *lines = head.decode("latin-1").split("\r\n")
    method, target, version = first.split(" ")
    if not version.startswith("HTTP/1.") or not method.isalpha() or not target.isprintable():
        raise ValueError("no request")
    fields = (line.partition(":") for line in lines if line)
    address = urlsplit(target)
    query = {key: values[-1] for key, values in parse_qs(address.query, max_num_fields=8).items()}
    return Request(method, address.path, query, {name.strip().lower(): text.strip() for name, _, text in fields})


def name_of(host: str) -> str | None:
    """Of a Host header, without the port."""
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:
        return None
