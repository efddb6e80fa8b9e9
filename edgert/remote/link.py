"""Commands on the board through the system's ``ssh``, with the user's configuration, keys and known hosts.

ssh asks nothing on the terminal (``BatchMode``). It accepts no new host key, and no option changes the trusted hosts.
"""

import json
import os
import select
import shlex
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, BinaryIO

from edgert.errors import ConfigError, DeviceError, EdgertError, error_of

# Lines of JSON between workstation and board; the login shell may write other lines.


def write_line(out: BinaryIO, content: Mapping[str, Any]) -> None:
    """Write a line of JSON, and flush."""
    out.write(json.dumps(content).encode("ascii") + b"\n")
    out.flush()


def read_line(line: bytes) -> dict[str, Any] | None:
    """Return the JSON object in a line; None for other lines, such as those that a ``.bashrc`` prints."""
    try:
        content = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


# Failures of OpenSSH's client, as errors with a fix.

SSH_FAILED = 255
"""Exit code of ssh itself; others are those of the remote command: https://man.openbsd.org/ssh#EXIT_STATUS."""
_TRY_SSH = "type  ssh {address} true  by hand: edgert uses the same ssh"


class LinkError(DeviceError):
    """The board cannot be reached; with ``passing``, it may be reachable again soon."""

    passing: bool = False


@dataclass(frozen=True, slots=True)
class _SshFailure:
    """Words in a message of ssh, and the error that they mean."""

    words: tuple[str, ...]
    what: str
    fix: str
    passing: bool = False


_SSH_FAILURES = (
    _SshFailure(
        ("REMOTE HOST IDENTIFICATION HAS CHANGED",),
        "the host key of {address} has changed",
        "if the board was set up anew: ssh-keygen -R {host}, then ssh {address} once by hand and compare the key; "
        "if not, somebody may intercept the connection",
    ),
    _SshFailure(
        ("Host key verification failed", "host key is known for"),
        "the host key of {address} is not known yet",
        "ssh {address} once by hand, compare the key's fingerprint with the board's, and accept it",
    ),
    _SshFailure(
        ("Permission denied (",),
        "{address} does not let this user in",
        "ssh-copy-id {address}; edgert asks for no password, and a key with a passphrase has to be in ssh-agent",
    ),
    _SshFailure(
        ("Could not resolve hostname",),
        "unknown host {host!r}",
        "write the name as ssh knows it, or the board's address: user@192.168.55.1; with a port: ssh://user@host:2222",
        passing=True,
    ),
    _SshFailure(
        ("Connection refused",),
        "{address} refused the connection",
        "on the board: sudo systemctl enable --now ssh; another port: ssh://user@host:2222, or Port in ~/.ssh/config",
        passing=True,
    ),
    _SshFailure(
        ("timed out", "No route to host", "Network is unreachable", "Timeout, server"),
        "{address} does not answer",
        "is it switched on, and on this network? " + _TRY_SSH,
        passing=True,
    ),
)
_OTHER_FAILURE = _SshFailure((), "the connection to {address} broke", _TRY_SSH, passing=True)


def link_error(address: str, stderr: str) -> LinkError:
    """Return the error for the standard error of ssh."""
    case = next((case for case in _SSH_FAILURES if any(word in stderr for word in case.words)), _OTHER_FAILURE)
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
    """Return the host of ``user@host`` or ``ssh://user@host:port`` in the form of ``ssh-keygen -R``."""
    host = address.removeprefix("ssh://").rpartition("@")[2].rstrip("/")
    name, colon, port = host.rpartition(":")
    return f"'[{name}]:{port}'" if colon and address.startswith("ssh://") else host


CHUNK_BYTES = 1 << 18
STRICT = "strict"
"""Word of ``edgert job`` for a build in which an engine that would be skipped is an error."""

Poll = Callable[[], object]
"""Function called regularly during a wait; an exception in it ends the wait."""
_OPTIONS = {"BatchMode": "yes", "ConnectTimeout": "15", "ServerAliveInterval": "5", "ServerAliveCountMax": "4"}
"""Options of ssh, by which a dead connection ends after 20 s (https://man.openbsd.org/ssh_config#ServerAliveCountMax)."""
_POLL_S = 0.2
_TAIL_LINES = 20
_LONGEST_LINE = 1 << 24
"""Largest size of a line, and of a command's output: a board must not fill this machine's memory."""


