"""Rules that need a node's neighbors."""

from dataclasses import replace

from dla import Target, Verdict, check_graph
from tests.helpers.dla_nodes import IMAGE, INT8, ORIN, TYPED, Op, binary, data, listed, stored, unary


def link(op: Op, reads: tuple[str, ...], makes: str) -> Op:
    """The node with these tensor names instead."""
    computed = iter(reads)
    inputs = tuple(one if one is None or one.is_constant else replace(one, name=next(computed)) for one in op.inputs)
    outputs = tuple(one and replace(one, name=makes) for one in op.outputs)
    return replace(op, inputs=inputs, outputs=outputs, name=f"{op.op}_{makes}")


def reshape(before: str, after: str) -> Op:
    shape = listed("shape", 1, 32, 16, 32)
    return link(Op("Reshape", (data("x", *IMAGE), shape), (data("y", 1, 32, 16, 32),)), (before,), after)


def verdicts_of(nodes: list[Op], target: Target = ORIN, scaled: object = None) -> dict[str, Verdict]:
    verdicts = check_graph(nodes, target, scaled)  # type: ignore[arg-type]
    return {node.name: verdict for node, verdict in zip(nodes, verdicts, strict=True)}


def test_reshape_beside_a_concat_is_refused() -> None:
    concat = link(binary("Concat", axis=1), ("x", "u"), "c")
    beside, apart = reshape("c", "r"), reshape("n", "s")
    relu = link(unary("Relu"), ("c",), "n")
    found = verdicts_of([concat, relu, beside, apart])
    assert (found["Reshape_r"].answer, found["Reshape_r"].rule) == ("no", "context.reshape")
    assert "Concat_c" in found["Reshape_r"].reason
    assert found["Reshape_s"].answer == "verify"


def test_reshape_before_a_slice_is_refused_through_an_identity() -> None:
    limits = [listed(name, *values) for name, values in (("starts", (0,)), ("ends", (8,)), ("axes", (1,)))]
    cut = link(Op("Slice", (data("x", *IMAGE), *limits), (data("y", *IMAGE),)), ("i",), "c")
    found = verdicts_of([reshape("x", "r"), link(unary("Identity"), ("r",), "i"), cut])
    assert found["Reshape_r"].rule == "context.reshape" and found["Identity_i"].is_folded


def compared(reads: tuple[str, str], makes: str) -> Op:
    op = Op("Greater", (data("a", *IMAGE), data("b", *IMAGE)), (data("y", *IMAGE, dtype="bool"),))
    return link(op, reads, makes)


def cast(reads: str, makes: str) -> Op:
    op = Op("Cast", (data("x", *IMAGE, dtype="bool"),), (data("y", *IMAGE),), {"to": 1})
    return link(op, (reads,), makes)


def test_comparison_needs_its_cast_and_the_cast_its_comparison() -> None:
    found = verdicts_of([compared(("x", "u"), "g"), cast("g", "c")], INT8)
    assert (found["Greater_g"].answer, found["Cast_c"].answer) == ("verify", "verify")
    bare = verdicts_of([compared(("x", "u"), "g")], INT8)
    assert (bare["Greater_g"].answer, bare["Greater_g"].rule) == ("no", "context.comparison")
    half = verdicts_of([compared(("x", "u"), "g"), cast("g", "c")], ORIN)
    assert (half["Greater_g"].answer, half["Cast_c"].rule) == ("no", "context.cast")
    both = verdicts_of([compared(("x", "u"), "g"), cast("g", "c"), cast("g", "d")], INT8)
    assert "nodes other than its cast" in both["Greater_g"].reason


def test_concat_and_pooling_have_one_scale() -> None:
    concat = link(binary("Concat", axis=1), ("x", "u"), "c")
    pool = link(unary("MaxPool", kernel_shape=[2, 2]), ("c",), "p")
    same = dict.fromkeys("xucp", 0.1)
    assert {one.answer for one in verdicts_of([concat, pool], INT8, same).values()} == {"yes"}
    found = verdicts_of([concat, pool], INT8, {**same, "u": 0.2, "p": 0.3})
    assert {one.rule for one in found.values()} == {"context.scale"}
    assert all(one.answer == "no" and "one scale" in one.fix for one in found.values())
    assert {one.answer for one in verdicts_of([concat, pool], ORIN, {**same, "u": 0.2}).values()} == {"yes"}
    assert {one.answer for one in verdicts_of([concat, pool], INT8, set(same)).values()} == {"yes"}


def test_operands_with_two_scales_are_a_doubt() -> None:
    add = link(binary("Add"), ("x", "u"), "s")
    assert verdicts_of([add], INT8, {"x": 1.0, "u": 1.0, "s": 2.0})["Add_s"].answer == "yes"
    assert verdicts_of([add], INT8, {"x": 1.0, "u": 0.5, "s": 2.0})["Add_s"].rule == "context.operands"


def test_one_missing_scale_takes_a_typed_region_out_of_int8() -> None:
    chain = [link(unary("Relu"), (a,), b) for a, b in ("xa", "ab", "bc")]
    apart = link(unary("Relu"), ("v",), "w")
    scaled = {"x", "a", "b", "v", "w"}  # not c
    found = verdicts_of([*chain, apart], TYPED, scaled)
    assert found["Relu_c"].rule == "general.scale"
    assert {found[name].rule for name in ("Relu_a", "Relu_b")} == {"context.region"}
    assert found["Relu_w"].answer == "yes"
    weak = verdicts_of([*chain, apart], INT8, scaled)
    assert [weak[f"Relu_{name}"].answer for name in "abcw"] == ["yes", "yes", "verify", "yes"]


def test_release_without_dla_leaves_nothing_to_the_context() -> None:
    found = verdicts_of([link(binary("Concat", axis=1), ("x", "u"), "c"), reshape("c", "r")], Target(2, "11.1", "int8"))
    assert {one.rule for one in found.values()} == {"release"}


def test_stored_operands_are_no_edges() -> None:
    scale = link(binary("Mul", b=stored("k", 16, 1, 1)), ("x",), "m")
    assert verdicts_of([scale], INT8, {"x": 1.0, "m": 3.0})["Mul_m"].answer == "yes"
