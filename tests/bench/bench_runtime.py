"""Bar 3: ≤ 20 µs per hop; no copies, no objects and ≤ 1 MB kept over 2,000 frames; a control socket costs nothing.

python tests/bench/bench_runtime.py [--json FILE]
"""

import statistics
import time
from collections.abc import Iterator
from operator import truediv

from report import main

import edgert
from edgert.benchmark.measure import Figure, median_ratio
from edgert.benchmark.overhead import growth, hop
from edgert.running import Running

CHAIN = {"stages": {"cam": {"source": "synthetic:blank", "size": "64x64"}, "out": {"sink": "null", "from": "cam"}}}
_FRAMES, _SETTLE_S, _POLL_S = 10_000, 0.2, 0.002  # with 2,000 frames, what opening leaves in caches costs 1 %


def frame_us(running: Running) -> float:
    """Return the microseconds of CPU time of a frame, over the next frames of a run."""
    meter = running.assembly.task("out").meter
    time.sleep(_SETTLE_S)  # a thread was started or ended just before
    before, began_s = meter.results_in, time.process_time()
    while meter.results_in < before + _FRAMES:
        time.sleep(_POLL_S)
    return (time.process_time() - began_s) / (meter.results_in - before) * 1e6


def set_open(running: Running, is_open: bool) -> None:
    socket, running._socket = running._socket, None
    if socket is not None:
        socket.close()
    if is_open:
        running._socket = running._open_socket()
        assert running._socket is not None and running._socket.path is not None


def open_socket(pairs: int = 60) -> Iterator[Figure]:
    """Throughput of a run while its control socket is open, over that while it is closed.

    By CPU time, which other programs of the machine change less than the wall's. Whole runs differ from each other by
    more than the bar; windows of one run that take turns do not.
    """
    taken: dict[bool, list[float]] = {True: [], False: []}
    with edgert.Pipeline(CHAIN) as pipeline:
        pipeline.start()
        for number in range(pairs):
            for is_open in (number % 2 == 0, number % 2 == 1):
                set_open(pipeline._running, is_open)
                taken[is_open].append(frame_us(pipeline._running))
    quarters = statistics.quantiles(map(truediv, taken[False], taken[True]), n=4)
    detail = {"open_us": statistics.median(taken[True]), "closed_us": statistics.median(taken[False])}
    # The standard error of a median of normal samples: 1.25 s / sqrt(n), with s from the quartiles.
    detail["standard_error"] = 1.25 * (quarters[2] - quarters[0]) / 1.35 / pairs**0.5
    share = median_ratio(taken[False], taken[True])
    yield Figure("frames by CPU time with a control socket", share, "of without", 0.99, "higher", pairs, detail)


def measure() -> Iterator[Figure]:
    yield from open_socket()
    yield hop(rounds=15)
    yield from growth()


if __name__ == "__main__":
    main(__doc__.splitlines()[0], measure)
