"""Networks and pipelines that nobody measured: rates fitted to others, and a bench that says when it cannot tell."""

from __future__ import annotations

import contextlib
import importlib
import platform
import sys
from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from edgert.backend.ort import Function
from edgert.backend.ort.cpu import kernel_times
from edgert.config import load_pipeline
from edgert.config.stages import SourceStage
from edgert.errors import EdgertError
from edgert.graph import Model, clean, from_proto
from edgert.graph.onnx_convert import to_proto
from edgert.jitter import AT
from scripts.fitting import host
from scripts.networks import table
from scripts.networks.builder import Builder
from tests.helpers.command import ROOT

needs_blocks = pytest.mark.skipif(
    platform.machine() not in ("x86_64", "AMD64"), reason="ONNX Runtime takes blocks of channels on x86 processors"
)

REFERENCE = "fastestdet"
STEADY = (1.0,) * len(AT)


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """bench_unseen.py."""
    monkeypatch.setattr(sys, "path", [str(ROOT / "tests/bench"), *sys.path])
    return importlib.import_module("bench_unseen")


def net(channels: int, size: int = 64, act: str = "relu") -> Model:
    made = Builder(1, 3, size, size, act=act)
    x = made.conv("input", channels, 3, 2, act=act)
    y = made.conv(x, channels, 3, act=act, groups=channels)
    z = made.conv(y, 2 * channels, act=act)
    return model(made, made.conv(z, channels, 3, act=act))


def model(made: Builder, *outputs: str) -> Model:
    return from_proto(to_proto(made.graph(*outputs)), "made.onnx")


def amounts(found: host.Columns) -> dict[str, float]:
    """How often all kernels do what; what none does is left out."""
    sums = dict(zip(host.RATES_NS, found.amounts.sum(axis=0).tolist(), strict=True))
    return {name: amount for name, amount in sums.items() if amount}


def test_rates_fitted_to_some_networks_foretell_another() -> None:
    true = {**host.RATES_NS, "windows": 0.03, "points": 0.01, "depthwise": 0.09, "moved": 0.1, "conv_start": 3000.0}
    graphs = [host.columns(net(channels, size)) for channels in (16, 32, 64) for size in (64, 160)]
    profiled_ms = true["profiled"] / 1e6
    known = [
        host.Timed(one, host.predict_ms(one, true) + profiled_ms, float(host.predict_ms(one, true).sum()))
        for one in graphs
    ]
    unseen = host.columns(net(48, 96))
    wanted = host.predict_ms(unseen, true).sum()
    assert host.predict_ms(unseen, host.fit(known)).sum() == pytest.approx(wanted, rel=0.05)
    assert abs(host.predict_ms(unseen, host.RATES_NS).sum() / wanted - 1) > 0.2


@needs_blocks
def test_a_convolution_does_what_the_blocks_of_its_channels_ask_for() -> None:
    made, block = Builder(1, 64, 32, 32), 16
    found = amounts(host.columns(model(made, made.conv("input", 128, 3, act=None))))
    results, calls = 32 * 32, 2  # of four blocks each
    assert found["windows"] == 128 * 64 * 9 * results and "matrices" not in found
    assert found["row"] == calls * 32 * 64 / block and found["spread"] == calls * 64 * 9 * results
    assert found["added"] == 128 * results * 64 / block
    assert found["reordered"] == (64 + 128) * results, "planes become blocks, and planes again"


@needs_blocks
def test_channels_that_no_block_fits_are_copied_and_multiplied_as_matrices() -> None:
    made = Builder(1, 58, 32, 32)
    found = amounts(host.columns(model(made, made.conv("input", 58, 3, groups=58, act=None))))
    assert found["matrices"] == found["unrolled"] == 58 * 9 * 32 * 32 and "depthwise" not in found
    made = Builder(1, 64, 32, 32)
    assert amounts(host.columns(model(made, made.conv("input", 64, 3, groups=64, act=None))))["depthwise"] > 0


def test_what_onnx_runtime_does_once_more_counts() -> None:
    plain, clipped = (amounts(host.columns(net(16, act=act))) for act in ("relu", "relu6"))
    assert "mapped" not in plain and clipped["mapped"] > 0


