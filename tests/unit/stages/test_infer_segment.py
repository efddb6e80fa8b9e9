"""Segments of a split model as stages, one thread doing all of them."""

import os
from itertools import pairwise
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from edgert.backend.ort import OrtBackend
from edgert.board.host import core_accelerators
from edgert.config import InputConfig
from edgert.errors import BuildError
from edgert.graph import read
from edgert.placement.cutting import partition
from edgert.placement.segment_engines import SegmentedEngine, compile_segments
from edgert.runtime import Result, Stage
from edgert.stages.infer import FirstSegment, Handover, InferSegment, LastSegment, Pinned
from edgert.stages.preprocess import Preprocessor
from tests.helpers import models
from tests.helpers.frames import frame_of, result_of
from tests.helpers.models import make, node
from tests.helpers.written import opened


@pytest.fixture(scope="module")
def engine() -> SegmentedEngine:
    """conv, relu and mean of the helper's model, each a segment."""
    model = models.conv()
    graph = read(model)
    places = {node.name: f"cpu{number % 2}" for number, node in enumerate(graph.nodes)}
    return compile_segments(model, graph, partition(graph, places), None)


def chain_of(engine: SegmentedEngine, every: int = 1) -> list[Stage]:
    chain = engine.chain(1)
    preprocessor = Preprocessor(InputConfig(resize="stretch"), chain.tensors(0)["x"])
    decoder = lambda outputs, geometry: float(outputs[1].sum())  # noqa: E731
    return [
        FirstSegment("find", chain, [preprocessor], every),
        InferSegment("find", chain, 1),
        LastSegment("find", chain, decoder, engine.batched),  # type: ignore[arg-type]
    ]


def image(index: int) -> Result:
    return result_of(frame_of(8, 8, index=index), {"before": 1})


def through(stages: list[Stage], result: Result) -> Result:
    for stage in stages:
        out = stage.process(result)
        assert isinstance(out, Result)
        result = out
    return result


def test_the_record_takes_the_place_of_what_was_handed_over(engine: SegmentedEngine) -> None:
    stages = chain_of(engine)
    for stage in stages:
        stage.open()
    handed = stages[0].process(image(0))
    assert isinstance(handed, Result) and isinstance(handed.outputs["find"], Handover)
    out = through(stages[1:], handed)
    assert list(out.outputs) == ["before", "find"] and isinstance(out.outputs["find"], float)
    for stage in stages:
        stage.close()


def test_frames_that_are_left_out_pass_untouched(engine: SegmentedEngine) -> None:
    stages = chain_of(engine, every=2)
    found = ["find" in through(stages, image(index)).outputs for index in range(5)]
    assert found == [True, False, True, False, True]


def test_as_many_frames_may_be_under_way_as_channels_hold(engine: SegmentedEngine) -> None:
    """One in each segment's hands and one before each but the first; the oldest is not overwritten."""
    first, second, last = chain_of(engine)
    alone = [through(chain_of(engine), image(index)).outputs["find"] for index in range(10)]
    under_way = [first.process(image(index)) for index in range(5)]
    assert all(isinstance(one, Result) for one in under_way)
    slots = [one.outputs["find"].slot for one in under_way]  # type: ignore[union-attr]
    assert slots == list(range(5))
    for index in range(5, 10):
        oldest = under_way.pop(0)
        assert through([second, last], oldest).outputs["find"] == alone[index - 5]  # type: ignore[arg-type]
        under_way.append(first.process(image(index)))
    assert len(set(alone)) == 10 and all(a != b for a, b in pairwise(alone))


def test_an_error_tells_the_segment(engine: SegmentedEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    chain = engine.chain(1)

    def fail() -> None:
        raise BuildError("failed", where=str(Path("test.onnx")))

    monkeypatch.setattr(chain, "_runs", [[fail] * chain.slots] * chain.segments)
    with pytest.raises(BuildError) as caught:
        chain.run(1, 0)
    assert caught.value.where.startswith("test.onnx, segment 2 of 3: 1 nodes ")
    assert caught.value.where.endswith("on cpu1")


@pytest.mark.skipif(not core_accelerators(), reason="this system cannot pin a thread to a core")
def test_a_pinned_stage_is_the_stage(engine: SegmentedEngine) -> None:
    before = os.sched_getaffinity(0)
    core = max(before)
    with opened(Pinned(chain_of(engine)[0], core)) as stage:
        assert os.sched_getaffinity(0) == {core}
        out = stage.process(image(0))
        assert isinstance(out, Result) and "find" in out.outputs
    assert os.sched_getaffinity(0) == before


def test_inputs_that_two_segments_read_have_a_tensor_per_slot() -> None:
    nodes = [
        node("Relu", ["x"], ["a"], name="one"),
        node("Add", ["a", "x"], ["y"], name="two"),
    ]
    model = make(nodes, {"x": (1, 3, 4, 4)}, {"y": (1, 3, 4, 4)})
    graph = read(model)
    parts = partition(graph, {"one": "cpu0", "two": "cpu1"})
    chain = compile_segments(model, graph, parts, None).chain(1)
    tensors = [chain.tensors(slot)["x"] for slot in range(chain.slots)]
    assert chain.slots == 3 and len({tensor.ctypes.data for tensor in tensors}) == 3
    for value, tensor in enumerate(tensors):
        tensor[...] = value
    for slot in range(3):
        chain.run(0, slot)
    for slot in range(3):
        chain.run(1, slot)
        assert np.array_equal(chain.outputs(slot)[0], np.full((1, 3, 4, 4), 2.0 * slot, np.float32))


def test_segments_that_were_compiled_are_closed_where_a_later_one_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, graph = Mock(), read(models.conv())
    monkeypatch.setattr(OrtBackend, "compile", Mock(side_effect=[engine, engine, BuildError("no such operator")]))
    parts = partition(graph, {node.name: f"cpu{number % 2}" for number, node in enumerate(graph.nodes)})
    with pytest.raises(BuildError, match="no such operator"):
        compile_segments(models.conv(), graph, parts, None)
    assert engine.close.call_count == 2
