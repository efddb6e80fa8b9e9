"""Whatever a node looks like, it gets a verdict: model files come from anywhere."""

from hypothesis import given, settings, strategies as st

from dla import LAYERS, Target, Tensor, check_graph, regions
from tests.helpers.dla_nodes import INT8, ORIN, TYPED, XAVIER, Op

_DIMS = st.one_of(st.none(), st.sampled_from([0, 1, 2, 3, 4, 8, 16, 8192, 8193]))
_SHAPES = st.one_of(st.none(), st.lists(_DIMS, max_size=6).map(tuple), st.tuples(_DIMS, _DIMS, _DIMS, _DIMS))
_VALUES = st.one_of(
    st.none(),
    st.lists(st.sampled_from([-1.0, 0.0, 0.5, 1.0, 2.0, 6.0, 1e9, float("inf"), float("nan")]), max_size=5).map(tuple),
)
_SIZES = st.sampled_from([-1, 0, 1, 2, 3, 8, 9, 33])
_LISTS = st.one_of(st.lists(_SIZES, max_size=6), st.lists(_SIZES, min_size=2, max_size=2))
_NUMBERS = st.sampled_from([-5, -1, 0, 1, 2, 5, 64])
_ATTRIBUTES = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(("kernel_shape", "strides", "pads", "dilations", "axes", "perm", "starts", "ends"), _LISTS),
        **dict.fromkeys(("split", "scales", "output_padding"), _LISTS),
        **dict.fromkeys(("axis", "group", "ceil_mode", "keepdims", "transA", "size", "to"), _NUMBERS),
        **dict.fromkeys(("min", "max", "alpha", "beta"), st.floats(-10, 200)),
        "auto_pad": st.sampled_from(["NOTSET", b"SAME_UPPER", "SAME_LOWER", "VALID"]),
        "mode": st.sampled_from(["nearest", b"linear", "cubic"]),
    },
)
_OPS = st.sampled_from([*LAYERS, "Identity", "Dropout", "Pad", "Foo"])
_DTYPES = st.sampled_from(["float32", "bool", "int64", "unknown"])


@st.composite
def tensors(draw: st.DrawFn, name: str) -> Tensor | None:
    if draw(st.integers(0, 9)) == 0:
        return None
    return Tensor(name, draw(_SHAPES), draw(_DTYPES), draw(st.booleans()), draw(_VALUES))


@st.composite
def graphs(draw: st.DrawFn) -> list[Op]:
    nodes = []
    for place in range(draw(st.integers(1, 4))):
        names = [f"t{draw(st.integers(-1, place - 1))}" for _ in range(draw(st.integers(0, 4)))]
        inputs = tuple(draw(tensors(name)) for name in names)
        outputs = tuple(draw(tensors(f"t{place}" + "'" * extra)) for extra in range(draw(st.integers(0, 2))))
        opset = draw(st.sampled_from([7, 10, 13, 18]))
        nodes.append(Op(draw(_OPS), inputs, outputs, draw(_ATTRIBUTES), f"n{place}", opset=opset))
    return nodes


@settings(max_examples=80, deadline=None)
@given(
    graphs(),
    st.sampled_from([ORIN, INT8, XAVIER, TYPED]),
    st.sampled_from([None, ("t0", "t1"), {"t0": 0.1, "t1": 0.2}]),
)
def test_every_node_gets_a_verdict(nodes: list[Op], target: Target, scaled: object) -> None:
    verdicts = check_graph(nodes, target, scaled)  # type: ignore[arg-type]
    assert len(verdicts) == len(nodes)
    assert all(one.answer in ("yes", "no", "verify") and one.rule and one.reason for one in verdicts)
    found = regions(nodes, verdicts, target, answers=("yes", "verify"))
    assert len({place for region in found for place in region.places}) == sum(len(one.places) for one in found)
