"""`edgert build --tune` with real engines, and bundles that run as they were tuned, or say why not."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from edgert.bundle.bundle import open_bundle, save_bundle
from edgert.compiler.build_pipeline import build
from edgert.compiler.unpack import tuned_model, unpacked
from edgert.config import InferStage, ModelConfig, PipelineFile, load_pipeline
from edgert.config.model_section import TuningConfig
from edgert.errors import ArtifactError, BudgetError, BuildError, ConfigError
from edgert.inspect_model import inspect_bundle
from edgert.pipeline import Pipeline
from edgert.reporter import Progress
from edgert.steps import to_json
from edgert.tuner import candidates, memory_use, rounds, tactic_search
from edgert.tuner.candidates import Tactic
from edgert.tuner.memory_use import Footprint, footprint
from edgert.tuner.trials import Tuned
from edgert.zip_archive import member_of
from tests.helpers.errors import raises
from tests.helpers.small_pipeline import TEXT, small_pipeline

AUTO = TEXT.replace("precision: int8", "precision: auto")


@pytest.fixture(autouse=True, scope="module")
def quick() -> Iterator[None]:
    """Few turns, and no child process for every tactic: what they do is tested by itself."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tactic_search, "_LONG", 15)
        patch.setattr(tactic_search, "MOST_ROUNDS", 15)
        patch.setattr(rounds, "_RUN_MS", 0.1)
        patch.setattr(memory_use, "footprint", lambda *given: Footprint(2**27, 2**20))
        yield


@pytest.fixture(scope="module")
def made(quick: None, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Progress]]:
    """A tuned bundle beside the cache of its build, and what was told of the build."""
    return tune(tmp_path_factory.mktemp("tuned"))


@pytest.fixture
def bundle(made: tuple[Path, list[Progress]], tmp_path: Path) -> Path:
    """A copy of the tuned bundle for one test, with the cache in the folder of the test."""
    shutil.copytree(made[0].parent, tmp_path, dirs_exist_ok=True)
    return tmp_path / made[0].name


def tune(folder: Path, text: str = AUTO, **options: object) -> tuple[Path, list[Progress]]:
    events: list[Progress] = []
    path = small_pipeline(folder, text)
    output = folder / "small.edgert"
    given = {"board": "host", "tune": True, "cache": folder / "cache", **options}
    build(load_pipeline(path), output, on_progress=events.append, **given)  # type: ignore[arg-type]
    return output, events


def with_member(path: Path, changed: Callable[[bytes], bytes]) -> None:
    """Change what a bundle says of how its model was tuned."""
    with open_bundle(path) as bundle:
        member = bundle.manifest.models["parts"].files["tune"]
        members = {name: bundle.read(name) for name in bundle.manifest.members}
        members[member] = changed(members[member])
        listed = {name: member_of(content) for name, content in members.items()}
        manifest = bundle.manifest.model_copy(update={"members": listed})
    save_bundle(path, manifest, members)


def with_tactic(path: Path, tuned: Tuned) -> None:
    with_member(path, lambda _: to_json(tuned.to_json()))


def test_a_bundle_is_tuned_once(made: tuple[Path, list[Progress]], bundle: Path, tmp_path: Path) -> None:
    (tuned,) = inspect_bundle(bundle).tuned.values()
    assert tuned.gain >= 1.0 and not tuned.live
    ran = {trial.tactic for trial in tuned.tried if trial.frame is not None}
    assert {one.form for one in ran} == {"float", "ort"} and tuned.default in ran
    assert any(event.step == "tune" and event.state == "done" for event in made[1])
    _, again = tune(tmp_path)
    assert [event.state for event in again if event.step == "tune"] == ["started", "cached"]


