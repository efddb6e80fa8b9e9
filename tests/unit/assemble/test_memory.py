import logging
from pathlib import Path

import pytest

from edgert.assemble import memory
from edgert.assemble.memory import ERROR, fit_memory, fits_easily, plan_memory
from edgert.board.host import SystemMemory
from edgert.budget.footprint import Part
from edgert.config import PipelineFile, load_pipeline
from edgert.errors import BudgetError, EdgertError
from tests.helpers.errors import raises
from tests.helpers.pipeline_text import ASSETS, parts_pipeline

MIB = 2**20


@pytest.fixture(autouse=True)
def _small_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process of 10 MiB with every library loaded, whatever ran before."""
    monkeypatch.setattr(memory, "process_parts", lambda file: iter([Part("process", "cpu", "runtime", 10 * MIB)]))
    monkeypatch.setattr("edgert.assemble.models.core_count", lambda: 4)


def write(folder: Path, budgets: str = "{}", more: str = "", source: str = "") -> Path:
    belt = f'{{source: "synthetic:noise", size: 320x240{source}}}'
    return parts_pipeline(folder, belt, more, model=", precision: fp32", top=f"budgets: {budgets}\n")


def sizes(path: Path, *overrides: str) -> dict[tuple[str, str], int]:
    return {(part.name, part.kind): part.size_bytes for part in plan_memory(load_pipeline(path, overrides)).parts}


def test_every_kind_of_memory_has_its_part(tmp_path: Path) -> None:
    more = "  paint: {draw: boxes, from: find}\n  video: {sink: video, from: paint, path: out.mp4}\n"
    found = sizes(write(tmp_path, more=more))
    assert set(found) == {
        ("process", "runtime"),
        ("parts", "weights"),
        ("parts", "activations"),
        ("parts", "bindings"),
        ("parts", "structure"),
        ("belt", "frames"),
        ("paint", "frames"),
        ("video", "encoder"),
    }
    assert found["paint", "frames"] == 6 * 320 * 240 * 3
    assert found["parts", "weights"] < 4 * (ASSETS / "parts.onnx").stat().st_size


def test_a_camera_needs_one_replica_and_fewer_frames_than_a_file(tmp_path: Path) -> None:
    file, camera = sizes(write(tmp_path)), sizes(write(tmp_path, source=", realtime: true"))
    assert file["parts", "bindings"] * 2 == camera["parts", "bindings"] * 5
    assert file["belt", "frames"] > camera["belt", "frames"]


def test_a_budget_takes_from_queues_then_replicas_and_the_pipeline_is_changed(tmp_path: Path) -> None:
    free = plan_memory(load_pipeline(write(tmp_path))).total_bytes
    file, plan = fit_memory(load_pipeline(write(tmp_path, f"{{memory: {int(0.85 * free)}B}}")))
    assert plan.fits and plan.total_bytes <= 0.85 * free
    assert plan.steps[0].startswith("queues half as long: ")
    assert "a replica less" in plan.steps[-1]
    assert file.config.models["parts"].replicas in (1, 2, 3)
    assert file.config.stages["find"].queue == 2  # less would save nothing: a source begins with four


def test_a_budget_that_nothing_reaches_is_refused_with_its_line(tmp_path: Path) -> None:
    with raises(BudgetError, why="already tried: queues half as long") as caught:
        fit_memory(load_pipeline(write(tmp_path, "{memory: 11MiB}")))
    assert caught.value.where.endswith("p.yaml:1 budgets.memory")
    assert not plan_memory(load_pipeline(write(tmp_path, "{memory: 11MiB}"))).fits


def test_a_model_that_cannot_be_read_is_told_with_its_place(tmp_path: Path) -> None:
    path = write(tmp_path)
    path.write_text(path.read_text().replace(f"{ASSETS}/parts.onnx", "none.onnx"))
    with raises(EdgertError, says="none.onnx"):
        plan_memory(load_pipeline(path))


def test_a_decoder_keeps_as_many_frames_as_its_level_allows(tmp_path: Path) -> None:
    clip = tmp_path / "clip.mp4"
    clip.touch()
    path = write(tmp_path)
    path.write_text(path.read_text().replace("synthetic:noise", str(clip)).replace(", size: 320x240", ""))
    found = sizes(path)
    assert found["belt", "decoder"] == round(4 * 1920 * 1080 * 1.5)  # level 4.1 holds four frames of full HD


TURNS = f"""\
budgets: {{memory: BUDGET}}
models:
  large: {{onnx: {ASSETS}/parts.onnx, task: {{detect: yolox}}, precision: fp32, input: {{std: 255}}, degrade_to: small}}
  small: {{onnx: {ASSETS}/parts.onnx, task: {{detect: yolox}}, precision: fp32, input: {{std: 255}}}}
