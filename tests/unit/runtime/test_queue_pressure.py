"""How full queues are, in a run and in a simulation, and that drops tell of every overload."""

from hypothesis import given, settings, strategies as st

from edgert.budget.rules import Budget, Rules, Setting
from edgert.placement.segment_engines import Step
from edgert.runtime.channel import Inlet
from edgert.runtime.throttle import QueuePressure
from edgert.simulator.design import Design, Edge, Node, Source, Task
from edgert.simulator.play import Governing, Platform, simulate
from tests.unit.runtime.test_channel import result


def test_the_fullest_counts_and_losses_since_the_last_look() -> None:
    inlet = Inlet()
    wide, narrow = inlet.connect(4, "oldest"), inlet.connect(1, "oldest")
    pressure = QueuePressure([wide, narrow])
    assert pressure.look() == (0.0, 0)
    wide.put(result(0))
    assert pressure.look() == (0.25, 0)
    for index in range(3):
        narrow.put(result(index))
    assert pressure.look() == (1.0, 2)
    assert pressure.look() == (1.0, 0)
    assert QueuePressure([]).look() == (None, 0)


@settings(deadline=None, max_examples=25)
@given(st.floats(0.3, 3.0), st.integers(1, 4))
def test_a_camera_s_queue_loses_frames_just_when_more_come_than_go(load: float, capacity: int) -> None:
    rate_hz = 60.0
    model = Node("model", (Edge("cam", capacity, "oldest"),), Task(run=(Step("gpu", 1e3 * load / rate_hz),)))
    rules = Rules(Budget(latency_ms=1e6), (Setting("all", 0.0, rate_hz, 0.0),))
    played = simulate(
        Design((Source("cam", rate_hz),), (model,)), Platform(), 10.0, governing=Governing(rules, ({"cam": 1.0},))
    )
    assert played.governed is not None and played.governed.queued is not None
    if load < 0.98:
        assert played.governed.lost == 0 and played.governed.queued < 1
    if load > 1.05:
        lost = 600 * (1 - 1 / load)
        assert abs(played.governed.lost - lost) <= capacity + 0.1 * lost + 2