class Call(AbstractContextManager["Call"]):
    """A running command on the board, as a context manager; leaving it ends ssh, but no job that the board started."""

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
                start_new_session=True,  # Ctrl-C must not end the connection, which is needed to cancel the job
            )
        except OSError as error:
            self._stderr.close()
            what, fix = "ssh cannot be run on this machine", "sudo apt install openssh-client"
            raise DeviceError(what, why=str(error), fix=fix) from error

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._stderr):
            assert stream is not None  # all are pipes
            stream.close()

    def write(self, chunk: bytes) -> bool:
        """Send bytes to the command; return False if it has ended, whose reason :meth:`check` raises. Blocks."""
        assert self._process.stdin is not None  # a pipe
        rest = memoryview(chunk)
        try:
            while rest:
                rest = rest[os.write(self._process.stdin.fileno(), rest) :]
        except BrokenPipeError:
            return False
        return True

    def line(self, poll: Poll) -> dict[str, Any] | None:
        """Return the command's next line of JSON, skipping other lines; None at its end. Raises the board's error."""
        while True:
            end = self._rest.find(b"\n")
            if end < 0:
                piece = self._piece(poll)
                if not piece:
                    return None
                self._rest += piece
                if len(self._rest) > _LONGEST_LINE:
                    raise DeviceError(
                        f"{self.address} does not answer like edgert", why="it sent a line without an end"
                    )
                continue
            line, self._rest = self._rest[:end], self._rest[end + 1 :]
            content = read_line(line)
            if content is not None and "error" in content:
                raise remote_error(self.address, content["error"])
            if content is not None:
                return content

    def raw(self, poll: Poll) -> Iterator[bytes]:
        """Yield the bytes after the lines read so far, in pieces, until the command's end. Raises as :meth:`check`."""
        piece, self._rest = self._rest, b""
        while piece or (piece := self._piece(poll)):
            yield piece
            piece = b""
        self.check()

    def check(self) -> None:
        """Wait for the command's end. Raises LinkError or DeviceError: it failed."""
        code = self._process.wait()
        if code == SSH_FAILED or code < 0:
            raise link_error(self.address, self.stderr())
        if code:
            raise DeviceError(
                f"{shlex.join(self.words)} failed on {self.address}",
                why="\n".join(self.stderr().strip().splitlines()[-_TAIL_LINES:]) or f"exit code {code}",
            )

    def result(self, poll: Poll) -> tuple[int, str]:
        """Return exit code and standard output; all after :data:`_LONGEST_LINE` bytes is dropped. Raises LinkError."""
        content = b""
        while piece := self._piece(poll):
            content += piece[: max(_LONGEST_LINE - len(content), 0)]
        code = self._process.wait()
        if code == SSH_FAILED or code < 0:
            raise link_error(self.address, self.stderr())
        return code, content.decode("utf-8", "replace")

    def stderr(self) -> str:
        """Return the end of the standard error of ssh and the command."""
        self._stderr.seek(max(self._stderr.seek(0, os.SEEK_END) - _LONGEST_LINE, 0))
        return self._stderr.read(_LONGEST_LINE).decode("utf-8", "replace")

    def _piece(self, poll: Poll) -> bytes:
        assert self._process.stdout is not None  # a pipe
        while True:
            poll()
            ready, _, _ = select.select([self._process.stdout], [], [], _POLL_S)
            if ready:
                return os.read(self._process.stdout.fileno(), CHUNK_BYTES)


@dataclass(frozen=True, slots=True)
class Link:
    """Address of the board, as ssh takes it, and the words of the command that calls edgert there."""

    address: str
    program: tuple[str, ...] = ("edgert",)

    def __post_init__(self) -> None:
        if not self.address or self.address.startswith("-"):
            raise ConfigError(f"{self.address!r} is not an address", where="--remote", fix="write user@host")

    def call(self, *words: str) -> Call:
        """Start edgert there with these words, and return the running command."""
        return Call(self.address, [*self.program, *words])

    def ask(self, *words: str) -> None:
        """Run edgert to its end. Raises the board's error, LinkError or DeviceError."""
        with self.call(*words) as call:
            call.line(bool)
            call.check()


def remote_error(address: str, plain: Mapping[str, Any]) -> EdgertError:
    """Return an error that the board reported, with the board's address in its place."""
    error = error_of(plain)
    error.where = f"{address}: {error.where}" if error.where else address
    return error
