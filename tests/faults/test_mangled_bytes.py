"""A network that mangles what cameras send: a proxy between a camera and the pipeline, beside a camera without one."""

import contextlib
import random
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import edgert
from edgert.runtime.stage import SourceStats
from tests.helpers.clips import h264_units
from tests.helpers.rtsp_server import RtspServer
from tests.helpers.waiting import wait_until

FPS, MANGLED_S, PATIENCE_S = 15, 4.0, 30.0
Fault = Callable[[bytes, random.Random], list[bytes]]


def flip(data: bytes, chance: random.Random) -> list[bytes]:
    """One byte in about five thousand."""
    changed = bytearray(data)
    for _ in range(chance.choices((0, 1, 2), (60, 30, 10))[0]):
        changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
    return [bytes(changed)]


def lose(data: bytes, chance: random.Random) -> list[bytes]:
    """A piece of it, so that no length fits what follows."""
    at = chance.randrange(len(data))
    return [data[:at], data[at + chance.randrange(40) :]] if chance.random() < 0.2 else [data]


def repeat(data: bytes, chance: random.Random) -> list[bytes]:
    return [data, data] if chance.random() < 0.2 else [data]


def turn(data: bytes, chance: random.Random) -> list[bytes]:
    """Its halves the other way round."""
    half = len(data) // 2
    return [data[half:], data[:half]] if chance.random() < 0.2 else [data]


def garble(data: bytes, chance: random.Random) -> list[bytes]:
    return [chance.randbytes(len(data))] if chance.random() < 0.2 else [data]


def insert(data: bytes, chance: random.Random) -> list[bytes]:
    """Bytes of nobody in between; some look like the head of a packet of 64 KiB."""
    return [data, b"$\x00\xff\xff" + chance.randbytes(50)] if chance.random() < 0.1 else [data]


def cut(data: bytes, chance: random.Random) -> list[bytes]:
    return [data[: len(data) // 2], b""] if chance.random() < 0.05 else [data]


class Proxy:
    """Passes a server's answers through ``fault`` while there is one."""

    def __init__(self, port: int, seed: int) -> None:
        self._to, self._chance, self._over = port, random.Random(seed), False
        self.fault: Fault | None = None
        self.resets = False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._over = True
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while not self._over:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._to))
                threading.Thread(target=self._pass, args=(client, server, False), daemon=True).start()
                threading.Thread(target=self._pass, args=(server, client, True), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket, mangles: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(2048):
                for part in self.fault(data, self._chance) if mangles and self.fault else [data]:
                    if not part:
                        raise ConnectionError
                    sink.sendall(part)
        for one in (source, sink):
            with contextlib.suppress(OSError):
                if self.resets:
                    one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                one.shutdown(socket.SHUT_RDWR)
            one.close()


@contextmanager
def two_cameras(units: list[bytes], folder: Path, seed: int) -> Iterator[tuple[Proxy, edgert.Pipeline]]:
    """``cam`` behind a proxy, ``other`` without."""
    with RtspServer(units, fps=FPS) as server:
        proxy = Proxy(server.port, seed)
        mangled = server.url.replace(str(server.port), str(proxy.port))
        (folder / "p.yaml").write_text(
            f"stages:\n  cam: {{source: '{mangled}', timeout: 1s}}\n  other: {{source: '{server.url}', timeout: 4s}}\n"
            f"  paint: {{draw: [stats], from: cam}}\n  video: {{sink: video, from: paint, path: '{folder}/a.mkv'}}\n"
            "  end: {sink: null, from: other}\n"
        )
        try:
            with edgert.Pipeline(folder / "p.yaml") as running:
                running.start()
                wait_until(lambda: state(running, "cam").up and state(running, "other").up)
                yield proxy, running
        finally:
            proxy.close()


def state(running: edgert.Pipeline, name: str) -> SourceStats:
    found = running.summary().stages[name].source
    assert found is not None
    return found


@pytest.fixture(scope="module")
def units() -> list[bytes]:
    return h264_units(30, size=(256, 64))


@pytest.mark.timing
@pytest.mark.slow
@pytest.mark.parametrize("resets", [False, True])
@pytest.mark.parametrize("fault", [flip, lose, repeat, turn, garble, insert, cut])
def test_what_is_mangled_is_left_out_and_the_camera_comes_back(
    fault: Fault, resets: bool, units: list[bytes], tmp_path: Path
) -> None:
    with two_cameras(units, tmp_path, seed=1) as (proxy, running):
        proxy.fault, proxy.resets = fault, resets
        before, began_s = running.summary().stages["other"].results_out, time.monotonic()
        time.sleep(MANGLED_S)
        took_s = time.monotonic() - began_s
        assert running.summary().stages["other"].results_out - before >= 0.9 * took_s * FPS - 1
        proxy.fault = None
        count = running.summary().stages["cam"].results_out
        wait_until(lambda: running.summary().stages["cam"].results_out >= count + FPS and state(running, "cam").up)
        summary = running.summary()
    assert summary.stages["video"].results_in > 0


def test_flipped_bits_end_nothing(units: list[bytes], tmp_path: Path) -> None:
    with two_cameras(units, tmp_path, seed=2) as (proxy, running):
        proxy.fault = flip
        time.sleep(1)
        proxy.fault = None
        count = running.summary().stages["cam"].results_out
        wait_until(lambda: running.summary().stages["cam"].results_out >= count + FPS)
