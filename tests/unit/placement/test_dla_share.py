"""A graph surveyed for a DLA: adapter, shares, segments, and what changed."""

from dataclasses import replace

import numpy as np
import pytest

from dla import Target
from edgert.errors import ConfigError
from edgert.graph import Graph, Model, count, read
from edgert.graph.count import multiply_adds
from edgert.graph.dla_node import dla_nodes
from edgert.graph.dla_rewrites.apply import fit_model, prepare_for_dla, prove
from edgert.graph.model import Array
from edgert.placement.dla_share import compare, survey, target_of
from tests.helpers import yolo_models
from tests.helpers.models import make, node, weights
from tests.unit.graph.dla_rewrites.proving import feeds, run
from tools.networks.yolo import yolov8

ORIN = Target(2, "10.3", "int8")
TYPED = Target(2, "11.4.1", "int8")


def network(last: str = "GlobalAveragePool") -> Model:
    """Conv, Relu, MaxPool 9×9, Conv, and something at the end."""
    nodes = [
        node("Conv", ["x", "w"], ["a"], name="first", pads=[1, 1, 1, 1]),
        node("Relu", ["a"], ["b"], name="relu"),
        node("MaxPool", ["b"], ["c"], name="pool", kernel_shape=[9, 9], pads=[4, 4, 4, 4]),
        node("Conv", ["c", "v"], ["d"], name="second"),
        node(last, ["d"], ["y"], name="last"),
    ]
    shape = [1, 8, 1, 1] if last == "GlobalAveragePool" else [1, 8, 16, 16]
    return make(nodes, {"x": [1, 3, 16, 16]}, {"y": shape}, {"w": weights(4, 3, 3, 3), "v": weights(8, 4, 1, 1)})


def test_survey_of_a_small_network() -> None:
    found = survey(read(network()), ORIN)
    assert [verdict.answer for verdict in found.verdicts] == ["yes", "yes", "no", "yes", "no"]
    assert [region.places for region in found.regions] == [(0, 1), (3,)]
    assert found.macs == (4 * 27 * 256, 0, 0, 8 * 4 * 256, 0)
    assert (found.summary.macs_yes, found.loadables, found.fits_core) == (1.0, 2, True)
    assert found.allowed == {"first", "relu", "second"} and found.summary.verify == 0
    assert [found.segment_of(place) for place in range(5)] == [1, 1, None, 2, None]
    assert any("AveragePool" in fix for fix in found.fixes)


def test_work_is_counted_as_elsewhere() -> None:
    nodes = [
        node("ConvTranspose", ["x", "w"], ["a"], name="up", strides=[2, 2]),
        node("Flatten", ["a"], ["b"], name="flat"),
        node("Gemm", ["b", "v"], ["c"], name="dense", transB=1),
        node("MatMul", ["c", "u"], ["y"], name="product"),
    ]
    stored = {"w": weights(3, 4, 2, 2), "v": weights(10, 4 * 16 * 16), "u": weights(10, 5)}
    model = make(nodes, {"x": [1, 3, 8, 8]}, {"y": [1, 5]}, stored)
    assert multiply_adds(read(model)) == {one.name: one.macs for one in count(model)}
    assert survey(read(model), ORIN, macs={"up": 1}).macs == (1, 0, 0, 0)


def test_shapes_and_stored_results_count_as_stored() -> None:
    nodes = [
        node("Shape", ["x"], ["s"], name="shape"),
        node("Cast", ["s"], ["t"], name="cast", to=1),
        node("Mul", ["k", "k"], ["kk"], name="square"),
        node("Mul", ["x", "kk"], ["y"], name="scale"),
        node("ReduceMax", ["t"], ["z"], name="largest", keepdims=0),
    ]
    model = make(nodes, {"x": [1, 3, 8, 8]}, {"y": [1, 3, 8, 8], "z": []}, {"k": weights(1)})
    found = survey(read(model), ORIN)
    assert [verdict.is_folded for verdict in found.verdicts] == [True, True, True, False, True]
    assert found.verdicts[3].answer == "yes" and found.summary.folded == 4


