"""Zones and lines: how long they take for a frame, and whether they agree with an exact geometry library.

    python tests/bench/bench_zones.py [--json FILE]

Agreement: 10,000 random tracks of five steps against random polygons and lines, each decided by shapely as well. Times:
50 objects that move, 20 zones of eight corners; processor time of the whole stage, the quickest of many frames counts,
as other work on the machine only slows them. And of an events stage with 20 rules behind it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from report import main

sys.path.insert(0, str(Path(__file__).parents[2]))

import itertools

from edgert.benchmark.measure import Figure
from edgert.clock import REAL
from edgert.stages.zones.areas import Area, ZonesStage
from edgert.stages.zones.geometry import Lines, Points, Polygons
from edgert.stages.zones.rules import EventsStage, Rule
from tests.helpers.moving import Scene

OBJECTS, ZONES, RULES, BAR_MS = 50, 20, 20, 0.3
TRACKS, STEPS = 10_000, 5
_PER_SCENE = 100


def star(random: np.random.Generator, corners: int) -> Points:
    """A polygon around a middle, rarely convex."""
    turns = np.sort(random.random(corners)) * 2 * np.pi
    reach, (x, y) = random.uniform(50, 400, corners), random.uniform(300, 700, 2)
    return [(x + r * np.cos(t), y + r * np.sin(t)) for r, t in zip(reach.tolist(), turns.tolist(), strict=True)]


def agreement() -> Iterator[Figure]:
    """Every step of every track, in every zone and across every line."""
    import shapely

    random, asked, wrong = np.random.default_rng(0), 0, 0
    for _ in range(TRACKS // _PER_SCENE):
        polygons = [star(random, int(random.integers(3, 12))) for _ in range(5)]
        lines = [[(x1, y1), (x2, y2)] for x1, y1, x2, y2 in random.uniform(0, 1000, (5, 4)).tolist()]
        exact = [shapely.Polygon(points) for points in polygons]
        borders = [shapely.LineString(points) for points in lines]
        zones, gates = Polygons(polygons), Lines(lines)
        places = random.uniform(0, 1000, (STEPS, _PER_SCENE, 2))
        for before, now in itertools.pairwise(places):
            paths = shapely.linestrings(np.stack([before, now], axis=1))
            wanted = np.stack([shapely.contains(one, shapely.points(now)) for one in exact])
            crossing = np.stack([shapely.intersects(one, paths) for one in borders])
            wrong += int((zones.contain(now) != wanted).sum() + ((gates.crossed(before, now) != 0) != crossing).sum())
            asked += wanted.size + crossing.size
    yield Figure("zones and lines that disagree with shapely", wrong, f"of {asked:,}", 0, n=TRACKS)


def measure() -> Iterator[Figure]:
    """All of it."""
    yield from agreement()
    random = np.random.default_rng(1)
    zones = [Area(f"zone{number}", star(random, 8)) for number in range(ZONES)]
    rules = [Rule(f"rule{number}", zones=(f"zone{number % ZONES}",), hold_ns=10**9) for number in range(RULES)]
    places, speeds = random.uniform(0, 1000, (OBJECTS, 2)), random.normal(0, 8, (OBJECTS, 2))
    scene, areas, events = Scene(), ZonesStage("areas", zones, []), EventsStage("events", rules, REAL)
    scene.size = 1000, 1000
    took: dict[str, list[int]] = {"zones": [], "events": []}
    for _ in range(600):
        places = (places + speeds) % 1000
        result = scene.at({number: (x, y) for number, (x, y) in enumerate(places.tolist(), 1)})
        began = time.thread_time_ns()
        found = areas.process(result)
        middle = time.thread_time_ns()
        events.process(found)
        took["zones"].append(middle - began)
        took["events"].append(time.thread_time_ns() - middle)
    what = {"zones": f"{OBJECTS} objects in {ZONES} zones", "events": f"{OBJECTS} objects under {RULES} rules"}
    for name, times in took.items():
        low, middle_ns = (float(np.percentile(times, part)) / 1e6 for part in (5, 50))
        yield Figure(what[name], low, "ms", BAR_MS, n=len(times), detail={"median": middle_ns})


if __name__ == "__main__":
    main(__doc__.splitlines()[0] if __doc__ else "", measure)
