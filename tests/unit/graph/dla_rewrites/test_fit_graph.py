"""The whole of it: choosing rewrites, names, proofs, cutting; static inputs make every tensor static."""

import numpy as np
import pytest

from edgert.errors import ModelError, PlacementError
from edgert.graph import Model, Node, inputs, read, to_bytes, write
from edgert.graph.dla_rewrites.apply import (
    REWRITES,
    cut_head,
    fit,
    fit_model,
    prepare_for_dla,
    prove,
    remaining_rewrites,
    with_static_batch,
)
from tests.helpers.models import assert_same, make, node, ops, value, weights
from tests.unit.graph.dla_rewrites.proving import feeds, fitted, run


def detector() -> Model:
    """A body of two convolutions and a head that turns its maps into rows."""
    stored = {"w": weights(6, 3, 3, 3), "v": weights(5, 6, 1, 1), "u": weights(4, 6, 1, 1),
              "s": np.array([1, 5, -1]), "t": np.array([1, 4, -1])}  # fmt: skip
    nodes = [
        node("Transpose", ["x"], ["n"], "turn", perm=[0, 3, 1, 2]),
        node("Conv", ["n", "w"], ["a"], "body", pads=[1] * 4),
        node("HardSwish", ["a"], ["b"], "act"),
        node("Conv", ["b", "v"], ["c"], "left"),
        node("Conv", ["b", "u"], ["d"], "right"),
        node("Reshape", ["c", "s"], ["e"], "flat"),
        node("Reshape", ["d", "t"], ["f"], "flat2"),
        node("Concat", ["e", "f"], ["g"], "join", axis=1),
        node("Transpose", ["g"], ["rows"], "last", perm=[0, 2, 1]),
    ]
    return make(nodes, {"x": [1, 5, 6, 3]}, {"rows": [1, 30, 9], "c": [1, 5, 5, 6]}, stored)


def can_run(one: Node) -> bool:
    return one.op in ("Conv", "HardSwish", "Add", "Mul", "Clip")


def test_every_rewrite_says_what_and_why() -> None:
    assert len(REWRITES) >= 20
    for name, rewrite in REWRITES.items():
        assert rewrite.name == name
        assert rewrite.does


def test_rewrites_are_optional_and_keep_their_order() -> None:
    graph = read(detector())
    same, changes = fit(graph, [])
    assert same is graph
    assert changes == ()
    _, changes = fit(graph, ["hard-swish"])
    assert [item.rule for item in changes] == ["hard-swish"]


def test_rewrites_are_left_out_by_name_or_glob() -> None:
    assert remaining_rewrites([]) == tuple(REWRITES)
    assert remaining_rewrites(["*"]) == ()
    left = remaining_rewrites(["max-pool", "fold-*"])
    assert set(REWRITES) - set(left) == {"max-pool", "fold-constants", "fold-batchnorm", "fold-bias"}
    assert {item.rule for item in fit(read(detector()))[1]} == {"hard-swish"}
    assert fit(read(detector()), remaining_rewrites(["hard-*"]))[1] == ()


def test_an_unknown_rewrite_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(PlacementError, match="did you mean 'hard-swish'"):
        fit(read(detector()), ["hardswish"])
    with pytest.raises(PlacementError, match="no rewrite 'maxpool'; did you mean 'max-pool'") as caught:
        remaining_rewrites(["maxpool"], "p.yaml:3 models.net.skip_rewrites")
    assert "fold-constants" in caught.value.why and caught.value.where.startswith("p.yaml:3") and caught.value.fix


def test_equal_graphs_give_equal_models() -> None:
    first, second = (to_bytes(fitted(detector(), error=1e-5).model) for _ in range(2))
    assert first == second


def test_the_given_graph_is_not_changed() -> None:
    model = detector()
    before = to_bytes(model)
    graph = read(model)
    fit(graph)
    assert to_bytes(write(graph, model)) == to_bytes(write(read(model), model))
    assert to_bytes(model) == before


def test_a_whole_model_with_an_open_batch() -> None:
    stored = {"w": weights(20, 3)}
    nodes = [node("GlobalAveragePool", ["x"], ["a"]), node("Flatten", ["a"], ["b"]), node("Gemm", ["b", "w"], ["y"])]
    model = make(nodes, {"x": ["batch", 20, 7, 7]}, {"y": ["batch", 3]}, stored, opset=11)
    after, changes = fit_model(model)
    assert ops(after) == ["AveragePool", "Conv", "Reshape"]
    assert {item.rule for item in changes} == {"global-mean", "dense"}
    assert inputs(after)[0].shape == (1, 20, 7, 7)
    assert prove(with_static_batch(model), after, feeds(after), run).relative <= 1e-5


def test_open_dimensions_other_than_the_batch() -> None:
    open_size = make([node("Relu", ["x"], ["y"])], {"x": [None, 3, "h", 4]}, {"y": None})
    with pytest.raises(ModelError, match="open dimensions"):
        with_static_batch(open_size)
    fixed = make([node("Relu", ["x"], ["y"])], {"x": [1, 3, 4, 4]}, {"y": None})
    assert with_static_batch(fixed) is fixed


def test_a_head_and_what_is_in_front_are_cut_off() -> None:
    cut = cut_head(read(detector()), can_run)
    assert [spec.name for spec in cut.tensors] == ["c", "d"]
    assert [item.name for item in cut.front] == ["turn"]
    assert [item.name for item in cut.body] == ["body", "act", "left", "right"]
    assert [item.name for item in cut.tail] == ["flat", "flat2", "join", "last"]


