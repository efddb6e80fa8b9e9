"""What bench_unseen.py measures of networks by themselves."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from pace import mean_ms
from unseen import REFERENCE, columns, static

from edgert.backend import EngineOptions, Session
from edgert.backend.ort import OrtBackend
from edgert.backend.ort.cpu import Kernel, kernel_times
from edgert.benchmark import core_profile
from edgert.benchmark.measure import Run, jitter, once, timed
from edgert.board.host import core_accelerators, pinned
from edgert.graph import read
from edgert.jitter import Quantiles
from scripts.fitting import host

MEASURED = (
    "resnet50", "parts", "deeplab_v3_mnv2_05", REFERENCE, "mobilenet_v1_025_224", "nanodet_m_320",
    "osnet_x0_25_msmt17", "person_reid_retail_0288", "squeezenet_fp32", "ultraface_rfb_320",
    "yolox_nano_416", "yunet_120x160", "road_segmentation_adas_0001", "mobilenet_v2", "shufflenet_v2_x2_0", "yolov8n",
)  # fmt: skip
BRIEF_S, LONG_S = (0.001, 0.004, 0.015), 0.04
"""Rests between two runs, after which less is gone from the caches than after a long one."""
_SPIN_S = 0.1
"""Longer than threads of ONNX Runtime spin."""


class Bench:
    """One network, to be timed in rounds.

    A shared machine is slow for moments and for seconds at a time, so the reference is timed in between, and a round's
    times are kept as so many of its runs (``alone``, ``rested``, ``busy``, ``two``, and for each of :data:`BRIEF_S` one
    of ``brief``); medians over the rounds count.
    """

    def __init__(self, name: str) -> None:
        self.name, self.model = name, static(name)
        self.graph = read(self.model)
        self._engine = OrtBackend().compile(self.model, EngineOptions(threads=1))
        self._one, self._two = self._filled(1), self._filled(2)
        self._feeds = {key: value.copy() for key, value in self._one.inputs.items()}
        self.alone, self.rested, self.busy, self.two = (list[float]() for _ in range(4))
        self.brief = tuple(list[float]() for _ in BRIEF_S)
        self.readings_ms: list[float] = []
        self._kernels: list[Sequence[Kernel]] = []
        self._busy: list[list[Run]] = []

    def _filled(self, threads: int) -> Session:
        session = OrtBackend().compile(self.model, EngineOptions(threads=threads)).session()
        random = np.random.default_rng(0)
        for tensor in session.inputs.values():
            tensor[...] = random.random(tensor.shape).astype(tensor.dtype)
        return session

    def mark(self) -> Callable[[], None]:
        """Gives what forgets whatever is measured from now on."""
        kept = [(one, len(one)) for one in (*vars(self).values(), *self.brief) if isinstance(one, list)]

        def forget() -> None:
            for one, count in kept:
                del one[count:]

        return forget

    def turn(self, reference: Bench, runs: int = 9) -> None:
        """A round: its kernels, alone, after rests, with company, and on two threads."""
        cores = core_accelerators()
        for mine, core in cores.items():
            with pinned(core):
                self._kernels.append(kernel_times(self.model, self._feeds, runs))
                self.alone.append(self._against(reference, self.second_ms, runs))
                self.rested.append(self._against(reference, partial(self._after_ms, LONG_S), runs))
                for rest_s, found in zip(BRIEF_S, self.brief, strict=True):
                    found.append(self._against(reference, partial(self._after_ms, rest_s), runs))
                with core_profile.company(self._engine, [at for name, at in cores.items() if name != mine]):
                    self._busy.append(timed(self._one.run, 3 * runs))
            self.busy.append(mean_ms([one.cpu_ms for one in self._busy[-1]]) / mean_ms(self.readings_ms[-2 * runs :]))
        self.two.append(self._against(reference, self._second_on_two_ms, runs))

    def _against(self, reference: Bench, take_ms: Callable[[], float], runs: int) -> float:
        """What is taken, in runs of the reference right before."""
        pairs = [(reference.second_ms(), take_ms()) for _ in range(runs)]
        self.readings_ms += [reading_ms for reading_ms, _ in pairs]
        return mean_ms([taken_ms for _, taken_ms in pairs]) / mean_ms(self.readings_ms[-runs:])

    def second_ms(self) -> float:
        """Processor time of a run right after another one."""
        self._one.run()
        return once(self._one.run).cpu_ms

    def _second_on_two_ms(self) -> float:
        self._two.run()
        return once(self._two.run).wall_ms

    def _after_ms(self, rest_s: float) -> float:
        self._one.run()
        time.sleep(rest_s)
        return once(self._one.run).cpu_ms

    def spun_ms(self) -> float:
        """Processor time of the whole process after a run on two threads, until it rests."""
        found = []
        for _ in range(5):
            self._two.run()
            began = time.process_time()
            time.sleep(_SPIN_S)
            found.append(1e3 * (time.process_time() - began))
        return statistics.median(found)

    @property
    def company(self) -> float:
        """How many times as long it takes with all cores busy."""
        return max(1.0, statistics.median(self.busy) / statistics.median(self.alone))

    @property
    def on_two(self) -> float:
        """On two threads, the time on one."""
        return statistics.median(self.two) / statistics.median(self.alone)

    @property
    def jitter(self) -> Quantiles:
        """Of its runs with company."""
        return jitter(self._busy)

    def found(self, reference_ms: float) -> host.Timed:
        """Its kernels, and the whole."""
        found, rounds_ms = columns(self.name), [{one.name: one.time_ms for one in kernels} for kernels in self._kernels]
        times_ms = [statistics.median(one[name] for one in rounds_ms) for name in found.names]
        return host.Timed(found, np.array(times_ms), reference_ms * statistics.median(self.alone))


def brief_parts(benches: Sequence[Bench]) -> tuple[float, ...]:
    """After each of :data:`BRIEF_S`, what part a run takes more of what it takes more after a long rest."""

    def more(times: Callable[[Bench], Sequence[float]]) -> float:
        return max(statistics.median(sum(times(one)) / sum(one.alone) - 1 for one in benches), 0.0)

    long = max(more(lambda one: one.rested), 1e-6)
    return tuple(min(more(lambda one, at=at: one.brief[at]) / long, 1.0) for at in range(len(BRIEF_S)))
