"""TensorRT itself, on a machine that has it and a GPU: what is built must run and be right.

Nothing here runs without both; each test says what is missing. The GPU's memory comes from the CUDA runtime library
through its C interface, so that no further package is needed.
"""

from __future__ import annotations

import ctypes
import ctypes.util
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

from edgert.backend.trt import BuildResult, Pools, Span, TrtEngine, build, open_engine, request_of
from edgert.backend.trt.device import U8, Block, Stream
from edgert.backend.trt.inspect import accelerators, engine_facts
from edgert.backend.trt.library import Library, load
from edgert.board.cuda import cuda_driver
from edgert.compiler.verify import verify
from edgert.errors import DeviceError
from edgert.graph import Model
from edgert.graph.node import read, write
from edgert.quantize.cache import write_cache
from edgert.quantize.half.convert import to_half
from tests.helpers import models
from tests.helpers.trt_topology import SHAPE, TOPOLOGIES, dynamic

pytestmark = pytest.mark.gpu
TOLERANCE = {"fp32": 1e-3, "fp16": 2e-2, "int8": 0.2}
"""Largest difference, of the largest value: TF32 has 10 bits, as float16 has, and INT8 is far coarser."""


def why_not() -> str:
    """What is missing here; empty if nothing is."""
    driver = cuda_driver()
    if driver is None or not driver.gpus:
        return "there is no NVIDIA GPU"
    if find_spec("tensorrt") is None:
        return "TensorRT is not installed"
    return "" if ctypes.util.find_library("cudart") else "the CUDA runtime library is not installed"


@pytest.fixture(scope="module")
def library() -> Library:
    missing = why_not()
    if missing:
        pytest.skip(f"TensorRT's conformance suite did not run: {missing}")
    return load("tensorrt")


