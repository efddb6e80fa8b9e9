"""Opening and running engines, on a recording TensorRT and a GPU of NumPy arrays."""

from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from edgert.backend import Engine, Session
from edgert.backend.gpu import GpuEngine, GpuSession
from edgert.backend.tensorrt import library, log, trt_engine
from edgert.errors import BuildError, DeviceError, ModelError
from tests.helpers.errors import Exactly, raises
from tests.helpers.trt_api import EVERY
from tests.helpers.trt_device import FakeDevice
from tests.helpers.trt_double import ANSWERS, SEVERITY, Double, Script

BOUND = {"x": ((-1, 3, 2, 2), "FLOAT", "INPUT"), "y": ((-1, 3, 2, 2), "FLOAT", "OUTPUT")}
FIXED = {"x": ((1, 3, 2, 2), "FLOAT", "INPUT"), "y": ((1, 3, 2, 2), "FLOAT", "OUTPUT")}
PROFILES = {"default": {"x": (4, 3, 2, 2)}, "small": {"x": (1, 3, 2, 2)}}


class Bench:
    """A double whose engine adds one."""

    def __init__(self, version: str = "10.3", integrated: bool = False, **script: Any) -> None:
        self.device = FakeDevice(integrated)
        self.double = Double(version, Script(**{"bound": FIXED, "compute": self.add_one, **script}))

    def add_one(self, addresses: dict[str, int], shapes: dict[str, tuple[int, ...]]) -> None:
        source = self.device.array(addresses["x"], "float32", shapes["x"])
        self.device.array(addresses["y"], "float32", shapes["x"])[...] = source + 1

    def open(self, **options: Any) -> trt_engine.TrtEngine:
        return trt_engine.TrtEngine(b"plan", library.library_of(self.double), self.device, **options)

    def calls(self, start: str) -> list[str]:
        return [call for call in self.double.calls if call.startswith(start)]


@pytest.mark.parametrize("version", EVERY)
def test_running(version: str) -> None:
    engine = Bench(version).open()
    session = engine.session()
    assert isinstance(engine, Engine) and isinstance(session, Session)
    session.inputs["x"][...] = 2
    (out,) = session.run()
    assert out.shape == (1, 3, 2, 2) and (out == 3).all()
    session.inputs["x"][...] = 5
    assert (session.run()[0] == 6).all()


def is_gpu_engine(engine: trt_engine.TrtEngine) -> GpuEngine:
    """Checked by mypy: it keeps the protocol."""
    return engine


def test_tensors_and_info() -> None:
    engine = Bench().open(title="parts")
    assert [(t.name, t.shape, t.dtype) for t in engine.inputs] == [("x", (1, 3, 2, 2), "float32")]
    assert [(t.name, t.shape, t.dtype) for t in engine.outputs] == [("y", (1, 3, 2, 2), "float32")]
    assert engine.info["backend"] == "tensorrt" and engine.info["version"] == "10.3.0"
    assert engine.batched == (True,) and not engine.dynamic_batch and engine.outputs_known


def test_addresses_are_set_once_and_by_name() -> None:
    bench = Bench()
    session = bench.open().session()
    before = len(bench.calls("IExecutionContext.set_tensor_address"))
    for _ in range(3):
        session.run()
    assert len(bench.calls("IExecutionContext.set_tensor_address")) == before
    run = f"IExecutionContext.execute_async_v3({session.stream.handle})"
    assert bench.calls("IExecutionContext.execute_async_v3") == [run] * 3


def test_order_of_a_run() -> None:
    bench = Bench()
    session = bench.open().session()
    bench.device.events.clear()
    session.run()
    assert bench.device.events == ["upload 48", "download 48", "wait"]


def test_an_integrated_gpu_reads_and_writes_the_hosts_memory() -> None:
    bench = Bench(integrated=True)
    session = bench.open().session()
    session.inputs["x"][...] = 2
    assert (session.run()[0] == 3).all() and bench.device.events == ["wait"]
    assert session.inputs_on_gpu["x"].block.address == session.inputs["x"].ctypes.data


