"""A small real RTSP server on loopback that misbehaves on demand.

H.264 over RTP (RFC 6184: single NAL units and FU-A), interleaved in the RTSP connection (RFC 2326 §10.12), with Basic
and Digest authentication (RFC 2617). As a program it can be killed and frozen like a camera; see :class:`RtspProgram`.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import re
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from types import TracebackType

from tests.helpers.command import ServerProcess, free_port

MTU_BYTES = 1200
_1900_S = 2_208_988_800
"""From 1900, where NTP's time begins, to 1970."""


def _report(clock_s: float, ticks: int) -> bytes:
    """A sender's report, interleaved (RFC 3550, 6.4.1): its time of day where its stream's own clock shows ticks."""
    ntp = round((clock_s + _1900_S) * 2**32)
    return struct.pack(">cBHBBHIQIII", b"$", 1, 28, 0x80, 200, 6, 1, ntp, ticks & 0xFFFFFFFF, 0, 0)


_REPORT = _report(-_1900_S, 0)  # nothing to report
CLOCK_HZ = 90_000
START_TICKS = 1_234_567  # RFC 3550 wants a random one
REALM, NONCE = "cameras", "0123456789abcdef"


class RtspServer:
    """Sends ``units`` (Annex B access units) round and round at ``fps``, to any number of clients.

    Args:
        user, password: asked for when given. auth: ``basic`` or ``digest``.
        algorithms: of Digest, one challenge for each; MD5 is the one that it takes.
        first: index of the first unit sent on each connection.
        once: send the units once and announce that length, as a server of recordings does.

    Attributes:
        connections: accepted so far. plays: PLAY requests so far.
        sent, started_s: units sent so far, and the monotonic time of the first, of the newest connection of each URL.
        is_stalled: while true, nothing more is sent though connections stay open; ``is_reporting``: but sender reports.
        is_silent: while true, requests get no answer.
        stays: whether a server of recordings keeps the connection open, and is silent, when it has sent everything.
        clock_s: seconds since 1970 that its clock shows at the first unit of each connection, which it then reports
            before every tenth unit; None: it reports nothing.
    """

    def __init__(
        self,
        units: list[bytes],
        *,
        fps: float = 30,
        user: str = "",
        password: str = "",
        auth: str = "digest",
        algorithms: Sequence[str] = ("",),
        first: int = 0,
        once: bool = False,
    ) -> None:
        self.units, self.fps, self.first, self.once = units, fps, first, once
        self.user, self.password, self.auth, self.algorithms = user, password, auth, algorithms
        self.connections = self.plays = 0
        self.is_stalled = self.is_reporting = self.is_silent = self.stays = False
        self.status = 200  # of DESCRIBE
        self.clock_s: float | None = None
        self.port = 0
        self.sent: dict[str, int] = {}
        self.started_s: dict[str, float] = {}
        self._clients: set[socket.socket] = set()
        self._listener: socket.socket | None = None
        self._closing = threading.Event()

    @property
    def url(self) -> str:
        login = f"{self.user}:{self.password}@" if self.user else ""
        return f"rtsp://{login}127.0.0.1:{self.port}/live"

    def __enter__(self) -> RtspServer:
        self.listen()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.set()
        self.refuse()

    def listen(self) -> None:
        """Accepts connections, on the same port as before if it did already."""
        listener = socket.create_server(("127.0.0.1", self.port), reuse_port=False)
        self.port = listener.getsockname()[1]
        self._listener = listener
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()

    def drop(self) -> None:
        for client in list(self._clients):
            _shut(client)

    def refuse(self) -> None:
        """Cuts every connection and accepts no more, until :meth:`listen`."""
        if self._listener is not None:
            _shut(self._listener)
            self._listener = None
        self.drop()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            self.connections += 1
            self._clients.add(client)
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        try:
            with client, client.makefile("rb") as lines:
                self._talk(client, lines)
        except (OSError, ValueError, LookupError, struct.error):
            pass  # the other side, or drop(), ended the connection; or it answers to what was mangled on its way
        finally:
            self._clients.discard(client)

    def _talk(self, client: socket.socket, lines) -> None:  # type: ignore[no-untyped-def]
        while (start := lines.read(1)) not in (b"", b"\r"):
            if start == b"$":  # RTCP from the client: channel, length, bytes
                lines.read(struct.unpack(">xH", lines.read(3))[0])
                continue
            method, url = (start + lines.readline()).decode("ascii", "replace").split()[:2]
            headers = {}
            while (line := lines.readline()) not in (b"", b"\r\n"):
                name, _, value = line.decode().partition(":")
                headers[name.strip().lower()] = value.strip()
            while self.is_silent and not self._closing.is_set():
                time.sleep(0.01)
            reply, body = self._reply(method, url, headers)
            length = f"Content-Length: {len(body)}\r\n" if body else ""
            client.sendall(f"{reply}CSeq: {headers['cseq']}\r\n{length}\r\n{body}".encode())
            if method == "PLAY" and reply.startswith("RTSP/1.0 200"):
                self.plays += 1
                threading.Thread(target=self._send, args=(client, url.rstrip("/")), daemon=True).start()
            if method == "TEARDOWN":
                return

    def _reply(self, method: str, url: str, headers: dict[str, str]) -> tuple[str, str]:
        if method == "OPTIONS":
            return "RTSP/1.0 200 OK\r\nPublic: OPTIONS, DESCRIBE, SETUP, PLAY, TEARDOWN, GET_PARAMETER\r\n", ""
        if self.user and not self._is_allowed(method, headers.get("authorization", "")):
            digest = f'Digest realm="{REALM}", nonce="{NONCE}"'
            challenges = [digest + (f', algorithm="{one}"' if one else "") for one in self.algorithms]
            if self.auth == "basic":
                challenges = [f'Basic realm="{REALM}"']
            lines = [f"WWW-Authenticate: {one}\r\n" for one in challenges]
            return f"RTSP/1.0 401 Unauthorized\r\n{''.join(lines)}", ""
        if method == "DESCRIBE":
            if self.status != 200:
                return f"RTSP/1.0 {self.status} Not Found\r\n", ""
            return f"RTSP/1.0 200 OK\r\nContent-Base: {url}/\r\nContent-Type: application/sdp\r\n", self._sdp()
        if method == "SETUP" and "TCP" not in headers.get("transport", ""):
            return "RTSP/1.0 461 Unsupported Transport\r\n", ""
        transport = "Transport: RTP/AVP/TCP;unicast;interleaved=0-1\r\n" if method == "SETUP" else ""
        return f"RTSP/1.0 200 OK\r\n{transport}Session: 12345678\r\n", ""

    def _is_allowed(self, method: str, authorization: str) -> bool:
        if self.auth == "basic":
            return authorization == "Basic " + base64.b64encode(f"{self.user}:{self.password}".encode()).decode()
        given = dict(re.findall(r'(\w+)="([^"]*)"', authorization))
        first = _md5(f"{self.user}:{REALM}:{self.password}")
        second = _md5(f"{method}:{given.get('uri', '')}")
        return given.get("response") == _md5(f"{first}:{NONCE}:{second}")

    def _sdp(self) -> str:
        sets = ",".join(base64.b64encode(nal).decode() for nal in nals(self.units[0]) if nal[0] & 31 in (7, 8))
        end = f"{len(self.units) / self.fps:.3f}" if self.once else ""
        lines = (
            "v=0",
            "o=- 1 1 IN IP4 127.0.0.1",
            "s=test",
            "c=IN IP4 0.0.0.0",
            "t=0 0",
            f"a=range:npt={'0' if self.once else 'now'}-{end}",
            "m=video 0 RTP/AVP 96",
            f"a=rtpmap:96 H264/{CLOCK_HZ}",
            f"a=fmtp:96 packetization-mode=1;sprop-parameter-sets={sets}",
            "a=control:track0",
        )
        return "\r\n".join(lines) + "\r\n"

    def _send(self, client: socket.socket, url: str) -> None:
        number, start_s, index = 0, time.monotonic(), self.first
        self.sent[url], self.started_s[url] = 0, start_s
        try:
            while not self._closing.is_set() and not (self.once and index >= len(self.units)):
                while self.is_stalled and not self._closing.is_set():
                    if self.is_reporting:
                        client.sendall(_REPORT)
                    time.sleep(0.01)
                ticks = START_TICKS + round((index - self.first) * CLOCK_HZ / self.fps)
                if self.clock_s is not None and (index - self.first) % 10 == 0:
                    client.sendall(_report(self.clock_s + (index - self.first) / self.fps, ticks))
                packets = _packets(self.units[index % len(self.units)], number, ticks & 0xFFFFFFFF)
                client.sendall(b"".join(packets))
                number += len(packets) // 2
                index += 1
                self.sent[url] += 1
                time.sleep(max(0.0, start_s + (index - self.first) / self.fps - time.monotonic()))
            if self.once and not self.stays:
                _shut(client)
        except OSError:
            pass  # the client hung up


