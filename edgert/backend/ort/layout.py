"""In which order a GPU computes a model's tensors, channels first or last: what is faster, by measurement.

Kernels of either may be the faster ones: those of channels last need no reordering of an image, others are tuned better
for small batches of some sizes. Both are timed when a model is first compiled on a GPU, for one row and for all; what
was measured is cached, and decides from then on.
"""

import json
import logging
import math
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np

from edgert.backend.base import row_count
from edgert.backend.gpu import GpuSession
from edgert.errors import BuildError, DeviceError

LAST, FIRST = "channels last", "channels first"
SEARCHED = ", long searched"
"""Behind either: cuDNN looks longer for each kernel, anew at every start and for every number of rows."""
Times = Mapping[str, Mapping[int, float]]
"""Layout → rows → microseconds of a run; without a layout in which the model cannot be run."""

MARGIN = 0.05
"""By which one layout for all sizes may be slower than the best of each: a second one takes the weights once more, and
a longer start. And by which kernels must be faster for a longer search."""

_WARM_S, _ENOUGH_S = 0.05, 0.1  # GPUs that were idle are slower at first
_LEAST, _MOST, _LAUNCHES = 3, 25, 3

log = logging.getLogger("edgert.backend")


@dataclass(frozen=True, slots=True)
class Layouts:
    """The layout of the session that runs ``few`` rows, and of that which runs all rows of a batch."""

    few: str
    full: str

    @property
    def is_one(self) -> bool:
        """Whether one session runs all."""
        return self.few == self.full


def choose(times: Times) -> Layouts:
    """The fastest layout of one row and that of all, of those that were measured; the same for both where that costs
    neither more than :data:`MARGIN`."""
    sizes = sorted({rows for found in times.values() for rows in found})
    handicap = {layout: 1 + MARGIN if layout.endswith(SEARCHED) else 1.0 for layout in times}
    times = {layout: {rows: us * handicap[layout] for rows, us in found.items()} for layout, found in times.items()}
    best = {rows: min(times, key=lambda layout: times[layout][rows]) for rows in sizes}

    def worst(layout: str) -> float:
        return max(times[layout][rows] / times[best[rows]][rows] for rows in sizes)

    alone = min(times, key=worst)
    return Layouts(alone, alone) if worst(alone) <= 1 + MARGIN else Layouts(best[sizes[0]], best[sizes[-1]])


def in_words(times: Times, layouts: Layouts) -> str:
    """The choice with what was measured, for people: ``channels last, 1054 us for 8 rows (1403 channels first)``."""
    sizes = sorted({rows for found in times.values() for rows in found}, reverse=True)
    parts = []
    for rows in sizes:
        chosen = layouts.full if rows == sizes[0] else layouts.few
        others = [f"{found[rows]:.0f} {layout}" for layout, found in times.items() if layout != chosen]
        beside = f" ({', '.join(others)})" if others else ""
        named = f"{chosen}, " if rows == sizes[0] or not layouts.is_one else ""
        parts.append(f"{named}{times[chosen][rows]:.0f} us for {rows} {'row' if rows == 1 else 'rows'}{beside}")
    return "; ".join(parts)


def to_json(times: Times) -> bytes:
    """For a cache."""
    return json.dumps({layout: dict(found) for layout, found in times.items()}).encode()


def from_json(content: bytes) -> Times | None:
    """What :func:`to_json` made; None for anything else."""
    try:
        times = {
            layout: {int(rows): float(us) for rows, us in found.items()}
            for layout, found in json.loads(content).items()
        }
    except (ValueError, TypeError, AttributeError):
        return None
    sizes = {frozenset(found) for found in times.values()}
    numbers = [us for found in times.values() for us in found.values()]
    known = {LAST, FIRST, LAST + SEARCHED, FIRST + SEARCHED}
    is_whole = times.keys() <= known and len(sizes) == 1 and frozenset() not in sizes
    return times if is_whole and all(0 < us < math.inf for us in numbers) else None


class Measured(NamedTuple):
    """Rows → microseconds of a run, and why that was none of a CUDA graph; empty where it was."""

    us: Mapping[int, float]
    no_graph: str


def usable(found: Mapping[str, Measured], where: str) -> Times:
    """What is to be chosen from: layouts whose runs can be recorded as CUDA graphs, as others take more of the
    processor; all, where none can be."""
    recordable = {layout: one.us for layout, one in found.items() if not one.no_graph}
    for layout in found.keys() - recordable.keys() if recordable else ():
        log.info("%s: kernels of %s are not used: %s", where, layout, found[layout].no_graph)
    return recordable or {layout: one.us for layout, one in found.items()}


def measured(session: GpuSession) -> Measured:
    """Times a run over random numbers, of one row and of all, as a pipeline runs it. The GPU must do nothing else.
    Raises BuildError, DeviceError."""
    random = np.random.default_rng(0)
    for tensor in session.inputs_on_gpu.values():
        if np.dtype(tensor.dtype).kind == "f":  # on zeros, GPUs are faster
            tensor.host[...] = random.standard_normal(tensor.shape, np.float32)
            tensor.block.upload(session.stream)
    rows, us, no_graph = row_count(session.inputs_on_gpu.values()), dict[int, float](), ""
    for count in sorted({1, rows} if session.dynamic else {rows}, reverse=True):
        graph, reason = recorded(session, count)
        us[count] = round(_median_us(session, graph or partial(session.enqueue, count)), 1)
        no_graph = no_graph or reason
    return Measured(us, no_graph)


def _median_us(session: GpuSession, run: Callable[[], object]) -> float:
    started, taken = time.perf_counter(), list[float]()
    while time.perf_counter() - started < _WARM_S:
        _seconds(session, run)
    started = time.perf_counter()
    while len(taken) < _LEAST or (time.perf_counter() - started < _ENOUGH_S and len(taken) < _MOST):
        taken.append(_seconds(session, run))
    return statistics.median(taken) / _LAUNCHES * 1e6


def _seconds(session: GpuSession, run: Callable[[], object]) -> float:
    started = time.perf_counter()
    for _ in range(_LAUNCHES):
        run()
    session.stream.synchronize()
    return time.perf_counter() - started


def recorded(session: GpuSession, rows: int | None = None) -> tuple[Callable[[], None] | None, str]:
    """A CUDA graph of a run, or None and why there is none. Raises BuildError, DeviceError for a run that fails."""
    session.enqueue(rows)
    session.stream.synchronize()
    reason = ""
    for _ in range(2):  # another thread, or a library in this one, may come between once
        try:
            return session.device.capture(session.stream, partial(session.enqueue, rows)), ""
        except (BuildError, DeviceError) as error:
            reason = error.why or error.what
            try:
                session.enqueue(rows)  # CUDA reports it a second time, to whoever asks next in this thread
            except BuildError as again:
                log.debug("reported once more: %s", again.why)
    return None, reason
