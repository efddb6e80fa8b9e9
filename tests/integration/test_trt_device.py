"""TensorRT and TensorRT-RTX, on a machine that has one, PyCUDA and a GPU: what is built must run and be right.

Nothing here runs without them; each test names what is missing.
"""

import logging
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

from edgert.backend.base import Span
from edgert.backend.tensorrt.build_process import BuildResult, build
from edgert.backend.tensorrt.build_request import BuildRequest, Pools, request_of
from edgert.backend.tensorrt.builder import compile_engine
from edgert.backend.tensorrt.engine_cache import CacheEntry
from edgert.backend.tensorrt.engine_layers import accelerators, engine_facts, layer_times
from edgert.backend.tensorrt.library import Library, load
from edgert.backend.tensorrt.trt_engine import TrtEngine
from edgert.board.devices import cuda_driver
from edgert.compiler.engine_checks import check_placement
from edgert.errors import BuildError, DeviceError
from edgert.files import FileStore
from edgert.graph import Model, read, write
from edgert.memory.cuda import open_device
from edgert.quantization.calibrated import prepare
from edgert.quantization.fp16.to_fp16 import to_fp16
from edgert.quantization.lowering.lower import lower
from edgert.quantization.lowering.trt_form import write_cache
from edgert.quantization.scheme.scheme import scheme
from tests.helpers import models
from tests.helpers.trt_topology import SHAPE, TOPOLOGIES, dynamic, fp8_request

pytestmark = [pytest.mark.gpu, pytest.mark.tensorrt]
TOLERANCE = {"fp32": 5e-3, "fp16": 2e-2, "int8": 0.2, "rounded": 2e-2}
"""Largest difference, of the largest value. ``fp32`` is TF32 in products, of 10 bits (2 ** -10 each), and a few follow
each other; INT8 is far coarser. ``rounded``: of what is rounded to INT8 or FP8 in both, where the last bit before that
may differ."""
NO_INT8 = "CHECK(dtype == myelinTypeFloat || dtype == myelinTypeHalf || dtype == myelinTypeBF16"
"""What TensorRT-RTX 1.4 logs about convolutions of INT8, on machines with and without a GPU."""
MODULES = {"tensorrt": ("tensorrt",), "tensorrt_rtx": ("tensorrt_rtx", "tensorrt_rtx_bindings")}


def why_not(wanted: str) -> str:
    driver = cuda_driver()
    if driver is None or not driver.gpus:
        return "there is no NVIDIA GPU"
    if not any(map(find_spec, MODULES[wanted])):
        return f"{wanted} is not installed"
    return "" if find_spec("pycuda") else "PyCUDA is not installed"


@pytest.fixture(scope="module", params=MODULES)
def library(request: pytest.FixtureRequest) -> Library:
    missing = why_not(request.param)
    if missing:
        pytest.skip(f"TensorRT's conformance suite did not run: {missing}")
    return load(request.param)


@pytest.fixture
def rtx(library: Library) -> Library:
    if library.kind != "rtx":
        pytest.skip(f"{library.title} compiles its kernels while it builds")
    return library


def built(library: Library, request: BuildRequest) -> BuildResult:
    """In this process: one of its own takes seconds to start."""
    return compile_engine(library, request, lambda record: None, lambda progress: True)


@pytest.fixture
def opened(library: Library) -> Iterator[Callable[..., TrtEngine]]:
    engines, device = list[TrtEngine](), open_device()

    def make(result: BuildResult, **options: Any) -> TrtEngine:
        engines.append(TrtEngine(result.plan, library, device, **options))
        return engines[-1]

    yield make
    for engine in engines:
        engine.close()
    device.close()


def image(seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).uniform(-1, 1, SHAPE).astype(np.float32)


def exact(model: Model, values: Any) -> np.ndarray[Any, Any]:
    return np.asarray(ReferenceEvaluator(model.proto).run(None, {"x": values})[0])  # type: ignore[index]


def off(got: np.ndarray[Any, Any], wanted: np.ndarray[Any, Any]) -> float:
    """The largest difference, of the largest value."""
    return float(np.abs(got - wanted).max() / np.abs(wanted).max())


