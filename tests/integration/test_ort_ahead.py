"""Libraries of a GPU's first engine, loaded in a thread while models are read."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edgert.backend.ort import ahead, cuda, runtime
from edgert.backend.ort.ahead import libraries_ahead
from edgert.errors import DeviceError, ModelError
from edgert.pipeline import Pipeline
from tests.helpers.small_pipeline import small_pipeline


class Rig:
    """A GPU whose context and libraries are words.

    Attributes:
        steps: what was done, in order.
        broken: a step → what it fails with.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.steps, self.broken, self.threads = list[str](), dict[str, Exception](), set[int]()
        patch.setattr(ahead, "_begun", [])
        patch.setattr(ahead, "hold_context", self.hold)
        patch.setattr(cuda, "check_provider", lambda: self.step("provider"))
        patch.setattr(cuda, "open_on_gpu", self.open)

    def step(self, name: str) -> None:
        self.threads.add(threading.get_ident())
        self.steps.append(name)
        if name in self.broken:
            raise self.broken[name]

    def hold(self, ordinal: int) -> Callable[[], None]:
        self.step(f"context {ordinal}")
        return lambda: self.steps.append("let go")

    def open(self, content: bytes, settings: Any, options: Any, model: Any) -> Any:
        self.step("session")
        real = runtime.open_session(content, settings, model)
        rig = self

        class Session:
            get_inputs = real.get_inputs

            def run(self, names: Any, feeds: Any) -> Any:
                rig.step("run")
                return real.run(names, feeds)

        return Session()


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> Rig:
    return Rig(monkeypatch)


def test_all_is_loaded_in_another_thread_once_in_a_process(rig: Rig) -> None:
    with libraries_ahead(0):
        pass
    assert rig.steps == ["context 0", "provider", "session", "run", "let go"]
    assert threading.get_ident() not in rig.threads
    with libraries_ahead(0):
        pass
    assert len(rig.steps) == 5
    with libraries_ahead(1):
        pass
    assert rig.steps[5:] == ["context 1", "provider", "session", "run", "let go"]


@pytest.mark.parametrize("step", ["context 0", "provider", "session", "run"])
@pytest.mark.parametrize("error", [DeviceError("there is no CUDA driver"), RuntimeError("CUDA failure 100")])
def test_what_fails_ahead_is_left_to_whoever_needs_it(
    rig: Rig, step: str, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    rig.broken[step] = error
    with caplog.at_level(logging.DEBUG, "edgert.backend"), libraries_ahead(0):
        pass
    assert ("let go" in rig.steps) == (step != "context 0")
    assert str(error).splitlines()[0] in caplog.text


def test_an_error_inside_goes_on_once_nothing_is_held(rig: Rig) -> None:
    with pytest.raises(ModelError), libraries_ahead(0):
        raise ModelError("no such file")
    assert rig.steps[-1] == "let go"
    assert not any(one.name == "edgert:libraries" for one in threading.enumerate())


@pytest.mark.parametrize(
    "engines, backend, wanted",
    [
        ("engines: [onnxruntime-cuda, onnxruntime]", "auto", True),
        ("engines: [onnxruntime]", "auto", False),
        ("engines: [tensorrt, onnxruntime-cuda, onnxruntime]", "auto", False),
        ("", "onnxruntime-cuda", True),
        ("engines: [onnxruntime-cuda, onnxruntime]", "ort", False),
    ],
)
def test_is_begun_where_a_model_is_to_run_there(
    rig: Rig, tmp_path: Path, engines: str, backend: str, wanted: bool
) -> None:
    text = f"""
name: small
{engines}
models: {{parts: {{onnx: parts.onnx, task: {{embed: none}}, input: {{resize: stretch}}, backend: {backend}}}}}
stages:
  cam: {{source: api}}
  find: {{infer: parts, from: cam}}
"""
    rig.broken["context 0"] = DeviceError("there is no CUDA driver")
    path = small_pipeline(tmp_path, text, photos=0)
    try:
        Pipeline(path).close()
    except DeviceError as error:
        assert backend == "onnxruntime-cuda" and "CUDA" in error.what  # which cannot be had here
    assert [step for step in rig.steps if step.startswith("context")] == (["context 0"] if wanted else [])
