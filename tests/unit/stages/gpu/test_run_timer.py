"""Times of a GPU's runs in a trace: what CUDA measured, between the launch and the moment when the host saw the end."""

import time

import pytest

from edgert.stages.gpu.infer_gpu import SLOTS
from edgert.tracing import HERE, Event, Recorder, Ring
from tests.helpers.gpu_inference import Rig, nv12


@pytest.fixture
def ring() -> Ring:
    return Recorder(time.perf_counter_ns).ring()


def runs(ring: Ring) -> list[Event]:
    return [event for event in ring.events[: ring.count] if event is not None and event[0] == "gpu"]


def test_each_run_is_in_the_trace_while_one_is_made(ring: Ring) -> None:
    rig = Rig(rows=2)
    rig.inference.model = "parts"
    rig.inference.warm_up()

    def run() -> None:
        geometries = [rig.inference.fill(nv12(index), index) for index in range(2)]
        rig.inference.run(*geometries)

    run()
    HERE.ring = ring
    try:
        began_ns = time.perf_counter_ns()
        for _ in range(2 * SLOTS):
            run()
        ended_ns = time.perf_counter_ns()
    finally:
        HERE.ring = None
    run()
    found = runs(ring)
    assert [(event[3], event[6]) for event in found] == [("parts", 2)] * 2 * SLOTS
    assert all(began_ns <= event[1] <= event[2] <= ended_ns for event in found)
    rig.close()
    assert rig.device.live_bytes == 0


def test_a_run_that_was_launched_before_the_trace_is_left_out(ring: Ring) -> None:
    rig = Rig()
    rig.inference.warm_up()
    batch = rig.inference.submit_batch([rig.inference.fill(nv12())])
    HERE.ring = ring
    try:
        batch.records()
        assert runs(ring) == []
        batch = rig.inference.submit_batch([rig.inference.fill(nv12())])
    finally:
        HERE.ring = None
    batch.records()
    assert runs(ring) == []  # nobody records any more
    rig.close()
