"""Commands on the board through the system's ``ssh``, with the user's configuration, keys and known hosts.

Nothing is asked on a terminal (``BatchMode``), no host key is accepted here, and no option overrides which hosts the
user's configuration trusts.
"""

from __future__ import annotations

import hashlib
import json
import os
import select
import shlex
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from edgert.errors import ConfigError, DeviceError, EdgertError, error_of

# Lines of JSON between workstation and board, over a connection that a login shell may write on, too.


def write_line(out: BinaryIO, content: Mapping[str, Any]) -> None:
    """Write one line, and flush."""
    out.write(json.dumps(content).encode("ascii") + b"\n")
    out.flush()


def read_line(line: bytes) -> dict[str, Any] | None:
    """Return the line's content; None for other lines, such as those that a ``.bashrc`` prints."""
    try:
        content = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


# Failures of OpenSSH's client, as errors with a fix.

FAILED = 255
"""Exit code of ssh itself; any other is the remote command's: https://man.openbsd.org/ssh#EXIT_STATUS."""
_BY_HAND = "type  ssh {address} true  by hand: edgert uses the same ssh"


class LinkError(DeviceError):
    """The board cannot be reached; ``passing``: it may be reachable again in a moment."""

    passing: bool = False


@dataclass(frozen=True, slots=True)
class _Case:
    """Words in an ssh message, and the error that they mean."""

    words: tuple[str, ...]
    what: str
    fix: str
    passing: bool = False


_CASES = (
    _Case(
        ("REMOTE HOST IDENTIFICATION HAS CHANGED",),
        "the host key of {address} is another than it was",
        "if the board was set up anew: ssh-keygen -R {host}, then ssh {address} once by hand and compare the key; "
        "if not, somebody may be in between",
    ),
    _Case(
        ("Host key verification failed", "host key is known for"),
        "the host key of {address} is not known yet",
        "ssh {address} once by hand, compare the key's fingerprint with the board's, and accept it",
    ),
    _Case(
        ("Permission denied (",),
        "{address} does not let this user in",
        "ssh-copy-id {address}; edgert asks for no password, and a key with a passphrase has to be in ssh-agent",
    ),
    _Case(
        ("Could not resolve hostname",),
        "there is no host {host!r}",
        "write the name as ssh knows it, or the board's address: user@192.168.55.1; with a port: ssh://user@host:2222",
        passing=True,
    ),
    _Case(
        ("Connection refused",),
        "{address} refused the connection",
        "on the board: sudo systemctl enable --now ssh; another port: ssh://user@host:2222, or Port in ~/.ssh/config",
        passing=True,
    ),
    _Case(
        ("timed out", "No route to host", "Network is unreachable", "Timeout, server"),
        "{address} does not answer",
        "is it switched on, and on this network? " + _BY_HAND,
        passing=True,
    ),
)
_OTHER = _Case((), "the connection to {address} broke", _BY_HAND, passing=True)


def link_error(address: str, stderr: str) -> LinkError:
    """Return the error for ssh's output on standard error."""
    case = next((case for case in _CASES if any(word in stderr for word in case.words)), _OTHER)
    names = {"address": address, "host": host_of(address)}
    lines = [line.strip() for line in stderr.splitlines() if line.strip() and not line.startswith("@")]
    error = LinkError(
        case.what.format(**names),
        why=lines[-1] if lines else "ssh ended without a message",
        fix=case.fix.format(**names),
    )
    error.passing = case.passing
    return error


def host_of(address: str) -> str:
    """Return the host of ``user@host`` or ``ssh://user@host:port``, as ``ssh-keygen -R`` takes it."""
    host = address.removeprefix("ssh://").rpartition("@")[2].rstrip("/")
    name, colon, port = host.rpartition(":")
    return f"'[{name}]:{port}'" if colon and address.startswith("ssh://") else host


CHUNK_BYTES = 1 << 18
"""Of a file, read and sent at a time."""


def sha256_of(path: Path) -> str:
    """Return a file's SHA-256, in hexadecimal digits."""
    found = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            found.update(chunk)
    return found.hexdigest()


Poll = Callable[[], object]
"""A function that is called regularly during a wait; an exception from it ends the wait."""
_OPTIONS = {"BatchMode": "yes", "ConnectTimeout": "15", "ServerAliveInterval": "5", "ServerAliveCountMax": "4"}
"""A connection that has been dead for 20 s is over: https://man.openbsd.org/ssh_config#ServerAliveCountMax."""
_POLL_S = 0.2
_TAIL_LINES = 20


