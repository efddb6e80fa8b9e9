"""Networks with weights whose products are subnormal numbers, as they are and as edgert prepares them.

Processor time of one thread, in turn, medians; outputs of both for one random input are compared. On a processor that
takes no longer for subnormal numbers there is nothing to gain.

python tests/bench/bench_specks.py [--json FILE]
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator

import numpy as np
from report import main, needs
from unseen import static

from edgert.backend.ort import Function
from edgert.backend.ort.cpu import prepared
from edgert.benchmark.measure import Figure
from edgert.graph import inputs

NETWORKS = ("osnet_x0_25_msmt17", "person_reid_retail_0288", "road_segmentation_adas_0001", "nanodet_m_320")
RUNS = 15


def measure() -> Iterator[Figure]:
    """Each network."""
    needs("models")
    for name in NETWORKS:
        model, random = static(name), np.random.default_rng(0)
        feeds = {one.name: random.random(one.shape).astype(np.float32) for one in inputs(model)}  # type: ignore[arg-type]
        pair = [Function(model), Function(prepared(model, {}))]
        before, after = (run(feeds) for run in pair)
        apart = max(float(np.abs(before[key] - after[key]).max()) for key in before)
        as_is, ready = zip(*([taken_ms(run, feeds) for run in pair] for _ in range(RUNS)), strict=True)
        detail = {"as it is, ms": statistics.median(as_is), "prepared, ms": statistics.median(ready), "apart": apart}
        ratio = statistics.median(as_is) / statistics.median(ready)
        yield Figure(f"{name}: times as long with specks", ratio, "x", n=RUNS, detail=detail)


def taken_ms(run: Function, feeds: dict[str, np.ndarray]) -> float:
    """Processor time of a run right after another one."""
    run(feeds)
    began = time.thread_time()
    run(feeds)
    return 1e3 * (time.thread_time() - began)


if __name__ == "__main__":
    main(__doc__.splitlines()[0] if __doc__ else "", measure)
