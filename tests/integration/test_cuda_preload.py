"""ONNX Runtime's libraries of a GPU, loaded in a thread while models are read."""

from __future__ import annotations

import builtins
import logging
import subprocess
import sys
import threading
import weakref
from pathlib import Path
from typing import Any

import pytest

from edgert.backend import EngineOptions
from edgert.backend.ort import cuda, cuda_preload, runtime
from edgert.backend.ort.cuda import OrtCudaBackend
from edgert.backend.ort.cuda_preload import libraries_preloaded
from edgert.errors import BuildError, DeviceError, ModelError
from edgert.memory.cuda import CudaDevice
from edgert.pipeline import Pipeline
from tests.helpers import models
from tests.helpers.cuda_double import CudaDouble
from tests.helpers.ort_double import CudaLike
from tests.helpers.small_pipeline import small_pipeline


class Rig:
    """Libraries that are loaded once they may be.

    Attributes:
        steps: what was done, in order, with the name of the thread.
        broken: a step → what it fails with.
        sessions: those that were made.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.steps, self.broken = list[tuple[str, str]](), dict[str, Exception]()
        self.sessions, self.may_load = list[weakref.ref[CudaLike]](), threading.Event()
        self.may_load.set()
        patch.setattr(cuda_preload, "_threads", {})
        patch.setattr(cuda, "check_provider", lambda: self.step("provider"))
        patch.setattr(cuda, "open_on_gpu", self.open)

    def step(self, name: str) -> None:
        self.steps.append((name, threading.current_thread().name))
        if name in self.broken:
            raise self.broken[name]

    def open(self, content: bytes, settings: Any, options: Any, model: Any) -> Any:
        if threading.current_thread().name == "edgert:libraries":
            assert self.may_load.wait(10)
        self.step("session")
        made = CudaLike(runtime.open_session(content, settings, model))
        self.sessions.append(weakref.ref(made))
        return made


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> Rig:
    return Rig(monkeypatch)


ALL = [("provider", "edgert:libraries"), ("session", "edgert:libraries")]


def test_they_are_loaded_in_another_thread_once_in_a_process(rig: Rig) -> None:
    with libraries_preloaded(0, cuda.smallest_session):
        pass
    assert rig.steps == ALL and rig.sessions[0]() is None
    with libraries_preloaded(0, cuda.smallest_session):
        pass
    assert rig.steps == ALL
    with libraries_preloaded(1, cuda.smallest_session):
        pass
    assert rig.steps == ALL * 2


@pytest.mark.parametrize("step", ["provider", "session"])
@pytest.mark.parametrize("error", [DeviceError("there is no CUDA provider"), BuildError("it cannot be started")])
def test_what_fails_ahead_is_left_to_whoever_needs_it(
    rig: Rig, step: str, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    rig.broken[step] = error
    with caplog.at_level(logging.DEBUG, "edgert.backend"), libraries_preloaded(0, cuda.smallest_session):
        pass
    assert str(error).splitlines()[0] in caplog.text


def test_an_error_inside_goes_on_once_nothing_is_loaded_any_more(rig: Rig) -> None:
    with pytest.raises(ModelError), libraries_preloaded(0, cuda.smallest_session):
        raise ModelError("no such file")
    assert rig.steps == ALL and rig.sessions[0]() is None
    assert not any(one.name == "edgert:libraries" for one in threading.enumerate())


def test_no_engine_is_opened_meanwhile(rig: Rig) -> None:
    """ONNX Runtime waits for the whole GPU when it makes a session, which fails while libraries record on it."""
    rig.may_load.clear()
    backend, opened = OrtCudaBackend(CudaDevice(CudaDouble(), 0)), list[Any]()
    with libraries_preloaded(0, cuda.smallest_session):
        compiling = threading.Thread(
            target=lambda: opened.append(backend.compile(models.conv(), EngineOptions(threads=1))), name="compiling"
        )
        compiling.start()
        compiling.join(0.2)
        assert compiling.is_alive() and ("session", "compiling") not in rig.steps
        rig.may_load.set()
        compiling.join(10)
    names = [thread for step, thread in rig.steps if step == "session"]
    assert names[0] == "edgert:libraries" and set(names[1:]) == {"compiling"}
    opened[0].close()


def test_who_comes_before_the_thread_has_started_waits_for_it(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    starting, failed = threading.Event(), list[threading.ExceptHookArgs]()
    monkeypatch.setattr(threading, "excepthook", failed.append)
    waiting = threading.Thread(target=cuda_preload.wait)

    class Slow(threading.Thread):
        def start(self) -> None:
            waiting.start()
            waiting.join(0.1)
            starting.set()
            super().start()

    monkeypatch.setattr(threading, "Thread", Slow)
    with libraries_preloaded(0, cuda.smallest_session):
        assert starting.is_set()
    waiting.join(10)
    assert not failed and not waiting.is_alive()


def test_no_engine_is_opened_while_anything_is_recorded_on_the_gpu(rig: Rig) -> None:
    device, opened = CudaDevice(CudaDouble(), 0), list[Any]()
    backend = OrtCudaBackend(device)
    with device.recording:
        compiling = threading.Thread(
            target=lambda: opened.append(backend.compile(models.conv(), EngineOptions(threads=1))), name="compiling"
        )
        compiling.start()
        compiling.join(0.2)
        assert compiling.is_alive() and ("session", "compiling") not in rig.steps
    compiling.join(10)
    assert ("session", "compiling") in rig.steps
    opened[0].close()


def test_a_provider_that_fails_is_an_error_and_not_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = dict[str, Any]()

    class Library:
        @staticmethod
        def InferenceSession(source: Any, settings: Any, **options: Any) -> Any:
            asked.update(options)
            raise RuntimeError("CUDA failure 900: operation not permitted when stream is capturing")

    monkeypatch.setattr(runtime, "ort", lambda: Library)
    with pytest.raises(BuildError) as caught:
        runtime.open_session(b"", None, models.conv(), [("CUDAExecutionProvider", {}), "CPUExecutionProvider"])
    assert "CUDA failure 900" in caught.value.why and asked["enable_fallback"] == 0


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
    rig.broken["provider"] = DeviceError("this ONNX Runtime has no CUDA provider")
    path = small_pipeline(tmp_path, text, photos=0)
    try:
        Pipeline(path).close()
    except DeviceError as error:
        assert backend == "onnxruntime-cuda" and "CUDA" in error.what  # which cannot be had here
    assert (("provider", "edgert:libraries") in rig.steps) is wanted


def test_is_begun_before_what_assembles_is_imported(rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = """
name: small
engines: [onnxruntime-cuda, onnxruntime]
models: {parts: {onnx: parts.onnx, task: {embed: none}, input: {resize: stretch}}}
stages:
  cam: {source: api}
  find: {infer: parts, from: cam}
