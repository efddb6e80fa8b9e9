"""Networks and pipelines that nobody measured: rates fitted to others, and a bench that says when it cannot tell."""

from __future__ import annotations

import contextlib
import importlib
import sys
from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from edgert.config import load_pipeline
from edgert.graph import Graph
from edgert.jitter import AT
from scripts.fitting import host
from scripts.networks.builder import Builder
from tests.helpers.command import ROOT


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """bench_unseen.py."""
    monkeypatch.setattr(sys, "path", [str(ROOT / "tests/bench"), *sys.path])
    return importlib.import_module("bench_unseen")


def net(channels: int, size: int = 64, act: str = "relu") -> Graph:
    made = Builder(1, 3, size, size, act=act)
    x = made.conv("input", channels, 3, 2, act=act)
    y = made.conv(x, channels, 3, act=act, groups=channels)
    z = made.conv(y, 2 * channels, act=act)
    return made.graph(made.conv(z, channels, 3, act=act))


def test_rates_fitted_to_some_networks_foretell_another() -> None:
    true = {**host._RATES, "windows": 35.0, "points": 50.0, "depthwise": 12.0, "products_moved": 9.0, "start_us": 8.0}
    graphs = [net(channels, size) for channels in (16, 32, 64) for size in (64, 160)]
    known = [host.Timed(one, host.predict_ms(one, true)) for one in map(host.columns, graphs)]
    unseen = host.columns(net(48, 96))
    wanted = host.predict_ms(unseen, true).sum()
    assert host.predict_ms(unseen, host.fit(known)).sum() == pytest.approx(wanted, rel=0.05)
    assert abs(host.predict_ms(unseen, host._RATES).sum() / wanted - 1) > 0.2


def test_what_onnx_runtime_does_once_more_counts() -> None:
    plain, clipped = (host.columns(net(16, act=act)) for act in ("relu", "relu6"))
    assert not plain.again.any() and clipped.again.sum() > 0
    assert host.predict_ms(clipped, host._RATES).sum() > host.predict_ms(plain, host._RATES).sum()


def test_joined_tensors_are_copied() -> None:
    made = Builder(1, 16, 32, 32)
    x, y = made.conv("input", 16), made.conv("input", 16)
    joined = made.node("Concat", [x, y], (1, 32, 32, 32), axis=1)
    found = host.columns(made.graph(joined))
    kinds = [host._KINDS[int(number)] for number in found.kind]
    assert found.moved[kinds.index("joined")] == 2 * 32 * 32 * 32


def test_chains_run_node_by_node() -> None:
    made = Builder(1, 16, 32, 32)
    x = made.conv("input", 16)
    mean = made.node("ReduceMean", [x], (1, 16, 1, 1), axes=[2, 3])
    apart = made.node("Sub", [x, mean], (1, 16, 32, 32))
    joined = made.node("Mul", [apart, apart], (1, 16, 32, 32))
    found, values = host.columns(made.graph(joined)), 16 * 32 * 32
    kinds = [host._KINDS[int(number)] for number in found.kind]
    mapped = [number for number, kind in enumerate(kinds) if kind == "mapped"]
    assert found.starts[mapped].sum() == 3 and found.summed.sum() == values == found.spread.sum()
    assert found.moved[mapped].sum() == 3 * values


@pytest.mark.parametrize(("op", "kind"), [("Softmax", "softmax"), ("Resize", "resized"), ("Transpose", "copied")])
def test_operators_of_rates_of_their_own(op: str, kind: str) -> None:
    made = Builder(1, 16, 32, 32)
    found = host.columns(made.graph(made.node(op, [made.conv("input", 16, 3)], (1, 16, 32, 32))))
    assert host._KINDS[int(found.kind[-1])] == kind


def test_a_pad_is_part_of_its_convolution() -> None:
    made = Builder(1, 16, 32, 32)
    padded = made.node("Pad", ["input", made.stored(8)], (1, 16, 34, 34))
    found = host.columns(made.graph(made.conv(padded, 16, 3)))
    assert host.predict_ms(found, host._RATES)[0] == 0 and found.starts.sum() == 1


def test_stages_are_fitted_by_relative_errors_and_never_below_zero(bench: ModuleType) -> None:
    unseen = importlib.import_module("unseen")
    rows = {(1.0, mp, n): 0.2 + 0.5 * mp + 0.01 * n for mp in (0.3, 2.0) for n in (2.0, 20.0)}
    assert unseen.fitted(rows) == pytest.approx([0.2, 0.5, 0.01])
    assert min(unseen.fitted({(1.0, 0.3, 0.0): 1.0, (1.0, 2.0, 0.0): 0.5})) == 0.0
    assert unseen.middle([(), (1.0, 2.0), (3.0, 4.0), (2.0, 9.0)]) == (2.0, 4.0) and unseen.middle([()]) == ()


