"""Corrections of quantized weights and biases on real models and photos."""

import time
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest

from edgert.backend.ort import Function
from edgert.graph import Graph, Model, load, read, write
from edgert.quantization import adaround, calibrated, equalization, quantization_error, quantizer
from edgert.quantization.calibration.ranges import RangeTable
from edgert.quantization.calibration.value_histogram import Histogram
from edgert.quantization.calibration.walk import walk
from edgert.quantization.lowering.lower import lower
from edgert.quantization.lowering.weights import along_axis, kernel_of, scale_axis, weight_scales, weighted_nodes
from edgert.quantization.scheme.scheme import scheme
from edgert.quantization.scheme.units import Scheme
from tests.helpers.evaluation_data import data, feeds
from tests.helpers.models import with_constants

Images = list[dict[str, Any]]

FOLDERS = {
    "squeezenet_fp32": "imagenet",
    "mobilenet_v1_025_224": "imagenet",
    "nanodet_m_320": "coco_calib",
    "yolox_nano_416": "coco_calib",
}


@cache
def model(name: str) -> Model:
    return calibrated.prepare(load(data("models", f"{name}.onnx")))


@cache
def graph(name: str) -> Graph:
    return read(model(name))


def images(name: str, first: int, count: int) -> Images:
    """Every eighth photo from number ``first`` on."""
    return feeds(name, model(name), count, first=first, step=8, folder=FOLDERS[name])


def table(name: str, net: Graph, decided: Scheme, feeds: Images) -> RangeTable:
    order = [spec.name for spec in net.inputs] + [one for node in net.nodes for one in node.outputs]
    names = sorted(decided.needed, key=order.index)
    histograms = {}
    for tensor, values in zip(names, walk(net, names, feeds, model(name)), strict=True):
        histograms[tensor] = Histogram()
        for one in values:
            histograms[tensor].add(one)
    return RangeTable(model(name).digest, len(feeds), "mse", histograms)


@cache
def setting(name: str) -> tuple[Images, Images, Scheme, RangeTable, Callable[[Graph], Graph]]:
    feeds, judges = images(name, 0, 12), images(name, 3, 4)
    decided = scheme(graph(name), "ort")
    ranges = table(name, graph(name), decided, feeds)
    return feeds, judges, decided, ranges, lambda net: lower(net, decided, ranges.amax)


def gain(name: str, net: Graph) -> float:
    """Mean gain of the weighted nodes' outputs over plain quantization, dB, on images nothing was fitted to."""
    _, judges, _, _, lowered = setting(name)
    before, after = (
        quantization_error.sqnr(graph(name), lowered(one), judges, None, model(name)) for one in (graph(name), net)
    )
    return float(np.mean([after[key] - before[key] for key in before if np.isfinite(before[key])]))


@pytest.mark.parametrize("name", FOLDERS)
def test_equalized_models_compute_the_same(name: str) -> None:
    net, (feed,) = graph(name), images(name, 5, 1)
    done = equalization.equalize(net)
    before, after = Function(model(name))(feed), Function(write(done, model(name)))(feed)
    for key, wanted in before.items():
        np.testing.assert_allclose(after[key], wanted, atol=1e-5 * max(1, np.abs(wanted).max()))
    touched = any(one is not other for one, other in zip(net.nodes, done.nodes, strict=True))
    assert touched == (name in ("squeezenet_fp32", "nanodet_m_320"))  # the others have SiLU or ReLU6 everywhere


@pytest.mark.parametrize(("name", "least"), [("mobilenet_v1_025_224", 2.0), ("nanodet_m_320", 0.0)])
def test_bias_correction_helps_and_never_harms(name: str, least: float) -> None:
    feeds, _, _, _, lowered = setting(name)
    assert gain(name, quantization_error.correct_biases(graph(name), lowered(graph(name)), feeds, model(name))) > least


