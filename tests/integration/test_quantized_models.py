"""Real networks in INT8: every form loads, is valid and computes nearly what the float network computes."""

import platform
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from edgert.backend.ort import Function
from edgert.graph import Graph, Model, extract, infer, load, read, to_bytes, write
from edgert.quantization.calibrated import prepare
from edgert.quantization.lowering.lower import lower
from edgert.quantization.scheme.scheme import scheme
from edgert.quantization.scheme.units import Target
from tests.helpers.evaluation_data import data, feeds

Array = np.ndarray[Any, Any]
PHOTOS = 8
COMPARED = 2
"""Of the photos, by their outputs."""


@dataclass(frozen=True)
class Case:
    """The least mean cosine of a network's outputs in INT8 with those in float, ranges by minmax.

    ``tensor`` is what is compared where the output itself is a softmax, which hides or doubles small differences.
    """

    least: float
    tensor: str = ""
    folder: str = "coco_calib"
    shapes: Mapping[str, tuple[int, ...]] | None = None


CASES = {
    "squeezenet_fp32": Case(0.998, "pool10_1", "imagenet"),
    "mobilenet_v1_025_224": Case(0.96, "flat", "imagenet"),
    "yolox_nano_416": Case(0.84),
    "nanodet_m_320": Case(0.975),
    "fastestdet": Case(0.95),
    "ultraface_rfb_320": Case(0.9998),
    "deeplab_v3_mnv2_05": Case(0.998),
    "person_reid_retail_0288": Case(0.98),
    "ppocr_mobile_v2_det_ch": Case(0.998, "p2o.Add.69", shapes={"x": (1, 3, 320, 320)}),
}
TARGETS: tuple[Target, ...] = ("ort", "gpu", "dla")
networks = pytest.mark.parametrize("name", CASES)


@dataclass(frozen=True, eq=False)
class Network:
    model: Model
    graph: Graph
    feeds: tuple[dict[str, Array], ...]
    amax: Callable[[tuple[str, ...]], float]
    wanted: tuple[str, ...]

    def lowered(self, target: Target, *keep: str, **options: Any) -> Model:
        plan = scheme(self.graph, target, keep)
        return write(lower(self.graph, plan, self.amax, **options), self.model)

    @cached_property
    def exact(self) -> list[Array]:
        return self.outputs(self.model, fused=True)

    def outputs(self, model: Model, *, fused: bool) -> list[Array]:
        call = Function(write(extract(read(infer(model)), self.wanted), model), threads=2, fused=fused)
        return [np.concatenate([value.ravel() for value in call(feeds).values()]) for feeds in self.feeds[:COMPARED]]


@cache
def network(name: str) -> Network:
    case = CASES[name]
    model = prepare(load(data("models", f"{name}.onnx")), case.shapes)
    graph = read(model)
    step = max(1, len(list(data("images", case.folder).iterdir())) // PHOTOS)
    shown = feeds(name, model, PHOTOS, step=step, folder=case.folder)
    peaks = measured(model, graph, shown)
    wanted = (case.tensor,) if case.tensor else tuple(spec.name for spec in graph.outputs)
    return Network(model, graph, tuple(shown), lambda names: max(1e-6, *(peaks[one] for one in names)), wanted)


def measured(model: Model, graph: Graph, shown: list[Mapping[str, Array]]) -> dict[str, float]:
    """The largest absolute value of each float32 tensor."""
    names = [name for node in graph.nodes for name in node.outputs if name and graph.specs[name].dtype == "float32"]
    call, peaks = Function(write(extract(graph, names), model), threads=2), dict[str, float]()
    for one in shown:
        for name, value in {**one, **call(one)}.items():
            peaks[name] = max(peaks.get(name, 0.0), float(np.abs(value).max()))
    return peaks


def cosine(first: Array, second: Array) -> float:
    return float(first @ second / np.sqrt((first @ first) * (second @ second)))


@networks
@pytest.mark.parametrize("target", ["dla", *(pytest.param(one, marks=pytest.mark.slow) for one in ("ort", "gpu"))])
def test_every_form_is_valid_and_close_to_float(name: str, target: Target) -> None:
    net = network(name)
    model = net.lowered(target)
    onnx.checker.check_model(infer(model).proto, full_check=True)
    assert [item.name for item in model.proto.graph.input] == [item.name for item in net.model.proto.graph.input]
    pairs = zip(net.exact, net.outputs(model, fused=False), strict=True)
    found = np.mean([cosine(first, second) for first, second in pairs])
    assert found >= CASES[name].least


def executed(model: Model, folder: Path) -> Counter[str]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.optimized_model_filepath = str(folder / "optimized.onnx")
    onnxruntime.InferenceSession(to_bytes(model), options, providers=["CPUExecutionProvider"])
    return Counter(node.op_type for node in onnx.load(options.optimized_model_filepath).graph.node)


@networks
@pytest.mark.parametrize("activation", ["symmetric", "unsigned"])
@pytest.mark.skipif(platform.machine() != "x86_64", reason="this machine is no x86, where ONNX Runtime stores uint8")
def test_onnx_runtime_forms_its_integer_kernels(name: str, activation: str, tmp_path: Path) -> None:
    net = network(name)
    plan = scheme(net.graph, "ort")
    convolutions = {node.name: node.outputs[0] for node in net.graph.nodes if node.op == "Conv"}
    integer = [node for node in plan.weighted & set(convolutions) if convolutions[node] in plan.points]
    found = executed(net.lowered("ort", storage="uint8", activation=activation), tmp_path)
    assert found["QLinearConv"] == len(integer) > 10
    assert found["Conv"] + found["FusedConv"] == len(convolutions) - len(integer)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="this machine is no x86, where ONNX Runtime stores uint8")
@pytest.mark.parametrize("name", ["nanodet_m_320", "deeplab_v3_mnv2_05"])
def test_what_is_kept_stays_in_floating_point(name: str, tmp_path: Path) -> None:
    net = network(name)
    linear = [unit.name for unit in scheme(net.graph, "ort").units if unit.op == "Conv" and len(unit.nodes) == 1]
    before = executed(net.lowered("ort", storage="uint8"), tmp_path)
    after = executed(net.lowered("ort", *linear[1:4], storage="uint8"), tmp_path)
    assert before["QLinearConv"] - after["QLinearConv"] == 3
    assert after["Conv"] + after["FusedConv"] == before["Conv"] + before["FusedConv"] + 3


@pytest.mark.parametrize("name", ["squeezenet_fp32", "mobilenet_v1_025_224", "ultraface_rfb_320"])
def test_integer_kernels_compute_what_the_standard_defines(name: str) -> None:
    net = network(name)
    model = net.lowered("ort", storage="uint8")
    pairs = zip(net.outputs(model, fused=True), net.outputs(model, fused=False), strict=True)
    assert min(cosine(first, second) for first, second in pairs) > 0.999


def test_uint8_and_int8_store_the_same_numbers() -> None:
    net = network("squeezenet_fp32")
    first, second = (net.outputs(net.lowered("ort", storage=storage), fused=False) for storage in ("int8", "uint8"))
    assert all(np.array_equal(one, other) for one, other in zip(first, second, strict=True))
