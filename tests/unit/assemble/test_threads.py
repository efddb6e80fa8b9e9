"""Who shares a thread with whom."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from edgert.assemble.threads import share_threads
from edgert.clock import REAL
from edgert.runtime import Node
from edgert.runtime.branches import Branch, branch_nodes, connect
from edgert.stages.gpu.infer_gpu import Collect
from edgert.stages.infer import Infer, InferBatch
from edgert.stages.sink.results import CallbackSink, JsonlSink, NullSink
from tests.helpers.stages import Does, Numbers

CAM = frozenset({"cam"})


class Anything:
    """Inference that is never run."""

    rows, idle = 8, True

    def __getattr__(self, name: str) -> Any:
        return None


CALLBACK, NULL = CallbackSink("end", lambda result: None), NullSink()
ONE, BATCH = Infer("find", Anything()), InferBatch("find", Anything(), 8, 0.005, REAL)  # type: ignore[arg-type]


def threads(first: Any, *ends: Any, live: bool = False, on_gpu: bool = True) -> list[str]:
    """In whose thread the results of the GPU are waited for, and each end is worked on."""
    source = Node("cam", Numbers(live=live))
    nodes, listening = [source], [Node(f"end{n}", end) for n, end in enumerate(ends)]
    chain = branch_nodes("find", [Branch((first, Collect("find")) if on_gpu else (first,))], CAM, 1)
    connect(source, chain[0], CAM, 1, "never")
    for end in listening:
        connect(chain[-1], end, CAM, 1, "never")
    nodes += chain
    share_threads([*nodes, *listening])
    assert nodes[0].runs_in is nodes[1].runs_in is None
    return [node.runs_in.name if node.runs_in else "" for node in (nodes[-1], *listening)]


@pytest.mark.parametrize("end", [CALLBACK, NULL])
@pytest.mark.parametrize("first", [ONE, BATCH])
def test_whoever_alone_takes_what_a_gpu_made_does_so_where_it_is_waited_for(first: Any, end: Any) -> None:
    assert threads(first, end) == ["find:0", "find:0"]


def test_cameras_never_wait_for_what_the_gpu_works_on() -> None:
    assert threads(ONE, CALLBACK, live=True) == ["", "find"]


def test_one_that_is_slow_keeps_cameras_from_nobody_else() -> None:
    assert threads(ONE, CALLBACK, live=True) == ["", "find"]  # it gets the frames that come as soon as it has time
    assert threads(BATCH, CALLBACK, live=True) == ["", ""]  # it would get all of several batches, late
    assert threads(BATCH, NULL, live=True) == ["", "find"]


def test_several_listeners_do_not_wait_for_each_other() -> None:
    assert threads(ONE, CALLBACK, NULL) == ["", "", ""]


def test_a_stage_that_works_beside_those_before_it_keeps_its_thread() -> None:
    assert threads(ONE, CALLBACK, on_gpu=False) == ["", ""]
    assert threads(ONE, Does()) == threads(ONE, Does(), live=True) == ["", ""]
    assert threads(ONE) == [""]  # a program may read the results, when it has time


def test_the_stage_before_a_sink_that_writes_little_does_so_where_no_camera_waits() -> None:
    def spared(end: Any, *, live: bool = False, on_gpu: bool = False, reader: bool = False) -> bool:
        source, last = Node("cam", Numbers(live=live)), Node("end", end)
        stages = (ONE, Collect("find")) if on_gpu else (Does(),)
        share = [] if reader else branch_nodes("find", [Branch(stages)], CAM, 1)
        nodes = [source, *share]
        if share:
            connect(source, share[0], CAM, 1, "never")
        for each in (last, Node("other", Does())):  # others may listen, too
            connect(nodes[-1], each, CAM, 1, "never")
        share_threads([*nodes, last])
        assert not any(node.spared for node in nodes) and last.runs_in is None
        return bool(last.spared)

    lines = JsonlSink("end", Path("lines.jsonl"))
    assert spared(lines) and spared(NULL)
    assert not spared(CALLBACK) and not spared(Does())  # which may take long
    assert not spared(lines, live=True)  # a disk that is slow costs no frame
    assert not spared(lines, on_gpu=True) and not spared(lines, reader=True)  # which would stand still


@pytest.mark.parametrize(
    ("first", "live", "cameras", "spared"),
    [(ONE, True, 1, True), (ONE, True, 2, False), (BATCH, True, 1, False), (ONE, False, 1, False)],
)
def test_who_waits_for_a_gpu_is_spared_a_thread_for_one_camera_alone(
    first: Any, live: bool, cameras: int, spared: bool
) -> None:
    names = frozenset(f"cam{n}" for n in range(cameras))
    chain = branch_nodes("find", [Branch((first, Collect("find")))], names, 1)
    sources = [Node(name, Numbers(name, live=live)) for name in sorted(names)]
    for source in sources:
        connect(source, chain[0], frozenset({source.name}), 1, "oldest")
    share_threads([*sources, *chain])
    assert [bool(node.spared) for node in (*sources, *chain)] == [*[False] * cameras, spared, spared]


def test_a_model_keeps_its_thread_where_parts_of_a_cameras_frames_are_joined() -> None:
    chain = branch_nodes("find", [Branch((ONE, Collect("find")))], CAM, 1)
    source, other = Node("cam", Numbers(live=True)), Node("other", Does())
    for before, after in ((source, chain[0]), (source, other), (other, chain[0])):
        connect(before, after, CAM, 1, "oldest")
    share_threads([source, other, *chain])
    assert [bool(node.spared) for node in (source, other, *chain)] == [False, False, False, True]


def test_a_model_keeps_its_thread_where_the_cameras_frames_go_elsewhere_too() -> None:
    chain = branch_nodes("find", [Branch((ONE, Collect("find")))], CAM, 1)
    source, other = Node("cam", Numbers(live=True)), Node("other", Does())
    for each in (chain[0], other):
        connect(source, each, CAM, 1, "oldest")
    share_threads([source, *chain, other])
    assert [bool(node.spared) for node in (source, *chain, other)] == [False, False, True, False]
