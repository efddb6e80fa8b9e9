"""Bar 3: ≤ 20 µs per hop; no copies, no objects and ≤ 1 MB kept over 2,000 frames; a control socket costs nothing.

python tests/bench/bench_runtime.py [--json FILE]
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from functools import partial
from unittest.mock import patch

from report import main

import edgert
from edgert.benchmark.measure import Figure, interleave, median_ratio
from edgert.benchmark.overhead import growth, hop
from edgert.running import Running

_FRAMES = 50_000
CHAIN = {
    "stages": {
        "cam": {"source": "synthetic:blank", "size": "64x64", "limit": _FRAMES},
        "out": {"sink": "null", "from": "cam"},
    }
}


def cpu_us(has_socket: bool) -> float:
    """Microseconds of CPU time that a frame takes, of a run with an open control socket or without."""
    with (
        patch.object(Running, "_open_socket", Running._open_socket if has_socket else lambda self: None),
        edgert.Pipeline(CHAIN) as pipeline,
    ):
        began_s = time.process_time()
        pipeline.start()
        own = pipeline._running._socket
        assert (own is not None and own.path is not None) == has_socket
        pipeline.wait()
        return (time.process_time() - began_s) / _FRAMES * 1e6


def open_socket(rounds: int = 31) -> Iterator[Figure]:
    """Throughput of a run whose control socket is open, over that of one without; rounds take turns.

    By CPU time, which other programs of the machine change less than the wall's.
    """
    cpu_us(True)
    opened, closed = interleave(rounds, partial(cpu_us, True), partial(cpu_us, False))
    detail = {"open_us": statistics.median(opened), "closed_us": statistics.median(closed)}
    share = median_ratio(closed, opened)
    yield Figure("frames by CPU time with a control socket", share, "of without", 0.99, "higher", rounds, detail)


def measure() -> Iterator[Figure]:
    yield from open_socket()
    yield hop(rounds=15)
    yield from growth()


if __name__ == "__main__":
    main(__doc__.splitlines()[0], measure)
