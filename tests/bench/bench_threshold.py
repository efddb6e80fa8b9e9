"""What calibration spends per value and per tensor: counting into a histogram, and finding thresholds from one.

    python tests/bench/bench_threshold.py [--json FILE]

Counted are 2**20 float32 at a time: normal, half zeros (after a ReLU), all zeros; and a small tensor of 2**14. One
thread's figures are its CPU time, which other work on the machine disturbs less than wall time; with two threads, each
counting into its own histogram, it is wall time per value of both. The counts are compared with NumPy's before.
Thresholds are found from histograms of five distributions; the slowest one's median counts. Exits 1 above 2 ns per
value, 20 ms for entropy or 3 ms for mse.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt
import report

from edgert.benchmark.measure import Figure
from edgert.quantization.calibration.threshold import METHODS, threshold
from edgert.quantization.calibration.value_histogram import BINS, Histogram

Array = npt.NDArray[Any]

ROUNDS, VALUES, SMALL = 31, 2**20, 2**14
COUNT_BAR_NS = 2.0
BARS_MS = {"entropy": 20.0, "mse": 3.0}


def tensors() -> dict[str, Array]:
    """What is counted."""
    normal = np.random.default_rng(0).normal(0, 1, VALUES).astype(np.float32)
    half, small = np.maximum(normal, 0), normal[:SMALL].copy()
    return {"normal": normal, "half zeros": half, "all zeros": 0 * normal, "normal, 16,384 values": small}


def distributions() -> dict[str, Array]:
    """What thresholds are found for."""
    rng = np.random.default_rng(1)
    normal = rng.normal(0, 1, VALUES)
    outlier = np.append(normal, 1000.0)
    heavy = rng.standard_t(3, VALUES)
    clipped = np.clip(4 * normal, 0, 6)
    return {"normal": normal, "relu": np.maximum(normal, 0), "relu6": clipped, "heavy": heavy, "outlier": outlier}


def of(array: Array) -> Histogram:
    """Its histogram."""
    histogram = Histogram()
    histogram.add(array)
    return histogram


def verify(array: Array) -> None:
    """Counts are NumPy's."""
    histogram = of(array)
    bins = (np.abs(array) * np.float32(2.0 ** (11 - histogram.exponent))).astype(np.int64)
    assert np.array_equal(histogram.counts, np.bincount(bins, minlength=BINS))


def cpu_ns(work: Callable[[], object]) -> list[int]:
    """This thread's CPU time, round by round, after one that warms up."""
    taken = []
    for _ in range(ROUNDS + 1):
        start_ns = time.thread_time_ns()
        work()
        taken.append(time.thread_time_ns() - start_ns)
    return taken[1:]


def counting(name: str, array: Array) -> Figure:
    """Of one thread."""
    histogram, repeats = of(array), VALUES // array.size
    rounds = cpu_ns(lambda: [histogram.add(array) for _ in range(repeats)])
    each = [taken / VALUES for taken in rounds]
    bar = COUNT_BAR_NS if array.size == VALUES else None
    return Figure(f"count, {name}", statistics.median(each), "ns/value", bar, n=ROUNDS, detail={"best": min(each)})


def counting_together(name: str, array: Array) -> Figure:
    """Of two threads at once."""
    histograms, each = (of(array), of(array)), []
    with ThreadPoolExecutor(2) as pool:
        for _ in range(ROUNDS + 1):
            start_ns = time.perf_counter_ns()
            list(pool.map(lambda histogram: histogram.add(array), histograms))
            each.append((time.perf_counter_ns() - start_ns) / (2 * VALUES))
    each = each[1:]
    return Figure(
        f"count, {name}, 2 threads", statistics.median(each), "ns/value", n=ROUNDS, detail={"best": min(each)}
    )


def searching(method: str) -> Figure:
    """The slowest distribution's."""
    histograms = {name: of(array) for name, array in distributions().items()}
    each_ns = {name: cpu_ns(lambda histogram=one: threshold(histogram, method)) for name, one in histograms.items()}
    medians = {name: statistics.median(taken) / 1e6 for name, taken in each_ns.items()}
    return Figure(f"{method} threshold", max(medians.values()), "ms", BARS_MS.get(method), n=ROUNDS, detail=medians)


def measure() -> Iterator[Figure]:
    """Every figure."""
    for name, array in tensors().items():
        verify(array)
        yield counting(name, array)
    for name, array in tensors().items():
        if array.size == VALUES:
            yield counting_together(name, array)
    for method in METHODS:
        yield searching(method)


if __name__ == "__main__":
    report.main("Counting values and finding thresholds", measure)
