"""Real networks in INT8: every form loads, is valid and computes nearly what the float network computes."""

import platform
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import cv2
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
from tests.helpers.evaluation_data import data

Array = np.ndarray[Any, Any]
PHOTOS = 8
COMPARED = 2
"""Of the photos, by their outputs."""


@dataclass(frozen=True)
class Case:
    """How a network is fed, and the least mean cosine of its outputs in INT8 with those in float, ranges by minmax.

    ``tensor`` is what is compared where the output itself is a softmax, which hides or doubles small differences.
    """

    size: tuple[int, int]
    least: float
    mean: tuple[float, ...] = (0,)
    std: tuple[float, ...] = (1,)
    color: str = "bgr"
    layout: str = "nchw"
    tensor: str = ""


CASES = {
    "squeezenet_fp32": Case((224, 224), 0.998, (104, 117, 123), tensor="pool10_1"),
    "mobilenet_v1_025_224": Case((224, 224), 0.96, (127.5,), (127.5,), "rgb", tensor="flat"),
    "yolox_nano_416": Case((416, 416), 0.84),
    "nanodet_m_320": Case((320, 320), 0.975, (103.53, 116.28, 123.675), (57.375, 57.12, 58.395)),
    "fastestdet": Case((352, 352), 0.95, std=(255,)),
    "ultraface_rfb_320": Case((320, 240), 0.9998, (127,), (128,), "rgb"),
    "deeplab_v3_mnv2_05": Case((257, 257), 0.998, (127.5,), (127.5,), "rgb", "nhwc"),
    "person_reid_retail_0288": Case((128, 256), 0.98, color="rgb", layout="nhwc"),
    "ppocr_mobile_v2_det_ch": Case(
        (320, 320), 0.998, (123.7, 116.3, 103.5), (58.4, 57.1, 57.4), "rgb", tensor="p2o.Add.69"
    ),
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
    width, height = case.size
    shape = (1, 3, height, width) if case.layout == "nchw" else (1, height, width, 3)
    model = load(data("models", f"{name}.onnx"))
    (source,) = read(model).inputs
    model = prepare(model, {source.name: shape})
    graph = read(model)
    folder = data("images", "imagenet" if case.size == (224, 224) else "coco_calib")
    files = sorted(file for file in folder.iterdir() if file.suffix.lower() in (".jpg", ".jpeg", ".png"))
    feeds = tuple({source.name: image(file, case)} for file in files[:: max(1, len(files) // PHOTOS)][:PHOTOS])
    peaks = measured(model, graph, feeds)
    wanted = (case.tensor,) if case.tensor else tuple(spec.name for spec in graph.outputs)
    return Network(model, graph, feeds, lambda names: max(1e-6, *(peaks[one] for one in names)), wanted)


def image(file: Path, case: Case) -> Array:
    image = cv2.imread(str(file))
    assert image is not None
    image = cv2.resize(image, case.size, interpolation=cv2.INTER_AREA)[..., :: 1 if case.color == "bgr" else -1]
    values = ((image - np.float32(case.mean)) / np.float32(case.std)).astype(np.float32)[None]
    return np.ascontiguousarray(values if case.layout == "nhwc" else values.transpose(0, 3, 1, 2))


def measured(model: Model, graph: Graph, feeds: tuple[dict[str, Array], ...]) -> dict[str, float]:
    names = [name for node in graph.nodes for name in node.outputs if name and graph.specs[name].dtype == "float32"]
    call = Function(write(extract(graph, names), model), threads=2)
    peaks: dict[str, float] = {}
    for one in feeds:
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
