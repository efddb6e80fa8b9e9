"""A model measured by itself: rows differ in their names, and quick is quick."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgert.benchmark import overhead, suite
from edgert.benchmark.measure import Figure
from edgert.installation import shipped


def test_rows_name_their_threads_and_quick_makes_few_runs() -> None:
    model = shipped("pipelines/assets/parts.onnx")
    quick = [overhead.engine_speed(model, threads, limit_s=0.0) for threads in (1, 2)]
    assert [one.name for one in quick] == ["engine alone, parts, 1 thread", "engine alone, parts, 2 threads"]
    assert [one.n for one in quick] == [5, 5]
    assert overhead.engine_speed(model, 1, runs=7).n == 7


def test_quick_reaches_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = list[float]()
    whole = overhead.engine_speed

    def speed(path: Path, threads: int, *, limit_s: float) -> Figure:
        limits.append(limit_s)
        return whole(path, threads, runs=5)

    monkeypatch.setattr(suite, "engine_speed", speed)
    list(suite.bench(shipped("pipelines/assets/parts.onnx"), quick=True))
    assert set(limits) == {suite._QUICK_S}
