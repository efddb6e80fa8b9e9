"""Real builds with the parser and builder of TensorRT-RTX, which need no GPU. Skipped where it is not installed."""

import threading
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from edgert.backend.base import Span
from edgert.backend.tensorrt import library, log
from edgert.backend.tensorrt.build_process import BuildResult, Progress, build
from edgert.backend.tensorrt.build_request import BuildRequest, Pools, request_of
from edgert.backend.tensorrt.builder import compile_engine
from edgert.backend.tensorrt.network import Correspondence, correspond, network_layers
from edgert.board.devices import cuda_driver
from edgert.errors import BuildError
from edgert.graph import Model, clean, load, read, write
from edgert.quantization.calibrated import prepare
from edgert.quantization.fp16.to_fp16 import to_fp16
from edgert.quantization.lowering.lower import lower
from edgert.quantization.scheme.scheme import scheme
from tests.helpers import models
from tests.helpers.errors import raises
from tests.helpers.evaluation_data import data
from tests.helpers.models import make, node
from tests.helpers.trt_topology import TOPOLOGIES, dynamic, fp8_request

pytestmark = pytest.mark.skipif(
    not any(map(find_spec, ("tensorrt_rtx", "tensorrt_rtx_bindings"))),
    reason="TensorRT-RTX is not installed (pip install tensorrt-rtx)",
)
PARTS = Path(__file__).resolve().parents[2] / "pipelines" / "assets" / "parts.onnx"
NETWORKS = (
    "deeplab_v3_mnv2_05",
    "fastestdet",
    "fns_candy",
    "mobilenet_v1_025_224",
    "mobilenet_v2_quant",
    "nanodet_m_320",
    "person_reid_retail_0288",
    "ppocr_mobile_v2_det_ch",
    "squeezenet_fp32",
    "ultraface_rfb_320",
    "yolox_nano_416",
)
REFUSED = {"fns_candy": "Plugin not found", "mobilenet_v2_quant": "zero point"}
"""Models that TensorRT does not take: operators of before ONNX, and asymmetric INT8."""
AMAX = 6.0
"""Threshold of every tensor: what is built is looked at here, not what it computes."""


Form = Callable[[Model], Model]


def has_gpu() -> bool:
    driver = cuda_driver()
    return driver is not None and bool(driver.gpus)


def compiled(request: BuildRequest) -> BuildResult:
    """Build in this process, without the half second that each process of its own takes to load TensorRT."""
    return compile_engine(library.load("tensorrt_rtx"), request, lambda line: None, lambda step: True)


def built(model: Model, **options: object) -> BuildResult:
    return compiled(request_of(model, compute=("8.6",), **options))


def half(model: Model) -> Model:
    return write(to_fp16(read(model))[0], model)


def int8(model: Model) -> Model:
    ready = prepare(model)
    graph = read(ready)
    return write(lower(graph, scheme(graph, "gpu"), lambda names: AMAX), ready)


@cache
def demo(form: Form | None) -> tuple[Model, BuildResult]:
    """The demo's detector, in a form or as it is, and its engine."""
    model = load(PARTS) if form is None else form(load(PARTS))
    return model, built(model)


def parsed(model: Model) -> tuple[bool, Correspondence, tuple[str, ...]]:
    """Whether TensorRT parses a model, its layers matched with nodes, and their kinds."""
    trt = library.load("tensorrt_rtx").trt
    logger = log.create_logger(trt, lambda record: None)
    builder = trt.Builder(logger)
    network = builder.create_network()
    parser = trt.OnnxParser(network, logger)
    request = request_of(model)
    done = bool(parser.parse(request.model))
    layers = network_layers(network)
    return done, correspond(layers, request.nodes), tuple(layer.kind for layer in layers)


class TestDemoDetector:
    @pytest.mark.parametrize("form", [None, half, int8], ids=["fp32", "fp16", "int8"])
    def test_builds(self, form: Form | None) -> None:
        model, result = demo(form)
        assert len(result.plan) > 500_000 and result.library.startswith("TensorRT-RTX")
        parts = correspond(result.layers, request_of(model).nodes)
        assert all(parts.nodes_of) and not any(record.severity == "ERROR" for record in result.log)

    def test_types_stand_in_the_model(self) -> None:
        kinds = {layer.dtype for layer in demo(half)[1].layers if layer.kind == "CONVOLUTION"}
        assert kinds == {"HALF"}

    def test_int8_has_quantized_layers(self) -> None:
        kinds = [layer.kind for layer in demo(int8)[1].layers]
        assert kinds.count("QUANTIZE") > 10 and kinds.count("DEQUANTIZE") > 10

    def test_progress(self) -> None:
        steps: list[Progress] = []
        build(request_of(load(PARTS)), wanted="tensorrt_rtx", progress=steps.append)
        assert steps[0].parent == "" and steps[0].step == 0
        assert any(step.step == step.steps for step in steps) and {step.parent for step in steps} > {""}

    def test_canceling(self) -> None:
        cancel = threading.Event()
        with pytest.raises(BuildError, match="was canceled"):
            build(request_of(load(PARTS)), wanted="tensorrt_rtx", progress=lambda step: cancel.set(), cancel=cancel)


@pytest.mark.parametrize("form", [lambda model: model, half], ids=["fp32", "fp16"])
@pytest.mark.parametrize("name", TOPOLOGIES)
def test_topologies(name: str, form: Callable[[Model], Model]) -> None:
    model = form(TOPOLOGIES[name]())
    result = built(model)
    parts = correspond(result.layers, request_of(model).nodes)
    assert result.plan and all(parts.nodes_of)
    assert all(node in parts.layers_of for node in request_of(model).nodes)