def as_precision(model: Model, library: Library, precision: str) -> tuple[Model, dict[str, Any]]:
    """A model in a precision, as this TensorRT takes it, and the options that go with it."""
    if precision == "fp32":
        return model, {}
    if library.kind == "weak":
        return model, {"precision": precision}
    return write(to_fp16(read(model))[0], model), {}


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("name", TOPOLOGIES)
def test_topologies_are_right(library: Library, opened: Any, name: str, precision: str) -> None:
    model = TOPOLOGIES[name]()
    typed, options = as_precision(model, library, precision)
    engine = opened(built(library, request_of(typed, **options)))
    session = engine.session()
    session.inputs["x"][...] = image()
    assert off(session.run()[0], exact(model, image())) <= TOLERANCE[precision]


def test_int8_by_calibration_cache(library: Library, opened: Any) -> None:
    if library.kind != "weak":
        pytest.skip(f"{library.title} reads no calibration cache")
    model = TOPOLOGIES["residual"]()
    names = ["x", *(name for node in read(model).nodes for name in node.outputs)]
    cache = write_cache(dict.fromkeys(names, 4 / 127), library.version)
    result = built(library, request_of(model, precision="int8", calibration=cache))
    session = opened(result).session()
    session.inputs["x"][...] = image()
    assert off(session.run()[0], exact(model, image())) <= TOLERANCE["int8"]


def in_int8(model: Model) -> Model:
    """Its Q/DQ form; every tensor clipped at ±4."""
    ready = prepare(model)
    graph = read(ready)
    return write(lower(graph, scheme(graph, "gpu"), lambda names: 4.0), ready)


@pytest.mark.parametrize("name", ["residual", "inception", "classifier", "swish"])
def test_int8_by_qdq_nodes_is_what_the_model_says(library: Library, opened: Any, name: str) -> None:
    """ONNX's own reference computes what Q and DQ nodes say: that is the emulation."""
    model = in_int8(TOPOLOGIES[name]())
    request = request_of(model, precision="int8")
    if library.title.startswith("TensorRT-RTX 1.4."):  # 1.7 builds it
        with pytest.raises(BuildError, match="has no INT8 kernel for a layer of this model") as caught:
            built(library, request)
        assert NO_INT8 in caught.value.why and "precision: fp16" in caught.value.fix
        return
    session = opened(built(library, request)).session()
    session.inputs["x"][...] = image()
    assert off(session.run()[0], exact(model, image())) <= TOLERANCE["rounded"]


def test_fp8_by_qdq_nodes_is_what_the_model_says(library: Library, opened: Any) -> None:
    request = fp8_request()
    values = np.random.default_rng(4).uniform(-1, 1, (16, 64)).astype(np.float32)
    session = opened(built(library, request)).session()
    session.inputs["x"][...] = values
    wanted = np.asarray(ReferenceEvaluator(request.model).run(None, {"x": values})[0])  # type: ignore[index]
    assert off(session.run()[0], wanted) <= TOLERANCE["rounded"]


def test_the_inspector_knows_every_node(library: Library) -> None:
    request = request_of(TOPOLOGIES["pyramid"]())
    result = build(request, wanted="tensorrt_rtx" if library.kind == "rtx" else "tensorrt")
    facts = engine_facts(result.inspector)
    assert facts.detailed and set(accelerators(facts, request.nodes).values()) == {"gpu"}
    assert check_placement(request, result)["misplaced"] == []


def test_a_timing_cache_is_taken_again(library: Library) -> None:
    request = request_of(TOPOLOGIES["residual"]())
    first = built(library, request)
    if library.kind == "rtx":  # it times no kernels while it builds: tests of its kernel cache are below
        assert first.timing_cache == b""
        return
    again = built(library, request_of(TOPOLOGIES["residual"](), timing_cache=first.timing_cache))
    assert first.timing_cache and not any("measuring again" in record.text for record in again.log)


def test_profiles_and_fewer_rows(library: Library, opened: Any) -> None:
    model, shape = dynamic(), (4, 8, 32, 32)
    span = Span((1, 8, 16, 16), (2, 8, 32, 32), (4, 8, 64, 64))
    result = built(library, request_of(model, profiles=({"x": span},)))
    session = opened(result, profiles={"default": {"x": shape}}).session()
    values = np.random.default_rng(1).uniform(-1, 1, shape).astype(np.float32)
    session.inputs["x"][...] = values
    assert off(session.run()[0], exact(model, values)) <= TOLERANCE["fp32"]
    assert off(session.run(2)[0], exact(model, values[:2])) <= TOLERANCE["fp32"]


