"""Rearrangements: equal to the bit, but where a second convolution is merged (sums in another order, 1e-5)."""

from typing import Any

import numpy as np
import pytest

from edgert.graph import Model
from tests.helpers.models import make, node, weights
from tests.unit.graph.dla_rewrites.proving import fitted, stays

SUMS = 1e-5
END = np.iinfo(np.int64).max


def focus(order: list[tuple[int, int]], *more: Any, results: Any = None, stored: Any = None) -> Model:
    """Four strided slices joined, as YOLOv5 and YOLOX do; ``order`` of (row, column)."""
    constants: dict[str, Any] = {"s0": np.array([0]), "s1": np.array([1]), "end": np.array([END]), "two": np.array([2])}
    constants |= {"rows": np.array([2]), "columns": np.array([3]), **(stored or {})}
    nodes = []
    for row, column in order:
        name = f"p{row}{column}"
        nodes.append(node("Slice", ["x", f"s{row}", "end", "rows", "two"], [name + "r"], name + "r"))
        nodes.append(node("Slice", [name + "r", f"s{column}", "end", "columns", "two"], [name], name))
    nodes.append(node("Concat", [f"p{row}{column}" for row, column in order], ["f"], "join", axis=1))
    return make([*nodes, *more], {"x": [2, 3, 12, 16]}, results or {"f": [2, 12, 6, 8]}, constants)


YOLOX = [(0, 0), (1, 0), (0, 1), (1, 1)]


@pytest.mark.parametrize("order", [YOLOX, [(0, 0), (0, 1), (1, 0), (1, 1)], [(1, 1), (0, 0)]])
def test_focus_alone(order: list[tuple[int, int]]) -> None:
    planes = 3 * len(order)
    found = fitted(focus(order, results={"f": [2, planes, 6, 8]}), "space-to-depth")
    assert found.ops == ["Conv"]
    assert found.graph.constants[found.graph.nodes[0].inputs[1]].shape == (planes, 3, 2, 2)
    assert found.attributes("Conv")[0]["strides"] == [2, 2]


@pytest.mark.parametrize(
    ("given", "kernel", "strides", "pads"),
    [({"pads": [1, 1, 1, 1]}, [6, 6], [2, 2], [2, 2, 2, 2]),
     ({"pads": [0, 1, 1, 0], "strides": [2, 1]}, [6, 6], [4, 2], [0, 2, 2, 0]),
     ({"auto_pad": "SAME_UPPER", "strides": [2, 2]}, [6, 6], [4, 4], [0, 0, 2, 2])],
)  # fmt: skip
def test_focus_and_the_conv_behind_it_become_one(given: Any, kernel: Any, strides: Any, pads: Any) -> None:
    conv = node("Conv", ["f", "w", "b"], ["y"], "conv", **given)
    stored = {"w": weights(5, 12, 3, 3), "b": weights(5)}
    found = fitted(focus(YOLOX, conv, results={"y": None}, stored=stored), error=SUMS)
    assert found.ops == ["Conv"]
    only = found.attributes("Conv")[0]
    assert (only["kernel_shape"], only["strides"], only["pads"]) == (kernel, strides, pads)


def test_focus_that_others_read_too_is_not_merged() -> None:
    more = [node("Conv", ["f", "w"], ["y"]), node("Relu", ["f"], ["z"])]
    found = fitted(focus(YOLOX, *more, results={"y": None, "z": None}, stored={"w": weights(5, 12, 1, 1)}))
    assert found.ops == ["Conv", "Conv", "Relu"]


def test_a_depthwise_conv_and_one_too_large_are_not_merged() -> None:
    for shape, groups in (((12, 1, 3, 3), 12), ((5, 12, 17, 17), 1)):
        conv = node("Conv", ["f", "w"], ["y"], group=groups, pads=[8] * 4)
        found = fitted(focus(YOLOX, conv, results={"y": None}, stored={"w": weights(*shape)}))
        assert found.ops == ["Conv", "Conv"]


@pytest.mark.parametrize("block", [2, 3])
def test_space_to_depth_and_back(block: int) -> None:
    model = make([node("SpaceToDepth", ["x"], ["y"], blocksize=block)], {"x": [2, 3, 6, 12]}, {"y": None})
    assert fitted(model, "space-to-depth").ops == ["Conv"]
    for mode in ("DCR", "CRD"):
        back = node("DepthToSpace", ["x"], ["y"], blocksize=block, mode=mode)
        found = fitted(make([back], {"x": [2, 2 * block**2, 3, 4]}, {"y": None}), "depth-to-space")
        assert found.ops == ["ConvTranspose"]
        assert found.attributes("ConvTranspose") == [{"kernel_shape": [block] * 2, "strides": [block] * 2}]