def test_a_branch_that_cannot_run_takes_what_follows_it_along() -> None:
    stored = {"w": weights(3, 3, 1, 1)}
    nodes = [
        node("Conv", ["x", "w"], ["a"], "one"),
        node("Erf", ["a"], ["b"], "erf"),
        node("Conv", ["b", "w"], ["c"], "two"),
        node("Add", ["a", "c"], ["y"], "add"),
    ]
    cut = cut_head(read(make(nodes, {"x": [1, 3, 4, 4]}, {"y": None}, stored)), can_run)
    assert [item.name for item in cut.body] == ["one"]
    assert [item.name for item in cut.tail] == ["erf", "two", "add"]
    assert [str(spec) for spec in cut.tensors] == ["a float32[1, 3, 4, 4]"]


def test_nothing_to_cut_and_nothing_to_keep() -> None:
    graph = read(make([node("Relu", ["x"], ["y"])], {"x": [1, 3, 4, 4]}, {"y": None}))
    whole, none = cut_head(graph, lambda _: True), cut_head(graph, lambda _: False)
    assert (whole.front, whole.body, whole.tail) == ((), graph.nodes, ())
    assert (none.front, none.body, none.tail) == (graph.nodes, (), ())


def test_a_proof_finds_the_largest_difference() -> None:
    before = make([node("Relu", ["x"], ["y"])], {"x": [1, 2]}, {"y": [1, 2]})
    after = make([node("Add", ["x", "c"], ["y"])], {"x": [1, 2]}, {"y": [1, 2]}, {"c": np.float32(0.5)})
    given = [{"x": np.array([[1, 2]], np.float32)}, {"x": np.array([[-4, 8]], np.float32)}]
    proof = prove(before, after, given, run)
    assert (proof.error, proof.largest) == (3.5, 8.0)
    assert proof.relative == 3.5 / 8
    shapes = iter([np.zeros(3), np.zeros(4)])
    with pytest.raises(ModelError, match="gives other outputs"):
        prove(before, after, given, lambda model, feed: [next(shapes)])


def test_infinities_and_nans_on_both_sides_are_no_difference() -> None:
    model = make([node("Log", ["x"], ["y"])], {"x": [3]}, {"y": [3]})
    given = [{"x": np.array([0, -1, 1], np.float32)}]
    assert prove(model, model, given, run).error == 0
    clipped = make([node("Neg", ["x"], ["y"])], {"x": [3]}, {"y": [3]})
    assert prove(model, clipped, given, run).error == np.inf


SIDE, WINDOW, CHANNELS = 8, 4, 6
END = np.iinfo(np.int64).max


def windows(batch: int | str) -> Model:
    """Rolled by half a window, cut into windows by a shape chain, mixed, put together again; names for all sizes."""
    nodes = [
        node("Slice", ["x", "half", "end", "rows"], ["lower"]),
        node("Slice", ["x", "zero", "half", "rows"], ["upper"]),
        node("Concat", ["lower", "upper"], ["rolled"], axis=1),
        node("Shape", ["rolled"], ["shape"]),
        node("Gather", ["shape", "zero"], ["batch"], axis=0),
        node("Gather", ["shape", "rows"], ["height"], axis=0),
        node("Div", ["height", "window"], ["down"]),
        node("Concat", ["batch", "down", "window", "down", "window", "minus"], ["to_windows"], axis=0),
        node("Reshape", ["rolled", "to_windows"], ["cut"]),
        node("Transpose", ["cut"], ["grouped"], perm=[0, 1, 3, 2, 4, 5]),
        node("Mul", ["window", "window"], ["area"]),
        node("Concat", ["minus", "area", "channels"], ["to_rows"], axis=0),
        node("Reshape", ["grouped", "to_rows"], ["tokens"]),
        node("MatMul", ["tokens", "w"], ["mixed"]),
        node("Concat", ["batch", "minus", "channels"], ["to_all"], axis=0),
        node("Reshape", ["mixed", "to_all"], ["together"]),
        node("ReduceMean", ["together"], ["pooled"], axes=[1], keepdims=0),
        node("Gemm", ["pooled", "w"], ["y"]),
    ]
    numbers = {"half": WINDOW // 2, "end": END, "rows": 1, "zero": 0, "window": WINDOW, "minus": -1}
    stored = {name: np.array([number]) for name, number in {**numbers, "channels": CHANNELS}.items()}
    stored["w"] = weights(CHANNELS, CHANNELS)
    model = make(nodes, {"x": [batch, SIDE, SIDE, CHANNELS]}, {"y": ["Gemmy_dim_0", CHANNELS]}, stored)
    guesses = [value("tokens", ["Reshapetokens_dim_0", "a", "b"]), value("pooled", ["c", "d"])]
    model.proto.graph.value_info.extend(guesses)
    return model


@pytest.mark.parametrize("batch", [1, 2, "batch"])
def test_every_tensor_of_static_windows_has_a_size(batch: int | str) -> None:
    graph = read(prepare_for_dla(windows(batch)))
    ends = {spec.name: spec for spec in graph.outputs}
    made = [ends.get(name) or graph.specs[name] for node in graph.nodes for name in node.outputs]
    assert [str(spec) for spec in made if not spec.is_static] == []
    rows = batch if isinstance(batch, int) else 1
    assert graph.outputs[0].shape == (rows, CHANNELS)
    assert graph.specs["tokens"].shape == (rows * (SIDE // WINDOW) ** 2, WINDOW**2, CHANNELS)


def test_the_result_stays() -> None:
    model = windows(2)
    assert_same(model, prepare_for_dla(model))
