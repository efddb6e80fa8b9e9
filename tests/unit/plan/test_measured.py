"""Times of engines that ran on a board, fed back into plans."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from edgert.artifact.bundle import open_bundle, save_bundle
from edgert.build.finish import finish
from edgert.errors import ArtifactError, ConfigError
from edgert.graph.load import load
from edgert.place.problem import Cost, Network, Unit
from edgert.plan import plan
from edgert.plan.measured import MeasuredEngine, factors_of, read_measured, scaled
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
ENGINE = MeasuredEngine("parts", "0" * 64, "orin-nx-16gb", "15W", {}, 3.0, 30)


def finished(folder: Path, *engines: dict[str, Any]) -> Path:
    path = folder / "out.edgert"
    finish(trt_bundle(folder / "dock.edgert", *engines), path, machine=ORIN, trt=bench().backend)
    return path


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


def test_units_are_scaled_where_the_engine_ran() -> None:
    assert factors_of(NETWORK, [ENGINE]) == {"gpu": 2.0}
    conv, relu = scaled(NETWORK, [ENGINE]).units
    assert (conv.costs["gpu"].time_ms, conv.costs["dla0"].time_ms, relu.costs["gpu"].time_ms) == (2.0, 2.0, 1.0)


def test_an_engine_on_both_scales_both_and_the_median_counts() -> None:
    both = replace(ENGINE, placement={"conv": "dla0"}, median_ms=5.0)
    assert factors_of(NETWORK, [both]) == {"gpu": 2.0, "dla0": 2.0}
    assert factors_of(NETWORK, [both, replace(ENGINE, median_ms=6.0)])["gpu"] == 3.0


def test_without_measurements_nothing_changes() -> None:
    assert scaled(NETWORK, []) is NETWORK


def planned(folder: Path) -> Any:
    """The pipeline of the small bundle, its model beside it."""
    from edgert.config import load_pipeline
    from edgert.graph.model import to_bytes
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