def test_a_pixel_shuffle_by_reshapes() -> None:
    stored = {"s": np.array([1, 2, 3, 2, 4, 5]), "t": np.array([1, 2, 12, 10])}
    nodes = [
        node("Reshape", ["x", "s"], ["a"]),
        node("Transpose", ["a"], ["b"], perm=[0, 1, 4, 2, 5, 3]),
        node("Reshape", ["b", "t"], ["c"]),
        node("Relu", ["c"], ["y"]),
    ]
    found = fitted(make(nodes, {"x": [1, 12, 4, 5]}, {"y": [1, 2, 12, 10]}, stored), "depth-to-space")
    assert found.ops == ["ConvTranspose", "Relu"]


def test_pixels_left_out() -> None:
    stored = {"s": np.array([0, 0]), "e": np.array([END, END]), "a": np.array([2, 3]), "t": np.array([2, 4])}
    model = make([node("Slice", ["x", "s", "e", "a", "t"], ["y"])], {"x": [2, 3, 6, 8]}, {"y": None}, stored)
    found = fitted(model, "space-to-depth")
    assert found.attributes("MaxPool") == [{"kernel_shape": [1, 1], "strides": [2, 4], "pads": [0, 0, 0, 0]}]


def shuffle(*more: Any, results: Any, stored: Any = None) -> Model:
    """ShuffleNet's channel shuffle of two halves, the first of which was convolved."""
    constants = {
        "s": np.array([2, 2, 4, 5, 6]),
        "t": np.array([2, -1, 5, 6]),
        "w": weights(4, 3, 1, 1),
        **(stored or {}),
    }
    nodes = [
        node("Conv", ["x", "w"], ["a"], "first"),
        node("Relu", ["a"], ["b"]),
        node("Concat", ["a", "b"], ["c"], axis=1),
        node("Reshape", ["c", "s"], ["d"]),
        node("Transpose", ["d"], ["e"], perm=[0, 2, 1, 3, 4]),
        node("Reshape", ["e", "t"], ["f"], "last"),
    ]
    return make([*nodes, *more], {"x": [2, 3, 5, 6]}, results, constants)


def test_a_channel_shuffle() -> None:
    found = fitted(shuffle(node("Relu", ["f"], ["y"]), results={"y": [2, 8, 5, 6]}), "channel-shuffle")
    assert found.ops == ["Conv", "Relu", "Concat", "Conv", "Relu"]
    weight = found.graph.constants[found.graph.nodes[3].inputs[1]][:, :, 0, 0]
    assert np.argmax(weight, axis=1).tolist() == [0, 4, 1, 5, 2, 6, 3, 7]
    assert found.changes[0].detail == "8 of 8 channels in a new order → Conv 1x1"


def test_each_half_of_a_shuffle_is_chosen_at_once_and_merged_into_its_conv() -> None:
    stored = {
        "z": np.array([0]),
        "h": np.array([4]),
        "n": np.array([8]),
        "one": np.array([1]),
        "v": weights(4, 4, 1, 1),
    }
    more = [
        node("Slice", ["f", "z", "h", "one"], ["left"]),
        node("Slice", ["f", "h", "n", "one"], ["right"]),
        node("Conv", ["right", "v"], ["g"]),
        node("Concat", ["left", "g"], ["y"], axis=1),
    ]
    found = fitted(shuffle(*more, results={"y": [2, 8, 5, 6]}, stored=stored), error=SUMS)
    assert found.ops == ["Conv", "Relu", "Concat", "Conv", "Conv", "Concat"]


def test_gathers_of_every_other_channel() -> None:
    stored = {"s": np.array([4, 2, 30]), "t": np.array([2, 1, 4, 5, 6]), "i": np.array(0), "j": np.array(1)}
    nodes = [
        node("Reshape", ["x", "s"], ["a"]),
        node("Transpose", ["a"], ["b"], perm=[1, 0, 2]),
        node("Reshape", ["b", "t"], ["c"]),
        node("Gather", ["c", "i"], ["even"], axis=0),
        node("Gather", ["c", "j"], ["odd"], axis=0),
        node("Add", ["even", "odd"], ["y"]),
    ]
    found = fitted(make(nodes, {"x": [1, 8, 5, 6]}, {"y": [1, 4, 5, 6]}, stored), "channel-shuffle")
    assert found.ops == ["Conv", "Conv", "Add"]


def test_channels_in_order_are_sliced_and_all_of_them_are_the_tensor_itself() -> None:
    stored = {"i": np.array([2, 3, 4]), "all": np.arange(8)}
    nodes = [node("Relu", ["x"], ["r"]), node("Gather", ["r", "i"], ["y"], axis=1)]
    assert fitted(make(nodes, {"x": [1, 8, 5, 6]}, {"y": [1, 3, 5, 6]}, stored), "channel-shuffle").ops[1] == "Slice"
    nodes[1] = node("Gather", ["r", "all"], ["y"], axis=1)
    assert fitted(make(nodes, {"x": [1, 8, 5, 6]}, {"y": [1, 8, 5, 6]}, stored), "channel-shuffle").ops == ["Relu"]