def test_only_small_stored_tensors_come_with_values() -> None:
    nodes = [node("Mul", ["x", "small"], ["a"], name="a"), node("Mul", ["a", "large"], ["y"], name="b")]
    stored = {"small": weights(64, 1, 1), "large": weights(65, 1, 1)}
    nodes_small = [nodes[0]]
    model = make(nodes_small, {"x": [1, 64, 4, 4]}, {"a": [1, 64, 4, 4]}, {"small": stored["small"]})
    small = dla_nodes(read(model))[0].inputs[1]
    model = make([node("Mul", ["x", "large"], ["y"], name="b")], {"x": [1, 65, 4, 4]}, {"y": [1, 65, 4, 4]}, stored)
    large = dla_nodes(read(model))[0].inputs[1]
    assert small is not None and small.values is not None and len(small.values) == 64
    assert large is not None and large.values is None and large.is_constant
    assert small.is_zero is False and large.is_zero is False


@pytest.mark.parametrize(
    ("target", "zero", "answer"),
    [
        (ORIN, np.zeros(65, np.int8), "yes"),
        (TYPED, np.zeros(65, np.int8), "verify"),  # for its scale per channel
        (ORIN, np.eye(1, 65, dtype=np.int8)[0], "no"),
        (TYPED, np.eye(1, 65, dtype=np.int8)[0], "verify"),
    ],
)
def test_zero_points_of_many_channels_are_looked_at_too(target: Target, zero: Array, answer: str) -> None:
    nodes = [
        node("DequantizeLinear", ["q", "scale", "zero"], ["w"], name="dq", axis=0),
        node("Conv", ["x", "w"], ["y"], name="conv"),
    ]
    stored = {"q": np.ones((65, 3, 1, 1), np.int8), "scale": np.ones(65, np.float32), "zero": zero}
    model = make(nodes, {"x": [1, 3, 8, 8]}, {"y": [1, 65, 8, 8]}, stored)
    found = survey(read(model), target).verdicts[0]
    assert found.answer == answer and (found.rule == "scale.symmetric") == bool(zero.any())


def test_open_shapes_are_refused_and_nothing_is_counted() -> None:
    model = make([node("Relu", ["x"], ["y"], name="r")], {"x": ["n", 3, "h", "w"]}, {"y": None})
    found = survey(read(model), ORIN)
    assert found.verdicts[0].rule == "general.static" and found.summary.macs_yes == 0 == found.loadables


def test_missing_scales() -> None:
    graph = read(network())
    every = {name for one in graph.nodes for name in (*one.inputs, *one.outputs)}
    assert survey(graph, ORIN, scaled=every).allowed == {"first", "relu", "second"}
    unsure = survey(graph, ORIN, scaled=every - {"d"})
    assert [verdict.answer == "verify" for verdict in unsure.verdicts] == [
        node.name == "second" for node in unsure.nodes
    ]


def test_more_loadables_than_a_core_holds() -> None:
    nodes, name = [], "x"
    for place in range(17):
        nodes.append(node("Conv", [name, "w"], [f"r{place}"], name=f"r{place}"))
        nodes.append(node("Neg", [f"r{place}"], [f"n{place}"], name=f"n{place}"))
        name = f"n{place}"
    found = survey(read(make(nodes, {"x": [1, 3, 8, 8]}, {name: [1, 3, 8, 8]}, {"w": weights(3, 3, 1, 1)})), ORIN)
    assert found.loadables == 17 and not found.fits_core


def test_what_has_no_weights_between_layers_of_the_gpu_stays_there() -> None:
    nodes = [
        node("Relu", ["x"], ["a"], name="first"),
        node("Neg", ["a"], ["b"], name="gpu"),
        node("Relu", ["b"], ["c"], name="stranded"),
        node("Neg", ["c"], ["y"], name="last"),
    ]
    found = survey(read(make(nodes, {"x": [1, 3, 8, 8]}, {"y": [1, 3, 8, 8]})), ORIN)
    assert (found.loadables, found.allowed) == (1, {"first"})


