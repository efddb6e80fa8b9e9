"""Full batches on a GPU with convolutions that were compiled together with their bias. That takes seconds, so it is
done in a thread of its own, while batches run without; where it is not asked for, it stays if it is measured to be
faster."""

import json
import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

from edgert.backend.base import Store, cache_content
from edgert.backend.ort.layout import MARGIN
from edgert.memory.cuda import CudaDevice, Stream
from edgert.units import format_bytes

log = logging.getLogger("edgert.backend")

_ROOM = 2
"""So many times what the engine's own session took must be free for another with fused kernels."""
_LEAST, _MOST, _ENOUGH_S = 5, 40, 0.15
AFTER_S = 1.0
"""What ends sooner gets by without fused kernels, unless it asks for them."""
_LOOK_S = 0.05

_TURN = threading.Lock()
"""One compiles at a time, as each takes a core."""


class OwnRun:
    """A run by another ONNX Runtime session, over the same tensors.

    That session has a stream of its own, so that it can be made ready while the first one's is recorded; the run begins
    behind what is on the other stream, and what comes on that one begins behind the run.

    Args:
        binding: of that session, with all tensors bound.
        own: its stream.
    """

    def __init__(self, session: Any, binding: Any, device: CudaDevice, own: Stream) -> None:
        self._session, self._binding, self._own = session, binding, own
        self._begins, self._ends = device.event(), device.event()

    def enqueue(self, stream: Stream, settings: Any) -> None:
        """Puts it between what is on ``stream`` and what comes. Does not wait."""
        self._own.wait(self._begins.record(stream))
        self._session.run_with_iobinding(self._binding, settings)
        stream.wait(self._ends.record(self._own))


class Compared(NamedTuple):
    """Microseconds of a full batch without fused kernels, and with them; infinite where they cannot be had."""

    us: float
    fused_us: float

    @property
    def pays(self) -> bool:
        """Whether they are so much faster that they are worth compiling at every start."""
        return self.fused_us * (1 + MARGIN) <= self.us

    def __str__(self) -> str:
        return f"{self.fused_us:.0f} us ({self.us:.0f} without)" if self.fused_us < math.inf else "none can be had"


@dataclass(frozen=True, slots=True)
class Fused:
    """Where fused kernels come from, and whether they are wanted.

    Attributes:
        open: opens ONNX Runtime's session with them on a stream. Raises BuildError, DeviceError.
        is_asked: they are taken in any case; else where there is room for them, and they are faster.
        store, key: where that is cached, by default nowhere.
    """

    open: Callable[[Stream], Any]
    is_asked: bool = True
    store: Store | None = None
    key: str = ""

    @property
    def after_s(self) -> float:
        """How long a pipeline runs before they are compiled."""
        return 0.0 if self.is_asked else AFTER_S

    def why_not(self, device: CudaDevice, nbytes: int) -> str:
        """Why they are not to be compiled; empty where they are. ``nbytes``: what the engine's own session took."""
        if self.is_asked:
            return ""
        if device.traits.integrated:
            return "this GPU shares the processor's memory, and would have the weights in it twice"
        if (free := device.free_bytes()[0]) < _ROOM * nbytes:
            return f"they take about {format_bytes(nbytes)} more, and {format_bytes(free)} are free"
        return "" if (known := self.known()) is None or known.pays else f"measured before: {known}"

    def known(self) -> Compared | None:
        """What was measured before; None for nothing, and for what is damaged."""
        content = self.store.get(self.key) if self.store else None
        try:
            us, fused_us = (float(each) for each in json.loads(content or b"[]"))
        except (ValueError, TypeError):
            return None
        return Compared(us, fused_us) if 0 < us < math.inf and fused_us > 0 else None

    def cache(self, found: Compared) -> None:
        """For a later start."""
        if self.store:
            cache_content(self.store, self.key, json.dumps(found).encode())


def least_us(
    device: CudaDevice, stream: Stream, turn: threading.RLock, runs: Sequence[Callable[[], object]]
) -> Compared:
    """Times two runs in turns, without and with fused kernels, while others may use the GPU, which slows both: what
    each took at least.

    Args:
        stream: that both are put on.
        turn: to hold while something is put there.
    """
    start, end = device.event(timed=True), device.event(timed=True)
    taken: tuple[list[float], ...] = tuple([] for _ in runs)
    began = time.perf_counter()
    while len(taken[0]) < _LEAST or (time.perf_counter() - began < _ENOUGH_S and len(taken[0]) < _MOST):
        for run, found in zip(runs, taken, strict=True):
            with turn:
                start.record(stream)
                run()
                end.record(stream)
            end.synchronize()
            found.append(end.since_ms(start) * 1e3)
    return Compared(*(round(min(found), 1) for found in taken))


@contextmanager
def turn(options: Any, after_s: float) -> Iterator[bool]:
    """Waits so long, and until no other model's kernels are compiled; whether that came before ``options`` end it."""
    began = time.perf_counter()
    while time.perf_counter() - began < after_s and not options.terminate:
        time.sleep(_LOOK_S)
    while not (is_mine := _TURN.acquire(timeout=_LOOK_S)) and not options.terminate:
        pass
    try:
        yield is_mine and not options.terminate
    finally:
        if is_mine:
            _TURN.release()
