"""TensorRT-RTX gets a plan for each profile and each size of a batch: it ends the process where a profile that is not
the first is chosen, and kernels of a plan that leaves the batch open are slower."""

import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgert.backend import EngineOptions
from edgert.backend.base import Shapes, Span
from edgert.backend.tensorrt import execution_context, library, trt_backend, trt_engine
from edgert.backend.tensorrt.build_process import BuildResult
from edgert.backend.tensorrt.build_request import BuildRequest
from edgert.errors import BuildError, DeviceError
from edgert.files import FileStore
from edgert.graph import from_bytes, inputs
from edgert.memory.cuda import Stream
from tests.helpers import models
from tests.helpers.trt_bench import HERE, Bench
from tests.helpers.trt_device import FakeDevice
from tests.helpers.trt_double import Double, Script

MODEL = models.conv(("n", 3, 8, 8))
SIZES = (1, 2, 4, 6)


def options(rows: int = 6, **further: Any) -> EngineOptions:
    return EngineOptions(profiles={"default": {"x": (rows, 3, 8, 8)}}, **further)


def plan(rows: int, side: int = 8) -> bytes:
    return b"plan of %d rows" % rows if side == 8 else b"plan of %d rows, %d wide" % (rows, side)


class Rtx(Bench):
    """Plans that have the rows of the model they were built of, and add one."""

    def __init__(self, **script: Any) -> None:
        def bound(rows: int, side: int) -> dict[str, tuple[tuple[int, ...], str, str]]:
            return {
                "x": ((rows, 3, side, side), "FLOAT", "INPUT"),
                "y": ((rows, 4, side, side), "FLOAT", "OUTPUT"),
                "limits": ((6, 2), "FLOAT", "OUTPUT"),
            }

        plans = {plan(rows, side): bound(rows, side) for rows in SIZES for side in (8, 16)}
        super().__init__("rtx-1.4", machine=HERE, plans=plans, compute=self.run, **script)
        self.device = FakeDevice(compute=(8, 9))
        self.ran: list[int] = []

    def run(self, addresses: Mapping[str, int], shapes: Mapping[str, tuple[int, ...]]) -> None:
        rows, _, side, _ = shapes["x"]
        self.ran.append(rows)
        given = self.device.array(addresses["x"], "float32", (rows, 3, side, side))
        self.device.array(addresses["y"], "float32", (rows, 4, side, side))[...] = given[:, :1] + 1

    def build(self, request: BuildRequest, **_: object) -> BuildResult:
        rows, side = inputs(from_bytes(request.model))[0].shape[0::2]
        assert isinstance(rows, int) and isinstance(side, int) and not request.profiles
        return replace(super().build(request), plan=plan(rows, side))


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    return FileStore(tmp_path / "engines")


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


def contexts(bench: Rtx) -> int:
    return sum(call.startswith("ICudaEngine.create_execution_context") for call in bench.double.calls)


def test_contexts_of_all_plans_are_there_before_anything_runs_and_share_a_cache_for_each() -> None:
    bench = Rtx()
    engine = bench.backend.compile(MODEL, options())
    for count in (1, 2):
        session = engine.session()
        assert contexts(bench) == count * len(SIZES)
        for rows in (*SIZES, 3, 5):
            session.enqueue(rows)
    assert contexts(bench) == 2 * len(SIZES)
    assert bench.double.calls.count("IRuntimeConfig.create_runtime_cache()") == len(SIZES)
    engine.close()
    assert bench.device.live_bytes == 0


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


def test_sets_for_the_gpu_open_contexts_of_fewer_rows_in_a_thread_and_are_recorded_then() -> None:
    bench = Rtx()
    engine = bench.backend.compile(MODEL, options())
    sessions = [engine.session(on_host="outputs") for _ in range(2)]
    assert contexts(bench) == 2 and engine.refine is not None
    with engine.device.recording:
        refining = engine.refine((1, 2, 4))
        time.sleep(0.05)
        assert contexts(bench) == 2  # what opening puts on the stream would be recorded
    assert refining is not None
    refining.wait(10)
    assert contexts(bench) == 2 * len(SIZES) and [session.renewed for session in sessions] == [{1, 2, 4}] * 2
    for session in sessions:
        for rows in (1, 2, 3, 4, 5, 6):
            session.enqueue(rows)
    assert contexts(bench) == 2 * len(SIZES) and bench.ran == [1, 2, 4, 4, 6, 6] * 2
    assert engine.refine(()) is None
    engine.close()
    assert bench.device.live_bytes == 0


