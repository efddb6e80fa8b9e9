"""Machines of one network, as network namespaces: each has its own address, and reaches the others only through it."""

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

SERVER = "10.231.0.1"


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=20)


@contextmanager
def machines(names: Sequence[str]) -> Iterator[dict[str, list[str]]]:
    """Yield name → the beginning of commands that run there, of ``server`` at :data:`SERVER` and these; all joined by a
    bridge on the server. Skips where namespaces cannot be made."""
    tag = f"e{os.getpid() % 100_000}"
    try:
        _ip("netns", "add", f"{tag}-server")
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"network namespaces need root and iproute2: {error}")
    made = [f"{tag}-server"]
    try:
        server = ("-n", made[0])
        _ip(*server, "link", "add", "hub", "type", "bridge")
        _ip(*server, "addr", "add", f"{SERVER}/24", "dev", "hub")
        for device in ("lo", "hub"):
            _ip(*server, "link", "set", device, "up")
        for number, name in enumerate(names, 2):
            space = f"{tag}-{name}"
            _ip("netns", "add", space)
            made.append(space)
            _ip(*server, "link", "add", f"to{number}", "type", "veth", "peer", "name", "eth0", "netns", space)
            _ip(*server, "link", "set", f"to{number}", "master", "hub", "up")
            _ip("-n", space, "addr", "add", f"10.231.0.{number}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                _ip("-n", space, "link", "set", device, "up")
        yield {name.removeprefix(f"{tag}-"): ["ip", "netns", "exec", name] for name in made}
    finally:
        for name in made:
            _ip("netns", "del", name)