def test_what_was_measured_serves_other_budgets(bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (kept,) = (tmp_path / "cache/state").glob("timings-*.json")

    def measured(*given: object) -> object:
        raise AssertionError("this was measured before")

    monkeypatch.setattr(tactic_search, "run_round", measured)
    monkeypatch.setattr(memory_use, "footprint", measured)
    before, tuned = kept.read_text(), inspect_bundle(bundle).tuned["parts"]
    path, events = tune(tmp_path, f"{AUTO}budgets: {{latency: 10s}}\n")
    assert [event.state for event in events if event.step == "tune"][-1] == "done"
    assert inspect_bundle(path).tuned["parts"] == tuned and kept.read_text() == before


@pytest.mark.usefixtures("bundle")
def test_what_tensorrt_is_told_is_measured_apart(tmp_path: Path) -> None:
    """Its engines are others then: what was measured of the ones before does not hold."""
    _, events = tune(tmp_path, AUTO.replace("precision: auto", "precision: auto\n    tensorrt: {workspace: 64MiB}"))
    assert [event.state for event in events if event.step == "tune"][-1] == "done"
    assert len(list((tmp_path / "cache/state").glob("timings-*.json"))) == 2


def test_what_cannot_be_searched_here_is_said(bundle: Path) -> None:
    (tuned,) = inspect_bundle(bundle).tuned.values()
    assert tuned.left_out["batches"] == "no stage sets batch:"
    assert "once per process" in tuned.left_out["denormal numbers"]
    backends = {trial.tactic.backend for trial in tuned.tried}
    for name in ("openvino", "onnxruntime-cuda", "tensorrt"):
        assert (name in tuned.left_out) != (name in backends)


def test_a_tuned_bundle_runs_as_it_says(bundle: Path) -> None:
    (tuned,) = inspect_bundle(bundle).tuned.values()
    with_less_memory = Tactic(
        "ort", "float", 2, 1, True, TuningConfig(optimization="basic", arena=False, prepacking=False)
    )
    with_tactic(bundle, replace(tuned, chosen=with_less_memory, gain=1.5, runs=30))
    with unpacked(bundle) as found:
        model = found.file.config.models["parts"]
        assert model.onnx.name == "model.onnx" and model.replicas == 2
        assert not model.tuning.arena and model.tuning.optimization == "basic"
        assert found.tuned[0].startswith(f"model parts runs as tuned: {with_less_memory}: 1.50 ×")
        with Pipeline(found.file) as pipeline:
            pipeline.submit(np.zeros((24, 24, 3), np.uint8))
            pipeline.finish()
            pipeline.run()
            nodes = [node.name for node in pipeline._assembly.tasks]
        assert len([name for name in nodes if name.startswith("find")]) >= 2


def test_elsewhere_the_default_runs_and_it_is_said(bundle: Path) -> None:
    (tuned,) = inspect_bundle(bundle).tuned.values()
    with_less_memory = replace(tuned.default, tuning=TuningConfig(arena=False))
    with_tactic(bundle, replace(tuned, chosen=with_less_memory, machine={**tuned.machine, "cpu": "Z80"}))
    with unpacked(bundle) as found:
        assert found.file.config.models["parts"].tuning.arena
        assert "cpu Z80 →" in found.tuned[0] and "default engine runs" in found.tuned[0]
    with_tactic(bundle, replace(tuned, chosen=with_less_memory))
    with unpacked(bundle, ["stages.cam.source=/dev/video0"]) as found:
        assert found.file.config.models["parts"].tuning.arena
        assert "tuned for files, and this runs on cameras" in found.tuned[0]
    with unpacked(bundle, ["models.parts.tuning.spinning=false"]) as found:
        assert not found.file.config.models["parts"].tuning.spinning  # what the user says goes above all


def test_a_tactic_that_cannot_be_read_is_refused(bundle: Path) -> None:
    def without_choice(content: bytes) -> bytes:
        data = json.loads(content)
        del data["chosen"]
        return to_json(data)

    with_member(bundle, without_choice)
    with open_bundle(bundle) as opened, raises(ArtifactError, "how model 'parts' was tuned", fix="--tune"):
        tuned_model(opened, "parts")


def test_what_is_not_accurate_is_never_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from edgert.tuner.rounds import Candidate

    true = Candidate.outputs

    def spoiled(self: Candidate) -> Mapping[str, np.ndarray]:
        found = true(self)
        return {name: array * 2 for name, array in found.items()} if self.tactic.form == "float" else found

    monkeypatch.setattr(Candidate, "outputs", spoiled)
    path, _ = tune(tmp_path)
    (tuned,) = inspect_bundle(path).tuned.values()
    wrong = [trial for trial in tuned.tried if trial.tactic.form == "float" and trial.tactic.backend == "ort"]
    assert wrong and all("relative error 1, at most 0.00" in trial.excluded for trial in wrong)
    assert tuned.chosen.form == "ort"


def test_a_board_cannot_be_measured_here(tmp_path: Path) -> None:
    with raises(ConfigError, "cannot measure orin-nx-16gb here", fix="--board host"):
        tune(tmp_path, board="orin-nx-16gb")


def test_a_placement_that_is_written_is_not_searched_for(tmp_path: Path) -> None:
    path, events = tune(tmp_path, AUTO.replace("precision: auto", "precision: auto\n    placement: cpu0"))
    assert inspect_bundle(path).tuned == {}
    (tuned,) = [event for event in events if event.step == "tune"]
    assert (tuned.state, tuned.detail) == ("skipped", "its placement is written in the pipeline file")


def test_budgets_that_nothing_keeps(tmp_path: Path) -> None:
    with raises(BudgetError, "meets the budgets", why="the closest is"):
        tune(tmp_path, f"{AUTO}budgets: {{memory: 100MiB}}\n")


def test_memory_is_that_of_a_process_of_its_own(tmp_path: Path) -> None:
    path = small_pipeline(tmp_path)
    config = load_pipeline(path).config.models["parts"]
    found = footprint(Tactic("ort", "float", 2, 1), tmp_path / "parts.onnx", config)
    assert found.base_bytes > 20 * 2**20 and 0 < found.engine_bytes < 200 * 2**20
    sized = config.input.model_copy(update={"size": (16, 16)})
    assert footprint(Tactic("ort", "float", 1, 1), tmp_path / "parts.onnx", config.model_copy(update={"input": sized}))
    with pytest.raises(BuildError, match="no backend"):
        footprint(Tactic("abacus", "float", 1, 1), tmp_path / "parts.onnx", ModelConfig(**dict(config)))


def test_a_backend_that_only_seemed_to_be_there_is_out_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    truly = candidates.why_not("onnxruntime-cuda")
    if not truly:
        pytest.skip("onnxruntime-cuda is here")
    monkeypatch.setattr(candidates, "why_not", lambda backend: "" if backend == "onnxruntime-cuda" else "not asked for")
    (tuned,) = inspect_bundle(tune(tmp_path)[0]).tuned.values()
    found = {trial.excluded for trial in tuned.tried if trial.tactic.backend == "onnxruntime-cuda"}
    assert found and all(
        why.startswith("refused: ") and truly.partition(": ")[2].partition(" (")[0] in why for why in found
    )
    assert tuned.left_out["openvino"] == "not asked for"


BATCHED = AUTO.replace("from: cam}", "from: cam, batch: {max: 4}}").replace(
    "std: 255}", "std: 255, shape: {N: [1, 1, 4]}}"
)


def batched(folder: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tests.integration.test_tune.small_pipeline", partial(small_pipeline, shape=("n", 3, 16, 16)))
    return tune(folder, text)[0]


def frames_per_run(file: PipelineFile, count: int) -> int:
    """How many of so many frames came out of a pipeline."""
    with Pipeline(file) as pipeline:
        for _ in range(count):
            pipeline.submit(np.zeros((24, 24, 3), np.uint8))
        pipeline.finish()
        return pipeline.run().frames_out


def test_batches_that_a_stage_asks_for_are_searched_and_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = batched(tmp_path, BATCHED.replace("precision: auto", "precision: fp32"), monkeypatch)
    (tuned,) = inspect_bundle(path).tuned.values()
    ran = {trial.tactic.batch for trial in tuned.tried if trial.frame is not None or "given up" in trial.excluded}
    assert ran == {1, 2, 4} and tuned.default.batch == 4
    for size in (4, 2, 1):
        with_tactic(path, replace(tuned, chosen=replace(tuned.default, batch=size), gain=1.5, runs=30))
        with unpacked(path) as found:
            stage = found.file.config.stages["find"]
            assert isinstance(stage, InferStage)
            assert (stage.batch.max if stage.batch else 1) == size
            assert frames_per_run(found.file, 9) == 9


def test_int8_is_searched_in_batches_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = batched(tmp_path, BATCHED, monkeypatch)
    (tuned,) = inspect_bundle(path).tuned.values()
    assert {one.tactic.form for one in tuned.tried} == {"float", "ort"}
    assert {one.tactic.batch for one in tuned.tried} == {1, 2, 4} and tuned.default.batch == 4
    with_tactic(path, replace(tuned, chosen=replace(tuned.default, form="ort"), gain=1.5, runs=30))
    with unpacked(path) as found:
        assert frames_per_run(found.file, 9) == 9


@pytest.mark.parametrize("backend", ["onnxruntime-cuda", "tensorrt"])
def test_a_backend_that_is_named_and_absent_ends_the_search(
    backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not candidates.why_not(backend):
        pytest.skip(f"{backend} is here")
    monkeypatch.setattr(memory_use, "footprint", footprint)
    with pytest.raises(BuildError) as caught:
        tune(tmp_path, AUTO.replace("precision: auto", f"precision: auto\n    backend: {backend}"))
    assert "CUDA" in str(caught.value) or "TensorRT" in str(caught.value) or "GPU" in str(caught.value)
