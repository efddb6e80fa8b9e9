"""Engines of ONNX Runtime on a GPU: how they use memory and streams, with doubles; what they compute, on a real one."""

import threading
import weakref
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

from edgert.backend import Engine, EngineOptions
from edgert.backend.gpu import GpuSession
from edgert.backend.ort import cpu, cuda, cuda_model, runtime
from edgert.backend.ort.cuda import OrtCudaBackend, OrtCudaEngine, memory_error
from edgert.backend.ort.runtime import open_session, session_settings
from edgert.errors import BuildError, DeviceError, ModelError
from edgert.files import FileStore
from edgert.graph import Model, clean, read, to_bytes
from edgert.graph.batch_size import with_open_batch
from edgert.memory.cuda import CudaDevice
from edgert.memory.cuda.holders import Holder
from edgert.policy import run_sizes
from tests.helpers import models
from tests.helpers.cuda_double import CudaDouble
from tests.helpers.errors import Exactly, raises
from tests.helpers.gpu import gpu_or_skip
from tests.helpers.models import make, node
from tests.helpers.ort_double import CudaLike
from tests.helpers.resnet import resnet50

FOUR = {"default": {"x": (4, 3, 8, 8)}}


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> CudaDouble:
    """A double; ONNX Runtime is taken for one that has CUDA."""
    monkeypatch.setattr(cuda, "check_provider", lambda: None)
    return CudaDouble(memory_bytes=2**24)


def engine_on(gpu: CudaDouble, model: Model, profiles: Any = None) -> tuple[OrtCudaEngine, CudaLike]:
    session = CudaLike(open_session(to_bytes(model), session_settings(1), model))
    device = CudaDevice(gpu, 0)
    return OrtCudaEngine(session, profiles or {"default": {}}, "m.onnx", {}, device, device.stream()), session


def like(content: bytes, settings: Any, model: Model) -> CudaLike:
    return CudaLike(open_session(content, settings, model))