@pytest.mark.timing
def test_bias_correction_is_one_pass() -> None:
    """Two passes over the images, a float and a quantized one, in pieces: not much dearer than in one piece."""
    name = "nanodet_m_320"
    feeds, _, _, _, lowered = setting(name)
    started = time.perf_counter()
    for net in (graph(name), lowered(graph(name))):
        function = Function(write(net, model(name)), fused=False)
        for feed in feeds:
            function(feed)
    whole_s = time.perf_counter() - started
    started = time.perf_counter()
    quantization_error.correct_biases(graph(name), lowered(graph(name)), feeds, model(name))
    assert time.perf_counter() - started < 6 * whole_s + 2


@pytest.mark.parametrize("name", FOLDERS)
def test_smooth_activations_models_compute_the_same_to_the_bit(name: str) -> None:
    feeds = images(name, 0, 4)
    done = write(equalization.smooth_activations(graph(name), feeds, model(name)), model(name))
    before, after = Function(model(name), fused=False), Function(done, fused=False)
    for feed in images(name, 5, 2):
        for key, wanted in before(feed).items():
            np.testing.assert_array_equal(after(feed)[key], wanted)


def test_evening_out_rescues_a_detector_on_a_gpu() -> None:
    """YOLOX-nano's scores, all of it in INT8 as TensorRT's explicit quantization has it."""
    name, feeds, judges = "yolox_nano_416", images("yolox_nano_416", 0, 12), images("yolox_nano_416", 3, 4)
    (output,) = graph(name).output_names
    found = []
    for net in (graph(name), equalization.smooth_activations(graph(name), feeds, model(name))):
        decided = scheme(net, "gpu")
        ranges = table(name, net, decided, feeds)
        rounded = Function(write(lower(net, decided, ranges.amax), model(name)), fused=False)
        pairs = [(Function(model(name))(feed)[output][..., 4:], rounded(feed)[output][..., 4:]) for feed in judges]
        found.append(sum(float(np.square(a - b).sum()) for a, b in pairs) / sum(float((a**2).sum()) for a, _ in pairs))
    plain, even = found
    assert plain > 0.5 and even < 0.3 * plain


def test_rounding_by_effect_lowers_the_error_of_every_layer_it_changes() -> None:
    name = "mobilenet_v1_025_224"
    feeds, _, _, _, lowered = setting(name)
    net = graph(name)
    nodes = [node for node in weighted_nodes(net) if kernel_of(net, node)][:5]
    scales = {}
    for node in nodes:
        stored = net.constants[node.inputs[1]]
        axis = scale_axis(node, stored)
        scales[node.inputs[1]] = along_axis(weight_scales(stored, axis), axis, stored.ndim)
    found = adaround.roundings(net, lowered(net), scales, feeds, model(name))
    nearest = {weight: np.rint(net.constants[weight] / scales[weight]) for weight in found}
    assert len(found) == 5
    assert sum(np.count_nonzero(values != nearest[weight]) for weight, values in found.items()) > 20
    errors = np.zeros(2)
    for node in nodes:
        weight, output = node.inputs[1], node.outputs[0]
        exact = np.array(next(walk(net, [output], feeds, model(name))))
        for at, values in enumerate((nearest[weight], found[weight])):
            changed = with_constants(net, {weight: (values * scales[weight]).astype(np.float32)})
            off = np.array(next(walk(changed, [output], feeds, model(name)))) - exact
            errors[at] += np.square(off - off.mean(axis=(0, 1, 3, 4), keepdims=True)).mean(axis=(0, 1, 3, 4)).sum()
    assert errors[1] < 0.8 * errors[0]


def test_methods_are_chosen_by_what_readers_feel() -> None:
    name = "nanodet_m_320"
    feeds, _, decided, ranges, _ = setting(name)
    found = quantizer.chosen_methods(graph(name), decided, ranges, feeds[:4], model(name))
    assert found.keys() == set(decided.needed)
    assert len(set(found.values())) > 1  # no rule wins everywhere
