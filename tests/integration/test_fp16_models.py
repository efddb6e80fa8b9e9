"""Real models in float16, on photos: how far from float32, what stays float32, and how large the file is."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest

from edgert.backend.ort import Function
from edgert.graph import Graph, infer, load, read, to_bytes, write
from edgert.quantization.calibrated import prepare
from edgert.quantization.fp16.to_fp16 import to_fp16
from tests.helpers.evaluation_data import data, feeds
from tests.helpers.fp16_emulation import rounded

Array = npt.NDArray[Any]
IMAGES = 2


@dataclass(frozen=True)
class Case:
    """How close a model in float16 has to be to float32: 1 - cosine similarity of every output, and the largest
    difference over the largest value."""

    name: str
    cosine: float
    error: float
    kept: frozenset[str] = frozenset()
    """Operators that stay float32."""
    size: float = 0.52
    fill: str = ""


_DECODING = frozenset({"Add", "Concat", "Div", "Exp", "Mul", "Reshape", "Slice", "Sub", "Transpose"})
_POOLED = frozenset({"AveragePool"})  # 33 × 33 values
CASES = (
    Case("squeezenet_fp32", 1e-4, 2e-2),
    Case("mobilenet_v1_025_224", 1e-3, 5e-2),
    Case("yolox_nano_416", 1e-4, 5e-2, fill="stretch bgr"),
    Case("nanodet_m_320", 1e-4, 2e-2),
    Case("ultraface_rfb_320", 1e-5, 5e-3, _DECODING, 0.56),
    Case("deeplab_v3_mnv2_05", 1e-4, 1e-2, _POOLED),
    Case("person_reid_retail_0288", 1e-4, 2e-2, frozenset({"ReduceMean", "Mul"}), 0.56),
)


def distance(before: Array, after: Array) -> tuple[float, float]:
    """1 - cosine similarity, and the largest difference over the largest value."""
    first, second = before.astype(np.float64).ravel(), after.astype(np.float64).ravel()
    cosine = first @ second / np.sqrt((first @ first) * (second @ second))
    return float(1 - cosine), float(np.abs(first - second).max() / np.abs(first).max())


def casts(graph: Graph) -> int:
    return sum(node.op == "Cast" for node in graph.nodes)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_model_in_float16_computes_the_same(case: Case) -> None:
    model = prepare(load(data("models", f"{case.name}.onnx")))
    graph = read(model)
    shown = feeds(case.name, model, IMAGES, fill=case.fill)
    exact = Function(model)
    made, kept = to_fp16(graph)
    converted = write(made, model)
    onnx.checker.check_model(infer(converted).proto, full_check=True)
    assert all(kept.values())
    assert {node.op for node in graph.nodes if node.name in kept} == case.kept
    assert len(to_bytes(converted)) < case.size * len(to_bytes(model))
    if not kept:
        assert casts(made) - casts(graph) == len(graph.inputs) + len(graph.outputs)
    for run in (Function(converted), Function(write(rounded(made), model))):
        for feed in shown:
            after = run(feed)
            for name, before in exact(feed).items():
                assert after[name].dtype == np.float32
                cosine, error = distance(before, after[name])
                assert cosine < case.cosine, name
                assert error < case.error, name
