"""Small ONNX models made in code, and the reference evaluator as the judge of what they compute."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from edgert.graph import Change, Model, Pass, from_proto, infer, inputs, write
from edgert.graph.ir import run as run_passes
from edgert.graph.onnx_convert import to_graph

Shape = Sequence[int | str | None]
node = helper.make_node


def weights(*shape: int, seed: int = 0, dtype: str = "float32") -> Any:
    """Values around 0, never all the same."""
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def value(name: str, shape: Shape | None, dtype: str = "float32") -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), shape)


def make_proto(
    nodes: Sequence[onnx.NodeProto],
    feeds: Mapping[str, Shape | onnx.ValueInfoProto],
    results: Mapping[str, Shape | onnx.ValueInfoProto | None],
    stored: Mapping[str, Any] | None = None,
    *,
    opset: int = 17,
    ir: int = 8,
    listed: bool = False,
) -> onnx.ModelProto:
    """A model of float32 tensors unless told otherwise; ``listed`` also lists the stored tensors as inputs."""
    tensors = [numpy_helper.from_array(np.asarray(array), name) for name, array in (stored or {}).items()]
    values = [_value(name, shape) for name, shape in feeds.items()]
    if listed:
        values += [helper.make_tensor_value_info(item.name, item.data_type, list(item.dims)) for item in tensors]
    graph = helper.make_graph(
        list(nodes), "g", values, [_value(name, shape) for name, shape in results.items()], tensors
    )
    domains = {"": opset, **{item.domain: 1 for item in nodes if item.domain}}
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid(name, to) for name, to in domains.items()])
    proto.ir_version = ir
    return proto


def make(*args: Any, **options: Any) -> Model:
    return from_proto(make_proto(*args, **options), "test.onnx")


def ops(model: Model) -> list[str]:
    return [item.op_type for item in model.proto.graph.node]


def applied(step: Pass, model: Model) -> tuple[Model, tuple[Change, ...]]:
    """The model after one pass; the very same where the pass had nothing to do."""
    graph, changes = run_passes(to_graph(model.proto)[0], [step])
    return (write(graph, model, typed=True) if changes else model), changes


def becomes(step: Pass, model: Model, left: list[str]) -> tuple[Model, tuple[Change, ...]]:
    """The model after one pass, which leaves these operators and computes the same."""
    made, changes = applied(step, model)
    assert ops(made) == left
    assert_same(model, made)
    return made, changes


def run(model: Model, seed: int = 1) -> list[Any]:
    """The outputs for random inputs, as the ONNX reference evaluator computes them."""
    rng = np.random.default_rng(seed)
    feeds = {spec.name: rng.standard_normal(spec.shape).astype(spec.dtype) for spec in inputs(model)}  # type: ignore[arg-type]
    return list(ReferenceEvaluator(model.proto).run(None, feeds))


def assert_same(before: Model, after: Model, rtol: float = 1e-4) -> None:
    """Both compute the same, within ``rtol`` of the largest value, and the result is a valid model."""
    onnx.checker.check_model(infer(after).proto)  # which wants output shapes
    for first, second in zip(run(before), run(after), strict=True):
        assert first.shape == second.shape
        assert first.dtype == second.dtype
        np.testing.assert_allclose(second, first, rtol=0, atol=rtol * float(np.abs(first).max(initial=0)))


def _value(name: str, shape: Any) -> onnx.ValueInfoProto:
    return shape if isinstance(shape, onnx.ValueInfoProto) else value(name, shape)