stages:
  belt: {{source: "synthetic:noise", size: 320x240, realtime: true}}
  find: {{infer: large, from: belt}}
"""


def turns(folder: Path, budget: str = "4GiB") -> Path:
    path = folder / "p.yaml"
    path.write_text(TURNS.replace("BUDGET", budget))
    return path


def test_models_that_take_turns_share_an_arena_before_anything_that_costs_speed_gives_way(tmp_path: Path) -> None:
    free = plan_memory(load_pipeline(turns(tmp_path)))
    assert free.steps == ()
    file, plan = fit_memory(load_pipeline(turns(tmp_path, f"{int(free.most_bytes) - 2**10}B")))
    assert [step.partition(":")[0] for step in plan.steps] == ["one arena for models that take turns"]
    assert all(model.tuning.shared_arena for model in file.config.models.values())
    arenas = {part.name: part for part in plan.parts if part.kind == "activations"}
    assert arenas["small"].size_bytes == 0 and arenas["small"].note == "in the arena of large, as they take turns"
    before = next(part.size_bytes for part in free.parts if (part.name, part.kind) == ("large", "activations"))
    assert arenas["large"].size_bytes == before and free.total_bytes - plan.total_bytes == before


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("  find: {infer: large", "  second: {infer: small, from: belt}\n  find: {infer: large"),  # both at a time
        ("degrade_to: small", "placement: cpu0, degrade_to: small"),  # threads of their own, which may overlap
        ("degrade_to: small", "tuning: {arena: false}, degrade_to: small"),
        ("budgets:", "engines: [tensorrt, onnxruntime]\nbudgets:"),
    ],
)
def test_models_that_may_run_together_or_have_no_arena_do_not(tmp_path: Path, before: str, after: str) -> None:
    path = turns(tmp_path, "12MiB")
    path.write_text(path.read_text().replace(before, after))
    plan = plan_memory(load_pipeline(path))
    assert not any("arena" in step for step in plan.steps)
    assert all(part.size_bytes for part in plan.parts if part.kind == "activations")


def machine(patch: pytest.MonkeyPatch, total: float, free: float | None = None, swap: float = 0) -> None:
    """Makes this one have so much memory."""
    found = SystemMemory(round(total), round(total if free is None else free), None, round(swap))
    patch.setattr(memory, "system_memory", lambda: found)
    patch.setattr(memory, "free_bytes", lambda: found.available_bytes)
    patch.setattr(memory, "rss_bytes", lambda: 10 * MIB)


def test_without_a_budget_the_machine_is_the_limit_and_the_same_gives_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path)
    free = plan_memory(load_pipeline(path))
    assert free.steps == ()
    machine(monkeypatch, 0.8 * free.total_bytes)
    file, plan = fit_memory(load_pipeline(path))
    assert plan.fits and plan.budget_bytes is None and plan.steps[0].startswith("queues half as long: ")
    assert file.config.stages["find"].queue == 2


def test_what_no_machine_of_that_size_can_hold_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, 8 * MIB, swap=3 * MIB)
    with raises(BudgetError, why="already tried: queues half as long", fix="more memory") as caught:
        fit_memory(load_pipeline(write(tmp_path)))
    assert caught.value.what.endswith("this machine has 11.0 MiB, including swap")
    assert caught.value.where.endswith("p.yaml:2 models")


def test_swap_counts_and_what_is_not_free_now_is_only_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = write(tmp_path)
    need = plan_memory(load_pipeline(path)).total_bytes
    machine(monkeypatch, need / 2, swap=need, free=MIB)
    with caplog.at_level(logging.WARNING, "edgert"):
        _, plan = fit_memory(load_pipeline(path))
    assert plan.fits and plan.steps == ()
    (message,) = caplog.messages
    assert message.startswith("at least ") and "are planned and 1.0 MiB are free now: other programs will" in message


def test_where_memory_is_plenty_nothing_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = load_pipeline(write(tmp_path))
    need = plan_memory(file).most_bytes - 10 * MIB
    machine(monkeypatch, 4 * need)
    assert fits_easily(file)
    machine(monkeypatch, 4 * need, free=1.5 * need)
    assert not fits_easily(file)
    machine(monkeypatch, 0)  # nobody knows
    assert fits_easily(file)


def test_small_files_are_not_even_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = load_pipeline(write(tmp_path))
    read = list[str]()
    monkeypatch.setattr(memory, "sizes_of", lambda config, name: read.append(name) or memory.Sizes(0, 0, 0, 0))
    machine(monkeypatch, 64 * 2**30)
    assert fits_easily(file) and read == []
    machine(monkeypatch, 2**30)
    assert fits_easily(file) and read == ["parts"]


@pytest.fixture
def copied(tmp_path: Path) -> PipelineFile:
    path = write(tmp_path)
    (tmp_path / "big.onnx").write_bytes((ASSETS / "parts.onnx").read_bytes())
    path.write_text(path.read_text().replace(f"{ASSETS}/parts.onnx", "big.onnx"))
    return load_pipeline(path)


def test_weights_beside_a_model_count(copied: PipelineFile, tmp_path: Path) -> None:
    before = memory._upper_bound_bytes(copied)
    (tmp_path / "big.onnx.data").write_bytes(bytes(MIB))
    assert memory._upper_bound_bytes(copied) - before >= 100 * MIB


def test_what_lies_beside_a_model_and_cannot_be_asked_counts_as_nothing(copied: PipelineFile, tmp_path: Path) -> None:
    before = memory._upper_bound_bytes(copied)
    (tmp_path / "big-old.onnx").symlink_to(tmp_path / "removed.onnx")
    (tmp_path / "big-loop.onnx").symlink_to(tmp_path / "big-loop.onnx")
    (tmp_path / "big.folder").mkdir()
    assert memory._upper_bound_bytes(copied) == before


def test_what_cannot_be_planned_is_left_to_who_makes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, 1)
    path = write(tmp_path)
    path.write_text(path.read_text().replace(f"{ASSETS}/parts.onnx", "none.onnx"))
    assert fits_easily(load_pipeline(path))


def test_engines_elsewhere_may_take_much_less_than_is_planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path)
    here = plan_memory(load_pipeline(path))
    engines = sum(part.size_bytes for part in here.parts if part.name == "parts")
    assert here.doubt_bytes == 0 and here.least_bytes == round((1 - ERROR) * here.total_bytes)
    for plan in (
        plan_memory(load_pipeline(path), has_engines=True),
        plan_memory(load_pipeline(path, ["engines=[tensorrt, onnxruntime]"])),
        plan_memory(load_pipeline(path, ["models.parts.backend=openvino"])),
    ):
        assert plan.total_bytes == here.total_bytes
        assert plan.doubt_bytes == round(engines * 7 / 8)


@pytest.mark.parametrize(("page", "named"), [("budgets", "plus {} %"), ("plan", "at least {} %")])
def test_the_pages_name_the_margin_of_a_plan(page: str, named: str) -> None:
    text = (Path(__file__).parents[3] / "docs" / f"{page}.md").read_text(encoding="utf-8")
    assert named.format(round(100 * ERROR)) in text
