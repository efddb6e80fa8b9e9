"""Times of engines that ran on a board, fed back into plans."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from edgert.bundle.bundle import Bundle, open_bundle, save_bundle
from edgert.bundle.measured_engines import MeasuredEngine, read_measured
from edgert.bundle.shared_profile import Layer
from edgert.errors import ArtifactError, ConfigError
from edgert.graph import load
from edgert.placement.cost.coefficients import sisters
from edgert.placement.problem import Cost, Network, Unit
from edgert.planner import plan
from edgert.planner.measured_times import (
    Measured,
    factors_of,
    measured_place,
    nearest_measurements,
    scale_units,
    times_of,
)
from edgert.planner.plan_text import to_json
from edgert.planner.planned_model import planned_models
from tests.helpers.trt_bundle import engine, finished, of_pipeline, trt_bundle

NETWORK = Network(
    "parts",
    (
        Unit("conv", ("conv",), {"gpu": Cost(1.0), "dla0": Cost(2.0)}),
        Unit("relu", ("relu",), {"gpu": Cost(0.5)}),
    ),
    (),
    home="gpu",
)
ON_GPU = [{"Name": name, "LayerType": "CaskConvolution"} for name in ("conv", "relu")]
INSPECTED: dict[str, Any] = {"answer": {"inspector": json.dumps({"Layers": ON_GPU})}}
PLACE: dict[str, Any] = {"model": "parts", "digest": "0" * 64, "board": "orin-nx-16gb", "mode": "15W"}
ENGINE = MeasuredEngine(**PLACE, placement={}, median_ms=3.0, runs=30)


def changed(engine: MeasuredEngine, **changes: Any) -> MeasuredEngine:
    return engine.model_copy(update=changes)


def layers(*each: tuple[str, float], moves: float = 0.0) -> list[Layer[str]]:
    """One for each (nodes, milliseconds), nodes in one text; and one that hands tensors over."""
    timed = [Layer[str](nodes=nodes.split(), median_ms=ms) for nodes, ms in each]
    return [*timed, Layer[str](nodes=[], median_ms=moves, reformat=True)] if moves else timed


pytestmark = pytest.mark.usefixtures("own_cache")


def test_a_finished_bundle_tells_what_it_measured(tmp_path: Path) -> None:
    (found,) = read_measured(finished(tmp_path))
    assert (found.model, found.board, found.mode) == ("parts", "orin-nx-16gb", "15W")
    assert found.placement == {"dla0": ["conv"]} and found.median_ms > 0 and found.runs == 30


def test_a_bundle_that_was_not_finished_has_nothing_to_tell(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"no engine of .* was timed") as caught:
        read_measured(trt_bundle(tmp_path / "dock.edgert"))
    assert "edgert build BUNDLE" in caught.value.fix


def test_an_engine_whose_times_are_null_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = finished(tmp_path)
    place = {"source": "", "misplaced": [], "layers": 0, "reformats": 0, "loadables": 0}
    monkeypatch.setattr(Bundle, "read", lambda *_: json.dumps({"placement": place, "profile": None}).encode())
    with pytest.raises(ArtifactError, match=r"no engine of .* was timed"):
        read_measured(path)


@pytest.mark.parametrize(("name", "why"), [("absent.json", "there is no such file"), ("p.json", "it is not a bundle")])
def test_only_a_bundle_has_times_of_a_board(tmp_path: Path, name: str, why: str) -> None:
    (tmp_path / "p.json").write_text("{}")
    with pytest.raises(ConfigError, match=rf"no times of a board in '.*{name}'") as caught:
        read_measured(tmp_path / name)
    assert (caught.value.why, caught.value.where) == (why, "--profile")
    assert "edgert bench --units is for --board host" in caught.value.fix


def test_units_are_scaled_where_the_engine_ran() -> None:
    assert factors_of(NETWORK, ENGINE) == {"gpu": 2.0}
    conv, relu = scale_units(NETWORK, [ENGINE]).units
    assert (conv.costs["gpu"].time_ms, conv.costs["dla0"].time_ms, relu.costs["gpu"].time_ms) == (2.0, 2.0, 1.0)


def test_an_engine_on_both_scales_both() -> None:
    both = changed(ENGINE, placement={"dla0": ["conv"]}, median_ms=5.0)
    assert factors_of(NETWORK, both) == {"gpu": 2.0, "dla0": 2.0}


def test_units_take_what_their_layers_took_and_together_what_the_engine_did() -> None:
    timed = changed(ENGINE, layers=layers(("conv", 0.5), ("relu", 1.5)))
    assert times_of(NETWORK, timed) == {(0, "gpu"): 0.75, (1, "gpu"): 2.25}  # 3 ms, of which layers took 2
    conv, relu = scale_units(NETWORK, [timed]).units
    assert (conv.costs["gpu"].time_ms, relu.costs["gpu"].time_ms) == (0.75, 2.25)
    assert conv.costs["dla0"].time_ms == 2.0  # nobody measured it there


def test_a_layer_of_several_units_is_shared_as_predicted() -> None:
    timed = changed(ENGINE, layers=layers(("conv relu", 3.0)))
    assert times_of(NETWORK, timed) == {(0, "gpu"): 2.0, (1, "gpu"): 1.0}


def test_a_unit_of_several_layers_has_their_sum() -> None:
    network = replace(NETWORK, units=(Unit("conv", ("conv", "bias"), {"gpu": Cost(1.0)}), NETWORK.units[1]))
    timed = changed(ENGINE, layers=layers(("conv", 1.0), ("bias", 0.5), ("relu", 1.5)))
    assert times_of(network, timed) == {(0, "gpu"): 1.5, (1, "gpu"): 1.5}


def test_a_unit_whose_name_is_lost_is_as_fast_as_the_others() -> None:
    timed = changed(ENGINE, layers=layers(("conv", 2.0), ("", 1.0)))
    assert times_of(NETWORK, timed) == {(0, "gpu"): 2.0, (1, "gpu"): 1.0}


def test_without_any_name_one_factor_is_left() -> None:
    timed = changed(ENGINE, layers=layers(("", 2.0)))
    assert times_of(NETWORK, timed) == {}
    assert scale_units(NETWORK, [timed]) == scale_units(NETWORK, [ENGINE])


def test_layers_without_any_time_tell_nothing() -> None:
    assert times_of(NETWORK, changed(ENGINE, layers=layers(("conv", 0.0), ("relu", 0.0)))) == {}


def test_handing_over_is_not_counted_twice() -> None:
    """A plan counts transitions by themselves, but knows of none where there is one accelerator."""
    both = changed(ENGINE, placement={"dla0": ["conv"]}, layers=layers(("conv", 2.0), ("relu", 1.0), moves=1.0))
    assert sum(times_of(NETWORK, both).values()) == pytest.approx(3.0 * 3 / 4)
    assert sum(times_of(NETWORK, changed(both, placement={})).values()) == pytest.approx(3.0)


def test_a_finished_bundle_tells_its_layers(tmp_path: Path) -> None:
    path = finished(tmp_path, layer_ms=[("conv", 0.25), ("relu", 0.125)], **INSPECTED)
    (found,) = read_measured(path)
    assert found.layers == layers(("conv", 0.25), ("relu", 0.125))


def test_nodes_that_tensorrt_moved_are_measured_where_they_ran(tmp_path: Path) -> None:
    (found,) = read_measured(finished(tmp_path, **INSPECTED))
    assert found.placement == {}


def test_without_measurements_nothing_changes() -> None:
    assert scale_units(NETWORK, []) is NETWORK


def of_this_file(file: Any, path: Path) -> Path:
    """The bundle, as made of the pipeline's own model."""
    with open_bundle(path) as opened:
        manifest, content = opened.manifest, {name: opened.read(name) for name in opened.manifest.members}
    entry = manifest.models["parts"].model_copy(update={"digest": load(file.config.models["parts"].onnx).digest})
    save_bundle(path, manifest.model_copy(update={"models": {"parts": entry}}), content)
    return path


