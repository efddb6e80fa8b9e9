"""Benchmarks of two trees are compared figure by figure, and what is slower is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import compare_trees

BENCH = """
import json, sys
figures = [
    {{"name": "{name}", "unit": "ms", "better": "lower", "value": {ms}}},
    {{"name": "frames", "unit": "frames/s", "better": "higher", "value": {fps}}},
    {{"name": "kept", "unit": "objects", "better": "lower", "value": {kept}}},
]
open(sys.argv[2], "w").write(json.dumps({{"figures": figures}}))
"""


def tree(root: Path, name: str, ms: float, fps: float, kept: int = 0) -> Path:
    folder = root / "tests/bench"
    folder.mkdir(parents=True)
    (folder / "bench_one.py").write_text(BENCH.format(name=name, ms=ms, fps=fps, kept=kept))
    return root


@pytest.mark.parametrize(
    ("ms", "fps", "verdict"), [(10.0, 30.0, 0), (5.0, 60.0, 0), (10.2, 29.5, 0), (11.0, 30.0, 1), (10.0, 28.0, 1)]
)
def test_what_is_slower_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ms: float, fps: float, verdict: int
) -> None:
    before = tree(tmp_path / "before", "a former name", 10.0, 30.0)
    monkeypatch.setattr(compare_trees, "HERE", tree(tmp_path / "now", "a hop", ms, fps, kept=9))
    assert compare_trees.main([str(before), "one", "-n", "1"]) == verdict


def test_a_bench_that_fails_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken = tmp_path / "tests/bench/bench_one.py"
    broken.parent.mkdir(parents=True)
    broken.write_text("raise SystemExit('skipped: no data')")
    assert compare_trees.figures(tmp_path, "one") == {}
    assert "skipped: no data" in capsys.readouterr().out


def test_the_times_beside_a_ratio_are_figures_too() -> None:
    ratio = {"name": "time / peer", "unit": "", "value": 0.1, "detail": {"ours_s": 2.0, "peer_s": 20.0, "n": 3}}
    timed = {"name": "a hop", "unit": "ms", "value": 1.0, "detail": {"host_ms": 3.0}}
    assert [figure["name"] for figure in compare_trees.rows({"figures": [ratio, timed]})] == [
        "time / peer",
        "time / peer: ours_s",
        "a hop",
    ]


def test_timed_fields_of_rows_are_figures_too() -> None:
    data = {
        "python": "3.12",
        "bar_ms": 1.0,
        "rows": [{"objects": 10, "ours_ms": 2.0, "ours_p99_ms": 9.0, "theirs_ms": 8.0, "fps": 30.0}],
    }
    found = [(figure["name"], figure["value"], figure["better"]) for figure in compare_trees.rows(data)]
    assert found == [("rows 0 ours_ms", 2.0, "lower"), ("rows 0 fps", 30.0, "higher")]


def test_a_difference_lost_in_noise_is_not_judged() -> None:
    one = {"unit": "ms", "value": -0.2}
    assert compare_trees.speed(one, {**one, "value": 0.1}) is None