def machine(**other: Any) -> Any:
    """One on which everything takes a round number of milliseconds."""
    unseen = importlib.import_module("unseen")
    stages = dict.fromkeys(("still", "boxes", "track", "draw", "trails", "jsonl", "images"), (0.5, 0.0, 0.0))
    made = unseen.Machine(
        networks={}, company=1.0, rested=(0.0, 0.0), two=0.6, spin_ms=40.0, stages=stages,
        infer={name: {(1.0, mp, size): 0.5 for mp in (0.3, 2.0)} for name, size in (("a", 0.05), ("b", 0.2))},
        run_jitter=(1.0,) * len(AT), jitter=(), wakeup_ms=(), reference_ms=1.0,
    )  # fmt: skip
    return replace(made, **other)


def test_a_pipeline_is_foretold_from_what_others_took(
    bench: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    found = machine()
    monkeypatch.setattr(type(found), "units_ms", lambda self, columns, without: np.full(len(columns.macs), 0.1))
    case = next(one for one in bench.CASES if one.name == "watch")
    (tmp_path / "p.yaml").write_text(case.text())
    (tmp_path / "scene.py").write_text("")
    file = load_pipeline(tmp_path / "p.yaml")
    played = bench.foretold(case, file, found, seed=0)
    units = len(host.columns(bench.read(bench.static("parts"))).macs)
    run_ms = 0.1 * units * 1.2 / 2  # on two threads
    # beside the network 0.5 ms, then boxes, track, draw and jsonl
    assert played.latency_ms.p50 == pytest.approx(run_ms + 5 * 0.5, rel=0.05)
    assert played.fps == pytest.approx(30, rel=0.05) and played.busy["cpu"] > 0.8  # mostly a thread that spins


def test_on_a_slower_machine_everything_takes_longer(bench: ModuleType) -> None:
    found = machine()
    slower = found.paced([1.2, 1.5, 1.8], 0.25)
    columns = host.columns(bench.read(bench.static("parts")))
    row, without = (1.0, 0.9, 0.1), frozenset[str]()
    assert slower.units_ms(columns, without) == pytest.approx(1.5 * found.units_ms(columns, without))
    assert slower.beside_ms(row, without) == pytest.approx(1.5 * found.beside_ms(row, without))
    assert slower.rested == tuple(1.5 * one for one in found.rested)
    assert list(slower.stages["draw"]) == [1.5 * one for one in found.stages["draw"]]
    assert slower.slow_phases == pytest.approx([0.8] * 5 + [1.0] * 5 + [1.2] * 5)
    found = slower.jitter_by((2.0,) * len(AT))
    assert found.quantiles[0] * found.slow_phases[7] == pytest.approx(1.0), "usual where the pace is"


def test_a_pace_is_the_mean_of_two_and_not_one_of_them(bench: ModuleType) -> None:
    pace = importlib.import_module("pace")
    assert pace.mean_ms([4.0] * 10 + [6.0] * 9 + [99.0]) == pytest.approx(5.0)


def test_runs_on_a_busy_machine_do_not_count(
    bench: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench, "needs", lambda *names: None)
    monkeypatch.setattr(bench, "run", lambda folder, case: (None, 0.5))
    monkeypatch.setattr(bench, "film", lambda *arguments: None)
    monkeypatch.setattr(bench, "measured", lambda folder, count: machine())
    monkeypatch.setattr(bench, "describe", lambda *arguments: None)
    monkeypatch.setattr(bench, "PREPARED", ())
    others = [0.5] * bench.MOST * 6 + [0.0]  # the last is while the machine is measured

    class Watch(bench.Watch):  # type: ignore[misc, name-defined]
        def others(self, allowed_s: float = 0.0) -> float:
            return others.pop()

    class Pace(contextlib.nullcontext[Any]):
        readings_ms = (1.0,)

        def __enter__(self) -> Any:
            return self

        def used_s(self) -> float:
            return 0.0

    monkeypatch.setattr(bench, "Watch", Watch)
    monkeypatch.setattr(bench, "Pace", Pace)
    monkeypatch.setenv("EDGERT_BENCH_ROUNDS", "1")
    assert not list(bench.measure())
    said = capsys.readouterr().out
    assert said.count("skipped: ") == len(bench.CASES) == 6
    assert said.count("not counted: ") == 6 * bench.MOST
    others.append(0.5)
    assert not list(bench.measure()) and "while this machine was measured" in capsys.readouterr().out
