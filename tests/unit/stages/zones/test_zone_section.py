"""Zones and events in pipeline files: what is refused, and where."""

import re
from contextlib import nullcontext
from pathlib import Path

import pytest

from edgert.config import load_pipeline
from edgert.errors import ConfigError

FILE = """schema: 1
models:
  find: {{onnx: m.onnx, task: {{detect: yolox}}}}
  read: {{onnx: m.onnx, task: {{classify: auto}}}}
stages:
  gate: {{source: gate.mp4}}
  find: {{infer: find, from: gate}}
  track: {{track: bytetrack, from: find}}
  helmet: {{infer: read, crop: {{}}, from: track}}
  areas: {{stage: zones, from: {source}, {zones}}}
  alarm: {{stage: events, from: areas, rules: {{odd: {rule}}}}}
  end: {{sink: 'null', from: alarm}}
"""
ZONES = (
    "zones: {yard: [[0, 0], [1, 0], [1, 1]], cars: {points: [[0, 0], [1, 0], [1, 1]], classes: [car]}}, "
    "lines: {door: [[0, 0], [9, 9]]}"
)


def load(folder: Path, rule: str = "{zone: yard}", zones: str = ZONES, source: str = "helmet") -> None:
    (folder / "p.yaml").write_text(FILE.format(rule=rule, zones=zones, source=source))
    load_pipeline(folder / "p.yaml")


@pytest.mark.parametrize(
    "rule",
    [
        "{zone: [yard, cars], classes: car, for: 3s, once: true, every: 1m, update: 5s, gap: 0.5s}",
        "{line: door, way: in, during: mon-fri 08:00-18:00}",
        "{count: 4, for: 10s}",
        "{zone: yard, absent: 10m, during: ['sat,sun', '22:00-06:00']}",
        "{attributes: {helmet: 'no'}, score: 0.5}",
    ],
)
def test_rules(rule: str, tmp_path: Path) -> None:
    load(tmp_path, rule)


@pytest.mark.parametrize(
    ("rule", "what"),
    [
        ("{zone: yrad}", r"zone 'yrad', which no stage before it has; did you mean 'yard'"),
        ("{line: yard}", "line 'yard', which no stage before it has"),
        ("{zone: cars, classes: person}", "can never be true: zone 'cars' is for car only"),
        ("{zone: yard, line: door}", "write two rules"),
        ("{zone: yard, way: in}", "needs line:"),
        ("{line: door, for: 3s}", "takes no time, so for: can never be true"),
        ("{line: door, count: 2}", "takes no time, so count: can never be true"),
        ("{absent: 3s, for: 3s}", "about missing objects"),
        ("{absent: 3s, once: true}", "about missing objects"),
        ("{count: 2, once: true}", "about one object"),
        ("{for: 3s}", "it has no condition"),
        ("{attributes: {helmt: 'no'}}", r"no stage before it that looks at crops; did you mean 'helmet'"),
        ("{attributes: {find: 'no'}}", "no stage before it that looks at crops"),
        ("{zone: yard, during: weekdays}", "expected days and hours"),
        ("{zone: yard, for: soon}", "'soon'"),
        ("{zone: yard, every: -1s}", "every"),
        ("{absent: [3s]}", "absent"),
        ("{zone: yard, count: 0}", "count"),
        ("{zone: yard, score: 1.5}", "score"),
        ("{zone: yard, once: sometimes}", "once"),
        ("{line: door, way: sideways}", "expected in or out"),
        ("{zone: yard, attributes: helmet}", "attributes"),
        ("zone yard and person", "odd"),
        ("{zone: yard, zzone: 1}", "unknown key 'zzone'"),
    ],
)
def test_rules_that_can_never_be_true(rule: str, what: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"p\.yaml:11") as caught:
        load(tmp_path, rule)
    assert re.search(what, str(caught.value)), str(caught.value)


@pytest.mark.parametrize(
    ("zones", "what"),
    [
        ("zones: {}", "expected zones: or lines:"),
        ("zones: {yard: [[0, 0], [1, 1]]}", "three points or more, not 2"),
        ("zones: {yard: [[0, 0], [1, 1], [1, 0], [0, 1]]}", "crosses itself: the edges that begin at points 1 and 3"),
        ("zones: {yard: [[0, 0], [1, 1], [2, 2]]}", "no area"),
        ("zones: {yard: [[0, 0], [-1, 1], [2, 2]]}", "expected points like"),
        ("zones: {yard: [0, 0, 1, 1]}", "expected points like"),
        ("zones: {yard: {points: [[0, 0], [1, 0], [1, 1]], streams: [gaet]}}", r"did you mean 'gate'"),
        ("zones: {yard: {points: [[0, 0], [1, 0], [1, 1]], insde: foot}}", "unknown key 'insde'"),
        ("lines: {door: [[0, 0]]}", "two points or more"),
        ("lines: {door: [[0, 0], [0, 0]]}", "are the same"),
        ("lines: {yard: [[0, 0], [1, 1]]}, zones: {yard: [[0, 0], [1, 0], [1, 1]]}", "both called 'yard'"),
        ("zones: {yard: [[0, 0], [1, 0], [1, 1]]}, inside: feet", "expected foot, center or overlap"),
    ],
)
def test_places_that_cannot_be(zones: str, what: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"p\.yaml:10") as caught:
        load(tmp_path, zones=zones)
    assert re.search(what, str(caught.value)), str(caught.value)


def test_lines_and_rules_of_objects_want_a_tracker(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has lines, but no stage before it tracks objects"):
        load(tmp_path, source="find")
    yard = "zones: {yard: [[0, 0], [1, 0], [1, 1]]}"
    with pytest.raises(ConfigError, match="about single objects, but no stage before it tracks them"):
        load(tmp_path, zones=yard, source="find")
    load(tmp_path, "{zone: yard, count: 1}", yard, "find")


def test_zones_detect_nothing_by_themselves(tmp_path: Path) -> None:
    areas = "{stage: zones, from: gate, zones: {a: [[0, 0], [1, 0], [1, 1]]}}"
    stages = f"  gate: {{source: gate.mp4}}\n  areas: {areas}\n  cut: {{crop: {{}}, from: areas}}\n"
    (tmp_path / "p.yaml").write_text(f"schema: 1\nstages:\n{stages}  end: {{sink: 'null', from: cut}}\n")
    with pytest.raises(ConfigError, match="no stage before it detects anything"):
        load_pipeline(tmp_path / "p.yaml")


@pytest.mark.parametrize(("heatmap", "is_shared"), [("map.png", True), ("'{stream}.png'", False)])
def test_cameras_do_not_share_a_heat_map(heatmap: str, is_shared: bool, tmp_path: Path) -> None:
    areas = f"{{stage: zones, from: [gate, yard], zones: {{a: [[0, 0], [1, 0], [1, 1]]}}, heatmap: {heatmap}}}"
    sources = "  gate: {source: gate.mp4}\n  yard: {source: yard.mp4}\n"
    (tmp_path / "p.yaml").write_text(
        f"schema: 1\nstages:\n{sources}  areas: {areas}\n  end: {{sink: 'null', from: areas}}\n"
    )
    shared = pytest.raises(ConfigError, match=r"map\.png would show gate and yard")
    with shared if is_shared else nullcontext():
        load_pipeline(tmp_path / "p.yaml")
