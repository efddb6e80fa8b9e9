"""Real networks as a DLA would compute them, and models that another quantizer made."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from edgert.errors import ModelError
from edgert.graph import clean, infer, load, read, to_bytes, write
from edgert.quantization.from_qdq import split_qdq
from edgert.quantization.lowering.emulate import emulate_dla
from edgert.quantization.lowering.trt_form import cache_text, parse_cache, write_cache
from edgert.quantization.scheme.scheme import scheme
from edgert.quantization.scheme.trt_scheme import fp16_exceptions, layer_precisions
from edgert.quantization.scheme.units import tensors_to_calibrate
from tests.helpers.evaluation_data import data
from tests.integration.test_quantized_models import CASES, Network, cosine, network

NETWORKS = ("mobilenet_v1_025_224", "squeezenet_fp32", "nanodet_m_320")
networks = pytest.mark.parametrize("name", NETWORKS)


def emulated(net: Network, *keep: str) -> float:
    model = write(emulate_dla(net.graph, scheme(net.graph, "dla", keep), net.amax), net.model)
    onnx.checker.check_model(infer(model).proto, full_check=True)
    pairs = zip(net.exact, net.outputs(model, fused=False), strict=True)
    return float(np.mean([cosine(first, second) for first, second in pairs]))


@networks
def test_a_dla_stays_close_to_float_and_to_the_gpu(name: str) -> None:
    net = network(name)
    pairs = zip(net.exact, net.outputs(net.lowered("gpu"), fused=False), strict=True)
    gpu = float(np.mean([cosine(first, second) for first, second in pairs]))
    found = emulated(net)
    assert found >= CASES[name].least
    assert abs(found - gpu) < 0.01


@networks
def test_everything_in_float16_is_nearly_float(name: str) -> None:
    net = network(name)
    keep = [unit.name for unit in scheme(net.graph, "dla").units]
    assert emulated(net, *keep) > 0.9999


@networks
def test_a_cache_has_every_tensor_and_comes_back(name: str) -> None:
    net = network(name)
    text = cache_text(net.graph, scheme(net.graph, "dla"), net.amax, "10.3.0")
    scales = parse_cache(text)
    assert list(scales) == list(tensors_to_calibrate(net.graph))
    assert write_cache(scales, "10.3.0") == text


def test_exceptions_name_nodes_of_the_model() -> None:
    net = network("nanodet_m_320")
    units = scheme(net.graph, "dla").units
    names = fp16_exceptions(net.graph, scheme(net.graph, "dla", [units[0].name, units[-1].name]))
    assert set(names) == {*units[0].nodes, *units[-1].nodes}
    assert layer_precisions(names).count(":fp16") == len(names)


class Reader:
    def __init__(self, net: Network) -> None:
        self._feeds = iter(net.feeds)

    def get_next(self) -> dict[str, Any] | None:
        return next(self._feeds, None)


def test_a_model_of_another_quantizer_becomes_a_float_model_and_a_cache(tmp_path: Path) -> None:
    theirs = pytest.importorskip("onnxruntime.quantization")  # which a build for a board may come without
    net = network("mobilenet_v1_025_224")
    source, made = tmp_path / "float.onnx", tmp_path / "qdq.onnx"
    source.write_bytes(to_bytes(net.model))
    theirs.quantize_static(
        source,
        made,
        Reader(net),
        quant_format=theirs.QuantFormat.QDQ,
        per_channel=True,
        activation_type=theirs.QuantType.QInt8,
        weight_type=theirs.QuantType.QInt8,
        extra_options={"ActivationSymmetric": True, "WeightSymmetric": True},
    )
    found = split_qdq(infer(clean(load(made))[0]))
    back = write(found.graph, net.model)
    onnx.checker.check_model(infer(back).proto, full_check=True)
    assert cosine(net.exact[0], net.outputs(back, fused=False)[0]) > 0.95  # what rounded weights alone leave
    tensors = set(tensors_to_calibrate(read(back)))
    assert found.float_nodes == ()
    assert set(found.scales) == tensors, found.problems
    assert parse_cache(write_cache(found.scales, "8.6.2")) == found.scales
    graph = read(infer(back))
    again = emulate_dla(graph, scheme(graph, "dla"), lambda names: 127 * max(found.scales[one] for one in names))
    assert cosine(net.exact[0], net.outputs(write(again, net.model), fused=False)[0]) > 0.9


def test_a_model_in_qoperator_form_is_refused_by_its_first_node() -> None:
    model = infer(clean(load(data("models", "mobilenet_v2_quant.onnx")))[0])
    with pytest.raises(ModelError, match=r"node '\w+' is QLinearConv: the model computes on integers"):
        split_qdq(model)
