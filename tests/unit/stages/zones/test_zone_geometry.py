"""Polygons and lines: against an exact geometry library, and at the edges where rounding decides."""

from itertools import pairwise

import numpy as np
import pytest

from edgert.stages.zones.geometry import Lines, Points, Polygons, area, crossing_edges, off_border, within_frame

shapely = pytest.importorskip("shapely", reason="shapely (extra 'test') is not installed")
SQUARE: Points = [(10, 10), (20, 10), (20, 20), (10, 20)]


def star(random: np.random.Generator, corners: int) -> Points:
    """A polygon around a middle, rarely convex; its border does not cross itself."""
    turns = np.sort(random.random(corners)) * 2 * np.pi
    reach = random.uniform(20, 300, corners)
    return [(500 + r * np.cos(t), 400 + r * np.sin(t)) for r, t in zip(reach.tolist(), turns.tolist(), strict=True)]


def test_points_and_boxes_in_polygons_agree_with_exact_geometry() -> None:
    random = np.random.default_rng(3)
    polygons = [star(random, int(random.integers(3, 14))) for _ in range(60)]
    points = random.uniform(150, 850, (40, 2))
    low = random.uniform(150, 800, (40, 2))
    boxes = np.concatenate([low, low + random.uniform(1, 300, (40, 2))], axis=1)
    contained, parts = Polygons(polygons).contain(points), Polygons(polygons).overlaps(boxes)
    for row, corners in enumerate(polygons):
        exact = shapely.Polygon(corners)
        assert contained[row].tolist() == [exact.contains(shapely.Point(*point)) for point in points]
        if exact.is_valid:
            wanted = [exact.intersection(one := shapely.box(*box)).area / one.area for box in boxes]
            assert np.abs(parts[row] - wanted).max() < 1e-9


def test_paths_across_lines_agree_with_exact_geometry() -> None:
    random = np.random.default_rng(4)
    lines = [[tuple(point) for point in random.uniform(0, 1000, (2, 2)).tolist()] for _ in range(30)]
    before, now = random.uniform(0, 1000, (2, 200, 2))
    crossed = Lines(lines).crossed(before, now)
    for row, line in enumerate(lines):
        exact = shapely.LineString(line)
        paths = [shapely.LineString(path) for path in zip(before, now, strict=True)]
        assert (crossed[row] != 0).tolist() == [exact.intersects(path) for path in paths]
    back = Lines(lines).crossed(now, before)
    assert (back == -crossed).all()


def test_a_border_that_two_zones_share_belongs_to_one_of_them() -> None:
    halves = Polygons([[(0, 0), (5, 0), (5, 9), (0, 9)], [(5, 0), (9, 0), (9, 9), (5, 9)]])
    inside = halves.contain(np.array([[5.0, 3.0], [5.0, 8.999], [2.0, 0.0]]))
    assert inside.sum(axis=0).tolist() == [1, 1, 1]


def test_a_step_onto_a_line_and_off_it_crosses_it_once() -> None:
    line = Lines([[(0, 10), (100, 10)]])
    steps = [(50.0, 0.0), (50.0, 10.0), (50.0, 20.0)]
    signs = [line.crossed(np.array([a]), np.array([b]))[0, 0] for a, b in pairwise(steps)]
    assert sorted(map(int, signs)) == [0, 1]
    assert line.crossed(np.array([[50.0, 10.0]]), np.array([[50.0, 0.0]])).tolist() == [[-1]]


def test_a_path_through_a_joint_of_two_lines_crosses_one_and_a_bent_line_once() -> None:
    path = np.array([[50.0, 0.0]]), np.array([[50.0, 20.0]])
    pair = Lines([[(0, 10), (50, 10)], [(50, 10), (100, 10)]]).crossed(*path)
    assert np.abs(pair).sum() == 1
    bent = Lines([[(0, 10), (50, 10), (100, 10)]]).crossed(*path)
    assert bent.tolist() == [[1]]
    there_and_back = Lines([[(0, 5), (100, 5), (100, 15), (0, 15)]]).crossed(*path)
    assert there_and_back.tolist() == [[0]]  # to the right, and back to the left


def test_a_thin_line_is_not_jumped_over() -> None:
    line = Lines([[(500, 0), (500, 1000)]])
    assert line.crossed(np.array([[0.0, 500.0]]), np.array([[1e6, 500.0]])).tolist() == [[-1]]
    assert line.crossed(np.array([[0.0, 1000.1]]), np.array([[1e6, 1000.1]])).tolist() == [[0]]  # passes its end


def test_nothing_crosses_from_nowhere_and_an_empty_box_overlaps_nothing() -> None:
    line = Lines([[(0, 10), (100, 10)]])
    assert line.crossed(np.array([[np.nan, np.nan]]), np.array([[50.0, 20.0]])).tolist() == [[0]]
    assert Polygons([SQUARE]).overlaps(np.array([[15.0, 15.0, 15.0, 18.0]])).tolist() == [[0.0]]
    assert Lines([]).crossed(np.zeros((3, 2)), np.ones((3, 2))).shape == (0, 3)
    assert Polygons([]).contain(np.zeros((3, 2))).shape == Polygons([]).overlaps(np.zeros((3, 4))).shape == (0, 3)


