"""A GPU that falls away under an inference slot: an error, what came before is kept, and everything is given back."""

import gc
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from edgert.errors import DeviceError
from edgert.runtime import Frame, Result, Runner, SourceStats, Task, branches, graph
from edgert.stages.gpu.infer_stage import GpuInfer
from tests.helpers.gpu_inference import Rig, nv12
from tests.helpers.waiting import wait_until


def test_a_gpu_that_is_lost_is_an_error_and_closing_goes_on() -> None:
    rig = Rig()
    rig.inference.run(rig.inference.fill(nv12()))
    pending = rig.inference.submit_batch((rig.inference.fill(nv12(1)),))
    rig.gpu.broken["event"] = "cuEventSynchronize failed: an illegal memory access was encountered"
    with pytest.raises(DeviceError, match="the GPU is lost to this process"):
        pending.records()
    rig.gpu.broken["free"] = rig.gpu.broken["event"]
    rig.close()
    assert rig.device.live_bytes == 0


class Reel:
    """A source of ten frames. ``before`` is called with the number of each."""

    live = False

    def __init__(self, before: Callable[[int], None]) -> None:
        self._before = before

    def frames(self, stop: threading.Event) -> Iterator[Frame]:
        for index in range(10):
            if stop.is_set():
                return
            self._before(index)
            yield nv12(index)

    def stats(self) -> SourceStats:
        return SourceStats()

    def close(self) -> None: ...


class Kept:
    """A sink."""

    def __init__(self) -> None:
        self.records: list[Any] = []
        self.closed = False

    def open(self) -> None: ...

    def process(self, result: Result) -> None:
        self.records.append(result.outputs["find"])

    def close(self) -> None:
        self.closed = True


def test_a_gpu_that_is_lost_ends_the_pipeline_and_what_came_before_is_kept() -> None:
    rig, kept = Rig(), Kept()

    def lose(index: int) -> None:
        if index == 6:
            wait_until(lambda: len(kept.records) >= 3)
            rig.gpu.broken["event"] = "cuEventSynchronize failed: unspecified launch failure"

    chain = branches.branch_tasks("find", [branches.Branch((GpuInfer("find", [rig.inference]),))], frozenset("a"), 1)
    source, sink = Task("a", Reel(lose)), Task("sink", kept)
    graph.connect(source, chain[0], frozenset("a"), 1, "never")
    graph.connect(chain[-1], sink, frozenset("a"), 1, "never")
    runner = Runner([source, *chain, sink])
    runner.start()
    with pytest.raises(DeviceError, match="the GPU is lost to this process") as caught:
        runner.wait(10)
    assert "find" in caught.value.where and not runner.is_running
    assert 3 <= len(kept.records) < 10 and kept.closed
    rig.close()
    del caught, runner, chain, source, sink  # the error knows the call that failed, and so its frame
    gc.collect()  # errors and the threads that they ended know each other
    gc.collect()  # what finalizers of the first round let go
    assert rig.device.live_bytes == 0
