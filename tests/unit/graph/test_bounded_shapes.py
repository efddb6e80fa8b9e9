"""Sizes that depend on data get upper bounds, and the work behind them is known."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from edgert.errors import ModelError
from edgert.graph import read
from edgert.graph.bounded_shapes import bound_shapes
from edgert.graph.count import multiply_adds
from edgert.graph.ir import Graph
from edgert.placement.cost.work import units
from edgert.planner import plan
from tests.helpers.models import make, suppress

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
WEIGHT = np.ones((4, 8), np.float32)


def found_boxes() -> Graph:
    """The boxes whose score is above a half, and a product with each of them."""
    nodes = [
        helper.make_node("Greater", ["scores", "half"], ["good"], name="compare"),
        helper.make_node("NonZero", ["good"], ["places"], name="find"),
        helper.make_node("Squeeze", ["places", "axis"], ["rows"], name="squeeze"),
        helper.make_node("Gather", ["boxes", "rows"], ["kept"], name="pick", axis=0),
        helper.make_node("MatMul", ["kept", "weight"], ["out"], name="product"),
    ]
    inputs = {"boxes": ((50, 4), FLOAT), "scores": ((50,), FLOAT)}
    weights = {"half": np.float32(0.5), "axis": np.array([0], np.int64), "weight": WEIGHT}
    return read(make(nodes, inputs, {"out": (None, FLOAT)}, weights))


def test_as_many_boxes_are_counted_as_were_scored() -> None:
    found = bound_shapes(found_boxes())
    assert found.sources == {"find": "NonZero [1, 50]"}
    assert found.tail == {"find", "squeeze", "pick", "product"}
    assert found.graph.shape("out") == (50, 8)
    assert multiply_adds(found.graph)["product"] == 50 * 4 * 8
    assert len(units(found.graph)) >= 3


def test_a_stated_number_of_objects_counts_fewer() -> None:
    assert bound_shapes(found_boxes(), 7).graph.shape("out") == (7, 8)
    assert bound_shapes(found_boxes(), 1000).graph.shape("out") == (50, 8)


def test_suppression_gives_at_most_its_number_of_boxes_for_each_class() -> None:
    found = bound_shapes(read(suppress(10)))
    assert found.graph.shape("kept") == (20, 3)


def test_an_if_gives_at_most_as_many_rows_as_it_reads() -> None:
    def branch(name: str, nodes: list[onnx.NodeProto], result: str) -> onnx.GraphProto:
        return helper.make_graph(nodes, name, [], [helper.make_tensor_value_info(result, FLOAT, [None, 4])])

    none = branch("none", [helper.make_node("Slice", ["boxes", "zero", "zero"], ["empty"])], "empty")
    some = branch("some", [helper.make_node("Gather", ["boxes", "places"], ["kept"], axis=0)], "kept")
    nodes = [
        helper.make_node("NonZero", ["scores"], ["found"], name="find"),
        helper.make_node("Squeeze", ["found", "zero"], ["places"], name="squeeze"),
        helper.make_node("If", ["any"], ["out"], name="choose", then_branch=some, else_branch=none),
        helper.make_node("Relu", ["out"], ["last"], name="last"),
    ]
    inputs = {"boxes": ((50, 4), FLOAT), "scores": ((50,), FLOAT), "any": ((), TensorProto.BOOL)}
    graph = read(make(nodes, inputs, {"last": (None, FLOAT)}, {"zero": np.array([0], np.int64)}))
    found = bound_shapes(graph)
    assert found.graph.shape("last") == (50, 4)
    assert {"find", "choose", "last"} <= found.tail


def test_a_graph_of_known_sizes_stays_as_it_is() -> None:
    graph = read(make([helper.make_node("Relu", ["x"], ["y"])], {"x": ((1, 3), FLOAT)}, {"y": ((1, 3), FLOAT)}))
    found = bound_shapes(graph)
    assert not found.sources and not found.tail


def test_a_size_that_nothing_bounds_is_named_with_the_key_to_set() -> None:
    nodes = [
        helper.make_node("Cast", ["x"], ["count"], to=INT64, name="cast"),
        helper.make_node("Range", ["start", "count", "step"], ["numbers"], name="count_up"),
    ]
    weights = {"start": np.int64(0), "step": np.int64(1)}
    graph = read(make(nodes, {"x": ((), FLOAT)}, {"numbers": (None, INT64)}, weights))
    with pytest.raises(ModelError, match="node 'count_up'") as error:
        bound_shapes(graph)
    assert "objects: 100" in (error.value.fix or "")
    assert bound_shapes(graph, 12).graph.shape("numbers") == (12,)


PIPELINE = """
board: orin-nx-16gb
models: {{net: {{onnx: net.onnx, task: {{embed: none}}{more}}}}}
stages: {{cam: {{source: "usb:0", fps: 10}}, look: {{infer: net, from: cam}}}}
"""


def test_a_plan_counts_work_that_depends_on_an_image_and_says_so(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Conv", ["image", "filter"], ["map"], name="conv", strides=[8, 8]),
        helper.make_node("Flatten", ["map"], ["scores"], name="flat"),
        helper.make_node("Squeeze", ["scores", "axis"], ["row"], name="row"),
        helper.make_node("Greater", ["row", "half"], ["good"], name="compare"),
        helper.make_node("NonZero", ["good"], ["places"], name="find"),
        helper.make_node("Cast", ["places"], ["numbers"], to=FLOAT, name="cast"),
        helper.make_node("Transpose", ["numbers"], ["rows"], name="turn"),
        helper.make_node("MatMul", ["rows", "weight"], ["out"], name="product"),
    ]
    weights = {
        "filter": np.ones((1, 3, 8, 8), np.float32),
        "axis": np.array([0], np.int64),
        "half": np.float32(0.5),
        "weight": np.ones((1, 8), np.float32),
    }
    model = make(nodes, {"image": ((1, 3, 64, 64), FLOAT)}, {"out": (None, FLOAT)}, weights)
    onnx.save(model.proto, tmp_path / "net.onnx")
    for more, size in (("", "[1, 64]"), (", objects: 5", "[1, 5]")):
        (tmp_path / "p.yaml").write_text(PIPELINE.format(more=more), encoding="utf-8")
        made = plan(tmp_path / "p.yaml", mode="15W")
        (note,) = [one for one in made.notes if "depend on what an image shows" in one]
        assert f"find NonZero {size}" in note