class Cudart:
    """The few functions of the CUDA runtime that a test needs; see its API reference."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL(ctypes.util.find_library("cudart") or "libcudart.so")

    def __call__(self, name: str, *args: Any) -> None:
        code = getattr(self.library, name)(*args)
        if code:
            raise DeviceError(f"{name} failed", why=f"cudaError {code}")


class GpuStream:
    def __init__(self, cuda: Cudart) -> None:
        self._cuda, pointer = cuda, ctypes.c_void_p()
        cuda("cudaStreamCreateWithFlags", ctypes.byref(pointer), 1)  # cudaStreamNonBlocking
        self.handle = pointer.value or 0

    def synchronize(self) -> None:
        self._cuda("cudaStreamSynchronize", ctypes.c_void_p(self.handle))


class GpuBlock:
    def __init__(self, cuda: Cudart, nbytes: int) -> None:
        self._cuda, pointer = cuda, ctypes.c_void_p()
        cuda("cudaMalloc", ctypes.byref(pointer), ctypes.c_size_t(nbytes))
        cuda("cudaMemset", pointer, 0, ctypes.c_size_t(nbytes))
        self.address, self.host = pointer.value or 0, np.zeros(nbytes, np.uint8)

    def upload(self, stream: Stream) -> None:
        self._copy(self.address, self.host.ctypes.data, 1, stream)  # cudaMemcpyHostToDevice

    def download(self, stream: Stream) -> None:
        self._copy(self.host.ctypes.data, self.address, 2, stream)  # cudaMemcpyDeviceToHost

    def release(self) -> None:
        self._cuda("cudaFree", ctypes.c_void_p(self.address))

    def _copy(self, target: int, source: int, kind: int, stream: Stream) -> None:
        pointers = (ctypes.c_void_p(target), ctypes.c_void_p(source), ctypes.c_size_t(self.host.nbytes))
        self._cuda("cudaMemcpyAsync", *pointers, kind, ctypes.c_void_p(stream.handle))


class Gpu:
    def __init__(self) -> None:
        self._cuda = Cudart()

    def __enter__(self) -> Gpu:
        return self  # the CUDA runtime makes the primary context current by itself

    def __exit__(self, *_: object) -> None:
        """Nothing was changed."""

    def stream(self) -> Stream:
        return GpuStream(self._cuda)

    def block(self, nbytes: int) -> Block:
        return GpuBlock(self._cuda, nbytes)

    def capture(self, stream: Stream, enqueue: Callable[[], None]) -> Callable[[], None]:
        graph, ready, handle = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p(stream.handle)
        self._cuda("cudaStreamBeginCapture", handle, 2)  # cudaStreamCaptureModeRelaxed
        enqueue()
        self._cuda("cudaStreamEndCapture", handle, ctypes.byref(graph))
        self._cuda("cudaGraphInstantiate", ctypes.byref(ready), graph, ctypes.c_ulonglong(0))
        return lambda: self._cuda("cudaGraphLaunch", ready, handle)


@pytest.fixture
def opened(library: Library) -> Iterator[Callable[..., TrtEngine]]:
    engines: list[TrtEngine] = []

    def make(result: BuildResult, **options: Any) -> TrtEngine:
        engines.append(open_engine(result.plan, library, Gpu(), **options))
        return engines[-1]

    yield make
    for engine in engines:
        engine.close()


def picture(seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).uniform(-1, 1, SHAPE).astype(np.float32)


def exact(model: Model, values: U8 | Any) -> np.ndarray[Any, Any]:
    return np.asarray(ReferenceEvaluator(model.proto).run(None, {"x": values})[0])


def close(got: np.ndarray[Any, Any], wanted: np.ndarray[Any, Any], precision: str) -> bool:
    return float(np.abs(got - wanted).max()) <= TOLERANCE[precision] * float(np.abs(wanted).max())


def as_precision(model: Model, library: Library, precision: str) -> tuple[Model, dict[str, str]]:
    """A model in a precision, as this TensorRT takes it, and the options that go with it."""
    if precision == "fp32":
        return model, {}
    if library.kind == "weak":
        return model, {"precision": precision}
    return write(to_half(read(model)).graph, model), {}


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("name", TOPOLOGIES)
def test_topologies_are_right(library: Library, opened: Any, name: str, precision: str) -> None:
    model = TOPOLOGIES[name]()
    typed, options = as_precision(model, library, precision)
    engine = opened(build(request_of(typed, **options), wanted="tensorrt"))
    session = engine.session()
    session.inputs["x"][...] = picture()
    assert close(session.run()[0], exact(model, picture()), precision)


def test_int8_by_calibration_cache(library: Library, opened: Any) -> None:
    if library.kind != "weak":
        pytest.skip(f"{library.title} reads no calibration cache")
    model = TOPOLOGIES["residual"]()
    names = ["x", *(name for node in read(model).nodes for name in node.outputs)]
    cache = write_cache(dict.fromkeys(names, 4 / 127), library.version)
    result = build(request_of(model, precision="int8", calibration=cache), wanted="tensorrt")
    session = opened(result).session()
    session.inputs["x"][...] = picture()
    assert close(session.run()[0], exact(model, picture()), "int8")


def test_the_inspector_knows_every_node(library: Library) -> None:
    request = request_of(TOPOLOGIES["pyramid"]())
    result = build(request, wanted="tensorrt")
    facts = engine_facts(result.inspector)
    assert facts.detailed and set(accelerators(facts, request.nodes).values()) == {"gpu"}
    assert verify(request, result).moved == ()


def test_a_timing_cache_is_taken_again(library: Library) -> None:
    request = request_of(TOPOLOGIES["residual"]())
    first = build(request, wanted="tensorrt")
    again = build(request_of(TOPOLOGIES["residual"](), timing_cache=first.timing_cache), wanted="tensorrt")
    assert first.timing_cache and not any("measuring again" in record.text for record in again.log)


def test_profiles_and_fewer_rows(library: Library, opened: Any) -> None:
    model, shape = dynamic(), (4, 8, 32, 32)
    span = Span((1, 8, 16, 16), (2, 8, 32, 32), (4, 8, 64, 64))
    result = build(request_of(model, profiles=({"x": span},)), wanted="tensorrt")
    session = opened(result, profiles={"default": {"x": shape}}).session()
    values = np.random.default_rng(1).uniform(-1, 1, shape).astype(np.float32)
    session.inputs["x"][...] = values
    assert close(session.run()[0], exact(model, values), "fp32")
    assert close(session.run(2)[0], exact(model, values[:2]), "fp32")


def test_a_graph_gives_what_a_plain_run_gives(library: Library, opened: Any) -> None:
    engine = opened(build(request_of(TOPOLOGIES["residual"]()), wanted="tensorrt"))
    plain, graph = engine.session(), engine.session(graph=True)
    for seed in range(4):
        for session in (plain, graph):
            session.inputs["x"][...] = picture(seed)
        assert (plain.run()[0] == graph.run()[0]).all()


def test_a_damaged_plan_is_refused(library: Library, opened: Any) -> None:
    result = build(request_of(models.conv()), wanted="tensorrt")
    with pytest.raises(DeviceError, match="cannot open this engine"):
        open_engine(result.plan[: len(result.plan) // 2], library, Gpu())


@pytest.mark.dla
@pytest.mark.parametrize("where", ["dla", "mixed"])
def test_dla(library: Library, opened: Any, where: str) -> None:
    """FP16 on the first DLA core, all of it or the first two nodes; verified, then run and compared."""
    trt = library.trt
    if not trt.Builder(trt.Logger(trt.Logger.ERROR)).num_DLA_cores:
        pytest.skip("TensorRT's conformance suite for DLAs did not run: TensorRT sees no DLA core")
    model = TOPOLOGIES["residual"]()
    names = [node.name for node in read(model).nodes]
    placed = names if where == "dla" else names[:2]
    typed, options = as_precision(model, library, "fp16")
    request = request_of(typed, placement=dict.fromkeys(placed, "dla0"), pools=Pools(dla_sram_bytes=1 << 20), **options)
    result = build(request, wanted="tensorrt")
    found = verify(request, result, "strict" if where == "mixed" or library.kind == "weak" else "warn")
    session = opened(result, dla_core=0, loadables=found.facts.loadables).session()
    session.inputs["x"][...] = picture()
    assert found.facts.loadables == 1 and close(session.run()[0], exact(model, picture()), "fp16")