"""
    asked = list[str]()
    rig.broken["provider"] = DeviceError("this ONNX Runtime has no CUDA provider")
    real = builtins.__import__

    def noted(name: str, *given: Any) -> Any:
        if name == "edgert.assemble":
            asked.append(" ".join(thread.name for thread in threading.enumerate()) + str(rig.steps))
        return real(name, *given)

    monkeypatch.setattr(builtins, "__import__", noted)
    Pipeline(small_pipeline(tmp_path, text, photos=0)).close()
    assert asked and "edgert:libraries" in asked[0]


def test_tensorrts_modules_are_not_loaded_for_engines_of_onnx_runtime(tmp_path: Path) -> None:
    text = """
name: small
engines: [onnxruntime]
models: {parts: {onnx: parts.onnx, task: {embed: none}, input: {resize: stretch}}}
stages:
  cam: {source: api}
  find: {infer: parts, from: cam}
"""
    program = (
        "import sys, edgert; edgert.Pipeline(sys.argv[1]).close(); print(*(n for n in sys.modules if 'tensorrt' in n))"
    )
    file = small_pipeline(tmp_path, text, photos=0)
    done = subprocess.run([sys.executable, "-c", program, str(file)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_a_layout_without_memory_for_it_keeps_none_while_the_next_is_tried(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    alive, device = list[list[bool]](), CudaDevice(CudaDouble(), 0)

    def open_on_gpu(*given: Any) -> Any:
        alive.append([one() is not None for one in rig.sessions])
        made = rig.open(*given)
        if len(rig.sessions) == 1:
            made.broken = RuntimeError("CUDA failure 2: out of memory ; GPU=0")
        return made

    monkeypatch.setattr(cuda, "open_on_gpu", open_on_gpu)
    engine = OrtCudaBackend(device).compile(models.conv(), EngineOptions(threads=1))
    assert alive[:2] == [[], [False]]
    engine.close()
    assert device.live_bytes == 0 and device.leaked == 0
