"""TensorRT itself, on a machine that has it, PyCUDA and a GPU: what is built must run and be right.

Nothing here runs without them; each test names what is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

from edgert.backend.tensorrt import BuildResult, Pools, Span, TrtEngine, build, request_of
from edgert.backend.tensorrt.engine_layers import accelerators, engine_facts, layer_times
from edgert.backend.tensorrt.library import Library, load
from edgert.board.devices import cuda_driver
from edgert.compiler.engine_checks import verify
from edgert.errors import DeviceError
from edgert.graph import Model, read, write
from edgert.memory.cuda import open_device
from edgert.quantization.fp16.to_fp16 import to_fp16
from edgert.quantization.lowering.trt_form import write_cache
from tests.helpers import models
from tests.helpers.trt_topology import SHAPE, TOPOLOGIES, dynamic

pytestmark = [pytest.mark.gpu, pytest.mark.tensorrt]
TOLERANCE = {"fp32": 1e-3, "fp16": 2e-2, "int8": 0.2}
"""Largest difference, of the largest value: TF32 has 10 bits, as float16 has, and INT8 is far coarser."""


def why_not() -> str:
    """What is missing here; empty if nothing is."""
    driver = cuda_driver()
    if driver is None or not driver.gpus:
        return "there is no NVIDIA GPU"
    if find_spec("tensorrt") is None:
        return "TensorRT is not installed"
    return "" if find_spec("pycuda") else "PyCUDA is not installed"


@pytest.fixture(scope="module")
def library() -> Library:
    missing = why_not()
    if missing:
        pytest.skip(f"TensorRT's conformance suite did not run: {missing}")
    return load("tensorrt")


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


def close(got: np.ndarray[Any, Any], wanted: np.ndarray[Any, Any], precision: str) -> bool:
    return float(np.abs(got - wanted).max()) <= TOLERANCE[precision] * float(np.abs(wanted).max())


def as_precision(model: Model, library: Library, precision: str) -> tuple[Model, dict[str, Any]]:
    """A model in a precision, as this TensorRT takes it, and the options that go with it."""
    if precision == "fp32":
        return model, {}
    if library.kind == "weak":
        return model, {"precision": precision}
    return write(to_fp16(read(model)).graph, model), {}


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("name", TOPOLOGIES)
def test_topologies_are_right(library: Library, opened: Any, name: str, precision: str) -> None:
    model = TOPOLOGIES[name]()
    typed, options = as_precision(model, library, precision)
    engine = opened(build(request_of(typed, **options), wanted="tensorrt"))
    session = engine.session()
    session.inputs["x"][...] = image()
    assert close(session.run()[0], exact(model, image()), precision)


def test_int8_by_calibration_cache(library: Library, opened: Any) -> None:
    if library.kind != "weak":
        pytest.skip(f"{library.title} reads no calibration cache")
    model = TOPOLOGIES["residual"]()
    names = ["x", *(name for node in read(model).nodes for name in node.outputs)]
    cache = write_cache(dict.fromkeys(names, 4 / 127), library.version)
    result = build(request_of(model, precision="int8", calibration=cache), wanted="tensorrt")
    session = opened(result).session()
    session.inputs["x"][...] = image()
    assert close(session.run()[0], exact(model, image()), "int8")


def test_the_inspector_knows_every_node(library: Library) -> None:
    request = request_of(TOPOLOGIES["pyramid"]())
    result = build(request, wanted="tensorrt")
    facts = engine_facts(result.inspector)
    assert facts.detailed and set(accelerators(facts, request.nodes).values()) == {"gpu"}
    assert verify(request, result).misplaced == ()


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
    session = opened(build(request_of(TOPOLOGIES["residual"]()), wanted="tensorrt")).session()
    session.inputs["x"][...] = image()
    plain = session.run()[0].copy()
    graph = session.device.capture(session.stream, session.enqueue)
    session.outputs[0].fill(0)
    graph()
    (out,) = session.outputs_on_gpu
    out.block.download(session.stream)
    session.stream.synchronize()
    assert (out.host == plain).all()


def test_layers_tell_their_times(library: Library, opened: Any) -> None:
    request = request_of(TOPOLOGIES["residual"]())
    engine = opened(build(request, wanted="tensorrt"))
    found = layer_times(engine.session(), runs=5)
    assert found and all(ms >= 0 for ms in found.values())


def test_a_damaged_plan_is_refused(library: Library, opened: Any) -> None:
    result = build(request_of(models.conv()), wanted="tensorrt")
    with pytest.raises(DeviceError, match="cannot open this engine"):
        TrtEngine(result.plan[: len(result.plan) // 2], library, open_device())


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
    session.inputs["x"][...] = image()
    assert found.facts.loadables == 1 and close(session.run()[0], exact(model, image()), "fp16")
