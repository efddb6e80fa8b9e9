"""What a search tries, also as keys of the pipeline file, and what this machine cannot run models with."""

import json
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from edgert import installation
from edgert.backend import openvino
from edgert.backend.ort.runtime import session_settings
from edgert.config import EmbedTask, ModelConfig, load_pipeline
from edgert.config.model_section import TuningConfig
from edgert.tuner.candidates import (
    SearchSpace,
    Tactic,
    backends_of,
    combinations,
    forms_of,
    neighbors,
    overrides,
    powers,
    why_not,
    with_less_memory,
    with_tactic,
)
from edgert.tuner.trials import difference, identity
from tests.helpers.small_pipeline import small_pipeline

DEFAULT = Tactic("ort", "ort", 4, 2)
FREE = SearchSpace(DEFAULT, ("ort", "openvino"), ("float", "ort"), 8, replicated=True, pinned=True)
CONFIG = ModelConfig(onnx=Path("m.onnx"), task=EmbedTask(embed="none"))


def shares(space: SearchSpace) -> set[tuple[int, int, bool]]:
    return {(one.replicas, one.threads, one.pinned) for one in combinations(space)}


def test_every_backend_form_and_share_once_the_default_first() -> None:
    found = combinations(FREE)
    assert found[0] == DEFAULT and len(set(found)) == len(found)
    assert {(one.backend, one.form) for one in found} == {(b, f) for b in ("ort", "openvino") for f in ("float", "ort")}
    assert shares(FREE) == {(1, n, False) for n in (1, 2, 4, 8)} | {(2, 4, False), (4, 2, False)}
    assert not any(one.pinned and one.backend != "ort" for one in found)


def test_cores_of_their_own_where_each_replica_has_one_thread() -> None:
    two = replace(FREE, default=Tactic("ort", "ort", 2, 1), threads=2)
    assert shares(two) == {(1, 2, False), (1, 1, False), (2, 1, False), (2, 1, True)}
    assert not any(pinned for *_, pinned in shares(replace(two, pinned=False)))


def test_cameras_get_one_frame_at_a_time() -> None:
    live = replace(FREE, default=Tactic("ort", "ort", 1, 8), replicated=False)
    assert shares(live) == {(1, n, False) for n in (1, 2, 4, 8)}


def test_what_the_file_says_is_kept() -> None:
    assert shares(replace(FREE, fixed_replicas=True)) == {(4, 2, False)}
    assert {one * other for one, other, _ in shares(replace(FREE, fixed_threads=True))} == {8}
    assert backends_of(CONFIG) == ("ort", "openvino", "onnxruntime-cuda", "tensorrt")
    assert backends_of(CONFIG.model_copy(update={"backend": "openvino"})) == ("openvino",)
    made = ("float", "ort")
    assert forms_of("auto", made) == made
    assert (forms_of("int8", made), forms_of("fp32", made)) == (("ort",), ("float",))
    assert forms_of("int8", ("float",)) == ("float",)  # quantized already
    tuned = replace(FREE, default=replace(DEFAULT, tuning=TuningConfig(arena=False)))
    assert not any(one.tuning.arena for one in combinations(tuned))


def test_neighbors_differ_in_one_thing_that_matters() -> None:
    found = neighbors(DEFAULT, ())
    assert {str(one).partition("threads, ")[2] for one in found} == {
        "extended optimizations", "basic optimizations", "no spinning", "no arena", "no prepacking", "balanced",
        "branches in parallel",
    }  # fmt: skip
    assert len(neighbors(replace(DEFAULT, threads=1), ())) == 4  # no pool of threads: nothing spins
    assert neighbors(DEFAULT, found) == []
    assert neighbors(replace(DEFAULT, backend="openvino"), ()) == []


def test_a_gpu_takes_one_frame_after_another_with_and_without_rounding() -> None:
    free = replace(FREE, backends=("onnxruntime-cuda", "tensorrt"), forms=("float", "fp16", "ort"))
    found = [str(one) for one in combinations(free)[1:]]
    assert found == [
        "onnxruntime-cuda float, 8 threads",
        "onnxruntime-cuda float, 8 threads, no TF32",
        "onnxruntime-cuda fp16, 8 threads",
        "tensorrt float, 8 threads",
        "tensorrt fp16, 8 threads",
    ]
    steps = neighbors(combinations(free)[1], ())
    assert {str(one).partition("threads, ")[2] for one in steps} == {
        "extended optimizations", "basic optimizations", "channels first", "exhaustive convolutions",
    }  # fmt: skip
    assert neighbors(combinations(free)[-1], ()) == []  # TensorRT searches by itself


def test_a_backend_that_is_named_is_searched_whichever_it_is() -> None:
    for name in ("onnxruntime-cuda", "tensorrt"):
        own = replace(FREE, default=Tactic(name, "ort", 1, 8), backends=(name,))
        assert combinations(own)[0] == own.default and {one.backend for one in combinations(own)} == {name}


def test_batches_up_to_what_the_stages_ask_for_where_the_model_takes_fewer() -> None:
    batched = replace(
        FREE, default=Tactic("ort", "float", 1, 8, batch=4), backends=("ort",),
        batches={"float": powers(4), "ort": (4,)},
    )  # fmt: skip
    found = combinations(batched)
    assert {one.batch for one in found if one.form == "float"} == {1, 2, 4}
    assert {one.batch for one in found if one.form == "ort"} == {4}
    assert all(one.replicas == 1 for one in found if one.batch > 1)
    assert any(one.replicas > 1 for one in found)
    assert str(found[0]) == "ort float, 8 threads, batches of 4" and found[0].frames == 4


