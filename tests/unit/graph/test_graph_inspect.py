"""What ``inspect`` says of a model; nodes that an engine may not have are named."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from edgert.backend.ort.runtime import open_session, session_settings
from edgert.errors import BuildError, ModelError
from edgert.graph import Model, ModelSummary, from_proto, inspect
from edgert.graph.inspection import unsupported_nodes
from tests.helpers.models import Typed, choice, make, make_proto, node, weights


def conv_proto(batch: int | str = 1, **options: Any) -> onnx.ModelProto:
    nodes = [node("Conv", ["x", "w"], ["c"]), node("Relu", ["c"], ["r"]), node("Relu", ["r"], ["y"])]
    return make_proto(nodes, {"x": [batch, 3, 8, 8]}, {"y": [batch, 4, 6, 6]}, {"w": weights(4, 3, 3, 3)}, **options)


def warnings(summary: ModelSummary) -> str:
    return "\n".join(summary.warnings)


def test_a_plain_model(tmp_path: Path) -> None:
    proto = conv_proto()
    proto.producer_name, proto.producer_version = "pytorch", "2.13"
    helper.set_model_props(proto, {"stride": "32"})
    path = tmp_path / "m.onnx"
    path.write_bytes(proto.SerializeToString())
    found = inspect(path)
    assert found.path == str(path)
    assert found.size_bytes == path.stat().st_size
    assert (found.ir_version, found.opset, found.opsets) == (8, 17, {"": 17})
    assert found.producer == "pytorch 2.13"
    assert [str(item) for item in (*found.inputs, *found.outputs)] == ["x float32[1, 3, 8, 8]", "y float32[1, 4, 6, 6]"]
    assert (found.nodes, dict(found.ops)) == (3, {"Relu": 2, "Conv": 1})
    assert list(found.ops) == ["Relu", "Conv"]
    assert (found.macs, found.params, found.weight_bytes) == (4 * 36 * 27, 108, 432)
    assert found.activation_bytes == sum(cost.activation_bytes for cost in found.costs) == 4 * (192 + 144 + 4 * 144)
    assert (found.dynamic, found.uncounted, found.quantized, found.warnings) == ((), "", "", ())
    assert found.metadata == {"stride": "32"}


def test_it_is_plain_data() -> None:
    found = inspect(from_proto(conv_proto("n")), {"x": (2, 3, 8, 8)})
    data = json.loads(json.dumps(found.to_json()))
    assert data["inputs"] == [{"name": "x", "shape": [2, 3, 8, 8], "dtype": "float32", "ranked": True}]
    assert data["macs"] == found.macs == 2 * 4 * 36 * 27
    assert data["costs"][0]["op"] == "Conv"


def test_open_shapes_are_told_and_parameters_counted_anyway() -> None:
    found = inspect(from_proto(conv_proto("n")))
    assert found.dynamic == ("x[0] n",)
    assert (found.macs, found.activation_bytes, found.params) == (None, None, 108)
    assert "'x' has dynamic dimensions 0 (n)" in found.uncounted
    assert "dynamic dimensions: x[0] n" in warnings(found)


def test_stored_tensors_among_the_inputs() -> None:
    found = warnings(inspect(from_proto(conv_proto(listed=True))))
    assert "1 stored tensors are also graph inputs" in found


def test_quantized_models() -> None:
    one, zero = np.float32(1), np.int8(0)
    qdq = [
        node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        node("DequantizeLinear", ["q", "s", "z"], ["d"]),
        node("MatMul", ["d", "w"], ["y"]),
    ]
    found = inspect(make(qdq, {"x": [2, 4]}, {"y": None}, {"s": one, "z": zero, "w": weights(4, 4)}))
    assert found.quantized == "qdq"
    assert "Q/DQ" in warnings(found)
    qoperator = [
        node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        node("QLinearMatMul", ["q", "s", "z", "w", "s", "z", "s", "z"], ["p"]),
        node("DequantizeLinear", ["p", "s", "z"], ["y"]),
    ]
    found = inspect(make(qoperator, {"x": [2, 4]}, {"y": None}, {"s": one, "z": zero, "w": np.ones((4, 4), np.int8)}))
    assert found.quantized == "qoperator"
    assert "TensorRT takes no such model" in warnings(found)


def test_operators_outside_the_standard() -> None:
    contrib = make([node("Gelu", ["x"], ["y"], domain="com.microsoft")], {"x": [2]}, {"y": [2]})
    assert "com.microsoft.Gelu; they run in ONNX Runtime only" in warnings(inspect(contrib))
    mystery = make([node("Mystery", ["x"], ["y"], domain="acme")], {"x": [2]}, {"y": [2]})
    found = inspect(mystery)
    assert "acme.Mystery; they need a backend that has them" in warnings(found)
    assert dict(found.ops) == {"acme.Mystery": 1}
    old = make([node("Crop", ["x"], ["y"], border=[1, 1, 1, 1])], {"x": [1, 3, 8, 8]}, {"y": None}, opset=7)
    assert "operators that opset 7 does not have: Crop" in warnings(inspect(old))


def test_a_models_own_functions_are_no_strangers() -> None:
    proto = make_proto([node("Twice", ["x"], ["y"], domain="mine")], {"x": [2]}, {"y": [2]})
    body = [node("Add", ["a", "a"], ["b"])]
    proto.functions.append(helper.make_function("mine", "Twice", ["a"], ["b"], body, [helper.make_opsetid("", 17)]))
    assert "mine.Twice" not in warnings(inspect(from_proto(proto)))


def test_control_flow_is_told() -> None:
    nodes = [choice("t", "y", node("Neg", ["x"], ["r"]), shape=[2])]
    model = make(nodes, {"x": [2], "t": Typed("bool", [])}, {"y": [2]})
    assert "control flow (If)" in warnings(inspect(model))


def test_errors_come_through(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="does not exist"):
        inspect(tmp_path / "none.onnx")
    with pytest.raises(ModelError, match="no input 'z'"):
        inspect(from_proto(conv_proto()), {"z": (1,)})


def model(*kinds: tuple[str, str]) -> Model:
    """A chain of nodes n0, n1, …, each of (domain, operator)."""
    nodes = [node(op, [f"t{n}"], [f"t{n + 1}"], name=f"n{n}", domain=domain) for n, (domain, op) in enumerate(kinds)]
    proto = make_proto(nodes, {"t0": [1, 3]}, {f"t{len(kinds)}": [1, 3]})
    for domain in {domain for domain, _ in kinds if domain}:
        proto.opset_import.add(domain=domain, version=1)
    return from_proto(proto)


def test_standard_operators_and_those_of_onnx_runtime_are_not_named() -> None:
    assert unsupported_nodes(model(("", "Relu"), ("com.microsoft", "Gelu"), ("ai.onnx.ml", "Normalizer"))) == ""


def test_node_operator_and_opset_are_named() -> None:
    message = unsupported_nodes(model(("acme", "Funny"), ("", "Reluu")))
    assert (
        message
        == "node 'n0' is acme.Funny, outside the ONNX standard; node 'n1' is Reluu, which opset 17 does not have"
    )


def test_of_many_four_are_named() -> None:
    message = unsupported_nodes(model(*[("acme", "Funny")] * 6))
    assert message.count("acme.Funny") == 4 and message.endswith("; and 2 more")


def test_the_error_of_onnx_runtime_names_them() -> None:
    bad = model(("acme", "Funny"))
    with pytest.raises(BuildError, match="ONNX Runtime cannot run this model") as caught:
        open_session(bad.proto.SerializeToString(), session_settings(1), bad)
    assert caught.value.why == "node 'n0' is acme.Funny, outside the ONNX standard" and "edgert.op" in caught.value.fix
