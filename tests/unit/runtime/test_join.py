from collections.abc import Sequence

from hypothesis import given, strategies as st

from edgert.policy import Join, join_of, most_under_way
from edgert.runtime import Result
from edgert.runtime.station import merge_parts
from tests.helpers.stages import frame, result

CAM = frozenset({"cam"})
PLENTY = 100


def joining(carried: Sequence[frozenset[str]], limit: int) -> Join[Result]:
    return Join(carried, limit, merge_parts)


def add(join: Join[Result], edge: int, item: Result) -> tuple[Result | None, list[Result]]:
    return join.add(edge, item.frame.stream, item.frame.index, item)


def twins(index: int, count: int, stream: str = "cam") -> list[Result]:
    """``count`` results of one frame, as branches deliver them, each with one hold."""
    shared = frame(index, stream)
    shared.lease.retain(count - 1)
    return [Result(shared, {f"branch{n}": index}) for n in range(count)]


def holds(item: Result) -> int:
    """How often the frame's lease has yet to be released; uses it up."""
    count = 0
    while item.frame.lease.alive:
        item.frame.lease.release()
        count += 1
    return count


def test_both_halves_make_a_whole_with_one_hold() -> None:
    join = joining([CAM, CAM], PLENTY)
    first, second = twins(0, 2)
    assert add(join, 0, first) == (None, [])
    whole, given_up = add(join, 1, second)
    assert whole is not None and given_up == []
    assert whole.outputs == {"branch0": 0, "branch1": 0}
    assert holds(whole) == 1


def test_different_streams_aremerged_as_they_come() -> None:
    join = joining([frozenset({"a"}), frozenset({"b"})], PLENTY)
    for edge, stream in ((1, "b"), (0, "a")):
        item = result(5, stream)
        assert add(join, edge, item) == (item, [])
    assert join.drain() == []


def test_a_stream_on_two_of_three_edges_waits_for_those_two() -> None:
    join = joining([frozenset({"a"}), frozenset({"a", "b"}), frozenset({"b"})], PLENTY)
    first, second = twins(0, 2, "a")
    assert add(join, 1, first)[0] is None
    whole, _ = add(join, 0, second)
    assert whole is not None and whole.frame.stream == "a"


def test_a_frame_that_one_branch_lost_is_given_up_when_the_branch_goes_on() -> None:
    join = joining([CAM, CAM], PLENTY)
    lost, other = twins(0, 2)
    other.frame.lease.release()  # dropped on the way to edge 1
    assert add(join, 0, lost) == (None, [])
    first, second = twins(1, 2)
    assert add(join, 0, first) == (None, [])
    whole, given_up = add(join, 1, second)
    assert whole is not None and whole.frame.index == 1
    assert given_up == [lost] and holds(lost) == 1


def test_a_branch_that_runs_ahead_gives_nothing_up() -> None:
    join = joining([CAM, CAM], PLENTY)
    pairs = [twins(index, 2) for index in range(5)]
    for first, _ in pairs:
        assert add(join, 0, first) == (None, [])
    wholes = [add(join, 1, second) for _, second in pairs]
    assert [whole.frame.index for whole, given_up in wholes if whole and not given_up] == list(range(5))


def test_a_silent_branch_does_not_make_the_others_wait_for_ever() -> None:
    join = joining([CAM, CAM], 3)
    given_up = [lost for index in range(10) for lost in add(join, 0, result(index))[1]]
    assert [item.frame.index for item in given_up] == list(range(7))
    assert [item.frame.index for item in join.drain()] == [7, 8, 9]


def test_what_waits_at_the_end_is_handed_over_once() -> None:
    join = joining([CAM, CAM], PLENTY)
    add(join, 0, result(0))
    add(join, 0, result(1))
    left = join.drain()
    assert sorted(item.frame.index for item in left) == [0, 1]
    assert [holds(item) for item in left] == [1, 1]
    assert join.drain() == []


def test_one_edge_that_delivers_a_frame_in_parts_is_still_one_edge() -> None:
    join = joining([CAM, CAM], PLENTY)
    parts = twins(0, 3)
    assert add(join, 0, parts[0])[0] is None
    assert add(join, 0, parts[1])[0] is None
    whole, _ = add(join, 1, parts[2])
    assert whole is not None and set(whole.outputs) == {"branch0", "branch1", "branch2"}
    assert holds(whole) == 1


@st.composite
def deliveries(draw: st.DrawFn) -> tuple[int, list[tuple[int, int]]]:
    """Branches that each lose some of ten frames, their deliveries interleaved in any way that keeps each in order."""
    edges = draw(st.integers(2, 3))
    left = [sorted(draw(st.sets(st.integers(0, 9)))) for _ in range(edges)]
    order: list[tuple[int, int]] = []
    while any(left):
        edge = draw(st.sampled_from([edge for edge in range(edges) if left[edge]]))
        order.append((edge, left[edge].pop(0)))
    return edges, order


@given(deliveries())
def test_exactly_the_frames_that_every_branch_delivers_come_through_in_order(
    case: tuple[int, list[tuple[int, int]]],
) -> None:
    edges, order = case
    delivered = [{index for edge, index in order if edge == at} for at in range(edges)]
    frames = {index: frame(index) for index in range(10)}
    for index, shared in frames.items():
        shared.lease.retain(sum(index in branch for branch in delivered))
        shared.lease.release()
    join, out = joining([CAM] * edges, PLENTY), []
    for edge, index in order:
        whole, given_up = add(join, edge, Result(frames[index], {str(edge): index}))
        _release(given_up)
        if whole is not None:
            assert len(whole.outputs) == edges
            out.append(whole.frame.index)
            _release([whole])
    _release(join.drain())
    assert out == sorted(set.intersection(*delivered))
    assert not any(shared.lease.alive for shared in frames.values())


def _release(results: Sequence[Result]) -> None:
    for item in results:
        item.frame.lease.release()


def test_results_under_way_are_those_of_every_edge_or_of_the_slowest_twice() -> None:
    """An edge has what is under way to its producer, the one that the producer works on, and what it holds."""
    assert most_under_way([], joins=False) == 0
    assert most_under_way([(2, 3)], joins=False) == most_under_way([(2, 3)], joins=True) == 6
    assert most_under_way([(2, 3), (0, 1)], joins=False) == 6 + 2
    assert most_under_way([(2, 3), (0, 1)], joins=True) == 2 * 6


def test_only_parts_of_the_same_frames_are_joined() -> None:
    other = frozenset({"other"})
    assert join_of([CAM, other], 4, merge_parts) is None and join_of([CAM], 4, merge_parts) is None
    assert join_of([CAM, CAM | other], 4, merge_parts) is not None