class TestProfiles:
    def test_each_has_its_shapes_and_number(self) -> None:
        bench = Bench(bound=BOUND)
        engine = bench.open(profiles=PROFILES)
        assert engine.profiles == ("default", "small") and engine.dynamic_batch
        assert engine.session("small").inputs["x"].shape == (1, 3, 2, 2)
        chosen = bench.calls("IExecutionContext.set_optimization_profile_async")
        assert chosen[-1].startswith("IExecutionContext.set_optimization_profile_async(1, ")

    def test_fewer_rows_and_back(self) -> None:
        session = Bench(bound=BOUND).open(profiles=PROFILES).session()
        session.inputs["x"][...] = np.arange(4).reshape(4, 1, 1, 1)
        assert session.run()[0].shape == (4, 3, 2, 2)
        (out,) = session.run(2)
        assert out.shape == (2, 3, 2, 2) and out[:, 0, 0, 0].tolist() == [1, 2]
        assert session.run()[0][:, 0, 0, 0].tolist() == [1, 2, 3, 4]

    @pytest.mark.parametrize("rows", [0, 5])
    def test_rows_that_are_not_there(self, rows: int) -> None:
        session = Bench(bound=BOUND).open(profiles=PROFILES).session()
        with pytest.raises(ModelError, match=f"cannot run {rows} rows"):
            session.run(rows)

    def test_an_unknown_profile(self) -> None:
        engine = Bench(bound=BOUND).open(profiles=PROFILES)
        with pytest.raises(ModelError, match=r"no profile 'smal'; did you mean 'small'"):
            engine.session("smal")

    def test_a_profile_without_shapes(self) -> None:
        with pytest.raises(ModelError, match="input 'x' has no shape"):
            Bench(bound=BOUND).open()