def test_other_rearrangements_stay() -> None:
    turned = make([node("Transpose", ["x"], ["y"], perm=[0, 2, 3, 1])], {"x": [1, 8, 5, 6]}, {"y": None})
    stays(turned, "space-to-depth", "depth-to-space", "channel-shuffle")
    stored = {"s": np.array([2, 0]), "e": np.array([3, 3]), "a": np.array([2, 3])}
    window = make([node("Slice", ["x", "s", "e", "a"], ["y"])], {"x": [1, 8, 5, 6]}, {"y": None}, stored)
    stays(window, "space-to-depth", "depth-to-space", "channel-shuffle")
    mixed = make([node("Concat", ["x", "z"], ["y"], axis=1)], {"x": [1, 8, 5, 6], "z": [1, 8, 5, 6]}, {"y": None})
    stays(mixed, "channel-shuffle")


@pytest.mark.parametrize("by", ["Split", "Slice"])
def test_a_conv_is_taken_apart_with_its_channels(by: str) -> None:
    stored = {"w": weights(7, 3, 3, 3), "b": weights(7), "n": np.array([4, 3]), "z": np.array([0]), "f": np.array([4]),
              "e": np.array([7]), "one": np.array([1])}  # fmt: skip
    cuts = [node("Split", ["c", "n"], ["p", "q"], "cut", axis=1)]
    if by == "Slice":
        cuts = [node("Slice", ["c", "z", "f", "one"], ["p"]), node("Slice", ["c", "f", "e", "one"], ["q"])]
    nodes = [node("Conv", ["x", "w", "b"], ["c"], "conv", pads=[1] * 4), *cuts, node("Sigmoid", ["p"], ["y"])]
    model = make(nodes, {"x": [2, 3, 5, 6]}, {"y": [2, 4, 5, 6], "q": [2, 3, 5, 6]}, stored)
    found = fitted(model, "conv-parts", error=1e-6)
    assert found.ops == ["Conv", "Conv", "Sigmoid"]
    assert sum(found.graph.constants[item.inputs[1]].size for item in found.graph.nodes[:2]) == stored["w"].size


SILU = [node("Sigmoid", ["c"], ["s"]), node("Mul", ["c", "s"], ["m"])]


def test_a_conv_is_taken_apart_before_its_activation() -> None:
    """Conv, SiLU, Split: the first nodes of YOLO's C2f and C3k2."""
    stored = {"w": weights(8, 3, 3, 3), "b": weights(8), "n": np.array([5, 3])}
    cut = node("Split", ["m", "n"], ["p", "q"], "cut", axis=1)
    nodes = [node("Conv", ["x", "w", "b"], ["c"], "conv", pads=[1] * 4), *SILU, cut, node("Relu", ["q"], ["y"])]
    found = fitted(
        make(nodes, {"x": [2, 3, 5, 6]}, {"y": [2, 3, 5, 6], "p": [2, 5, 5, 6]}, stored), "conv-parts", error=1e-6
    )
    assert found.ops == ["Conv", "Sigmoid", "Mul"] * 2 + ["Relu"]


def test_a_conv_whose_activation_mixes_in_other_numbers_stays() -> None:
    stored = {"w": weights(8, 3, 1, 1), "n": np.array([4, 4]), "k": weights(8, 1, 1)}
    cut, feeds = node("Split", ["m", "n"], ["y", "z"], axis=1), {"x": [1, 3, 5, 6], "o": [1, 8, 5, 6]}
    conv = node("Conv", ["x", "w"], ["c"])
    for between in (
        [node("Mul", ["c", "k"], ["m"])],  # a number per channel
        [node("Add", ["c", "o"], ["m"])],  # another tensor
        [*SILU, node("Relu", ["s"], ["r"])],  # somebody else reads it
    ):
        stays(
            make(
                [conv, *between, cut],
                feeds,
                {"y": None, "z": None, "r": None} if len(between) > 2 else {"y": None, "z": None},
                stored,
            ),
            "conv-parts",
        )


def test_a_conv_in_groups_and_one_that_others_read_stay() -> None:
    stored = {"w": weights(8, 1, 3, 3), "n": np.array([4, 4])}
    nodes = [node("Conv", ["x", "w"], ["c"], group=8), node("Split", ["c", "n"], ["y", "z"], axis=1)]
    stays(make(nodes, {"x": [1, 8, 5, 6]}, {"y": None, "z": None}, stored), "conv-parts")
    nodes = [node("Conv", ["x", "w"], ["c"]), nodes[1], node("Relu", ["c"], ["r"])]
    stays(make(nodes, {"x": [1, 1, 5, 6]}, {"y": None, "z": None, "r": None}, stored), "conv-parts")


def test_split_becomes_slices() -> None:
    stored = {"n": np.array([5, 1, 2])}
    model = make([node("Split", ["x", "n"], ["p", "q", "r"], axis=1)], {"x": [1, 8, 5, 6]},
                 {"p": None, "q": None, "r": None}, stored)  # fmt: skip
    assert fitted(model, "split").ops == ["Slice"] * 3
    even = make([node("Split", ["x"], ["p", "q"], axis=-1)], {"x": [1, 8, 5, 6]}, {"p": None, "q": None}, opset=12)
    assert fitted(even, "split").ops == ["Slice"] * 2