def test_a_context_that_finds_no_room_leaves_its_batches_to_larger_ones(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    engine, real = Rtx().backend.compile(MODEL, options()), trt_engine.OpenPlan.context
    session = engine.session(on_host="outputs")

    def context(plan: trt_engine.OpenPlan, index: int, shapes: Shapes, stream: Stream) -> execution_context.Context:
        if shapes["x"][0] == 2:
            raise DeviceError("TensorRT made no execution context", why="the GPU has too little memory")
        return real(plan, index, shapes, stream)

    monkeypatch.setattr(trt_engine.OpenPlan, "context", context)
    assert engine.refine is not None
    refining = engine.refine((1, 2, 4))
    assert refining is not None
    refining.wait(10)
    assert session.renewed == {1} and "no contexts for fewer rows: TensorRT made no execution context" in caplog.text
    engine.close()


def test_closing_breaks_off_what_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, began, opened, real = (
        Rtx().backend.compile(MODEL, options()),
        threading.Event(),
        list[int](),
        trt_engine.OpenPlan.context,
    )
    for _ in range(2):
        engine.session(on_host="outputs")

    def context(plan: trt_engine.OpenPlan, index: int, shapes: Shapes, stream: Stream) -> execution_context.Context:
        opened.append(shapes["x"][0])
        began.set()
        time.sleep(0.05)
        return real(plan, index, shapes, stream)

    monkeypatch.setattr(trt_engine.OpenPlan, "context", context)
    assert engine.refine is not None
    engine.refine((1, 2, 4))
    assert began.wait(10)
    engine.close()
    assert opened == [1] and engine.device.live_bytes == 0


def test_tensors_are_freed_at_once_where_the_next_finds_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Rtx()
    engine, made = bench.backend.compile(MODEL, options()), list[int]()
    engine.session()
    live, real = bench.device.live_bytes, FakeDevice.tensor_block

    def block(device: FakeDevice, nbytes: int, **given: Any) -> Any:
        made.append(nbytes)
        if len(made) == 3:
            raise DeviceError("allocating failed", why="the GPU has too little memory")
        return real(device, nbytes, **given)

    monkeypatch.setattr(FakeDevice, "tensor_block", block)
    with pytest.raises(DeviceError) as caught:
        engine.session()
    assert bench.device.live_bytes == live and caught.tb is not None  # which holds the session
    monkeypatch.undo()
    engine.session()
    engine.close()
    assert bench.device.live_bytes == 0 and bench.device.leaked == 0


def test_the_next_start_finds_all_of_them(store: FileStore) -> None:
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


def test_where_one_no_longer_opens_all_are_compiled_again(store: FileStore) -> None:
    Rtx().backend.compile(MODEL, options(store=store))
    again = Rtx(foreign=[plan(4)])

    def build(request: BuildRequest, **given: object) -> BuildResult:
        again.double._script.foreign = ()
        return Rtx.build(again, request, **given)

    again.backend._build_once = build
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
    assert trt_backend.plan_sizes(models.conv(shape), given) == sizes


def test_other_tensorrts_keep_one_plan() -> None:
    bench = Bench(bound={"x": ((-1, 3, 8, 8), "FLOAT", "INPUT"), "y": ((-1, 4, 8, 8), "FLOAT", "OUTPUT")})
    bench.double._script.inputs[0].shape = (-1, 3, 8, 8)
    bench.backend.compile(MODEL, options())
    assert len(bench.requests) == 1 and bench.requests[0].profiles


class TestProfiles:
    """On TensorRT-RTX 1.4.0.76 a context that chooses a profile but the first crashes."""

    MODEL = models.conv(("n", 3, "h", "w"))

    def options(self, small: int = 1, large: int = 1, **further: Any) -> EngineOptions:
        return EngineOptions(profiles={"small": {"x": (small, 3, 8, 8)}, "large": {"x": (large, 3, 16, 16)}}, **further)

    def test_each_has_a_plan_and_none_is_chosen(self) -> None:
        bench = Rtx()
        engine = bench.backend.compile(self.MODEL, self.options())
        assert len(bench.requests) == 2 and engine.profiles == ("small", "large")
        assert engine.inputs[0].shape == (1, 3, 8, 8) and not engine.dynamic_batch
        for name, side in ((None, 8), ("small", 8), ("large", 16), ("large", 16)):
            session = engine.session(name)
            session.inputs["x"][...] = 3
            (found, _) = session.run()
            assert found.shape == (1, 4, side, side) and (found == 4).all()
        chosen = {call for call in bench.double.calls if "set_optimization_profile_async" in call}
        assert chosen and all("async(0, " in call for call in chosen)
        engine.close()
        assert bench.device.live_bytes == 0

    def test_with_batches_of_each(self) -> None:
        bench = Rtx()
        engine = bench.backend.compile(self.MODEL, self.options(6, 2))
        assert len(bench.requests) == len(SIZES) + 2 and engine.dynamic_batch and engine.batched == (True, False)
        small, large = engine.session("small"), engine.session("large")
        assert (small.rows, large.rows) == (6, 2)
        for session, side, rows, ran in ((small, 8, 3, 4), (small, 8, 6, 6), (large, 16, 1, 1), (large, 16, 2, 2)):
            assert session.run(rows)[0].shape == (rows, 4, side, side) and bench.ran[-1] == ran

    def test_the_next_start_finds_them(self, store: FileStore) -> None:
        first = Rtx().backend.compile(self.MODEL, self.options(2, 4, store=store))
        again = Rtx()
        engine = again.backend.compile(self.MODEL, self.options(2, 4, store=store))
        assert again.requests == again.reported == [] and engine.info["cached"] and not first.info["cached"]
        (gone,) = [path for path in store.folder.iterdir() if path.read_bytes().endswith(plan(4, 16))]
        gone.unlink()
        third = Rtx()
        third.backend.compile(self.MODEL, self.options(2, 4, store=store))
        assert [one.title for one in third.requests] == ["test.onnx for profile large"]

    def test_titles(self) -> None:
        parts = trt_backend.parts_of(self.MODEL, self.options(2, 2))
        assert [part.title for part in parts] == [
            "",
            "test.onnx in batches of 1",
            "test.onnx for profile large",
            "test.onnx for profile large in batches of 1",
        ]

    def test_one_plan_of_several_profiles_is_refused(self) -> None:
        """As a bundle has: nothing may crash there."""
        bound = {"x": ((1, 3, -1, -1), "FLOAT", "INPUT"), "y": ((1, 4, -1, -1), "FLOAT", "OUTPUT")}
        double = Double("rtx-1.4", Script(bound=bound))
        with pytest.raises(BuildError, match="runs one profile of an engine") as caught:
            trt_engine.TrtEngine(
                b"plan", library.library_of(double), FakeDevice(compute=(8, 9)), profiles=self.options().profiles
            )
        assert "small, large" in caught.value.why and "pipeline file itself" in caught.value.fix
        assert double.calls == []

    def test_other_tensorrts_choose_among_those_of_one_plan(self) -> None:
        bound = {"x": ((1, 3, -1, -1), "FLOAT", "INPUT"), "y": ((1, 4, 1, 1), "FLOAT", "OUTPUT")}
        bench = Bench("10.3", bound=bound)
        bench.double._script.inputs[0].shape = (1, 3, -1, -1)
        bench.backend.compile(models.conv((1, 3, "h", "w")), self.options()).session("large")
        assert len(bench.requests) == 1 and len(bench.requests[0].profiles) == 2
        assert any("set_optimization_profile_async(1, " in call for call in bench.double.calls)


def test_a_session_without_room_for_the_context_of_a_size_keeps_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Rtx()
    engine = bench.backend.compile(MODEL, options())
    engine.session()
    before, usual = bench.device.live_bytes, trt_engine.OpenPlan.context

    def context(self: trt_engine.OpenPlan, index: int, shapes: Shapes, stream: Stream) -> execution_context.Context:
        if shapes["x"][0] == 2:
            raise DeviceError("the GPU has too little memory")
        return usual(self, index, shapes, stream)

    monkeypatch.setattr(trt_engine.OpenPlan, "context", context)
    with pytest.raises(DeviceError) as caught:
        engine.session()
    assert bench.device.live_bytes == before
    assert "too little memory" in caught.value.what  # held until here, and with it all that was made
    engine.close()