@dataclass(frozen=True, slots=True)
class Link:
    """The address of the board, and the command of edgert there.

    Attributes:
        address: as ssh takes it: ``user@host``, a name of its configuration, ``ssh://user@host:port``.
        program: the words that call edgert there.
    """

    address: str
    program: tuple[str, ...] = ("edgert",)

    def __post_init__(self) -> None:
        if not self.address or self.address.startswith("-"):
            raise ConfigError(f"{self.address!r} is no address", where="--remote", fix="write user@host")

    def call(self, *words: str) -> Call:
        """Call edgert there with these words; the result is a context manager, in which it runs."""
        return Call(self.address, [*self.program, *words])

    def ask(self, *words: str, poll: Poll = bool) -> dict[str, Any]:
        """Return the last line of JSON of a call, after it has ended; raises as :meth:`Call.lines`."""
        with self.call(*words) as call:
            return [{}, *call.lines(poll)][-1]


class Call:
    """One command on the board, while it runs.

    A context manager; leaving it early ends ssh, not what the board started.

    Args:
        address: of the board.
        words: the command.

    Raises:
        DeviceError: there is no ssh on this machine.
    """

    def __init__(self, address: str, words: Sequence[str]) -> None:
        self.address, self.words = address, words
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the call
        self._rest = b""
        options = [word for name, value in _OPTIONS.items() for word in ("-o", f"{name}={value}")]
        try:
            self._process = subprocess.Popen(  # noqa: S603 - no shell on this side; the words are quoted for the other
                ["ssh", "-T", *options, "--", address, shlex.join(words)],  # noqa: S607 - the user's ssh
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._stderr,
                bufsize=0,
                start_new_session=True,  # Ctrl-C is for us: the connection is still needed to end the job
            )
        except FileNotFoundError as error:
            self._stderr.close()
            raise DeviceError(
                "there is no ssh on this machine", why=str(error), fix="sudo apt install openssh-client"
            ) from error

    def __enter__(self) -> Call:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._stderr):
            assert stream is not None  # all are pipes
            stream.close()

    def write(self, chunk: bytes) -> bool:
        """Send bytes to the command; False when it takes no more: :meth:`lines` then raises the reason. Blocks."""
        assert self._process.stdin is not None  # a pipe
        rest = memoryview(chunk)
        try:
            while rest:
                rest = rest[os.write(self._process.stdin.fileno(), rest) :]
        except BrokenPipeError:
            return False
        return True

    def line(self, poll: Poll) -> dict[str, Any] | None:
        """Return the command's next line of JSON, other lines left out; None at its end.

        Raises:
            EdgertError: the board's side reported one.
        """
        while True:
            end = self._rest.find(b"\n")
            if end < 0:
                piece = self._piece(poll)
                if not piece:
                    return None
                self._rest += piece
                continue
            line, self._rest = self._rest[:end], self._rest[end + 1 :]
            content = read_line(line)
            if content is not None and "error" in content:
                raise remote_error(self.address, content["error"])
            if content is not None:
                return content

    def lines(self, poll: Poll) -> Iterator[dict[str, Any]]:
        """Yield all lines of JSON to the command's end.

        Raises:
            EdgertError: the board's side reported one.
            LinkError: the connection failed.
            DeviceError: the command failed in another way.
        """
        while (content := self.line(poll)) is not None:
            yield content
        self.check()

    def raw(self, poll: Poll) -> Iterator[bytes]:
        """Yield the bytes after the lines read so far, in pieces; raises as :meth:`lines`."""
        piece, self._rest = self._rest, b""
        while piece or (piece := self._piece(poll)):
            yield piece
            piece = b""
        self.check()

    def check(self) -> None:
        """Raise an error if the command failed."""
        code = self._process.wait()
        if code == FAILED or code < 0:
            raise link_error(self.address, self.stderr())
        if code:
            raise DeviceError(
                f"{shlex.join(self.words)} failed on {self.address}",
                why="\n".join(self.stderr().strip().splitlines()[-_TAIL_LINES:]) or f"exit code {code}",
            )

    def result(self, poll: Poll) -> tuple[int, str]:
        """Return exit code and all of standard output, for a command that is not edgert's.

        Raises:
            LinkError: the connection failed.
        """
        content = b"".join(iter(lambda: self._piece(poll), b""))
        code = self._process.wait()
        if code == FAILED or code < 0:
            raise link_error(self.address, self.stderr())
        return code, content.decode("utf-8", "replace")

    def stderr(self) -> str:
        """Return the output of ssh and the command on standard error."""
        self._stderr.seek(0)
        return self._stderr.read().decode("utf-8", "replace")

    def _piece(self, poll: Poll) -> bytes:
        """Return the next bytes on standard output; none at its end."""
        assert self._process.stdout is not None  # a pipe
        while True:
            poll()
            ready, _, _ = select.select([self._process.stdout], [], [], _POLL_S)
            if ready:
                return os.read(self._process.stdout.fileno(), CHUNK_BYTES)


def remote_error(address: str, plain: Mapping[str, Any]) -> EdgertError:
    """Return an error of the board's, with the board in its place."""
    error = error_of(plain)
    error.where = f"{address}: {error.where}" if error.where else address
    return error
