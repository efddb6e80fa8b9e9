"""Segments: convex, apart from each other, as few as can be, and within the memory pools."""

import time
from collections.abc import Sequence
from itertools import combinations

import pytest
from hypothesis import given, settings, strategies as st

from dla import ORIN, Region, Target, Verdict, regions, summarize
from dla.limit import GLOBAL_BYTES, LOCAL_BYTES
from tests.helpers.dla_nodes import Op, data, stored

TARGET = Target(ORIN, "10.3", "fp16")
YES, NO, MAYBE = (Verdict(answer, "", "") for answer in ("yes", "no", "verify"))
FOLDED = Verdict("yes", "folded", "")
Dag = tuple[list[tuple[int, ...]], list[bool]]


def graph(reads: Sequence[Sequence[int]], shape: tuple[int, ...] = (1, 4, 4, 4)) -> list[Op]:
    """Node i reads the results of these nodes, or the input where there are none."""
    names = [[f"t{one}" for one in sources] or ["x"] for sources in reads]
    return [
        Op("Sum", tuple(data(name, *shape) for name in inputs), (data(f"t{place}", *shape),), name=f"n{place}")
        for place, inputs in enumerate(names)
    ]


def grow(reads: Sequence[Sequence[int]], allowed: Sequence[bool], **options: object) -> list[tuple[int, ...]]:
    verdicts = [YES if one else NO for one in allowed]
    return [region.places for region in regions(graph(reads), verdicts, TARGET, **options)]  # type: ignore[arg-type]


def reached(reads: Sequence[Sequence[int]], start: set[int]) -> set[int]:
    """Every node that depends on these, without these themselves unless a path leads back."""
    found: set[int] = set()
    for place, sources in enumerate(reads):
        if any(one in start or one in found for one in sources):
            found.add(place)
    return found


def is_convex(reads: Sequence[Sequence[int]], part: set[int]) -> bool:
    below = reached(reads, part) - part
    left = below | reached(reads, below)
    return not any(one in left for place in part for one in reads[place])


def is_connected(reads: Sequence[Sequence[int]], part: set[int]) -> bool:
    seen, waiting = set(), [min(part)]
    while waiting:
        place = waiting.pop()
        seen.add(place)
        near = {one for one in reads[place] if one in part} | {one for one in part if place in reads[one]}
        waiting.extend(near - seen)
    return seen == part


@st.composite
def dags(draw: st.DrawFn, most: int = 14) -> Dag:
    count = draw(st.integers(1, most))
    reads = [
        tuple(sorted(draw(st.sets(st.integers(0, place - 1), max_size=3)))) if place else () for place in range(count)
    ]
    return reads, draw(st.lists(st.booleans(), min_size=count, max_size=count))


@settings(max_examples=120, deadline=None)
@given(dags())
def test_segments_are_convex_and_connected_and_cover_what_may_run(dag: Dag) -> None:
    reads, allowed = dag
    found = [set(part) for part in grow(reads, allowed)]
    assert sorted(place for part in found for place in part) == [place for place, may in enumerate(allowed) if may]
    for part in found:
        assert is_convex(reads, part) and is_connected(reads, part)


@settings(max_examples=80, deadline=None)
@given(dags())
def test_no_two_segments_could_be_one(dag: Dag) -> None:
    reads, allowed = dag
    found = [set(part) for part in grow(reads, allowed)]
    for one, other in combinations(found, 2):
        both = one | other
        if is_connected(reads, both):
            assert not is_convex(reads, both) or closes_a_cycle(reads, found, both)


def closes_a_cycle(reads: Sequence[Sequence[int]], parts: list[set[int]], both: set[int]) -> bool:
    """Whether two segments as one would wait for a third that waits for them."""
    home = {place: number for number, part in enumerate(parts) for place in part}
    merged = {number for number, part in enumerate(parts) if part <= both}
    label = {place: "both" if home.get(place) in merged else home.get(place, ("alone", place)) for place in
             range(len(reads))}  # fmt: skip
    edges = {(label[one], label[place]) for place, sources in enumerate(reads) for one in sources}
    edges = {(a, b) for a, b in edges if a != b}
    while True:
        last = {b for a, b in edges}
        first = {a for a, b in edges} - last
        if not first:
            return bool(edges)
        edges = {(a, b) for a, b in edges if a not in first}


@settings(max_examples=80, deadline=None)
@given(dags())
def test_segments_can_be_run_one_after_the_other(dag: Dag) -> None:
    reads, allowed = dag
    parts = [set(part) for part in grow(reads, allowed)]
    assert not closes_a_cycle(reads, parts, parts[0] if parts else set())


def test_a_diamond_with_one_branch_on_the_gpu_is_cut() -> None:
    reads = [(), (0,), (0,), (1, 2)]
    assert grow(reads, [True] * 4) == [(0, 1, 2, 3)]
    assert grow(reads, [True, False, True, True]) == [(0, 2), (3,)] or grow(reads, [True, False, True, True]) == [
        (0,),
        (2, 3),
    ]


def test_a_late_input_from_the_gpu_does_not_cut() -> None:
    """A join of two nodes that do not depend on each other stays with the one before it."""
    assert grow([(), (), (0, 1)], [True, False, True]) == [(0, 2)]


def test_folded_nodes_are_looked_through() -> None:
    verdicts = [YES, FOLDED, YES, FOLDED]
    found = regions(graph([(), (0,), (1,), (2,)]), verdicts, TARGET)
    assert [region.places for region in found] == [(0, 1, 2)]
    assert found[0].inputs == ("x",) and found[0].outputs == ("t2",)