def test_operands_that_are_repeated_begin_anew() -> None:
    made = Builder(1, 16, 32, 32)
    mean = made.node("ReduceMean", ["input"], (1, 16, 1, 1), axes=[2, 3])
    apart = made.node("Sub", ["input", mean], (1, 16, 32, 32))
    joined = made.node("Mul", [apart, apart], (1, 16, 32, 32))
    found, values = amounts(host.columns(model(made, joined))), 16 * 32 * 32
    assert found["summed"] == values and found["stretch"] == 16
    assert found["mapped"] == (2 + 3) * values


@pytest.mark.parametrize(("shape", "stretch"), [((1, 16, 1, 1), 1024), ((32,), 32), ((1, 1, 32, 32), 1024)])
def test_how_far_an_operand_goes(shape: tuple[int, ...], stretch: int) -> None:
    assert host._stretch(shape, (1, 16, 32, 32)) == stretch


@pytest.mark.parametrize(("op", "kind"), [("Softmax", "softmax"), ("Sqrt", "curved"), ("Transpose", "transposed")])
def test_operators_of_rates_of_their_own(op: str, kind: str) -> None:
    made = Builder(1, 16, 32, 32)
    given = {"perm": [0, 1, 3, 2]} if op == "Transpose" else {}
    assert amounts(host.columns(model(made, made.node(op, ["input"], (1, 16, 32, 32), **given))))[kind] == 16 * 32 * 32


def test_kernels_have_the_names_of_the_profiler() -> None:
    network = net(16)
    feeds = {"input": np.ones((1, 3, 64, 64), np.float32)}
    measured = {one.name for one in kernel_times(clean(network)[0], feeds, 1)}
    assert measured == set(host.columns(network).names)


def test_a_built_network_can_be_run(bench: ModuleType) -> None:
    made = importlib.import_module("made")
    small = made.runnable(table.build("yolov8n", 64))
    assert not any(node.op == "Slice" for node in small.nodes)
    ready = from_proto(to_proto(small), "yolov8n.onnx")
    found = Function(ready)({"input": np.ones((1, 3, 64, 64), np.float32)})
    assert {name: array.shape for name, array in found.items()} == {one.name: one.shape for one in small.outputs}


def test_stages_are_fitted_by_relative_errors_and_never_below_zero(bench: ModuleType) -> None:
    unseen = importlib.import_module("unseen_machine")
    rows = {(1.0, mp, n): 0.2 + 0.5 * mp + 0.01 * n for mp in (0.3, 2.0) for n in (2.0, 20.0)}
    assert unseen.fitted(rows) == pytest.approx([0.2, 0.5, 0.01])
    assert min(unseen.fitted({(1.0, 0.3, 0.0): 1.0, (1.0, 2.0, 0.0): 0.5})) == 0.0
    assert unseen.middle([(), (1.0, 2.0), (3.0, 4.0), (2.0, 9.0)]) == (2.0, 4.0) and unseen.middle([()]) == ()


def behind(rested_ms: float = 0.0, woken: float = 0.9, busy: float = 1.8) -> Any:
    """How a network does behind a camera."""
    rests_ms = (rested_ms,) * len(importlib.import_module("unseen_stages").RESTS_S)
    return importlib.import_module("unseen_machine").Camera(rests_ms, woken, busy, STEADY, STEADY)


def network(name: str, each_ms: float, rested_ms: float = 0.0, whole_ms: float | None = None, two: float = 0.6) -> Any:
    """A network each of whose kernels takes as long."""
    unseen, count = (
        importlib.import_module("unseen_machine"),
        len(importlib.import_module("unseen").columns(name).names),
    )
    whole_ms = each_ms * count if whole_ms is None else whole_ms
    return unseen.Known(whole_ms, np.full(count, each_ms), 1.0, two, STEADY, behind(rested_ms, 0.7, 1.4))


def machine(**other: Any) -> Any:
    """One on which everything takes a round number of milliseconds."""
    stages = dict.fromkeys(("still", "boxes", "track", "draw", "trails", "jsonl", "images"), (0.5, 0.0, 0.0))
    rows = {name: {(1.0, mp, size, 0.1): 0.5 for mp in (0.3, 2.0)} for name, size in (("a", 0.05), ("b", 0.2))}
    made = importlib.import_module("unseen_machine").Machine(
        networks={}, cameras={REFERENCE: behind()}, company=1.0, brief=(0.0, 0.5, 1.0), two=0.6, spin_ms=40.0,
        stages=stages, brisk={"jsonl": (0.25, 0.0, 0.0)}, beside=rows, run_jitter=STEADY, jitters={}, late={},
        hand_over_ms=0.0, reference_ms=1.0,
    )  # fmt: skip
    return replace(made, **other)