class TestDla:
    def test_the_core_is_set_before_deserializing(self) -> None:
        bench = Bench()
        engine = bench.open(dla_core=1, loadables=2)
        core, opened = (
            bench.double.calls.index(call)
            for call in ("Runtime.DLA_core = 1", "Runtime.deserialize_cuda_engine(<4 bytes>)")
        )
        assert core < opened and engine.info["dla_core"] == 1 and engine.info["loadables"] == 2

    def test_a_core_that_is_not_there(self) -> None:
        with raises(DeviceError, "dla1 cannot be used", why="sees 1 DLA cores"):
            Bench(dla_cores=1).open(dla_core=1)

    def test_a_core_that_was_not_taken_is_read_back(self) -> None:
        bench = Bench(core=0)
        with pytest.raises(DeviceError, match="dla1 cannot be used") as caught:
            bench.open(dla_core=1)
        assert "chose core 0" in caught.value.why and not bench.calls("Runtime.deserialize")

    @pytest.mark.parametrize(
        ("own", "resident", "fits"), [(16, 0, True), (17, 0, False), (4, 12, True), (4, 13, False)]
    )
    def test_programs_are_counted_before_loading(self, own: int, resident: int, fits: bool) -> None:
        bench = Bench()
        if fits:
            assert bench.open(dla_core=0, loadables=own, resident=resident).loadables == own
            return
        with pytest.raises(DeviceError, match=f"{own} DLA programs do not fit") as caught:
            bench.open(dla_core=0, loadables=own, resident=resident)
        assert f"{resident} of other engines" in caught.value.why and bench.double.calls == []

    def test_no_graph_with_dla_layers(self) -> None:
        assert not Bench().open(dla_core=0, loadables=1).session().recordable
        assert Bench().open().session().recordable

    def test_strides_of_a_tensor_in_vectors_are_reported_in_numbers(self) -> None:
        bound = {"x": ((1, 3, 2, 2), "HALF", "INPUT"), "y": ((1, 3, 2, 2), "HALF", "OUTPUT")}
        session = Bench(bound=bound, strides={"x": (4, 4, 2, 1)}, vectors={"x": (1, 16)}).open().session()
        image, (out,) = session.inputs_on_gpu["x"], session.outputs_on_gpu
        assert image.strides == (64, 1, 32, 16) and not image.is_plain and image.block.nbytes == 4 * 16 * 2
        assert out.strides == () and out.is_plain

    def test_vectors_are_packed_and_unpacked(self) -> None:
        """Three float16 channels in vectors of 16, as CHW16 has them."""
        bound = {name: ((1, 3, 2, 2), "HALF", mode) for name, mode in (("x", "INPUT"), ("y", "OUTPUT"))}
        strides = dict.fromkeys(bound, (4, 4, 2, 1))

        def double(addresses: dict[str, int], shapes: dict[str, tuple[int, ...]]) -> None:
            source = bench.device.array(addresses["x"], "float16", (1, 1, 2, 2, 16))
            bench.device.array(addresses["y"], "float16", (1, 1, 2, 2, 16))[...] = 2 * source

        bench = Bench(bound=bound, strides=strides, vectors=dict.fromkeys(bound, (1, 16)), compute=double)
        session = bench.open().session()
        values = np.arange(12, dtype=np.float16).reshape(1, 3, 2, 2)
        session.inputs["x"][...] = values
        assert (session.run()[0] == 2 * values).all()

    @pytest.mark.parametrize(
        ("strides", "vector", "row"), [((4, 4, 2, 1), (1, 4), 8), ((512, 1, 256, 4), (-1, -1), 256)]
    )
    def test_real_numbers_become_steps_of_an_int8_input(
        self, strides: tuple[int, ...], vector: tuple[int, int], row: int
    ) -> None:
        """DLA_HWC4, reported in vectors or in numbers: the host has real numbers, the GPU gets the step."""
        bound = {"x": ((1, 3, 2, 2), "INT8", "INPUT"), "y": ((1, 3, 2, 2), "FLOAT", "OUTPUT")}

        def unpacked(addresses: dict[str, int], shapes: dict[str, tuple[int, ...]]) -> None:
            rows = bench.device.array(addresses["x"], "int8", (row + 8,))
            pixels = np.stack([rows[:8], rows[row : row + 8]]).reshape(2, 2, 4)
            bench.device.array(addresses["y"], "float32", (1, 3, 2, 2))[...] = pixels[None, :, :, :3].transpose(
                0, 3, 1, 2
            )

        bench = Bench(bound=bound, strides={"x": strides}, vectors={"x": vector}, compute=unpacked)
        session = bench.open(dla_core=0, loadables=1, scales={"x": 0.5}).session()
        assert session.inputs["x"].dtype == np.float32
        assert (session.inputs_on_gpu["x"].dtype, session.inputs_on_gpu["x"].scale) == ("int8", 0.5)
        session.inputs["x"].reshape(-1)[:] = [0, 0.2, 0.25, 0.75, -0.75, 63.5, 64, 1000, -64, -1000, 1, 2]
        assert session.run()[0].reshape(-1).tolist() == [0, 0, 0, 2, -2, 127, 127, 127, -128, -128, 2, 4]

    def test_a_scale_of_an_input_that_is_not_int8_after_all_is_not_used(self) -> None:
        session = Bench().open(scales={"x": 0.5}).session()
        session.inputs["x"][...] = 2
        assert session.inputs_on_gpu["x"].scale == 0 and (session.run()[0] == 3).all()


class TestOnTheGpu:
    """Sessions as pipelines use them: fed and read on the GPU."""

    def test_a_run_copies_nothing_and_does_not_wait(self) -> None:
        bench = Bench()
        session = bench.open().session()
        assert isinstance(session, GpuSession)
        bench.device.array(session.inputs_on_gpu["x"].block.address, "float32", (1, 3, 2, 2))[...] = 4
        session.enqueue()
        (out,) = session.outputs_on_gpu
        assert (bench.device.array(out.block.address, out.dtype, out.shape) == 5).all() and bench.device.events == []

    def test_each_number_of_rows_has_a_context_that_never_changes(self) -> None:
        """A graph that was recorded of one stays true: TensorRT forbids to change a context that was recorded."""
        bench = Bench(bound=BOUND)
        session = bench.open(profiles=PROFILES).session()
        before = len(bench.calls("ICudaEngine.create_execution_context"))
        for rows in (4, 2, 4, 2, 1):
            session.enqueue(rows)
        assert len(bench.calls("ICudaEngine.create_execution_context")) == before + 2
        shapes = bench.calls("IExecutionContext.set_input_shape")[-2:]
        assert [shape[-13:] for shape in shapes] == ["(2, 3, 2, 2))", "(1, 3, 2, 2))"]

    def test_fewer_rows_are_copied_where_fewer_are_run(self) -> None:
        bench = Bench(bound=BOUND)
        session = bench.open(profiles=PROFILES).session()
        session.run(2)
        assert bench.device.events == ["upload 96", "download 96", "wait"]

    def test_sessions_of_an_engine_share_a_stream(self) -> None:
        engine = Bench().open()
        one, two = engine.session(), engine.session()
        assert one.stream is two.stream and one.exclusive is two.exclusive