def test_a_graph_gives_what_a_plain_run_gives(library: Library, opened: Any) -> None:
    session = opened(built(library, request_of(TOPOLOGIES["residual"]()))).session()
    session.inputs["x"][...] = image()
    plain = session.run()[0].copy()
    graph = session.device.capture(session.stream, session.enqueue)
    session.outputs_on_gpu[0].host.fill(0)
    graph()
    (out,) = session.outputs_on_gpu
    out.block.download(session.stream)
    session.stream.synchronize()
    assert (out.host == plain).all()


def test_what_runs_side_by_side_gives_what_it_gives_alone(library: Library, opened: Any) -> None:
    model = TOPOLOGIES["inception"]()
    engine = opened(built(library, request_of(model)))
    sessions = [engine.session(on_host="outputs", queue_index=index) for index in range(3)]
    assert len({one.stream.handle for one in sessions}) == 3
    for turn in range(20):
        for index, session in enumerate(sessions):
            block = session.inputs_on_gpu["x"].block
            session.inputs["x"][...] = image(3 * turn + index)
            block.upload(session.stream)
            session.enqueue()
            session.outputs_on_gpu[0].block.download(session.stream)
        for index, session in enumerate(sessions):
            session.stream.synchronize()
            assert off(session.outputs_on_gpu[0].host, exact(model, image(3 * turn + index))) <= TOLERANCE["fp32"]


def test_layers_tell_their_times(library: Library, opened: Any) -> None:
    request = request_of(TOPOLOGIES["residual"]())
    engine = opened(built(library, request))
    found = layer_times(engine.session(), runs=5)
    assert found and all(ms >= 0 for ms in found.values())


def test_a_damaged_plan_is_refused(library: Library, opened: Any) -> None:
    result = built(library, request_of(models.conv()))
    with pytest.raises(DeviceError, match="cannot open this engine"):
        TrtEngine(result.plan[: len(result.plan) // 2], library, open_device())


class TestKernels:
    """What TensorRT-RTX compiles when an engine first runs."""

    @pytest.fixture(scope="class")
    def result(self, library: Library) -> BuildResult:
        span = Span((1, 8, 32, 32), (4, 8, 32, 32), (4, 8, 32, 32))
        return built(library, request_of(dynamic(), profiles=({"x": span},)))

    def first_run(self, engine: TrtEngine) -> Any:
        session = engine.session()
        session.inputs["x"][...] = 1
        return [session.run(rows)[0].copy() for rows in (1, 4)]

    def test_they_are_cached_and_taken_again(
        self, rtx: Library, result: BuildResult, opened: Any, tmp_path: Path, caplog: Any
    ) -> None:
        store = FileStore(tmp_path)
        known = {"profiles": {"default": {"x": (4, 8, 32, 32)}}, "cache_entry": CacheEntry(store, "kernels")}
        plain = self.first_run(opened(result, profiles=known["profiles"]))
        assert store.get("kernels") is None
        first = self.first_run(opened(result, **known))
        kernels = store.get("kernels")
        assert kernels
        again = self.first_run(opened(result, **known))
        assert store.get("kernels") == kernels  # nothing was compiled any more
        for one, two, three in zip(plain, first, again, strict=True):
            assert (one == two).all() and (two == three).all()
        assert caplog.records == []

    def test_others_are_thrown_away(
        self, rtx: Library, result: BuildResult, opened: Any, tmp_path: Path, caplog: Any
    ) -> None:
        store, content = FileStore(tmp_path), b"no kernels at all"
        store.put("kernels", content)
        with caplog.at_level(logging.WARNING):
            self.first_run(
                opened(result, profiles={"default": {"x": (4, 8, 32, 32)}}, cache_entry=CacheEntry(store, "kernels"))
            )
        assert "cached kernels cannot be read and are compiled again" in caplog.text
        assert len(store.get("kernels") or b"") > len(content)


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
    result = built(library, request)
    found = check_placement(request, result, "strict" if where == "mixed" or library.kind == "weak" else "warn")
    session = opened(result, dla_core=0, loadables=found["loadables"]).session()
    session.inputs["x"][...] = image()
    assert found["loadables"] == 1 and off(session.run()[0], exact(model, image())) <= TOLERANCE["fp16"]