ALL_GPU = engine({"conv": "gpu", "relu": "gpu"})


def row_of(made: Any, name: str = "gpu") -> Any:
    return next(row for row in made.boards[0].rows if row.name == name)


def test_a_plan_takes_them(tmp_path: Path) -> None:
    file = of_pipeline(tmp_path)
    path = of_this_file(file, finished(tmp_path, ALL_GPU, precision="fp16"))
    plain, fed = (plan(file, board="orin-nx-16gb", mode="15W", profiles=given) for given in ((), (path,)))
    (measured,) = read_measured(path)
    assert any(f"{measured.median_ms:.2f} ms measured (30 runs)" in note for note in fed.notes)
    before, after = (row_of(made).models[0].latency_ms for made in (plain, fed))
    assert after != before and after == pytest.approx(measured.median_ms, rel=0.01)


@pytest.mark.parametrize(
    ("board", "mode", "relation"), [("orin-nx-16gb", "MAXN", "mode"), ("agx-orin-64gb", "MAXN", "board")]
)
def test_a_sister_is_corrected_by_them_and_says_so(tmp_path: Path, board: str, mode: str, relation: str) -> None:
    """Measured over predicted where it was measured, to the fitted power; the bar is never wider than without."""
    file = of_pipeline(tmp_path)
    path = of_this_file(file, finished(tmp_path, ALL_GPU, precision="fp16"))
    (measured,) = read_measured(path)
    there = row_of(plan(file, board="orin-nx-16gb", mode="15W")).models[0].latency_ms
    plain, fed = (plan(file, board=board, mode=mode, profiles=given) for given in ((), (path,)))
    factor = (measured.median_ms / there) ** sisters().weight(relation, "gpu")  # type: ignore[arg-type]
    before, after = (row_of(made) for made in (plain, fed))
    assert after.models[0].latency_ms == pytest.approx(before.models[0].latency_ms * factor, rel=0.01)
    assert Measured(relation, ()).bar(0.9, "tegra234", "gpu", "fp16") < 0.9  # type: ignore[arg-type]
    # A model that takes less of a frame leaves more of it to the processor's stages, whose bars are wider.
    assert after.error <= before.error or factor < 1
    assert "as orin-nx-16gb in 15W took" in after.models[0].measured and not before.models[0].measured
    assert any(f"gpu × {factor:.2f}" in note and f"(on {board})" in note for note in fed.notes)
    assert to_json(fed)["boards"][0]["rows"][0]["models"][0]["measured"].startswith("gpu ×")


