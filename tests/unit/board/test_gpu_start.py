"""A GPU started beside Python, with a driver that writes down what it is asked."""

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from edgert.board import devices
from edgert.config import PipelineConfig, PipelineFile
from edgert.errors import DeviceError
from edgert.pipeline import Pipeline

FILE: dict[str, Any] = {
    "models": {"m": {"onnx": "m.onnx", "task": {"embed": "l2"}}},
    "stages": {"cam": {"source": "api"}, "find": {"infer": "m", "from": "cam"}},
}


class Driver:
    """libcuda; ``code`` is what it answers to everything."""

    def __init__(self, code: int = 0) -> None:
        self.calls, self.code, self.threads = list[str](), code, set[str]()

    def __getattr__(self, name: str) -> Any:
        def called(*_: object) -> int:
            self.calls.append(name)
            self.threads.add(threading.current_thread().name)
            return self.code

        return called


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    made = Driver()
    monkeypatch.setattr("ctypes.CDLL", lambda name: made)
    monkeypatch.setattr(devices, "find_spec", lambda name: object() if name == "pycuda" else None)
    monkeypatch.setattr(devices, "load", lambda name: True)
    return made


HELD = ["cuInit", "cuDeviceGet", "cuDevicePrimaryCtxRetain"]


def test_the_context_is_held_as_long_as_the_block_runs(driver: Driver) -> None:
    with devices.gpu_started(True):
        pass
    assert driver.calls == [*HELD, "cuDevicePrimaryCtxRelease_v2"]
    assert threading.current_thread().name in driver.threads and len(driver.threads) == 2


def test_it_is_given_back_where_the_block_fails(driver: Driver) -> None:
    with pytest.raises(ValueError, match="a model"), devices.gpu_started(True):
        raise ValueError("a model")
    assert driver.calls == [*HELD, "cuDevicePrimaryCtxRelease_v2"]


def test_what_fails_is_left_to_whoever_needs_it(driver: Driver) -> None:
    driver.code = 100
    with devices.gpu_started(True):
        pass
    assert driver.calls == ["cuInit"]


@pytest.mark.parametrize(("wanted", "found"), [(False, object()), (True, None)])
def test_nothing_is_begun_for_the_processor_or_without_pycuda(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, wanted: bool, found: object
) -> None:
    monkeypatch.setattr(devices, "find_spec", lambda name: found)
    with devices.gpu_started(wanted):
        assert not [thread for thread in threading.enumerate() if thread.name.startswith("edgert-gpu")]
    assert driver.calls == []


def test_a_plan_of_memory_finds_it_free(driver: Driver, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The plan counts a context itself."""
    (tmp_path / "p.yaml").write_text(
        "models: {m: {onnx: m.onnx, task: {embed: none}}}\nbudgets: {memory: 1GiB}\n"
        "stages: {cam: {source: api}, find: {infer: m, from: cam}}"
    )
    (tmp_path / "m.onnx").write_bytes(b"")

    def planned(file: PipelineFile, has_engines: bool) -> None:
        assert driver.calls == [*HELD, "cuDevicePrimaryCtxRelease_v2"]
        raise DeviceError("planned")

    monkeypatch.setattr("edgert.assemble.memory.fit_memory", planned)
    monkeypatch.setattr("edgert.assemble.default_engines.has_gpu", lambda: False)
    with pytest.raises(DeviceError, match="planned"):
        Pipeline(tmp_path / "p.yaml")
    assert driver.calls == [*HELD, "cuDevicePrimaryCtxRelease_v2"]


def test_a_machine_without_a_driver() -> None:
    assert devices.hold_context("libcuda-of-nowhere.so.1")() is None


@pytest.mark.parametrize(
    ("rtx", "installed", "loaded"),
    [
        (True, ("tensorrt_rtx_libs",), ["libtensorrt_rtx.so.1", "libnvrtc.so.13"]),
        (False, ("tensorrt_rtx_libs",), ["libnvrtc.so.13"]),
        (True, ("tensorrt", "tensorrt_rtx_libs"), ["libnvrtc.so.13"]),
        (True, (), ["libnvrtc.so.13"]),
    ],
)
def test_which_libraries(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, rtx: bool, installed: tuple[str, ...], loaded: list[str]
) -> None:
    for name in ("libtensorrt_rtx.so.1", "libtensorrt_onnxparser_rtx.so.1"):
        (tmp_path / name).write_bytes(b"")
    found, package = list[str](), SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr(devices, "find_spec", lambda name: package if name in installed else None)
    monkeypatch.setattr(devices, "load", lambda name: not found.append(Path(name).name))  # type: ignore[func-returns-value]
    devices.load_libraries(rtx)
    assert found == loaded


def test_libraries_are_loaded_where_they_are() -> None:
    assert devices.load("libm.so.6") and not devices.load("libm-of-nowhere.so.6")


@pytest.mark.parametrize(
    ("keys", "backend", "wanted"),
    [
        ({}, "auto", True),
        ({"board": "host"}, "auto", False),
        ({}, "ort", False),
        ({}, "onnxruntime-cuda", True),
        ({"board": "host"}, "tensorrt", True),
        ({"engines": "tensorrt"}, "auto", True),
        ({"engines": ["onnxruntime", "tensorrt"]}, "auto", False),
        ({"engines": ["onnxruntime-cuda", "onnxruntime"]}, "auto", True),
    ],
)
def test_whether_models_are_likely_to_be_run_on_a_gpu(keys: dict[str, Any], backend: str, wanted: bool) -> None:
    models = {"m": {**FILE["models"]["m"], "backend": backend}}
    assert PipelineConfig.model_validate({**FILE, **keys, "models": models}).likely_on_gpu == wanted
