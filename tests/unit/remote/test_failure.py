"""What ssh says, and what is made of it."""

import os
from pathlib import Path

import pytest

from edgert.errors import ConfigError, DeviceError
from edgert.remote import link
from edgert.remote.link import Link, host_of, link_error

CHANGED = """\
@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@
@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @
@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@
IT IS POSSIBLE THAT SOMEONE IS DOING SOMETHING NASTY!
Host key verification failed.
"""


@pytest.mark.parametrize(
    ("said", "what", "fix", "passing"),
    [
        (CHANGED, "the host key of u@jetson has changed", "ssh-keygen -R jetson", False),
        ("Host key verification failed.", "the host key of u@jetson is not known yet", "ssh u@jetson once", False),
        ("u@jetson: Permission denied (publickey).", "u@jetson does not let this user in", "ssh-copy-id", False),
        (
            "ssh: Could not resolve hostname jetson: Name or service not known",
            "unknown host 'jetson'",
            "192.168.55.1; with a port: ssh://user@host:2222",
            True,
        ),
        ("ssh: connect to host jetson port 22: Connection refused", "u@jetson refused the connection", "port", True),
        ("ssh: connect to host jetson port 22: No route to host", "u@jetson does not answer", "switched on", True),
        ("Timeout, server jetson not responding.", "u@jetson does not answer", "this network", True),
        ("client_loop: send disconnect: Broken pipe", "the connection to u@jetson broke", "by hand", True),
    ],
)
def test_what_ssh_says_becomes_an_error_with_a_way_out(said: str, what: str, fix: str, passing: bool) -> None:
    error = link_error("u@jetson", said)
    assert error.what == what
    assert fix in error.fix
    assert error.passing is passing
    assert error.why == said.strip().splitlines()[-1]


def test_an_ssh_that_may_not_be_run_is_a_named_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ssh").touch()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DeviceError, match="ssh cannot be run on this machine"):
        Link("jetson").call("doctor")


def test_an_ssh_that_was_killed_says_nothing() -> None:
    assert link_error("jetson", "").why == "ssh ended without a message"


@pytest.mark.parametrize(
    ("address", "host"),
    [
        ("jetson", "jetson"),
        ("u@jetson", "jetson"),
        ("ssh://u@jetson:2222", "'[jetson]:2222'"),
        ("u@fe80::1", "fe80::1"),
    ],
)
def test_hosts_are_named_as_known_hosts_has_them(address: str, host: str) -> None:
    assert host_of(address) == host


@pytest.mark.parametrize("address", ["", "-oProxyCommand=true"])
def test_an_address_cannot_be_an_option(address: str) -> None:
    with pytest.raises(ConfigError, match="is not an address") as caught:
        Link(address)
    assert (caught.value.where, caught.value.fix) == ("--remote", "write user@host")


def test_a_board_that_never_ends_a_line_does_not_fill_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ssh").write_text("#!/bin/sh\nexec yes | tr -d '\\n'\n")
    (tmp_path / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(link, "_LONGEST_LINE", 1 << 16)
    with pytest.raises(DeviceError, match="does not answer like edgert"):
        Link("board").ask("job")
