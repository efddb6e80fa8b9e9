from __future__ import annotations

import numpy as np
import pytest

from edgert.graph import Graph, infer, read
from edgert.quantization.lowering.weights import arranged, channel_means, kernel_of, weighted
from tests.helpers.models import with_constants
from tests.unit.graph.graphs import make, node, weights


def graph(op: str, shape: tuple[int, ...], image: tuple[int, ...], **attributes: int) -> Graph:
    return read(infer(make([node(op, ["x", "w"], ["y"], "n", **attributes)], {"x": image}, {"y": None},
                           {"w": weights(*shape)})))  # fmt: skip


CASES = {
    "conv": (graph("Conv", (4, 3, 2, 2), (1, 3, 5, 5)), 4, 3),
    "grouped": (graph("Conv", (6, 2, 3, 3), (1, 4, 5, 5), group=2), 6, 4),
    "depthwise": (graph("Conv", (4, 1, 3, 3), (1, 4, 5, 5), group=4), 4, 4),
    "transposed": (graph("ConvTranspose", (4, 3, 2, 2), (1, 4, 5, 5), group=2), 6, 4),
    "gemm": (graph("Gemm", (3, 5), (1, 3)), 5, 3),
    "gemm_b": (graph("Gemm", (5, 3), (1, 3), transB=1), 5, 3),
    "matmul": (graph("MatMul", (3, 5), (1, 3)), 5, 3),
}


@pytest.mark.parametrize("name", CASES)
def test_one_layout_for_all_and_back(name: str) -> None:
    net, outputs, inputs = CASES[name]
    kernel = kernel_of(net, net.nodes[0])
    assert kernel is not None and (kernel.outputs, kernel.inputs) == (outputs, inputs)
    np.testing.assert_array_equal(arranged(kernel.values, kernel.node, kernel.stored), net.constants["w"])


@pytest.mark.parametrize("name", CASES)
def test_rows_are_outputs_and_columns_are_inputs(name: str) -> None:
    """Scaling one output row scales that output channel; zeroing one input column cuts that input channel off."""
    from edgert.backend.ort import Function
    from edgert.graph import write

    net, _, _ = CASES[name]
    like = make([], {}, {})
    kernel = kernel_of(net, net.nodes[0])
    assert kernel is not None
    x = np.abs(weights(*(int(d) for d in net.inputs[0].shape if isinstance(d, int)), seed=3)) + 1
    groups, rows, _, _ = kernel.values.shape
    values = kernel.values.copy()
    values[groups - 1, rows - 1] *= 3
    values[0, :, 0] = 0
    changed = with_constants(net, {"w": arranged(values, kernel.node, kernel.stored).astype(np.float32)})
    cut = x.copy()
    cut[:, 0] = 0
    wanted = Function(write(net, like))({"x": cut})["y"]
    wanted[:, -1] *= 3
    np.testing.assert_allclose(Function(write(changed, like))({"x": x})["y"], wanted, rtol=1e-4, atol=1e-5)


def test_what_has_no_stored_weight_is_no_weighted_node() -> None:
    net = read(infer(make(
        [node("Conv", ["x", "v"], ["a"], "fed"), node("Gemm", ["f", "w"], ["b"], "turned", transA=1),
         node("Conv", ["x", "k"], ["c"], "stored")],
        {"x": [1, 2, 3, 3], "v": [2, 2, 1, 1], "f": [3, 1]}, {"a": None, "b": None, "c": None},
        {"w": weights(3, 4), "k": weights(2, 2, 1, 1)},
    )))  # fmt: skip
    assert [one.name for one in weighted(net)] == ["stored"]


def test_means_are_summed_in_float64() -> None:
    array = np.full((1, 2, 1024, 1024), 0.1, np.float32)
    assert channel_means(array, 1) == pytest.approx([float(np.float32(0.1))] * 2, rel=1e-12)
