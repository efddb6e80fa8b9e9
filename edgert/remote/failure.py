"""What OpenSSH's client says when it fails, as an error with a way out."""

from __future__ import annotations

from dataclasses import dataclass

from edgert.errors import DeviceError

FAILED = 255
"""Exit code of ssh itself; any other is the remote command's: https://man.openbsd.org/ssh#EXIT_STATUS."""
_BY_HAND = "type  ssh {address} true  by hand: what works there works here"


class LinkError(DeviceError):
    """There is no connection to the board.

    Attributes:
        passing: whether it may be there again in a moment.
    """

    passing: bool = False


@dataclass(frozen=True, slots=True)
class _Case:
    """Words of ssh's → what they mean."""

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


def link_error(address: str, said: str) -> LinkError:
    """The error for what ssh wrote on standard error."""
    case = next((case for case in _CASES if any(word in said for word in case.words)), _OTHER)
    names = {"address": address, "host": host_of(address)}
    lines = [line.strip() for line in said.splitlines() if line.strip() and not line.startswith("@")]
    error = LinkError(
        case.what.format(**names), why=lines[-1] if lines else "ssh ended without a word", fix=case.fix.format(**names)
    )
    error.passing = case.passing
    return error


def host_of(address: str) -> str:
    """The host of ``user@host`` or ``ssh://user@host:port``, as ``ssh-keygen -R`` takes it."""
    host = address.removeprefix("ssh://").rpartition("@")[2].rstrip("/")
    name, colon, port = host.rpartition(":")
    return f"'[{name}]:{port}'" if colon and address.startswith("ssh://") else host
