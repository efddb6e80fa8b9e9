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
from tests.helpers.models import Typed, make, node, suppress, value

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
WEIGHT = np.ones((4, 8), np.float32)


def found_boxes() -> Graph:
    """The boxes whose score is above a half, and a product with each of them."""
    nodes = [
        node("Greater", ["scores", "half"], ["good"], name="compare"),
        node("NonZero", ["good"], ["places"], name="find"),
        node("Squeeze", ["places", "axis"], ["rows"], name="squeeze"),
        node("Gather", ["boxes", "rows"], ["kept"], name="pick", axis=0),
        node("MatMul", ["kept", "weight"], ["out"], name="product"),
    ]
    weights = {"half": np.float32(0.5), "axis": np.array([0], np.int64), "weight": WEIGHT}
    return read(make(nodes, {"boxes": (50, 4), "scores": (50,)}, {"out": None}, weights))


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
        return helper.make_graph(nodes, name, [], [value(result, [None, 4])])

    none = branch("none", [node("Slice", ["boxes", "zero", "zero"], ["empty"])], "empty")
    some = branch("some", [node("Gather", ["boxes", "places"], ["kept"], axis=0)], "kept")
    nodes = [
        node("NonZero", ["scores"], ["found"], name="find"),
        node("Squeeze", ["found", "zero"], ["places"], name="squeeze"),
        node("If", ["any"], ["out"], name="choose", then_branch=some, else_branch=none),
        node("Relu", ["out"], ["last"], name="last"),
    ]
    inputs = {"boxes": (50, 4), "scores": (50,), "any": Typed("bool", ())}
    graph = read(make(nodes, inputs, {"last": None}, {"zero": np.array([0], np.int64)}))
    found = bound_shapes(graph)
    assert found.graph.shape("last") == (50, 4)
    assert {"find", "choose", "last"} <= found.tail


def test_a_graph_of_known_sizes_stays_as_it_is() -> None:
    graph = read(make([node("Relu", ["x"], ["y"])], {"x": (1, 3)}, {"y": (1, 3)}))
    found = bound_shapes(graph)
    assert not found.sources and not found.tail


def test_a_size_that_nothing_bounds_is_named_with_the_key_to_set() -> None:
    nodes = [
        node("Cast", ["x"], ["count"], to=INT64, name="cast"),
        node("Range", ["start", "count", "step"], ["numbers"], name="count_up"),
    ]
    graph = read(make(nodes, {"x": ()}, {"numbers": Typed("int64", None)}, {"start": np.int64(0), "step": np.int64(1)}))
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
        node("Conv", ["image", "filter"], ["map"], name="conv", strides=[8, 8]),
        node("Flatten", ["map"], ["scores"], name="flat"),
        node("Squeeze", ["scores", "axis"], ["row"], name="row"),
        node("Greater", ["row", "half"], ["good"], name="compare"),
        node("NonZero", ["good"], ["places"], name="find"),
        node("Cast", ["places"], ["numbers"], to=FLOAT, name="cast"),
        node("Transpose", ["numbers"], ["rows"], name="turn"),
        node("MatMul", ["rows", "weight"], ["out"], name="product"),
    ]
    weights = {
        "filter": np.ones((1, 3, 8, 8), np.float32),
        "axis": np.array([0], np.int64),
        "half": np.float32(0.5),
        "weight": np.ones((1, 8), np.float32),
    }
    model = make(nodes, {"image": (1, 3, 64, 64)}, {"out": None}, weights)
    onnx.save(model.proto, tmp_path / "net.onnx")
    for more, size in (("", "[1, 64]"), (", objects: 5", "[1, 5]")):
        (tmp_path / "p.yaml").write_text(PIPELINE.format(more=more), encoding="utf-8")
        made = plan(tmp_path / "p.yaml", mode="15W")
        (note,) = [one for one in made.notes if "depend on what an image shows" in one]
        assert f"find NonZero {size}" in note
