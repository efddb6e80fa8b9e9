"""The clients of bench_page_clients.py, in processes of their own, which start at once: nothing of edgert's is needed.

python tests/bench/page_partners.py attack PORT CLIENTS | ask PORT COUNT SECONDS
"""

from __future__ import annotations

import http.client
import socket
import sys
import time

KINDS = {
    "silent": b"",
    "slow": b"GET /metrics HTTP/1.1\r\nX: ",
    "unfinished": b"POST / HTTP/1.1\r\nContent-Length: 1000000\r\n\r\n",
    "blind": b"GET /stream.mjpg HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "greedy": b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "curious": b"GET /snapshot.jpg HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "wrong": b"\x16\x03\x01\x02\x00\x01\x00" * 20,
}
SENDS = ("slow", "blind")
"""They go on sending, and read nothing."""


def attack(port: int, count: int) -> None:
    """So many clients, in one thread, for ever."""
    clients: list[tuple[str, socket.socket | None]] = [(list(KINDS)[one % len(KINDS)], None) for one in range(count)]
    while True:
        for number, (kind, client) in enumerate(clients):
            clients[number] = kind, stepped(kind, client, port)
        time.sleep(0.02)


def stepped(kind: str, client: socket.socket | None, port: int) -> socket.socket | None:
    """A client after its next step; None where it has to begin again."""
    try:
        if client is None:
            client = socket.create_connection(("127.0.0.1", port), timeout=5)
            client.sendall(KINDS[kind])
            client.setblocking(False)
        elif kind in SENDS:
            client.send(b"x")
        elif not client.recv(1 << 18):
            client.close()
            return None
    except BlockingIOError:
        return client
    except OSError:
        if client is not None:
            client.close()
        return None
    return client


def ask(port: int, count: int, seconds: float) -> None:
    """A friend in a process of his own: asks for the metrics so many times, and prints how long each took; a negative
    time is that of an answer that was none."""
    began = time.monotonic()
    for number in range(1, count + 1):
        asked_s = time.monotonic()
        connection, failed = http.client.HTTPConnection("127.0.0.1", port, timeout=5), False
        try:
            connection.request("GET", "/metrics")
            answer = connection.getresponse()
            failed = b"edgert_latency_seconds_bucket" not in answer.read() or answer.status != 200
        except OSError:
            failed = True
        finally:
            connection.close()
        took_s = time.monotonic() - asked_s
        print(-took_s if failed else took_s, flush=True)
        time.sleep(max(began + seconds * number / count - time.monotonic(), 0))


if __name__ == "__main__":
    if sys.argv[1] == "attack":
        attack(int(sys.argv[2]), int(sys.argv[3]))
    ask(int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