def test_a_pipeline_is_foretold_from_what_others_took(
    bench: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    found = machine()
    monkeypatch.setattr(type(found), "kernels_ms", lambda self, columns, without: np.full(len(columns.names), 0.1))
    case = next(one for one in bench.CASES if one.name == "watch")
    (tmp_path / "p.yaml").write_text(case.text())
    (tmp_path / "scene.py").write_text("")
    file = load_pipeline(tmp_path / "p.yaml")
    played = bench.foretold(case, file, found, seed=0)
    run_ms = 0.1 * len(bench.columns("parts").names) * 1.8 / 2  # on two threads, of which one is woken
    # beside the network 0.5 ms, then boxes, track, draw and jsonl
    assert played.latency_ms.p50 == pytest.approx(run_ms + 5 * 0.5, rel=0.05)
    assert played.fps == pytest.approx(30, rel=0.05)
    busy = played.busy["cpu"]
    assert busy == pytest.approx((2 * run_ms + 5 * 0.5) * 30 / 1e3, rel=0.1)
    (tmp_path / "p.yaml").write_text(case.text().replace("backend: ort", "backend: ort, tuning: {spinning: true}"))
    spinning = bench.foretold(case, load_pipeline(tmp_path / "p.yaml"), found, seed=0)
    assert spinning.busy["cpu"] > 0.8 > 1.8 * busy  # mostly a thread that spins


def test_on_a_slower_machine_everything_takes_longer(bench: ModuleType) -> None:
    found = machine()
    slower = found.paced([1.2, 1.5, 1.8], 0.25)
    columns = bench.columns("parts")
    row, without = (1.0, 0.9, 0.1, 0.2), frozenset[str]()
    assert slower.kernels_ms(columns, without) == pytest.approx(1.5 * found.kernels_ms(columns, without))
    assert slower.beside_ms(row, without) == pytest.approx(1.5 * found.beside_ms(row, without))
    rested = replace(found, cameras={REFERENCE: behind(2.0)}), replace(slower, cameras={REFERENCE: behind(2.0)})
    taken = [sum(one.network("parts", frozenset({"parts"})).camera.rested_ms) for one in rested]
    assert taken[1] == pytest.approx(1.5 * taken[0]) and taken[0] > 0
    assert list(slower.stages["draw"]) == [1.5 * one for one in found.stages["draw"]]
    assert slower.slow_phases == pytest.approx([0.8] * 5 + [1.0] * 5 + [1.2] * 5)
    found = slower.jitter_by((2.0,) * len(AT))
    assert found.quantiles[0] * found.slow_phases[7] == pytest.approx(1.0), "usual where the pace is"


def test_cameras_begin_as_far_apart_as_others_did(bench: ModuleType, tmp_path: Any) -> None:
    case = next(one for one in bench.CASES if one.name == "gates")
    (tmp_path / "p.yaml").write_text(case.text())
    (tmp_path / "scene.py").write_text("")
    file, frame_ms = load_pipeline(tmp_path / "p.yaml"), 20.0
    own = network("person_reid_retail_0288", 1e-3, whole_ms=frame_ms)
    known = machine(profiled={"person_reid_retail_0288": own})
    at_once, apart = (
        bench.foretold(case, file, replace(known, gaps_ms=(gap_ms,)), seed=0, is_profiled=True).latency_ms.p50
        for gap_ms in (0.0, 30.0)
    )
    assert at_once == pytest.approx(2 * frame_ms, rel=0.1) and apart == pytest.approx(frame_ms, rel=0.1)


def test_a_stage_rests_where_it_waits_for_the_next_frame(bench: ModuleType) -> None:
    live = SourceStage(source="csi:0", fps=20, realtime=True)
    assert bench.rest_ms({"one": live, "other": live}, 24) == 1 and not bench.rest_ms({"one": live, "other": live}, 26)
    assert not bench.rest_ms({"film": SourceStage(source="film.mp4", decode="cpu")}, 1)


def test_the_longer_a_rest_the_more_is_gone_from_the_caches(bench: ModuleType) -> None:
    one, camera = machine(), replace(behind(), rested_ms=(2.0, 3.0))
    assert [one.rested_ms(camera, rest_ms) for rest_ms in (0, 0.5, 1, 2, 4, 15, 25, 80, 200)] == pytest.approx(
        [0, 0, 0, 0.5, 1, 2, 2, 3, 3]
    )


def test_a_network_that_was_profiled_is_foretold_from_itself(bench: ModuleType, tmp_path: Any) -> None:
    own = network("parts", 0.1, rested_ms=2.0)
    known = machine(profiled={"parts": own}).paced([2.0], 0.25)
    found = known.network("parts", frozenset())
    assert (found.whole_ms, found.camera.rested_ms[0]) == pytest.approx((2 * own.whole_ms, 4.0)), "half as fast"
    case = next(one for one in bench.CASES if one.name == "watch")
    (tmp_path / "p.yaml").write_text(case.text())
    (tmp_path / "scene.py").write_text("")
    played = bench.foretold(case, load_pipeline(tmp_path / "p.yaml"), known, seed=0, is_profiled=True)
    assert played.latency_ms.p50 == pytest.approx(2 * (own.whole_ms * 0.7 + 2.0 + 5 * 0.5), rel=0.05)


@pytest.mark.parametrize("threads", [1, 2])
def test_what_a_network_takes_behind_a_camera_is_what_its_stage_took_more(bench: ModuleType, threads: int) -> None:
    unseen, stages = importlib.import_module("unseen_machine"), importlib.import_module("unseen_stages")
    beside = {"a": {(1.0, mp, 0.0, 0.0): 1.0 for mp in (0.3, 2.0)}}
    taken = {
        (count, rest_s): stages.Behind(6.0 + 5.0 * count + more_ms, 9.0 + 5.0 * count, STEADY)
        for count in (1, 2)
        for rest_s, more_ms in zip(stages.RESTS_S, (1.0, 2.0), strict=True)
    }
    round_ = stages.Others(behind={"parts": taken})
    found = unseen._camera("parts", [round_, round_], 10.0, beside)
    assert found.rested_ms == pytest.approx((1.0, 2.0)) and (found.woken, found.woken_busy) == pytest.approx((1.5, 1.5))
    slot = bench.InferenceSlot(((bench.Step("cpu", 1.0, threads=threads),),))
    known = replace(network("parts", 0.1), camera=replace(behind(), woken_jitter=(2.0,) * len(AT)))
    assert bench.jitter_of(known, slot, 30.0)[0] == threads and bench.jitter_of(known, slot, 1.0) == known.jitter


def test_what_is_used_often_takes_less(bench: ModuleType, tmp_path: Any) -> None:
    def sink_ms(source: str) -> float:
        stages = f"  source: {{{source}}}\n  end: {{sink: jsonl, from: source, path: x}}\n"
        case = bench.Case("x", {}, stages)
        (tmp_path / "p.yaml").write_text(case.text())
        (tmp_path / "scene.py").write_text("")
        file = load_pipeline(tmp_path / "p.yaml")
        return float(bench.stage_ms(case, file.config.stages["end"], file, machine()))

    camera = "source: 'python:scene:still', size: 64x64, realtime: true, fps"
    assert (sink_ms(f"{camera}: 25"), sink_ms(f"{camera}: 400")) == (0.5, 0.25)
    assert sink_ms("source: 640x480.mp4, decode: cpu") == 0.25


def test_idle_cores_wait_as_long_as_films_of_other_networks_say(
    bench: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    cores = len(bench.core_accelerators())
    monkeypatch.setattr(bench, "load_pipeline", lambda path: None)
    monkeypatch.setattr(bench, "quietly", lambda take: take())
    monkeypatch.setenv("EDGERT_BENCH_ROUNDS", "1")

    def found(real: float, at_once: float) -> float:
        def simulated(case: Any, file: Any, machine: Any, seed: int) -> Any:
            return bench.replace(one, busy={"cpu": at_once - 0.1 * machine.fetch_ms})

        monkeypatch.setattr(bench, "foretold", simulated)
        monkeypatch.setattr(bench, "run", lambda folder, case: (None, real))
        return float(bench.fetched_ms(tmp_path, machine()))

    one = bench.Simulated(1.0, 0, 0, 0, 0.0, None, None, None, None, 0.0, {}, {}, ())
    assert found(cores - 0.15, cores) == pytest.approx(1.5)
    assert found(cores - 0.15, 0.5 * cores) == 0.0, "cores that rest anyway say nothing"
    quantiles = machine(fetch_ms=2.0).fetch_quantiles_ms
    assert machine().fetch_quantiles_ms == () and list(quantiles) == sorted(quantiles)
    assert quantiles[AT.index(0.5)] == pytest.approx(2.0 * np.log(2))


def test_a_pace_is_the_mean_of_two_and_not_one_of_them(bench: ModuleType) -> None:
    pace = importlib.import_module("pace")
    assert pace.mean_ms([4.0] * 10 + [6.0] * 9 + [99.0]) == pytest.approx(5.0)


@pytest.mark.parametrize("seconds", [0.5, 1.8])
def test_the_start_of_a_run_is_no_part_of_its_latency(
    bench: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Any, seconds: float
) -> None:
    unseen = importlib.import_module("unseen")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "scene.py").write_text(
        "import time\nimport numpy as np\ndef blank(width, height):\n"
        "    while True:\n        yield np.zeros((height, width, 3), np.uint8)\n"
        "class Slow:\n    first = True\n    def __call__(self, result):\n"
        "        time.sleep(0.12 if Slow.first else 0)\n        Slow.first = False\n        return result\n"
    )
    source = f"source: 'python:scene:blank', size: 64x48, realtime: true, fps: 10, limit: {round(10 * seconds)}"
    stages = f"  cam: {{{source}}}\n  slow: {{python: 'scene:Slow', from: cam}}\n  end: {{sink: 'null', from: slow}}\n"
    summary, cores = unseen.run(tmp_path, unseen.Case("start", {}, stages))
    assert summary.frames_out == round(10 * seconds) and 0 < cores < 1
    is_whole = seconds < unseen.START_S
    assert (summary.latency_ms.p99 > 110) == is_whole and (summary.latency_ms.count == summary.frames_out) == is_whole


def test_the_pipelines_are_files_and_none_has_a_network_of_those_that_tell_the_pace(
    bench: ModuleType, tmp_path: Any
) -> None:
    (tmp_path / "scene.py").write_text("")
    assert len({case.name for case in bench.CASES}) == len(bench.CASES)
    for case in bench.CASES:
        assert not {network for network, _ in case.models.values()} & {*bench.FETCHED, "fastestdet"}
        (tmp_path / "p.yaml").write_text(case.text())
        try:
            load_pipeline(tmp_path / "p.yaml")
        except EdgertError as error:  # networks that are not here
            assert "onnx" in str(error) or "such file" in str(error)


def test_runs_on_a_busy_machine_do_not_count(
    bench: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench, "needs", lambda *names: None)
    monkeypatch.setattr(bench, "run", lambda folder, case: (None, 0.5))
    monkeypatch.setattr(bench, "film", lambda *arguments: None)
    monkeypatch.setattr(bench, "measured", lambda folder, count: machine())
    monkeypatch.setattr(bench, "fetched_ms", lambda *arguments: 0.0)
    monkeypatch.setattr(bench, "describe", lambda *arguments: None)
    monkeypatch.setattr(bench, "PREPARED", ())
    monkeypatch.setattr(bench, "wait", lambda: None)

    class Watch(bench.Watch):  # type: ignore[misc, name-defined]
        def others(self) -> float:
            return 0.5

    class Pace(contextlib.nullcontext[Any]):
        readings_ms = (1.0,)

        def __enter__(self) -> Any:
            return self

    monkeypatch.setattr(bench, "Watch", Watch)
    monkeypatch.setattr(bench, "Pace", Pace)
    monkeypatch.setenv("EDGERT_BENCH_ROUNDS", "1")
    assert not list(bench.measure())
    said = capsys.readouterr().out
    assert said.count("skipped: ") == len(bench.CASES) == 18
    assert said.count("not counted: ") == len(bench.CASES) * bench.MOST

    def never(folder: Any, count: int) -> Any:
        raise bench.BusyError

    monkeypatch.setattr(bench, "measured", never)
    assert not list(bench.measure()) and "while this machine was measured" in capsys.readouterr().out


def test_what_is_measured_while_others_are_busy_is_measured_again(
    bench: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    quiet = importlib.import_module("quiet")
    others, found = [0.0, 0.5, 0.5], list[int]()
    monkeypatch.setattr(quiet, "wait", lambda: None)
    monkeypatch.setattr(quiet.Watch, "others", lambda self: others.pop())
    assert quiet.quietly(lambda: found.append(len(found)) or len(found), found.clear) == 1 and found == [0]
    others[:] = [0.5] * quiet.TRIES
    with pytest.raises(quiet.BusyError):
        quiet.quietly(lambda: None)
