"""Times of engines that ran on a board, fed back into plans."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from edgert.bundle.bundle import open_bundle, save_bundle
from edgert.bundle.measured_engines import MeasuredEngine, MeasuredLayer, read_measured
from edgert.compiler.finish import finish
from edgert.errors import ArtifactError, ConfigError
from edgert.graph import load
from edgert.placement.problem import Cost, Network, Unit
from edgert.planner import plan
from edgert.planner.planned_model import factors_of, scaled, times_of
from tests.helpers.trt_bench import ORIN
from tests.helpers.trt_bundle import PIPELINE, bench, engine, trt_bundle

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
ENGINE = MeasuredEngine("parts", "0" * 64, "orin-nx-16gb", "15W", {}, 3.0, 30)


def finished(folder: Path, *engines: dict[str, Any], **script: Any) -> Path:
    path = folder / "out.edgert"
    finish(trt_bundle(folder / "dock.edgert", *engines), path, machine=ORIN, trt=bench(**script).backend)
    return path


def layers(*each: tuple[str, float], moves: float = 0.0) -> tuple[MeasuredLayer, ...]:
    """One for each (nodes, milliseconds), nodes in one text; and one that hands tensors over."""
    timed = tuple(MeasuredLayer(tuple(nodes.split()), ms) for nodes, ms in each)
    return (*timed, MeasuredLayer((), moves, is_reformat=True)) if moves else timed


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("EDGERT_CACHE", str(tmp_path / "cache"))


def test_a_finished_bundle_tells_what_it_measured(tmp_path: Path) -> None:
    (found,) = read_measured(finished(tmp_path))
    assert (found.model, found.board, found.mode) == ("parts", "orin-nx-16gb", "15W")
    assert found.placement == {"conv": "dla0"} and found.median_ms > 0 and found.runs == 30


def test_a_bundle_that_was_not_finished_has_nothing_to_tell(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"no engine of .* was timed") as caught:
        read_measured(trt_bundle(tmp_path / "dock.edgert"))
    assert "edgert build BUNDLE" in caught.value.fix


@pytest.mark.parametrize(("name", "why"), [("absent.json", "there is no such file"), ("p.json", "it is not a bundle")])
def test_only_a_bundle_has_times_of_a_board(tmp_path: Path, name: str, why: str) -> None:
    (tmp_path / "p.json").write_text("{}")
    with pytest.raises(ConfigError, match=rf"no times of a board in '.*{name}'") as caught:
        read_measured(tmp_path / name)
    assert (caught.value.why, caught.value.where) == (why, "--profile")
    assert "bench --units writes is for --board host" in caught.value.fix


def test_units_are_scaled_where_the_engine_ran() -> None:
    assert factors_of(NETWORK, [ENGINE]) == {"gpu": 2.0}
    conv, relu = scaled(NETWORK, [ENGINE]).units
    assert (conv.costs["gpu"].time_ms, conv.costs["dla0"].time_ms, relu.costs["gpu"].time_ms) == (2.0, 2.0, 1.0)


def test_an_engine_on_both_scales_both_and_the_median_counts() -> None:
    both = replace(ENGINE, placement={"conv": "dla0"}, median_ms=5.0)
    assert factors_of(NETWORK, [both]) == {"gpu": 2.0, "dla0": 2.0}
    assert factors_of(NETWORK, [both, replace(ENGINE, median_ms=6.0)])["gpu"] == 3.0


def test_units_take_what_their_layers_took_and_together_what_the_engine_did() -> None:
    timed = replace(ENGINE, layers=layers(("conv", 0.5), ("relu", 1.5)))
    assert times_of(NETWORK, [timed]) == {(0, "gpu"): 0.75, (1, "gpu"): 2.25}  # 3 ms, of which layers took 2
    conv, relu = scaled(NETWORK, [timed]).units
    assert (conv.costs["gpu"].time_ms, relu.costs["gpu"].time_ms) == (0.75, 2.25)
    assert conv.costs["dla0"].time_ms == 2.0  # nobody measured it there


def test_a_layer_of_several_units_is_shared_as_predicted() -> None:
    timed = replace(ENGINE, layers=layers(("conv relu", 3.0)))
    assert times_of(NETWORK, [timed]) == {(0, "gpu"): 2.0, (1, "gpu"): 1.0}


def test_a_unit_of_several_layers_has_their_sum() -> None:
    network = replace(NETWORK, units=(Unit("conv", ("conv", "bias"), {"gpu": Cost(1.0)}), NETWORK.units[1]))
    timed = replace(ENGINE, layers=layers(("conv", 1.0), ("bias", 0.5), ("relu", 1.5)))
    assert times_of(network, [timed]) == {(0, "gpu"): 1.5, (1, "gpu"): 1.5}


def test_a_unit_whose_name_is_lost_is_as_fast_as_the_others() -> None:
    timed = replace(ENGINE, layers=layers(("conv", 2.0), ("", 1.0)))
    assert times_of(NETWORK, [timed]) == {(0, "gpu"): 2.0, (1, "gpu"): 1.0}


def test_without_any_name_one_factor_is_left() -> None:
    timed = replace(ENGINE, layers=layers(("", 2.0)))
    assert times_of(NETWORK, [timed]) == {}
    assert scaled(NETWORK, [timed]) == scaled(NETWORK, [ENGINE])


def test_layers_without_any_time_tell_nothing() -> None:
    assert times_of(NETWORK, [replace(ENGINE, layers=layers(("conv", 0.0), ("relu", 0.0)))]) == {}


def test_handing_over_is_not_counted_twice() -> None:
    """A plan counts transitions by themselves, but knows of none where there is one accelerator."""
    both = replace(ENGINE, placement={"conv": "dla0"}, layers=layers(("conv", 2.0), ("relu", 1.0), moves=1.0))
    assert sum(times_of(NETWORK, [both]).values()) == pytest.approx(3.0 * 3 / 4)
    assert sum(times_of(NETWORK, [replace(both, placement={})]).values()) == pytest.approx(3.0)


def test_a_finished_bundle_tells_its_layers(tmp_path: Path) -> None:
    path = finished(tmp_path, layer_ms=[("conv", 0.25), ("relu", 0.125)], **INSPECTED)
    (found,) = read_measured(path)
    assert found.layers == layers(("conv", 0.25), ("relu", 0.125))


def test_nodes_that_tensorrt_moved_are_measured_where_they_ran(tmp_path: Path) -> None:
    (found,) = read_measured(finished(tmp_path, **INSPECTED))
    assert found.placement == {}


def test_without_measurements_nothing_changes() -> None:
    assert scaled(NETWORK, []) is NETWORK


def planned(folder: Path) -> Any:
    """The pipeline of the small bundle, its model beside it."""
    from edgert.config import load_pipeline
    from edgert.graph import to_bytes
    from tests.helpers.trt_bundle import model

    (folder / "models/parts").mkdir(parents=True, exist_ok=True)
    (folder / "models/parts/model.onnx").write_bytes(to_bytes(model()))
    (folder / "p.yaml").write_text(PIPELINE)
    return load_pipeline(folder / "p.yaml")


def test_a_plan_takes_them(tmp_path: Path) -> None:
    file = planned(tmp_path)
    path = finished(tmp_path, engine({"conv": "gpu", "relu": "gpu"}))
    with open_bundle(path) as opened:
        manifest, content = opened.manifest, {name: opened.read(name) for name in opened.manifest.members}
    entry = manifest.models["parts"].model_copy(update={"digest": load(file.config.models["parts"].onnx).digest})
    save_bundle(path, manifest.model_copy(update={"models": {"parts": entry}}), content)
    plain, fed = (plan(file, board="orin-nx-16gb", mode="15W", profiles=given) for given in ((), (path,)))
    (measured,) = read_measured(path)
    assert any(f"{measured.median_ms:.2f} ms measured (30 runs)" in note for note in fed.notes)
    rows = [next(row for row in made.boards[0].rows if row.name == "gpu") for made in (plain, fed)]
    before, after = (row.models[0].latency_ms for row in rows)
    assert after != before and after == pytest.approx(measured.median_ms, rel=0.01)


def test_times_of_another_model_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="another model 'parts'"):
        plan(planned(tmp_path), board="orin-nx-16gb", mode="15W", profiles=[finished(tmp_path)])
