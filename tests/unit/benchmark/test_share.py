"""What a board measured, written so that anybody may have it, and read again by plans."""

import getpass
import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from edgert.benchmark.share import lines, share
from edgert.bundle import shared_profile
from edgert.bundle.bundle import open_bundle, save_bundle
from edgert.bundle.shared_profile import SharedProfile, read_shared_profile
from edgert.cli import app
from edgert.compiler.finish import finish
from edgert.errors import ArtifactError, ConfigError
from edgert.planner import measured_times, plan
from edgert.planner.plan_text import basis
from edgert.planner.planned_model import planned_models, structure_of
from edgert.planner.simulation import Scenario, simulate
from edgert.zip_archive import member_of
from tests.helpers.errors import Exactly, raises
from tests.helpers.models import make, node
from tests.helpers.trt_bench import HERE, ORIN
from tests.helpers.trt_bundle import PIPELINE, bench, engine, finished, of_pipeline, trt_bundle

ALL_GPU = engine({"conv": "gpu", "relu": "gpu"})
ON_GPU = [{"Name": name, "LayerType": "CaskConvolution"} for name in ("conv", "relu")]
SCRIPT: dict[str, Any] = {
    "answer": {"inspector": json.dumps({"Layers": ON_GPU})},
    "layer_ms": [("conv", 0.25), ("relu", 0.125)],
}


pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture(name="finished")
def fp16_bundle(tmp_path: Path) -> Path:
    """A bundle that an Orin NX finished, in FP16; its layers took some time of runs that take next to none."""
    return slowed(finished(tmp_path, ALL_GPU, precision="fp16", **SCRIPT), 0.5)


def rewritten(path: Path, change: Callable[[str, bytes], bytes]) -> Path:
    """The bundle with every member changed."""
    with open_bundle(path) as opened:
        manifest = opened.manifest
        content = {name: change(name, opened.read(name)) for name in manifest.members}
    listed = {name: member_of(data) for name, data in content.items()}
    save_bundle(path, manifest.model_copy(update={"members": listed}), content)
    return path


def slowed(path: Path, median_ms: float) -> Path:
    """The bundle with runs of so many milliseconds, whatever the doubles took here."""

    def change(name: str, data: bytes) -> bytes:
        if not name.endswith("engine_checks.json"):
            return data
        checks = json.loads(data)
        checks["profile"]["median_ms"] = median_ms
        return json.dumps(checks).encode()

    return rewritten(path, change)


def written(found: SharedProfile, path: Path) -> Path:
    path.write_text(json.dumps(found.to_json()))
    return path


def test_it_has_what_was_measured_and_can_be_read_again(finished: Path, tmp_path: Path) -> None:
    found = share(finished)
    assert (found.board, found.mode, found.software.jetpack) == ("orin-nx-16gb", "15W", "6.2")
    assert found.software.tensorrt.startswith("10.3") and found.clocks["gpu_mhz"] == 612
    (one,) = found.models
    assert (one.precision, one.frames, one.nodes) == ("fp16", 1, 2) and one.macs == 3 * 3 * 9 * 64
    (timed,) = one.engines
    assert (timed.runs, timed.median_ms, len(timed.quantiles)) == (30, 0.5, 25)
    assert [(layer.nodes, layer.median_ms) for layer in timed.layers] == [([0], 0.25), ([1], 0.125)]
    assert read_shared_profile(written(found, tmp_path / "p.json")) == found
    assert any("0.50 ms, p99" in line and "30 runs" in line for line in lines(found))


def test_of_an_int8_engine_it_has_what_a_plan_knows_the_model_by(tmp_path: Path) -> None:
    """The bundle's pipeline runs a quantized form; profiles are of the model that was quantized."""
    path = finished(tmp_path, ALL_GPU)
    form = PIPELINE.replace("models/parts/model.onnx", "models/parts/gpu.onnx")
    (one,) = share(with_pipeline(slowed(path, 0.5), form)).models
    (subject,) = planned_models(of_pipeline(tmp_path / "other"))
    assert (one.precision, one.structure, one.nodes) == ("int8", subject.structure, 2)


def test_it_names_nobody(finished: Path) -> None:
    text = json.dumps(share(finished).to_json())
    names = [socket.gethostname(), getpass.getuser(), str(finished.parent), str(Path.home()), "parts", "conv", "relu"]
    assert not [name for name in [*names, "dock", "127.0.0.1", "serial", "GPU-"] if name in text]