class TestTrouble:
    def test_a_plan_of_another_tensorrt(self) -> None:
        with raises(DeviceError, "cannot open this engine", fix="build it here"):
            Bench(opens=False).open()

    def test_a_run_that_fails_names_tensorrts_last_line(self) -> None:
        bench = Bench(runs=False)
        session = bench.open().session()
        with raises(BuildError, "failed while running", why=Exactly("it logged no reason")):
            session.run()
        for text in ("1: [a] Error Code 1: the first", "1: [b] Error Code 1: operation not permitted when capturing"):
            log.shared_logger(bench.double)[0].log(SEVERITY.ERROR, text)
        with raises(BuildError, why=Exactly("1: [b] Error Code 1: operation not permitted when capturing")):
            session.run()

    def test_a_run_that_fails_because_the_gpu_is_lost(self) -> None:
        bench = Bench(runs=False)
        session = bench.open().session()
        bench.device.gpu.broken["stream"] = "cuStreamSynchronize failed: an illegal memory access was encountered"
        with pytest.raises(DeviceError, match="the GPU is lost to this process"):
            session.run()

    def test_a_recording_that_fails_has_tensorrts_reason(self) -> None:
        """A stream that is recorded cannot be waited for, and that is not why."""
        bench = Bench(runs=False)
        session = bench.open().session()
        bench.device.gpu.broken["stream"] = "cuStreamSynchronize failed: not permitted when stream is capturing"
        log.shared_logger(bench.double)[0].log(SEVERITY.ERROR, "cudaMalloc is not permitted while a stream is captured")
        with pytest.raises(BuildError, match="failed while running") as caught:
            session.enqueue()
        assert caught.value.why == "cudaMalloc is not permitted while a stream is captured"

    def test_bound_tensors_are_the_same_arrays_every_time(self) -> None:
        session = Bench().open().session()
        first = [session.inputs["x"], *session.run()]
        again = [session.inputs["x"], *session.run()]
        assert all(one is other for one, other in zip(first, again, strict=True))

    def test_no_memory_for_a_context_tells_plan_and_actual(self, monkeypatch: pytest.MonkeyPatch) -> None:
        bench = Bench(memory=3 * 2**30)
        engine = bench.open(title="parts.onnx")
        engine.session()
        monkeypatch.setitem(ANSWERS, ("ICudaEngine", "create_execution_context"), lambda *_: None)
        with pytest.raises(DeviceError, match="created no execution context: the GPU has too little memory") as caught:
            engine.session()
        assert "planned: 3.0 GiB, beside weights" in caught.value.why
        assert "of 1.0 GiB are free on double" in caught.value.why
        assert caught.value.where == "parts.onnx" and "smaller batch" in caught.value.fix

    def test_plans_are_closed_where_the_size_of_an_output_depends_on_the_data(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        closed = Mock()
        monkeypatch.setattr(trt_engine.OpenPlan, "close", closed)
        with pytest.raises(ModelError, match="size of output 'y' depends on the data"):
            Bench(bound={**FIXED, "y": ((3, -1), "FLOAT", "OUTPUT")}).open()
        closed.assert_called_once_with()

    def test_types_that_numpy_has_not(self) -> None:
        with pytest.raises(ModelError, match="of type FP8"):
            Bench(bound={**FIXED, "x": ((1, 3, 2, 2), "FP8", "INPUT")}).open()

    def test_closed(self) -> None:
        bench = Bench()
        engine = bench.open()
        session = engine.session()
        session.close()
        engine.close()
        with pytest.raises(ModelError, match="the session is closed"):
            session.run()
        assert bench.device.live_bytes == 0
        with pytest.raises(ModelError, match="closed"):
            engine.session()
