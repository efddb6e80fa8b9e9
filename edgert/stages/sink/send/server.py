"""The server that a sink sends to: address, credentials, certificates."""

import re
import socket
import ssl
from concurrent.futures import Future, TimeoutError as NotInTime
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from pydantic import Field, model_validator

from edgert import limits
from edgert.config.fields import FilePath, Section
from edgert.errors import cause
from edgert.runtime.worker import OneJobWorker

TIMEOUT_S = 10.0
"""Maximum seconds for a server's answer."""
PACKET_BYTES = limits.PACKET_BYTES
"""Maximum size of a packet from a broker; acknowledgements are small."""

_LOOKUPS = dict[str, "Future[list[Any]]"]()
"""Look-ups under way, by address. One that hangs is waited for again, so that there are not many."""


class Tls(Section):
    """Certificates."""

    ca: FilePath | None = Field(
        default=None, description="certificate that the server's is signed by, PEM; default: the system's"
    )
    cert: FilePath | None = Field(default=None, description="certificate of this client, PEM")
    key: FilePath | None = Field(default=None, description="its private key, PEM")
    verify: bool = Field(default=True, description="false: any certificate is accepted")

    @model_validator(mode="after")
    def _check_files(self) -> "Tls":
        if (self.cert is None) != (self.key is None):
            raise ValueError("cert: and key: must be given together")
        for path in (self.ca, self.cert, self.key):
            if path is not None and not path.is_file():
                raise ValueError(f"there is no file {path}")
        return self

    def context(self) -> ssl.SSLContext:
        """Return the TLS context. Raises OSError for missing files, or files without certificates."""
        try:
            made = ssl.create_default_context(cafile=str(self.ca) if self.ca else None)
            if self.cert is not None:
                made.load_cert_chain(self.cert, self.key)
        except (ssl.SSLError, FileNotFoundError) as error:
            named = ", ".join(str(one) for one in (self.ca, self.cert, self.key) if one)
            raise OSError(f"cannot use the certificates {named}: {cause(error)}") from error
        if not self.verify:
            made.check_hostname, made.verify_mode = False, ssl.CERT_NONE
        return made


@dataclass(frozen=True, slots=True)
class Server:
    """A server's URL, ``scheme://host:port/path``, with credentials and certificates."""

    url: str
    user: str = field(default="", repr=False)
    password: str = field(default="", repr=False)
    tls: Tls = field(default_factory=Tls)

    @property
    def host(self) -> str:
        """The host's name or address."""
        return urlsplit(self.url).hostname or ""

    def port(self, default: int) -> int:
        """Return the port of the URL, or the protocol's default."""
        return urlsplit(self.url).port or default

    def look_up(self, port: int) -> list[Any]:
        """Return the addresses of the host, as :func:`socket.getaddrinfo` does, but within 10 s and not minutes.

        Raises:
            OSError: the name is unknown, or no name server answers in time.
        """
        address = f"{self.host}:{port}"
        answer = _LOOKUPS.get(address)
        if answer is None:
            work = partial(socket.getaddrinfo, self.host, port, type=socket.SOCK_STREAM)
            answer = _LOOKUPS[address] = OneJobWorker("edgert:look-up").submit(work)
        try:
            return answer.result(TIMEOUT_S)
        except NotInTime:
            raise OSError(f"the address of {self.host} is not known: no name server answers") from None
        finally:
            if answer.done():
                _LOOKUPS.pop(address, None)
            del answer  # its error refers to this frame, and would keep itself and the sink

    @property
    def scheme(self) -> str:
        """The scheme of the URL."""
        return urlsplit(self.url).scheme

    def name(self, default_port: int) -> str:
        """Return scheme, host and port, for messages."""
        return f"{self.scheme}://{self.host}:{self.port(default_port)}"


def fill_topic(pattern: str, pipeline: str, stream: str, kind: str, rule: str) -> str:
    """Return a topic or subject with its fields filled in."""
    known = {"pipeline": pipeline, "stream": stream, "kind": kind, "rule": rule or kind}
    for name, value in known.items():
        pattern = pattern.replace(f"{{{name}}}", re.sub(r"[^\w-]", "-", value))  # no separators, no wildcards
    return pattern


FIELDS = ("pipeline", "stream", "kind", "rule")