def noise(shape: tuple[int, ...], seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def exact(model: Model, **inputs: Any) -> list[Any]:
    return list(ReferenceEvaluator(model.proto).run(None, inputs))


def test_is_an_engine_with_tensors_on_the_gpu(gpu: CudaDouble) -> None:
    engine, _ = engine_on(gpu, models.conv())
    session = engine.session()
    assert isinstance(engine, Engine) and isinstance(session, GpuSession)
    assert [(t.name, t.shape, t.dtype) for t in engine.inputs] == [("x", (1, 3, 8, 8), "float32")]
    assert [t.name for t in session.outputs_on_gpu] == ["y", "mean"] and session.inputs_on_gpu["x"].shape == (
        1,
        3,
        8,
        8,
    )
    engine.close()
    assert engine.device.live_bytes == 0 and engine.device.leaked == 0
    engine.close()


def test_runs_from_host_to_host_and_counts_the_copies(gpu: CudaDouble) -> None:
    model = models.conv()
    engine, _ = engine_on(gpu, model)
    session, x = engine.session(), noise((1, 3, 8, 8))
    session.inputs["x"][...] = x
    before = engine.device.counter.read()
    for found, wanted in zip(session.run(), exact(model, x=x), strict=True):
        assert np.allclose(found, wanted, atol=1e-5)
    after = engine.device.counter.read()
    assert after.copies - before.copies == 3 and after.bytes_copied - before.bytes_copied == x.nbytes + 4 * (256 + 4)
    engine.close()


def test_what_is_enqueued_reads_and_writes_the_gpu_and_copies_nothing(gpu: CudaDouble) -> None:
    model = models.conv()
    engine, ort = engine_on(gpu, model)
    session, x = engine.session(), noise((1, 3, 8, 8), 1)
    source = engine.device.block(x.nbytes)
    with engine.device:
        gpu.memcpy_htod(session.inputs_on_gpu["x"].block.address, x)
    before, runs = engine.device.counter.read(), ort.runs
    session.enqueue()
    assert engine.device.counter.read() == before and ort.runs == runs + 1
    session.outputs_on_gpu[1].block.download(session.stream)
    assert np.allclose(session.outputs_on_gpu[1].host, exact(model, x=x)[1], atol=1e-5)
    source.release()
    engine.close()


def test_fewer_rows_than_there_are(gpu: CudaDouble) -> None:
    model = models.conv(("n", 3, 8, 8))
    engine, _ = engine_on(gpu, model, FOUR)
    assert engine.dynamic_batch and engine.batched == (True, True)
    session, x = engine.session(), noise((4, 3, 8, 8), 2)
    session.inputs["x"][...] = x
    y, mean = session.run(2)
    assert y.shape == (2, 4, 8, 8) and np.allclose(mean, exact(model, x=x[:2])[1], atol=1e-5)
    with pytest.raises(ModelError, match="cannot run 5 rows"):
        session.enqueue(5)
    engine.close()


def test_sessions_share_nothing_but_the_stream(gpu: CudaDouble) -> None:
    engine, _ = engine_on(gpu, models.conv())
    one, other = engine.session(), engine.session()
    assert one.stream is other.stream
    assert one.inputs_on_gpu["x"].block.address != other.inputs_on_gpu["x"].block.address
    assert not np.shares_memory(one.run()[0], other.run()[0])
    engine.close()


def test_outputs_of_unknown_size_are_refused() -> None:
    with pytest.raises(ModelError, match="size of output 'rows' depends on the data") as caught:
        cuda_model.check_output_sizes(models.keep_above(), {"default": {}})
    assert "backend: ort" in caught.value.fix and caught.value.where == "test.onnx"
    cuda_model.check_output_sizes(models.conv(("n", 3, 8, 8)), FOUR)


def test_onnx_runtime_without_cuda_names_what_to_install() -> None:
    if not cuda.why_not():
        pytest.skip("this ONNX Runtime has CUDA")
    with raises(DeviceError, "no CUDA provider", why="CPUExecutionProvider", fix="pip install onnxruntime-gpu"):
        OrtCudaBackend().compile(models.conv(), EngineOptions())
    assert "no CUDA provider" in cuda.why_not()


def test_why_not_names_what_stands_in_the_way(gpu: CudaDouble, monkeypatch: pytest.MonkeyPatch) -> None:

    def no_driver() -> CudaDevice:
        raise DeviceError("there is no CUDA driver", why="libcuda.so.1: cannot open shared object file")

    monkeypatch.setattr(cuda, "open_device", no_driver)
    assert cuda.why_not() == "there is no CUDA driver: libcuda.so.1: cannot open shared object file"
    monkeypatch.setattr(cuda, "open_device", lambda: CudaDevice(gpu, 0))
    assert cuda.why_not() == ""


def test_a_provider_that_does_not_start_is_an_error(gpu: CudaDouble, monkeypatch: pytest.MonkeyPatch) -> None:
    real = open_session
    monkeypatch.setattr(
        runtime, "open_session", lambda source, settings, model, providers: real(source, settings, model)
    )
    with raises(BuildError, "could not start its CUDA provider", where=Exactly("test.onnx"), fix="cuDNN"):
        OrtCudaBackend(CudaDevice(gpu, 0)).compile(models.conv(), EngineOptions())


def test_too_little_memory_tells_plan_and_actual(gpu: CudaDouble, monkeypatch: pytest.MonkeyPatch) -> None:

    def fails(*_: object) -> Any:
        raise BuildError("ONNX Runtime cannot run this model", why="CUDA failure 2: out of memory ; GPU=0")

    monkeypatch.setattr(runtime, "open_session", fails)
    other = Holder(4711, "trainer", 15 * 2**20)
    monkeypatch.setattr("edgert.memory.cuda.gpu_context.others_on", lambda bus_id: (other,))
    with raises(DeviceError, "does not fit into the memory of the GPU", fix="precision: fp16") as caught:
        OrtCudaBackend(CudaDevice(gpu, 0)).compile(models.conv(), EngineOptions())
    assert caught.value.why.startswith("planned: weights 448 B and tensors") and "16.0 MiB" in caught.value.why
    assert caught.value.why.endswith("; other processes hold memory there: trainer (process 4711) 15.0 MiB")


def test_the_cleaned_model_is_cached_for_each_set_of_shapes(
    gpu: CudaDouble, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(cuda, "open_on_gpu", lambda content, settings, options, model: like(content, settings, model))
    model, store, backend = models.conv(("n", 3, 8, 8)), FileStore(tmp_path), OrtCudaBackend(CudaDevice(gpu, 0))

    def compiled(shapes: Any) -> OrtCudaEngine:
        return backend.compile(model, EngineOptions(profiles={"default": shapes}, store=store))

    first = compiled(FOUR["default"])
    assert first.info["cached"] is compiled({"x": (1, 3, 8, 8)}).info["cached"] is False
    monkeypatch.setattr(cuda_model, "check_output_sizes", lambda *_: pytest.fail("what was cached had been checked"))
    again, x = compiled(FOUR["default"]), noise((4, 3, 8, 8), 6)
    assert again.info["cached"] is True and again.dynamic_batch
    session = again.session()
    session.inputs["x"][...] = x
    for rows in (4, 2):
        assert np.allclose(session.run(rows)[0], exact(model, x=x[:rows])[0], atol=1e-5)


OPEN = models.conv(("n", 3, 8, 8))


def test_tensors_are_freed_at_once_where_the_next_finds_no_room(
    gpu: CudaDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, _ = engine_on(gpu, OPEN, FOUR)
    live, made, real = engine.device.live_bytes, list[int](), CudaDevice.tensor_block

    def block(device: CudaDevice, nbytes: int, **given: Any) -> Any:
        if len(made) == most:
            raise DeviceError("allocating failed", why="the GPU has too little memory")
        made.append(nbytes)
        return real(device, nbytes, **given)

    monkeypatch.setattr(CudaDevice, "tensor_block", block)
    for most in range(3):  # the input, and two outputs
        made.clear()
        with pytest.raises(DeviceError) as caught:
            engine.session()
        assert len(made) == most and engine.device.live_bytes == live and engine.device.leaked == 0
        assert caught.tb is not None  # which holds the session
    most = 9
    engine.session()
    engine.close()
    assert engine.device.live_bytes == 0


def test_a_first_run_that_fails_leaves_no_memory(gpu: CudaDouble) -> None:
    session, device = CudaLike(open_session(to_bytes(OPEN), session_settings(1), OPEN)), CudaDevice(gpu, 0)
    session.broken = RuntimeError("CUDA failure 2: out of memory ; GPU=0")
    with pytest.raises(DeviceError, match="too little memory"):
        OrtCudaEngine(session, FOUR, "m.onnx", {}, device, device.stream())
    assert device.live_bytes == 0 and device.leaked == 0


@pytest.mark.parametrize("why", ["cuDNN has no such kernel", "CUDA failure 2: out of memory"])
def test_kernels_of_channels_last_that_cuDNN_lacks_leave_the_others(
    gpu: CudaDouble, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, why: str
) -> None:
    tried, alive = list[bool](), list[list[bool]]()
    made = list[weakref.ref[CudaLike]]()

    def opened(content: bytes, settings: Any, options: Any, model: Model) -> CudaLike:
        alive.append([one() is not None for one in made])
        tried.append("prefer_nhwc" in options)
        session = like(content, settings, model)
        session.broken = RuntimeError(why) if tried[-1] else None
        made.append(weakref.ref(session))
        return session

    monkeypatch.setattr(cuda, "open_on_gpu", opened)
    backend = OrtCudaBackend(CudaDevice(gpu, 0))
    if "memory" in why:
        with pytest.raises(DeviceError, match="does not fit into the memory of the GPU"):
            backend.compile(OPEN, EngineOptions(profiles=FOUR))
        assert tried == [True]
        return
    with caplog.at_level("INFO", "edgert.backend"):
        engine = backend.compile(OPEN, EngineOptions(profiles=FOUR))
    assert tried == [True, False] and alive == [[], [False]]  # no second copy of the weights meanwhile
    assert f"channels-last kernels are not used: {why}" in caplog.text
    engine.close()
    assert engine.device.live_bytes == 0 and engine.device.leaked == 0


def test_no_engine_is_opened_while_anything_is_recorded_on_the_gpu(
    gpu: CudaDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ONNX Runtime waits for the whole GPU when it makes a session, which is an error while a graph is recorded."""
    device, free = CudaDevice(gpu, 0), list[bool]()

    def opened(content: bytes, settings: Any, options: Any, model: Model) -> CudaLike:
        other = threading.Thread(target=lambda: free.append(device.recording.acquire(blocking=False)))
        other.start()
        other.join()
        return like(content, settings, model)

    monkeypatch.setattr(cuda, "open_on_gpu", opened)
    OrtCudaBackend(device).compile(models.conv(), EngineOptions()).close()
    assert free == [False]


def test_a_provider_that_fails_is_an_error_and_not_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = dict[str, Any]()

    class Library:
        @staticmethod
        def InferenceSession(source: Any, settings: Any, **options: Any) -> Any:
            asked.update(options)
            raise RuntimeError("CUDA failure 900: operation not permitted when stream is capturing")

    monkeypatch.setattr(runtime, "ort", lambda: Library)
    with pytest.raises(BuildError) as caught:
        runtime.open_session(b"", None, models.conv(), [("CUDAExecutionProvider", {}), "CPUExecutionProvider"])
    assert "CUDA failure 900" in caught.value.why and asked["enable_fallback"] == 0


def flattened() -> Model:
    """A convolution whose output is flattened as exporters write it for an open batch."""
    random = np.random.default_rng(0)
    nodes = [
        node("Conv", ["x", "w"], ["c"], "conv", pads=[1, 1, 1, 1]),
        node("Shape", ["c"], ["sizes"], "sizes"),
        node("Slice", ["sizes", "zero", "two"], ["first"], "first"),
        node("Concat", ["first", "rest"], ["to"], "to", axis=0),
        node("Reshape", ["c", "to"], ["y"], "flat"),
    ]
    weights = {"w": random.standard_normal((4, 3, 3, 3)).astype("f4")}
    sizes = {"zero": [0], "two": [2], "rest": [-1]}
    weights |= {name: np.array(value, np.int64) for name, value in sizes.items()}
    return make(nodes, {"x": ("n", 3, 8, 8)}, {"y": ("n", 4, 64)}, weights)


def test_an_open_batch_computes_no_sizes() -> None:
    """The host would have to wait for them, and no CUDA graph could hold the run."""
    model = flattened()
    made = cuda_model.remove_size_nodes(model, FOUR["default"])
    assert {node.op_type for node in cpu.prepare(model, FOUR["default"]).proto.graph.node} >= {"Shape", "Reshape"}
    assert {node.op_type for node in made.proto.graph.node} == {"Conv", "Reshape"}
    x = noise((4, 3, 8, 8), 9)
    for rows in (4, 1, 3):
        assert np.allclose(exact(made, x=x[:rows])[0], exact(model, x=x[:rows])[0], atol=1e-6)


def test_a_model_that_would_say_something_else_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    model = flattened()
    monkeypatch.setattr(cuda_model, "with_open_batch", lambda _: models.conv(("n", 3, 8, 8)))
    made = cuda_model.remove_size_nodes(model, FOUR["default"])
    assert any(node.op_type == "Shape" for node in made.proto.graph.node)


def test_what_fails_while_running_is_distinguished(gpu: CudaDouble) -> None:
    engine, ort = engine_on(gpu, models.conv())
    session = engine.session()
    ort.broken = RuntimeError("BFCArena: Failed to allocate memory for requested buffer of size 4096")
    with raises(DeviceError, "too little memory", why="4096"):
        session.enqueue()
    ort.broken = RuntimeError("CUDA failure 700: an illegal memory access was encountered ; GPU=0")
    with pytest.raises(DeviceError, match="running the model: the GPU is lost"):
        session.enqueue()
    ort.broken = RuntimeError("CUDNN failure 5000: CUDNN_STATUS_EXECUTION_FAILED")
    with pytest.raises(BuildError, match="failed while running"):
        session.run()
    engine.close()


def test_plans_with_the_shapes_of_a_profile(gpu: CudaDouble) -> None:
    model, device = models.conv(("n", 3, 8, 8)), CudaDevice(gpu, 0)
    assert memory_error(model, FOUR["default"], device).why != memory_error(model, {"x": (1, 3, 8, 8)}, device).why


@pytest.fixture
def real() -> Iterator[OrtCudaBackend]:
    device = gpu_or_skip()
    if missing := cuda.why_not():
        pytest.skip(missing)
    yield OrtCudaBackend(device)


@pytest.mark.gpu
class TestOnAGpu:
    def test_computes_the_same(self, real: OrtCudaBackend) -> None:
        model = models.conv(("n", 3, 8, 8))
        engine = real.compile(model, EngineOptions(profiles=FOUR))
        session, x = engine.session(), noise((4, 3, 8, 8), 3)
        session.inputs["x"][...] = x
        for rows in (4, 1, 3):
            for found, wanted in zip(session.run(rows), exact(model, x=x[:rows]), strict=True):
                assert found.shape == wanted.shape and np.allclose(found, wanted, atol=2e-2)
        engine.close()
        assert engine.device.live_bytes == 0

    def test_every_size_of_a_batch_computes_the_same_and_can_be_recorded(self, real: OrtCudaBackend) -> None:
        """The images of a batch, each as it is alone; from graphs that are launched in any order."""
        model = models.conv(("n", 3, 8, 8))
        engine = real.compile(model, EngineOptions(profiles={"default": {"x": (8, 3, 8, 8)}}))
        session, x = engine.session(), noise((8, 3, 8, 8), 5)
        session.inputs["x"][...] = x
        session.inputs_on_gpu["x"].block.upload(session.stream)
        graphs = {}
        for rows in (1, 2, 4, 8):
            session.enqueue(rows)
            session.stream.synchronize()
            graphs[rows] = session.device.capture(session.stream, partial(session.enqueue, rows))
        wanted, found = exact(model, x=x), session.outputs_on_gpu
        for rows in (8, 1, 4, 2, 8, 1):
            for tensor in found:
                tensor.host.fill(0)
                tensor.block.upload(session.stream)
            graphs[rows]()
            for tensor in found:
                tensor.block.download(session.stream)
            session.stream.synchronize()
            for tensor, right in zip(found, wanted, strict=True):
                assert np.allclose(tensor.host[:rows], right[:rows], atol=2e-2) and not tensor.host[rows:].any()
        graphs.clear()
        engine.close()

    @pytest.mark.timing
    def test_sizes_share_the_weights(self, real: OrtCudaBackend) -> None:
        """Eight rows of a network with few activations take less than once more its weights."""
        model, taken, device = with_open_batch(clean(resnet50(size_px=32))[0]), list[int](), real._device
        assert device is not None
        for rows in (1, 1, 8):  # the first pays for the libraries as well
            before = device.free_bytes()[0]
            engine = real.compile(model, EngineOptions(profiles={"default": {"x": (rows, 3, 32, 32)}}))
            session = engine.session(None, "none")
            for size in run_sizes(rows, dynamic=True):
                session.enqueue(size)
            device.drain()
            taken.append(before - device.free_bytes()[0])
            engine.close()
            del session, engine
        weights = sum(array.nbytes for array in read(model).constants.values())
        assert taken[2] - taken[1] < 0.5 * weights

    def test_can_be_recorded_as_a_graph(self, real: OrtCudaBackend) -> None:
        model = models.conv()
        engine = real.compile(model, EngineOptions())
        session, x = engine.session(), noise((1, 3, 8, 8), 4)
        session.inputs["x"][...] = x
        session.run()
        graph = session.device.capture(session.stream, session.enqueue)
        session.inputs["x"][...] = -x
        session.inputs_on_gpu["x"].block.upload(session.stream)
        graph()
        session.outputs_on_gpu[0].block.download(session.stream)
        session.stream.synchronize()
        assert np.allclose(session.outputs_on_gpu[0].host, exact(model, x=-x)[0], atol=2e-2)
        del graph
        engine.close()