@pytest.mark.parametrize("name", ["residual", "inception", "classifier", "swish"])
def test_topologies_in_int8(name: str) -> None:
    result = built(int8(TOPOLOGIES[name]()))
    assert result.plan and any(layer.kind == "QUANTIZE" for layer in result.layers)


def test_fp8_is_built_for_gpus_that_have_it_and_refused_for_others() -> None:
    assert compiled(fp8_request("8.9")).plan
    with raises(BuildError, "built no engine", why=("Cannot compile for target(s) sm86", "fp8_e4m3")):
        compiled(fp8_request("8.6"))


class TestProfiles:
    SPAN = Span((1, 8, 32, 32), (2, 8, 64, 64), (4, 8, 128, 128))

    def test_one_and_two(self) -> None:
        one = built(dynamic(), profiles=({"x": self.SPAN},))
        two = built(dynamic(), profiles=({"x": self.SPAN}, {"x": Span(*[(1, 8, 48, 48)] * 3)}))
        assert one.plan and two.plan

    def test_open_dimensions_without_a_profile(self) -> None:
        with pytest.raises(BuildError, match="input 'x' has open dimensions"):
            built(dynamic())

    def test_shapes_that_do_not_fit(self) -> None:
        with pytest.raises(BuildError, match=r"input 'x' cannot be \[1, 3, 8, 8\]"):
            built(dynamic(), profiles=({"x": Span(*[(1, 3, 8, 8)] * 3)},))


class TestOptions:
    def test_levels(self) -> None:
        assert all(built(models.conv(), optimization_level=level).plan for level in (0, 5))

    def test_workspace(self) -> None:
        assert built(models.conv(), pools=Pools(workspace_bytes=1 << 26)).plan

    def test_a_runtime_to_bring_along_that_is_not_there_is_named(self) -> None:
        with raises(BuildError, "built no engine", why="libnvinfer_lean"):
            built(models.conv(), version_compatible=True)

    def test_a_gpu_that_is_not_supported(self) -> None:
        with raises(BuildError, r"does not support compute capability 8\.7", why="8.6"):
            compiled(request_of(models.conv(), compute=("8.7",)))


class TestBadModels:
    def test_an_unknown_operator_is_named(self) -> None:
        with pytest.raises(BuildError, match=r"cannot parse node 'the_odd_one' \(Frobnicate, opset \d+\)") as caught:
            built(models.unknown_operator())
        assert "Plugin not found" in caught.value.why and caught.value.where == "test.onnx"

    def test_shapes_that_cannot_be(self) -> None:
        with pytest.raises(BuildError):
            built(models.bad_shapes())

    def test_strings(self) -> None:
        with pytest.raises(BuildError, match="cannot parse"):
            built(models.texts())

    def test_several_are_all_named(self) -> None:
        nodes = [
            node("Frob", ["x"], ["t"], name="one"),
            node("Nicate", ["t"], ["y"], name="two"),
        ]
        model = make(nodes, {"x": (1, 3)}, {"y": (1, 3)})
        with raises(BuildError, says=("'one'", "'two'")):
            built(model)

    def test_what_is_no_onnx(self) -> None:
        request = request_of(models.conv())
        with pytest.raises(BuildError, match="no network in the model"):
            build(type(request)(b"\x00nonsense", request.nodes), wanted="tensorrt_rtx")

    def test_asymmetric_int8(self) -> None:
        zero = {"scale": np.float32(0.1), "zero": np.uint8(7)}
        nodes = [
            node("QuantizeLinear", ["x", "scale", "zero"], ["q"], name="round"),
            node("DequantizeLinear", ["q", "scale", "zero"], ["y"], name="back"),
        ]
        kinds = {"x": (1, 3)}
        with raises(BuildError, "'round'", why="zero point", fix="edgert quantize"):
            built(make(nodes, kinds, {"y": (1, 3)}, zero))


@pytest.mark.parametrize("name", NETWORKS)
def test_layers_of_real_models_are_matched_with_their_nodes(name: str) -> None:
    """Every layer belongs to a node; every node that computes something has a layer."""
    model = load(data("models", f"{name}.onnx"))
    done, parts, kinds = parsed(model)
    assert done == (name not in REFUSED)
    if not done:
        with raises(BuildError, r"cannot parse node '", says=REFUSED[name]):
            built(model)
        return
    assert {node.op for node in read(model).nodes if node.name not in parts.layers_of} <= {"Constant"}
    # What is left over reads or feeds nothing: constants that the parser made and does not use.
    stray = [kind for kind, nodes in zip(kinds, parts.nodes_of, strict=True) if not nodes]
    assert set(stray) <= {"CONSTANT", "CAST", "SHUFFLE", "SHAPE", "GATHER"} and len(stray) < len(kinds) / 4


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(NETWORKS) - set(REFUSED) - {"ppocr_mobile_v2_det_ch"}))
@pytest.mark.parametrize("form", [lambda model: model, half, int8], ids=["fp32", "fp16", "int8"])
def test_real_models_build(name: str, form: Callable[[Model], Model]) -> None:
    model = form(prepare(clean(load(data("models", f"{name}.onnx")))[0]))
    result, nodes = built(model), request_of(model).nodes
    assert len(result.plan) > 100_000
    assert all("Constant" in node for node in nodes.keys() - correspond(result.layers, nodes).layers_of.keys())