@pytest.mark.parametrize(
    ("points", "crossing"),
    [
        (SQUARE, None),
        ([(0, 0), (10, 10), (10, 0), (0, 10)], (1, 3)),
        ([(0, 0), (10, 0), (5, 0), (5, 5)], (1, 3)),  # comes back along itself
        ([(0, 0), (10, 0), (10, 10), (5, 0), (0, 10)], (1, 3)),  # touches itself
    ],
)
def test_a_border_that_crosses_itself_is_seen(points: Points, crossing: tuple[int, int] | None) -> None:
    assert crossing_edges(points) == crossing
    assert shapely.Polygon(points).is_valid == (crossing is None)


SIZE = 64, 48
CORNERS: Points = [(0, 0), (64, 0), (64, 48), (0, 48)]
BORDER = np.array(
    [(x, y) for x in range(0, 65, 4) for y in (0, 48)] + [(x, y) for x in (0, 64) for y in range(4, 48, 4)], np.float64
)


def test_points_on_the_frames_border_are_in_the_zones_that_reach_it() -> None:
    """A zone that covers the point has it, unless the zone's own border leaves the frame's border there."""
    random = np.random.default_rng(5)
    points, compared = within_frame(BORDER, SIZE), 0
    for _ in range(200):
        some = random.permutation(len(BORDER))[: int(random.integers(3, 9))]
        corners = [(float(x), float(y)) for x, y in BORDER[some]]
        exact = shapely.Polygon(corners)
        if not exact.is_valid:
            continue
        for point, found in zip(BORDER.tolist(), Polygons([corners]).contain(points)[0].tolist(), strict=True):
            if tuple(point) not in corners:
                compared += 1
                assert found == exact.covers(shapely.Point(point)), (corners, point)
    assert compared > 1000


def test_the_whole_frame_holds_its_border_and_halves_share_it() -> None:
    beyond = np.concatenate([BORDER, BORDER + 7, BORDER - 7])
    points = within_frame(beyond, SIZE)
    assert Polygons([CORNERS, CORNERS[::-1]]).contain(points).all()
    halves = Polygons([[(0, 0), (20, 0), (40, 48), (0, 48)], [(40, 48), (20, 0), (64, 0), (64, 48)]])
    assert (halves.contain(points).sum(axis=0) == 1).all()
    assert np.isnan(within_frame(np.array([[np.nan, 3.0]]), SIZE)).tolist() == [[True, False]]


def test_zones_that_share_a_slanted_edge_share_its_points() -> None:
    random = np.random.default_rng(6)
    (x1, x2), (y1, y2) = random.uniform(100, 900, (2, 100)), random.uniform(0, 1000, (2, 100))
    part = random.random(100)
    on_edge = np.stack([x1 + part * (x2 - x1), y1 + part * (y2 - y1)], axis=1)
    for n in range(100):
        left: Points = [(x1[n], y1[n]), (x2[n], y2[n]), (-5, y2[n]), (-5, y1[n])]
        right: Points = [(x2[n], y2[n]), (x1[n], y1[n]), (1005, y1[n]), (1005, y2[n])]
        assert Polygons([left, right]).contain(on_edge[n : n + 1]).sum() == 1


@pytest.mark.parametrize(
    ("line", "before", "now"),
    [
        ([(32, 0), (32, 48)], (20, 48), (40, 48)),  # past the end of a line, along each border
        ([(32, 0), (32, 48)], (20, 0), (40, 0)),
        ([(0, 24), (64, 24)], (0, 10), (0, 40)),
        ([(0, 24), (64, 24)], (64, 10), (64, 40)),
        ([(0, 48), (64, 48)], (32, 30), (32, 48)),  # onto a line along each border
        ([(0, 0), (64, 0)], (32, 30), (32, 0)),
        ([(0, 0), (0, 48)], (32, 30), (0, 30)),
        ([(64, 0), (64, 24), (64, 48)], (32, 24), (64, 24)),
        ([(0, 24), (0, 48), (64, 48)], (32, 24), (64, 48)),  # into a corner of a bent one
    ],
)
def test_a_line_at_the_frames_border_counts_both_ways(
    line: Points, before: tuple[float, float], now: tuple[float, float]
) -> None:
    ends = [within_frame(np.array([one], np.float64), SIZE) for one in (before, now)]
    one, turned = Lines([off_border(line, SIZE)]), Lines([off_border(line[::-1], SIZE)])
    assert abs(int(one.crossed(*ends)[0, 0])) == 1
    assert one.crossed(*ends) == -one.crossed(*ends[::-1]) == -turned.crossed(*ends) == turned.crossed(*ends[::-1])


def test_area() -> None:
    assert area(SQUARE) == 100 == area(list(reversed(SQUARE)))
    assert area([(0, 0), (1, 1), (2, 2)]) == 0