def test_a_plan_takes_it_for_the_board_and_its_sisters(finished: Path, tmp_path: Path) -> None:
    file, path = of_pipeline(tmp_path / "other"), written(share(finished), tmp_path / "p.json")
    made = plan(file, board="orin-nx-16gb", mode="15W", profiles=[path])
    row = next(row for row in made.boards[0].rows if row.name == "gpu")
    assert row.models[0].latency_ms == pytest.approx(0.5, rel=0.01)
    assert "0.50 ms measured (30 runs, 2 layers timed)" in row.models[0].measured
    assert "as measured or corrected" in basis(made.boards[0])
    played = simulate(file, board="orin-nx-16gb", profiles=[path], scenario=Scenario(seconds=1.0))
    assert "measured or corrected by measurements" in played.basis and any(
        "0.50 ms measured" in note for note in played.notes
    )
    conv, relu = row.models[0].network.units[0], row.models[0].network.units[-1]
    assert conv.costs["gpu"].time_ms > 0 and relu.costs["gpu"].time_ms > 0
    sister = plan(file, board="orin-nano-8gb", profiles=[path])
    assert "as orin-nx-16gb in 15W took" in sister.boards[0].rows[0].models[0].measured


def test_what_stands_in_the_folder_is_taken_without_being_asked_for(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, found = of_pipeline(tmp_path / "other"), share(finished)
    monkeypatch.setattr("edgert.planner.planning.shipped_profiles", lambda: (found,))
    made = plan(file, board="orin-nx-16gb", mode="15W")
    assert any("0.50 ms measured" in note for note in made.notes)
    own = written(found.model_copy(update={"models": [twice_as_slow(found)]}), tmp_path / "own.json")
    made = plan(file, board="orin-nx-16gb", mode="15W", profiles=[own])  # what is asked for goes first
    assert any("1.00 ms measured" in note for note in made.notes)
    made = plan(file, board="orin-nx-16gb", mode="MAXN", profiles=[own])
    assert made.boards[0].rows[0].models[0].measured.startswith("gpu ×")


def twice_as_slow(found: SharedProfile) -> shared_profile.Model:
    (one,) = found.models
    return one.model_copy(update={"engines": [one.engines[0].model_copy(update={"median_ms": 1.0, "layers": []})]})


def test_the_folder_is_configs_costs(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "configs/costs").mkdir(parents=True)
    written(share(finished), tmp_path / "configs/costs/orin-nx.json")
    monkeypatch.setattr(shared_profile, "data_folder", lambda name: tmp_path / name)
    shared_profile.shipped_profiles.cache_clear()
    try:
        assert [one.board for one in shared_profile.shipped_profiles()] == ["orin-nx-16gb"]
    finally:
        shared_profile.shipped_profiles.cache_clear()


def test_networks_that_differ_in_weights_and_names_alone_are_one(tmp_path: Path) -> None:
    import numpy as np

    from edgert.graph import read

    def structure(names: tuple[str, str], weights: float, pads: int = 1) -> str:
        nodes = [
            node("Conv", ["x", "w"], ["t"], name=names[0], pads=[pads] * 4),
            node("Relu", ["t"], ["y"], name=names[1]),
        ]
        size = 6 + 2 * pads
        ends = {"x": (1, 3, 8, 8)}, {"y": (1, 3, size, size)}
        return structure_of(read(make(nodes, *ends, {"w": np.full((3, 3, 3, 3), weights, np.float32)})))

    first = structure(("a", "b"), 0.5)
    assert first == structure(("c", "d"), 0.25) and first != structure(("a", "b"), 0.5, pads=0)


def test_of_the_same_file_in_another_form_only_the_whole_counts(finished: Path, tmp_path: Path) -> None:
    file, found = of_pipeline(tmp_path / "other"), share(finished)
    subjects, (one,) = planned_models(file), found.models
    other = one.model_copy(update={"structure": "c" * 64, "digest": planned_digest(file)})
    (whole,) = measured_times.engines_of_profile(found.model_copy(update={"models": [other]}), subjects, "p.json")
    assert whole.median_ms == 0.5 and not whole.layers and not whole.placement
    stranger = one.model_copy(update={"structure": "c" * 64, "digest": "d" * 64})
    path = written(found.model_copy(update={"models": [stranger]}), tmp_path / "p.json")
    with raises(ConfigError, "can use no part of the profile", why="has other models than parts"):
        plan(file, board="orin-nx-16gb", profiles=[path])


def planned_digest(file: Any) -> str:
    from edgert.graph import load

    return load(file.config.models["parts"].onnx).digest


def test_work_that_the_model_does_not_do_is_refused(finished: Path, tmp_path: Path) -> None:
    file, found = of_pipeline(tmp_path / "other"), share(finished)
    (one,) = found.models
    path = written(found.model_copy(update={"models": [one.model_copy(update={"macs": 7})]}), tmp_path / "p.json")
    with raises(ArtifactError, "7 multiply-adds for a model that has 5184", where=Exactly(str(path))):
        plan(file, board="orin-nx-16gb", profiles=[path])


def test_it_tells_nothing_of_this_machine(finished: Path, tmp_path: Path) -> None:
    path = written(share(finished), tmp_path / "p.json")
    with raises(ArtifactError, "cannot read profile", why="no times of this machine"):
        plan(of_pipeline(tmp_path / "other"), board="host", profiles=[path])


def test_another_chip_is_refused(finished: Path, tmp_path: Path) -> None:
    path = written(share(finished), tmp_path / "p.json")
    with raises(ConfigError, "can use no part of the profile", why="the plan is for xavier-nx-8gb (tegra194)"):
        plan(of_pipeline(tmp_path / "other"), board="xavier-nx-8gb", profiles=[path])


DRAWN = PIPELINE.replace('  out: {sink: "null", from: look}', "  out: {sink: jsonl, path: out.jsonl, from: look}")


def test_stages_of_a_run_are_in_it_and_correct_the_same_on_boards_of_that_processor(
    finished: Path, tmp_path: Path
) -> None:
    from edgert.board.record import board
    from edgert.simulator.board_stages import board_stages

    file = of_pipeline(tmp_path / "other", DRAWN)
    at = board("orin-nx-16gb")
    usual_ms = board_stages(file, at, at.mode("15W"), profiles=()).own["out"][0].time_ms
    found = share(finished).model_copy(
        update={"stages": [shared_profile.Stage(kind="jsonl", megapixels=64 * 64 / 1e6, ms=3 * usual_ms, results=900)]}
    )
    for name, factor in (("orin-nx-16gb", 3.0), ("agx-orin-64gb", 3.0), ("xavier-nx-8gb", 1.0)):
        one = board(name)
        before, after = (board_stages(file, one, one.usual_mode, profiles=given) for given in ((), (found,)))
        assert after.own["out"][0].time_ms == pytest.approx(factor * before.own["out"][0].time_ms)
        assert any("jsonl: corrected by what was measured on orin-nx-16gb" in note for note in after.notes) == (
            factor != 1.0
        )


def test_a_summary_of_the_pipeline_gives_its_stages(finished: Path, tmp_path: Path) -> None:
    bundle = with_pipeline(finished, DRAWN)
    run = tmp_path / "run.json"
    run.write_text(json.dumps({"stages": {"out": {"busy_ms_per_result": 0.25, "results_in": 600}}}))
    (stage,) = share(bundle, run).stages
    assert (stage.kind, stage.ms, stage.results, stage.megapixels) == ("jsonl", 0.25, 600, 0.004)
    run.write_text(json.dumps({"stages": {"paint": {"busy_ms_per_result": 0.25, "results_in": 600}}}))
    with pytest.raises(ConfigError, match="summary belongs to another pipeline"):
        share(bundle, run)
    run.write_text("{}")
    with pytest.raises(ConfigError, match="not a summary of a run"):
        share(bundle, run)


def with_pipeline(path: Path, text: str) -> Path:
    return rewritten(path, lambda name, data: text.encode() if name == "pipeline.yaml" else data)


def test_caps_that_are_set_now_are_its_clocks(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgert.benchmark.share.detect", lambda root: ORIN)
    gpu, cpu = tmp_path / "sys/class/devfreq/17000000.gpu", tmp_path / "sys/devices/system/cpu/cpu0/cpufreq"
    for folder in (gpu / "device/of_node", cpu):
        folder.mkdir(parents=True)
    (gpu / "device/of_node/name").write_text("gpu\0")
    (gpu / "max_freq").write_text("408000000")
    (cpu / "scaling_max_freq").write_text("1190400")
    assert share(finished, root=tmp_path).clocks == {
        "cpu_mhz": 1190.4, "gpu_mhz": 408.0, "emc_mhz": 3199.0, "dla_mhz": 614.4
    }  # fmt: skip


def test_times_of_no_board_are_not_shared(tmp_path: Path) -> None:
    path = tmp_path / "out.edgert"
    made = trt_bundle(tmp_path / "dock.edgert", ALL_GPU, precision="fp16", board="host", mode="")
    finish(made, path, machine=HERE, trt=bench(machine=HERE, **SCRIPT).backend)
    with pytest.raises(ConfigError, match="of no known board"):
        share(path)


def test_only_bundles_are_shared(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text("name: p")
    for name, why in (("p.yaml", "it is not a bundle"), ("absent.onnx", "there is no such file")):
        with raises(ConfigError, "cannot share measurements of", why=Exactly(why), fix="--share FILE"):
            share(tmp_path / name)
    with pytest.raises(ArtifactError, match="there is no bundle"):
        share(tmp_path / "absent.edgert")


def test_a_bundle_that_nobody_timed_has_nothing_to_share(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"no engine of .* was timed"):
        share(trt_bundle(tmp_path / "dock.edgert"))


def test_the_command_writes_and_checks(finished: Path, tmp_path: Path) -> None:
    path, runner = tmp_path / "p.json", CliRunner()
    made = runner.invoke(app, ["bench", str(finished), "--share", str(path)])
    assert made.exit_code == 0 and read_shared_profile(path).board == "orin-nx-16gb"
    assert runner.invoke(app, ["bench", str(path)]).exit_code == 0
    path.write_text(path.read_text().replace("0.5", "0.4"))
    assert isinstance(runner.invoke(app, ["bench", str(path)]).exception, ArtifactError | SystemExit)
    assert runner.invoke(app, ["bench", "hello", "--run", "run.json"]).exit_code == 2
    assert runner.invoke(app, ["bench", str(finished), "--share", str(path), "--units"]).exit_code == 2