def nals(unit: bytes) -> list[bytes]:
    return [nal for nal in re.split(rb"\x00{2,3}\x01", unit) if nal]


def _packets(unit: bytes, number: int, ticks: int) -> list[bytes]:
    """Interleaved RTP packets of one access unit, the first with that number: header, payload, header, payload …"""
    packets = []
    for payload, is_last in _payloads(unit):
        packets += [
            struct.pack(">cBHBBHII", b"$", 0, len(payload) + 12, 0x80, 96 | is_last << 7, number & 0xFFFF, ticks, 1)
        ]
        packets += [payload]
        number += 1
    return packets


@lru_cache(4096)
def _payloads(unit: bytes) -> tuple[tuple[bytes, bool], ...]:
    return tuple(_parts(unit))


def _parts(unit: bytes) -> Iterator[tuple[bytes, bool]]:
    parts = nals(unit)
    for nal in parts:
        ends = nal is parts[-1]
        if len(nal) <= MTU_BYTES:
            yield nal, ends
            continue
        head, kind, body = nal[0] & 0xE0 | 28, nal[0] & 31, nal[1:]
        for start in range(0, len(body), MTU_BYTES):
            is_end = start + MTU_BYTES >= len(body)
            mark = (start == 0) << 7 | is_end << 6 | kind
            yield bytes((head, mark)) + body[start : start + MTU_BYTES], ends and is_end


def _md5(text: str) -> str:
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()


def _shut(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):  # it may be gone already
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()


class RtspProgram(ServerProcess):
    """A server in a process of its own, always on the same port."""

    def __init__(self, file: Path, fps: float) -> None:
        self._file, self._fps, self.port, self.ready_s = file, fps, free_port(), 0.0

    @property
    def url(self) -> str:
        return f"rtsp://127.0.0.1:{self.port}/live"

    def start(self) -> None:
        self.serve([sys.executable, "-S", __file__, str(self.port), str(self._file), str(self._fps)])
        self.ready_s = time.monotonic()


def save(units: Sequence[bytes], file: Path) -> Path:
    file.write_bytes(b"".join(len(unit).to_bytes(4, "big") + unit for unit in units))
    return file


def _saved(file: Path) -> Iterator[bytes]:
    data = file.read_bytes()
    while data:
        end = 4 + int.from_bytes(data[:4], "big")
        yield data[4:end]
        data = data[end:]


if __name__ == "__main__":
    server = RtspServer(list(_saved(Path(sys.argv[2]))), fps=float(sys.argv[3]))
    server.port = int(sys.argv[1])
    with server:
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        sys.stdin.read()
