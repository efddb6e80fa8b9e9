"""TensorRT-RTX gets a plan for each size of a batch: kernels of a plan that leaves the batch open are slower."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from edgert.backend import EngineOptions
from edgert.backend.tensorrt import BuildRequest, BuildResult, Span
from edgert.backend.tensorrt.trt_backend import plan_sizes
from edgert.graph import from_bytes, inputs
from tests.helpers import models
from tests.helpers.trt_bench import HERE, Bench, MemoryStore
from tests.helpers.trt_device import FakeDevice

MODEL = models.conv(("n", 3, 8, 8))
SIZES = (1, 2, 4, 6)


def options(rows: int = 6, **further: Any) -> EngineOptions:
    return EngineOptions(profiles={"default": {"x": (rows, 3, 8, 8)}}, **further)


def plan(rows: int) -> bytes:
    return b"plan of %d rows" % rows


class Rtx(Bench):
    """Plans that have the rows of the model they were built of, and add one."""

    def __init__(self, **script: Any) -> None:
        def bound(rows: int) -> dict[str, tuple[tuple[int, ...], str, str]]:
            return {
                "x": ((rows, 3, 8, 8), "FLOAT", "INPUT"),
                "y": ((rows, 4, 8, 8), "FLOAT", "OUTPUT"),
                "limits": ((6, 2), "FLOAT", "OUTPUT"),
            }

        plans = {plan(rows): bound(rows) for rows in SIZES}
        super().__init__("rtx-1.4", machine=HERE, plans=plans, compute=self.run, **script)
        self.device = FakeDevice(compute=(8, 9))
        self.ran: list[int] = []

    def run(self, addresses: Mapping[str, int], shapes: Mapping[str, tuple[int, ...]]) -> None:
        rows = shapes["x"][0]
        self.ran.append(rows)
        given = self.device.array(addresses["x"], "float32", (rows, 3, 8, 8))
        self.device.array(addresses["y"], "float32", (rows, 4, 8, 8))[...] = given[:, :1] + 1

    def build(self, request: BuildRequest, **_: object) -> BuildResult:
        rows = inputs(from_bytes(request.model))[0].shape[0]
        assert isinstance(rows, int) and not request.profiles
        return replace(super().build(request), plan=plan(rows))


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def test_each_size_that_is_run_has_a_plan() -> None:
    bench = Rtx()
    engine = bench.backend.compile(MODEL, options())
    assert {inputs(from_bytes(one.model))[0].shape[0] for one in bench.requests} == set(SIZES)
    assert len(bench.requests) == len(SIZES)
    assert engine.dynamic_batch and engine.inputs[0].shape == (6, 3, 8, 8)
    assert engine.batched == (True, False)  # the other output has six rows whatever the batch is


@pytest.mark.parametrize("rows", range(1, 7))
def test_any_number_of_rows_is_run_as_the_next_larger_size(rows: int) -> None:
    bench = Rtx()
    session = bench.backend.compile(MODEL, options()).session()
    session.inputs["x"][...] = np.arange(6, dtype=np.float32).reshape(6, 1, 1, 1)
    y, limits = session.run(rows)
    assert bench.ran == [next(size for size in SIZES if size >= rows)]
    assert y[:, 0, 0, 0].tolist() == list(range(1, rows + 1)) and limits.shape == (6, 2)
    assert session.run()[0].shape == (6, 4, 8, 8)


def test_a_context_of_each_plan_and_one_cache_of_kernels_for_its_contexts() -> None:
    bench = Rtx()
    engine = bench.backend.compile(MODEL, options())
    for session in (engine.session(), engine.session()):
        for rows in (*SIZES, 3, 5):
            session.enqueue(rows)
    made = [call for call in bench.double.calls if call.startswith("ICudaEngine.create_execution_context")]
    assert len(made) == 2 * len(SIZES)
    assert bench.double.calls.count("IRuntimeConfig.create_runtime_cache()") == len(SIZES)
    engine.close()
    assert bench.device.live_bytes == 0


def test_contexts_of_all_sizes_are_there_before_anything_runs() -> None:
    bench = Rtx()
    engine = bench.backend.compile(MODEL, options())
    for count in (1, 2):
        engine.session()
        made = [call for call in bench.double.calls if call.startswith("ICudaEngine.create_execution_context")]
        assert len(made) == count * len(SIZES)


def test_none_is_opened_while_another_thread_records() -> None:
    """What opening one puts on the engine's stream would be part of the recording."""
    bench = Rtx()
    engine = bench.backend.compile(MODEL, options())
    recording = engine.session()  # the first was opened with the engine
    opening = threading.Thread(target=engine.session)
    with recording.exclusive:
        before = len(bench.double.calls)
        opening.start()
        opening.join(0.1)
        assert opening.is_alive() and len(bench.double.calls) == before
    opening.join()
    assert len(bench.double.calls) > before


