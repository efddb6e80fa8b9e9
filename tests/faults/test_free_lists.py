"""What is done for every frame and every request for months leaves nothing in CPython's free lists.

A tuple that is made of a generator begins longer than it ends, so each is taken from the free list of one length, or
from the system, and left in that of another: 2000 of every length up to 20, megabytes that come within hours.
"""

import re
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

import edgert
from edgert.clock import REAL
from edgert.runtime.json_form import plain_result
from edgert.runtime.recent import History
from edgert.runtime.records import Detections, Result
from edgert.stages.decode.decoder import shapes_of
from edgert.stages.sink.web.prometheus import exposition
from tests.helpers.frames import frame_of
from tests.helpers.growth import no_collector
from tests.helpers.stages import Does, Numbers, chain

TIMES = 200
Left = Callable[[Callable[[], object]], int]


@pytest.fixture
def left(capfd: pytest.CaptureFixture[str]) -> Left:
    """Tuples that so many calls leave in the free lists."""

    def tuples() -> int:
        capfd.readouterr()
        sys._debugmallocstats()
        found = re.findall(r"(\d+) free \d+-sized PyTupleObjects", capfd.readouterr().err)
        return sum(map(int, found))

    def measured(act: Callable[[], object]) -> int:
        with no_collector():  # a pass over everything empties the lists
            act()
            tuples()  # which leaves some itself
            before = tuples()
            for _ in range(TIMES):
                act()
            return tuples() - before

    return measured


@pytest.mark.parametrize("what", ["shapes", "line"])
def test_a_frame_leaves_nothing(what: str, left: Left) -> None:
    arrays = [np.zeros((1, 8400, 4), np.float32), np.zeros((1, 8400, 3), np.float32)]
    boxes = np.zeros((3, 4), np.float32)
    found = Detections(boxes, np.zeros(3, np.float32), np.zeros(3, np.int32), labels=("a",))
    result = Result(frame_of(32, 24)).with_output("find", found)
    act = {"shapes": lambda: shapes_of(arrays), "line": lambda: plain_result(result)}[what]
    assert left(act) < TIMES // 2


def test_a_request_leaves_nothing(left: Left, tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text(
        "stages:\n  cam: {source: 'synthetic:noise', size: 64x48, fps: 5, realtime: true}\n"
        "  end: {sink: null, from: cam}\n"
    )
    with edgert.Pipeline(tmp_path / "p.yaml") as pipeline:
        pipeline.start()
        summary = pipeline.summary()
        assert left(lambda: asdict(summary)) > TIMES, "the library's own way leaves some; this test would not see it"
        assert left(summary.to_json) < TIMES // 2
        assert left(pipeline.state) < TIMES // 2
        plain = pipeline.state()
        assert left(lambda: exposition(plain, "text/plain")) < TIMES // 2


def test_the_last_minute_of_20_rows_leaves_nothing(left: Left) -> None:
    """CPython 3.11 keeps tuples of just 20 without ever using one again: https://github.com/python/cpython/blob/
    3.11/Objects/tupleobject.c, maybe_freelist_push and maybe_freelist_pop."""
    nodes = chain(Numbers(), *[Does() for _ in range(8)])  # of nine stages and one stream there are 20 rows
    for node in nodes:
        node.meter.done("cam", 1_000_000)
    assert left(History(lambda: nodes, REAL, lambda: 0).recent) < TIMES // 2
