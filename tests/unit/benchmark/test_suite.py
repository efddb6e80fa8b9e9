"""A user's ``edgert bench`` fails for what edgert does wrong; a model is measured by itself."""

import gc
import json
from pathlib import Path
from unittest.mock import Mock

import pytest
from pytest import MonkeyPatch

from edgert import user_code
from edgert.benchmark import overhead, suite
from edgert.benchmark.measure import Figure
from edgert.config import load_pipeline
from edgert.errors import ConfigError, StageError
from edgert.installation import shipped
from edgert.meters.over_current import OverCurrent
from tests.helpers.command import in_process

BIG = Figure("installed size", 481.4, "MB", 460.0)
SLOW = Figure("start to first result", 2.016, "s", 2.0)
COPIES = Figure("copies of pixels by the runtime", 0, "copies", 0.0, is_exact=True)
COPIED = Figure("copies of pixels by the runtime", 1, "copies", 0.0, is_exact=True)


@pytest.mark.parametrize(
    ("measured", "code"), [((BIG, SLOW, COPIES), 0), ((BIG, SLOW, COPIED), 1)], ids=["large-and-slow", "copied"]
)
def test_only_exact_figures_are_judged(
    measured: tuple[Figure, ...], code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suite, "_measure_all", lambda target, quick: iter(measured))
    done = in_process("bench", "hello", cwd=tmp_path)
    assert done.returncode == code, done.stderr
    assert "481.400 MB" in done.stderr and "460" not in done.stderr
    assert ("✗" in done.stderr) == bool(code)


def test_over_current_events_meanwhile_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite, "_measure_all", lambda target, quick: iter([SLOW]))
    monkeypatch.setattr(OverCurrent, "since_start", lambda self: {"oc1": 0, "oc3": 7})
    done = in_process("bench", "hello", "--json", "-", cwd=tmp_path)
    assert json.loads(done.stdout)["machine"]["over_current"] == {"oc1": 0, "oc3": 7}
    assert "drew too much: oc3 (instantaneous power) 7 events" in " ".join(done.stderr.split())


def test_a_pipeline_of_several_engines_is_compared_with_the_bare_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overhead, "core_count", lambda: 2)  # two branches and a reorder buffer
    model = load_pipeline(shipped("pipelines/hello.yaml")).config.models["parts"]
    found = overhead.overhead(model, rounds=1, frames=2, bar=None)
    assert found.value == pytest.approx(found.detail["bare_ms"] / found.detail["pipeline_ms"])


@pytest.mark.slow
def test_the_first_result_is_timed_anywhere_without_refused_code(tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file, code, ran = Path("p.yaml"), Path("timed.py"), tmp_path / "ran"
    code.write_text(f"open({str(ran)!r}, 'w')\ndef work(result): return result\n")
    file.write_text(f"""
models: {{m: {{onnx: {shipped("pipelines/assets/parts.onnx")}, task: {{detect: yolox}}, precision: fp32}}}}
stages: {{cam: {{source: "synthetic:blank"}}, find: {{infer: m, from: cam}}, own: {{python: "timed:work", from: find}}}}
""")
    with monkeypatch.context() as patch, pytest.raises(ConfigError, match="refused"):
        patch.setattr(user_code, "before_import", Mock(side_effect=ConfigError("refused")))
        suite.first_result(file, rounds=1)
    assert not ran.exists()
    assert suite.first_result(file, rounds=1).value > 0 and ran.exists()
    code.write_text("raise ValueError('broken')")
    with pytest.raises(StageError, match="process to measure failed"):
        suite.first_result(file, rounds=1)


@pytest.mark.slow
@pytest.mark.parametrize(("counts", "kept"), [((7, 7, 8, 8), 0), ((7, 9, 8, 9), 0), ((7, 8, 9, 11), 1)])
def test_what_is_kept_is_what_grows_in_every_round(
    counts: tuple[int, ...], kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = iter((0, *counts))  # the first reading is of the warm-up
    monkeypatch.setattr(gc, "get_objects", lambda: [None] * next(found))
    objects, *_ = overhead.growth(warm_up=1, frames=2)
    assert (objects.value, objects.is_exact) == (kept, True)


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