def test_changes_between_two_surveys() -> None:
    rows = compare(survey(read(network()), ORIN), survey(read(network("Relu")), ORIN))
    found = {row.what: row for row in rows}
    assert (found["nodes on the DLA"].before, found["nodes on the DLA"].after) == ("3", "4")
    assert found["nodes on the DLA"].is_better is True and found["nodes refused"].is_better is True
    assert found["work on the DLA"].is_better is None and found["work on the DLA"].after == "100.0 %"
    assert found["segments (loadables)"].after == "2"


def test_survey_as_plain_data() -> None:
    plain = survey(read(network()), ORIN).to_json()
    assert plain["summary"]["yes"] == 3 and plain["segments"][0]["nodes"] == ["first", "relu"]
    assert plain["nodes"][2]["rule"] == "pool.window" and plain["nodes"][2]["name"] == "pool"
    assert plain["target"] == {"generation": 2, "tensorrt": "10.3", "precision": "int8"}


@pytest.mark.parametrize(
    ("generation", "tensorrt", "precision"), [(2, "ten", "int8"), (2, "10.3", "fp32"), (7, "10.3", "int8")]
)
def test_targets_that_there_are_not(generation: int, tensorrt: str, precision: str) -> None:
    with pytest.raises(ConfigError, match="no such DLA target") as caught:
        target_of(generation, tensorrt, precision)
    assert "--trt" in caught.value.fix


def yolov8n() -> Graph:
    """As its authors export it: enlarged by stored scales, to the nearest pixel."""
    drawn = yolov8("n")
    form = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    nodes = tuple(
        replace(one, inputs=(*one.inputs, "", "twice"), attributes=form) if one.op == "Resize" else one
        for one in drawn.nodes
    )
    twice = np.array([1, 1, 2, 2], np.float32)
    return replace(drawn, nodes=nodes, constants={**drawn.constants, "twice": twice})


@pytest.mark.parametrize("release", ["8.6.2", "10.3.0"])
def test_yolov8n_is_one_segment_in_int8(release: str) -> None:
    """Its eight Splits run in FP16 in an INT8 build; as doubts they cut backbone and neck into nine."""
    found = survey(yolov8n(), Target(2, release, "int8"))
    (region,) = found.regions
    convs = [place for place, one in enumerate(found.nodes) if one.op == "Conv"]
    assert set(region.places) >= set(convs[:-1])  # the last one is the sum over the bins of a box, behind a Reshape
    assert found.loadables == len(found.hoped) == 1 and found.summary.verify == 0


def test_yolov8n_of_typed_int8_is_a_doubt_at_every_split() -> None:
    found = survey(yolov8n(), Target(2, "11.4.1", "int8"))
    assert found.loadables == 9 and {reason.rule for reason in found.summary.doubts} == {"slice.precision"}


@pytest.mark.parametrize(("name", "segments"), [("yolov8n", 1), ("yolo11n", 2)])
def test_backbone_and_neck_are_one_segment_and_equal(name: str, segments: int) -> None:
    """Splits behind a SiLU are gone; the attention of YOLO11 is one piece on the GPU, between its backbone and neck."""
    before = prepare_for_dla(yolo_models.model(name, 64))
    after, _ = fit_model(before)
    graph = read(after)
    for release in ("10.3.0", "11.4.1"):
        found = survey(graph, Target(2, release, "int8"))
        work = [region.macs for region in found.regions]  # small images leave the sum over a box's bins to the DLA, too
        assert len([macs for macs in work if macs > sum(work) / 1000]) == segments
        products = [place for place, node in enumerate(found.nodes) if node.op == "MatMul"]
        between = found.nodes[products[0] : products[1]] if products else ()
        assert found.allowed.isdisjoint(node.name for node in between)
        # Both operands of a product are computed: that rule is why an attention cuts a network in two.
        assert {found.verdicts[place].rule for place in products} == ({"gemm.weights"} if products else set())
        assert len(products) == 2 * (segments - 1)
    proof = prove(before, after, feeds(before, 1), run)
    assert proof.largest > 0 and proof.relative < 1e-5