def test_doubts_count_when_asked_for() -> None:
    nodes = graph([(), (0,), (1,)])
    verdicts = [YES, MAYBE, YES]
    assert len(regions(nodes, verdicts, TARGET)) == 2
    assert [one.places for one in regions(nodes, verdicts, TARGET, answers=("yes", "verify"))] == [(0, 1, 2)]


def test_one_batch_per_segment() -> None:
    small, large = graph([(), ()]), graph([(), ()], (2, 4, 4, 4))
    folded_out = Op("Sum", (data("t0", 1, 4, 4, 4), data("t0", 1, 4, 4, 4)), (data("t1", 2, 4, 4, 4),), name="n1")
    assert len(regions([small[0], folded_out], [YES, YES], TARGET)) == 2
    assert len(regions([large[0], graph([(), (0,)], (2, 4, 4, 4))[1]], [YES, YES], TARGET)) == 1


def chain(count: int, elements: int, weights: int = 0) -> list[Op]:
    """Nodes in a row, each handing on a tensor of so many elements and holding so many weights."""
    shape = (1, 8, elements // 8 // 1024, 1024)
    nodes = []
    for place in range(count):
        more = (stored(f"w{place}", weights // 64, 64, 1, 1),) if weights else ()
        source = data(f"t{place - 1}" if place else "x", *shape)
        nodes.append(Op("Conv", (source, *more), (data(f"t{place}", *shape),), name=f"n{place}"))
    return nodes


@pytest.mark.parametrize(("elements", "expected"), [(2**29 // 2 - 8192, 1), (2**29 // 2, 2)])
def test_inner_tensors_stay_below_the_local_pool(elements: int, expected: int) -> None:
    found = regions(chain(3, elements), [YES] * 3, TARGET)  # two tensors of two bytes each stay inside
    assert len(found) == expected
    assert all(region.inner_bytes < LOCAL_BYTES for region in found)


@pytest.mark.parametrize(("weights", "expected"), [(2**27 - 64, 1), (2**27, 2)])
def test_weights_stay_below_the_global_pool(weights: int, expected: int) -> None:
    found = regions(chain(2, 8192, weights), [YES] * 2, TARGET)
    assert len(found) == expected
    assert all(region.weight_bytes < GLOBAL_BYTES for region in found)
    assert [place for region in found for place in region.places] == [0, 1]


def test_int8_needs_half_the_memory() -> None:
    nodes = chain(3, 2**28)
    assert len(regions(nodes, [YES] * 3, Target(ORIN, "10.3", "int8"))) == 1
    assert len(regions(nodes, [YES] * 3, TARGET)) == 2


def test_operands_that_are_no_kernels_are_padded_on_orin() -> None:
    add = [Op("Add", (data("x", 1, 3, 8, 8), stored("c", 3, 8, 8)), (data("y", 1, 3, 8, 8),), name="n0")]
    sizes = [regions(add, [YES], Target(generation, version, "int8"))[0].weight_bytes
             for generation, version in ((1, "8.5.2"), (2, "10.3"))]  # fmt: skip
    assert sizes == [3 * 64 * 2, 32 * 64 * 4]


def test_outputs_of_the_graph_leave_their_segment() -> None:
    nodes = graph([(), (0,)])
    assert regions(nodes, [YES, YES], TARGET)[0].outputs == ("t1",)
    assert regions(nodes, [YES, YES], TARGET, outputs={"t0"})[0].outputs == ("t0", "t1")


def test_thousand_nodes() -> None:
    reads = [(place - 1, max(place - 7, 0)) if place else () for place in range(1000)]
    assert len(grow(reads, [place % 50 != 0 for place in range(1000)])) == 20


def test_summary() -> None:
    nodes = graph([(), (0,), (1,), (2,)])
    refused = Verdict("no", "conv.kernel", "too large", "smaller")
    verdicts = [YES, refused, MAYBE, FOLDED]
    sure: tuple[Region, ...] = regions(nodes, verdicts, TARGET)
    summary = summarize(nodes, verdicts, sure, sure, {"n0": 60, "n1": 30, "n2": 10})
    assert (summary.nodes, summary.yes, summary.verify, summary.no, summary.folded) == (3, 1, 1, 1, 1)
    assert (summary.macs, summary.macs_yes, summary.macs_verify, summary.segments) == (100, 0.6, 0.1, 1)
    assert (summary.refusals[0].rule, summary.refusals[0].macs, summary.refusals[0].example) == (
        "conv.kernel",
        0.3,
        "n1",
    )
    assert summarize(nodes, verdicts, sure, sure, {}).macs_yes == 0


def test_folded_nodes_that_read_folded_nodes_twice_are_looked_through_once() -> None:
    depth = 200  # followed path by path, there are 2^200 of them
    reads = [(), *([(place, place - 1) if place else (0,) for place in range(depth)]), (depth, depth - 1)]
    verdicts = [YES, *[FOLDED] * depth, YES]
    (found,) = regions(graph(reads), verdicts, TARGET)
    assert found.places == tuple(range(depth + 2))


@pytest.mark.timing
def test_many_segments_take_as_long_as_their_nodes() -> None:
    def seconds(count: int) -> float:
        nodes = graph([(place - 1,) if place else () for place in range(count)])
        verdicts = [(YES, FOLDED, NO)[place % 3] for place in range(count)]
        began = time.process_time()
        assert len(regions(nodes, verdicts, TARGET)) == -(-count // 3)
        return time.process_time() - began

    # By turns, and the shortest of each: what else runs on the machine slows some of them, and hastens none.
    times = [(seconds(1500), seconds(6000)) for _ in range(3)]
    assert min(long for _, long in times) < 8 * min(short for short, _ in times)  # with the square, 16 times
