"""Building in another process: what it reports, how it fails, how it is ended. The compiler is a double."""

import os
import subprocess
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from edgert import installation
from edgert.backend.tensorrt import build_process, build_request, log
from edgert.errors import BuildError, DeviceError

run = partial(build_process.build, worker="tests.helpers.trt_worker")


def request(deed: str) -> build_request.BuildRequest:
    return build_request.BuildRequest(deed.encode(), {"conv": ("y",)})


def test_result_progress_and_log_arrive() -> None:
    steps: list[build_process.Progress] = []
    lines: list[log.LogRecord] = []
    result = run(request("succeed"), progress=steps.append, log=lines.append)
    assert (result.plan, result.library) == (b"plan", "TensorRT 10.3.0")
    assert steps == [build_process.Progress("Building", "", 0, 2)] and [line.layer for line in lines] == ["conv"]


def test_a_crash_is_an_error_with_the_log_and_the_node() -> None:
    with pytest.raises(build_process.CompileError, match=r"crashed \(SIGSEGV\)") as caught:
        run(request("crash"))
    assert [record.kind for record in caught.value.log] == ["refused"]
    assert (
        "its last line about a layer names 'conv'" in caught.value.why and "DLA validation failed" in caught.value.why
    )
    assert caught.value.fix


def test_leaving_without_an_answer() -> None:
    with pytest.raises(BuildError, match="exit code 3"):
        run(request("exit"))


def test_an_error_keeps_its_class() -> None:
    with pytest.raises(DeviceError, match="no dla1") as caught:
        run(request("refuse"))
    assert caught.value.fix == "another board"


def test_a_process_that_cannot_be_started_leaves_no_pipe_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "Popen", Mock(side_effect=OSError("temporarily unavailable")))
    before = set(Path("/proc/self/fd").iterdir())
    with pytest.raises(DeviceError, match="cannot start a process that builds an engine") as caught:
        run(request("succeed"))
    assert set(Path("/proc/self/fd").iterdir()) <= before and "temporarily unavailable" in caught.value.why


@pytest.mark.parametrize("deed", ["patient", "stubborn"])
def test_canceling(deed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build_process, "STOP_S", 0.2)
    cancel = threading.Event()
    started = time.monotonic()
    with pytest.raises(BuildError, match="was canceled"):
        run(request(deed), log=lambda record: cancel.set(), cancel=cancel)
    assert time.monotonic() - started < 30


def test_whatever_interrupts_the_wait_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[int] = []
    popen = subprocess.Popen

    def remembered(*args: Any, **options: Any) -> Any:
        process = popen(*args, **options)
        started.append(process.pid)
        return process

    def interrupt(record: log.LogRecord) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess, "Popen", remembered)
    with pytest.raises(KeyboardInterrupt):
        run(request("stubborn"), log=interrupt)
    with pytest.raises(ProcessLookupError):
        os.kill(started[0], 0)


def test_the_real_worker_without_tensorrt_tells_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A module of that name which cannot be imported, found before whatever this machine has."""
    for name in ("tensorrt", "tensorrt_rtx", "tensorrt_rtx_bindings"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('libnvinfer.so.10: cannot open shared object file')")
    monkeypatch.setattr(installation, "python_path", lambda: os.pathsep.join([str(tmp_path), str(Path.cwd())]))
    with pytest.raises(DeviceError, match="TensorRT cannot be used here") as caught:
        build_process.build(request("x"))
    assert "libnvinfer.so.10" in caught.value.why and "pip install tensorrt" in caught.value.fix