def test_lean_tactics_keep_less() -> None:
    (found,) = with_less_memory([DEFAULT, replace(DEFAULT, backend="openvino")])
    assert found.tuning == TuningConfig(arena=False, prepacking=False)


def test_onnx_runtime_is_never_absent() -> None:
    assert why_not("ort") == ""


def test_what_is_absent_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    openvino._openvino.cache_clear()
    monkeypatch.setitem(sys.modules, "openvino", None)
    assert why_not("openvino") == f"OpenVINO is not installed: {installation.command('openvino')}"
    openvino._openvino.cache_clear()


@pytest.mark.parametrize(("backend", "words"), [("onnxruntime-cuda", "CUDA"), ("tensorrt", "GPU|TensorRT")])
def test_a_gpu_that_is_not_there_is_named(backend: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from edgert.board.devices import cuda_driver

    driver = cuda_driver()
    if driver is not None and driver.gpus:
        pytest.skip(f"{driver.gpus[0].name} is here")
    assert any(word in why_not(backend) for word in words.split("|"))


PLAIN = Tactic("ort", "float", 1, 2)
RICH = Tactic(
    "ort",
    "ort",
    2,
    1,
    True,
    TuningConfig(optimization="basic", spinning=False, arena=False, prepacking=False, balance=True),
)
ON_GPU = Tactic(
    "onnxruntime-cuda", "float", 1, 2, tuning=TuningConfig(channels_last=False, conv_search="exhaustive", tf32=False)
)
BATCHED = Tactic("ort", "float", 1, 2, tuning=TuningConfig(parallel=True), batch=4)


def test_it_says_what_is_not_as_usual() -> None:
    assert str(PLAIN) == "ort float, 2 threads"
    text = "ort int8, 2 × 1 thread, pinned, basic optimizations, no spinning, no arena, no prepacking, balanced"
    assert str(RICH) == text
    assert str(ON_GPU) == "onnxruntime-cuda float, 2 threads, exhaustive convolutions, channels first, no TF32"
    assert str(BATCHED) == "ort float, 2 threads, batches of 4, branches in parallel"


@pytest.mark.parametrize("tactic", [PLAIN, RICH, ON_GPU, BATCHED])
def test_json_and_back(tactic: Tactic) -> None:
    assert TypeAdapter(Tactic).validate_json(json.dumps(tactic.to_json())) == tactic


@pytest.mark.parametrize("tactic", [PLAIN, RICH, ON_GPU])
def test_the_keys_of_a_file_say_the_same(tactic: Tactic, tmp_path: Path) -> None:
    path = small_pipeline(tmp_path)
    plain = load_pipeline(path).config.models["parts"]
    written = load_pipeline(path, overrides("parts", tactic, "parts.onnx")).config.models["parts"]
    assert written == with_tactic(plain, tactic)
    assert (written.threads, written.replicas) == (2, tactic.replicas)
    assert (written.placement == "auto") is not tactic.pinned


def test_batches_are_those_of_the_stages() -> None:
    assert overrides("parts", BATCHED, "parts.onnx", ["find"])[-1] == "stages.find.batch.max=4"
    assert overrides("parts", PLAIN, "parts.onnx", ["find"])[-1] == "stages.find.batch=null"
    assert not any(text.startswith("stages") for text in overrides("parts", PLAIN, "parts.onnx"))


def test_branches_in_parallel_have_a_thread_each() -> None:
    settings = session_settings(2, BATCHED.tuning)
    assert settings.execution_mode == type(settings.execution_mode).ORT_PARALLEL
    assert settings.inter_op_num_threads == 2 and session_settings(2).inter_op_num_threads == 1


def test_what_a_tactic_says_reaches_onnx_runtime() -> None:
    settings = session_settings(1, RICH.tuning)
    usual = session_settings(1)
    assert (settings.graph_optimization_level, usual.graph_optimization_level) == (
        type(usual.graph_optimization_level).ORT_ENABLE_BASIC,
        type(usual.graph_optimization_level).ORT_ENABLE_ALL,
    )
    assert (settings.enable_cpu_mem_arena, usual.enable_cpu_mem_arena) == (False, True)
    entries = {
        "session.intra_op.allow_spinning": "0",
        "session.disable_prepacking": "1",
        "session.dynamic_block_base": "4",
    }
    assert {key: settings.get_session_config_entry(key) for key in entries} == entries
    shared = session_settings(1, TuningConfig(shared_arena=True))
    assert shared.get_session_config_entry("session.use_env_allocators") == "1"
    assert str(Tactic("ort", "float", 1, 1, tuning=TuningConfig(shared_arena=True))).endswith(", shared arena")


@pytest.mark.parametrize(
    ("spinning", "words", "entries"),
    [
        ("auto", "2 threads", {}),
        (True, "constant spinning", {}),
        ("runs", "brief spinning", {"session.force_spinning_stop": "1"}),
        (False, "no spinning", {"session.intra_op.allow_spinning": "0"}),
    ],
)
def test_how_threads_wait_reaches_onnx_runtime(spinning: Any, words: str, entries: dict[str, str]) -> None:
    tuning = TuningConfig(spinning=spinning)
    assert str(Tactic("ort", "float", 1, 2, tuning=tuning)).endswith(words)
    settings, found = session_settings(2, tuning), dict[str, str]()
    for key in ("session.force_spinning_stop", "session.intra_op.allow_spinning"):
        with suppress(RuntimeError):  # what nobody has set
            found[key] = settings.get_session_config_entry(key)
    assert found == entries


def test_what_differs_between_machines_is_named() -> None:
    here = identity()
    assert difference(here, here) == ""
    assert difference({**here, "cpu": "Z80", "openvino": ""}, {**here, "openvino": "9.9"}) == (
        f"cpu Z80 → {here['cpu']}, openvino none → 9.9"
    )