def test_the_next_start_finds_all_of_them(store: MemoryStore) -> None:
    first = Rtx()
    engine = first.backend.compile(MODEL, options(store=store))
    session = engine.session()
    for rows in SIZES:
        session.enqueue(rows)
    assert engine.info["cached"] is False and first.reported == []
    again = Rtx()
    engine = again.backend.compile(MODEL, options(store=store))
    assert engine.info["cached"] is True and again.requests == again.reported == []
    assert len(again.double.kernels) == len(SIZES)


def test_one_that_is_missing_is_compiled_alone(store: MemoryStore) -> None:
    Rtx().backend.compile(MODEL, options(store=store))
    (gone,) = [path for path in store.folder.iterdir() if path.read_bytes().endswith(plan(2))]
    gone.unlink()
    again = Rtx()
    again.backend.compile(MODEL, options(store=store))
    assert [one.title for one in again.requests] == ["test.onnx in batches of 2"] and again.reported == []


def test_where_one_no_longer_opens_all_are_compiled_again(store: MemoryStore) -> None:
    Rtx().backend.compile(MODEL, options(store=store))
    again = Rtx(foreign=[plan(4)])

    def build(request: BuildRequest, **given: object) -> BuildResult:
        again.double._script.foreign = ()
        return Rtx.build(again, request, **given)

    again.backend._once = build
    engine = again.backend.compile(MODEL, options(store=store))
    assert engine.info["cached"] is False and len(again.requests) == len(SIZES)
    assert again.reported == [
        "test.onnx is compiled again: the cached engine no longer opens (Version tag does not match)"
    ]


@pytest.mark.parametrize(
    ("shape", "given", "sizes"),
    [
        (("n", 3, 8, 8), options(8), (1, 2, 4, 8)),
        (("n", 3, "h", "w"), options(3), (1, 2, 3)),
        (("n", 3, 8, 8), options(1), ()),
        ((4, 3, 8, 8), options(4), ()),
        (("n", 3, 8, 8), EngineOptions(), ()),
        (("n", 3, 8, 8), options(4, spans={"x": Span((1, 3, 8, 8), (2, 3, 8, 8), (4, 3, 8, 8))}), ()),
        (("n", 3, 8, 8), EngineOptions(profiles={"a": {"x": (2, 3, 8, 8)}, "b": {"x": (4, 3, 8, 8)}}), ()),
    ],
)
def test_sizes(shape: tuple[int | str, ...], given: EngineOptions, sizes: tuple[int, ...]) -> None:
    assert plan_sizes(models.conv(shape), given) == sizes


def test_other_tensorrts_keep_one_plan() -> None:
    bench = Bench(bound={"x": ((-1, 3, 8, 8), "FLOAT", "INPUT"), "y": ((-1, 4, 8, 8), "FLOAT", "OUTPUT")})
    bench.double._script.inputs[0].shape = (-1, 3, 8, 8)
    bench.backend.compile(MODEL, options())
    assert len(bench.requests) == 1 and bench.requests[0].profiles
