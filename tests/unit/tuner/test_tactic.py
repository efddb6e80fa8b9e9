"""Tactics as keys of the pipeline file, and back from JSON."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from edgert.backend.ort.runtime import session_settings
from edgert.config import load_pipeline
from edgert.config.model_section import TuningConfig
from edgert.tuner.candidates import Tactic, overrides, with_tactic
from edgert.tuner.trials import difference, identity
from tests.helpers.small_pipeline import small_pipeline

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