@pytest.mark.slow
def test_of_all_boards_only_those_of_the_chip_are_corrected(tmp_path: Path) -> None:
    file = of_pipeline(tmp_path)
    path = of_this_file(file, finished(tmp_path, ALL_GPU, precision="fp16"))
    fed = plan(file, board="all", profiles=[path])
    changed = {one.board for one in fed.boards for row in one.rows if row.models[0].measured}
    assert {"agx-orin-64gb", "orin-nano-8gb", "orin-nx-16gb-super"} < changed
    assert not [name for name in changed if name.startswith(("thor", "xavier", "agx-xavier", "jetson"))]


@pytest.mark.parametrize(
    ("board", "precision", "changes", "why"),
    [
        ("thor-t5000", "fp16", {}, "measured on orin-nx-16gb (tegra234); the plan is for thor-t5000"),
        ("orin-nx-16gb", "int8", {}, "was measured in INT8 and is planned in FP16"),
        ("orin-nano-8gb", "fp16", {"dla": True}, "partly on a DLA, which orin-nano-8gb lacks"),
    ],
)
def test_a_profile_that_tells_nothing_is_refused(
    tmp_path: Path, board: str, precision: str, changes: dict[str, bool], why: str
) -> None:
    file = of_pipeline(tmp_path)
    engines = () if changes else (ALL_GPU,)
    path = of_this_file(file, finished(tmp_path, *engines, precision=precision))
    with pytest.raises(ConfigError, match="can use no part of the profile") as caught:
        plan(file, board=board, profiles=[path])
    assert why in caught.value.why and caught.value.where == "--profile"


@pytest.mark.parametrize("change", [{"board": "orin-nx-99gb"}, {"mode": "11W"}, {"board": "", "mode": ""}])
def test_a_place_that_nobody_knows_is_refused(change: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="names a board or mode that edgert does not know") as caught:
        measured_place(changed(ENGINE, **change))
    assert "orin-nx" in caught.value.why or "no board ''" in caught.value.why


def test_clocks_below_those_of_the_mode_are_another_mode(tmp_path: Path) -> None:
    from edgert.board.record import board

    (subject,) = planned_models(of_pipeline(tmp_path))
    at = board("orin-nx-16gb")
    engine = changed(ENGINE, precision=subject.precision)
    for clocks, where in (({}, "here"), ({"gpu_mhz": 612.0}, "here"), ({"gpu_mhz": 306.0}, "mode")):
        found = nearest_measurements(subject, at, at.mode("15W"), [changed(engine, clocks=clocks)])
        assert found is not None and found.where == where
    assert nearest_measurements(subject, at, at.mode("15W"), [changed(engine, model="other")]) is None


def test_another_dla_core_is_as_fast_as_the_measured_one() -> None:
    conv = Unit("conv", ("conv",), {"gpu": Cost(1.0), "dla0": Cost(2.0), "dla1": Cost(4.0)})
    network = replace(NETWORK, units=(conv, NETWORK.units[1]))
    both = changed(ENGINE, placement={"dla0": ["conv"]}, median_ms=5.0)  # predicted: 2.5
    assert scale_units(network, [both]).units[0].costs["dla1"].time_ms == 8.0


def test_of_a_sister_only_a_part_is_taken() -> None:
    slower = replace(NETWORK, units=tuple(replace(one, costs={"gpu": Cost(3.0)}) for one in NETWORK.units))
    made = scale_units(NETWORK, [changed(ENGINE, median_ms=24.0)], lambda _: slower, lambda _: 0.5)  # 4 × predicted
    assert [unit.costs["gpu"].time_ms for unit in made.units] == [2.0, 1.0]
    timed = changed(ENGINE, median_ms=24.0, layers=layers(("conv", 6.0), ("relu", 18.0)))  # 2 and 6 times as long
    made = scale_units(NETWORK, [timed], lambda _: slower, lambda _: 0.5)
    assert [unit.costs["gpu"].time_ms for unit in made.units] == [1.0, 1.5]


def test_times_of_another_model_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="another model 'parts'"):
        plan(of_pipeline(tmp_path), board="orin-nx-16gb", mode="15W", profiles=[finished(tmp_path)])
