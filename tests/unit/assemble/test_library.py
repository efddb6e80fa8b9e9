"""What libraries and CUDA contexts take: measured, where they can be had."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from edgert.assemble import process_memory, process_memory as library
from edgert.assemble.process_memory import (
    CUDA,
    CUDA_ENGINE,
    ENGINE,
    LibraryMemory,
    host_bytes,
    library_memory,
    own_bytes,
)
from edgert.config import PipelineFile, load_pipeline
from edgert.memory.cuda import CudaDevice
from tests.helpers.cuda_double import CudaDouble

MIB = 2**20
DISCRETE, JETSON = (CudaDevice(CudaDouble(integrated=shared), 0) for shared in (False, True))


def test_a_gpu_with_memory_of_its_own_takes_only_what_the_process_grew_by() -> None:
    assert host_bytes([DISCRETE], 90 * MIB, 500 * MIB) == 90 * MIB
    assert own_bytes([DISCRETE]) == CudaDouble.CONTEXT_BYTES


def test_a_gpu_that_is_full_stops_no_plan() -> None:
    gpu = CudaDouble()
    gpu.broken["context"] = "cuCtxCreate failed: out of memory"
    assert own_bytes([CudaDevice(gpu, 0)]) == 0


def test_on_a_jetson_what_the_gpu_maps_counts_too() -> None:
    assert host_bytes([JETSON], 90 * MIB, 200 * MIB) == 200 * MIB
    assert host_bytes([JETSON], 90 * MIB, -5 * MIB) == 90 * MIB
    assert own_bytes([JETSON]) == 0


def test_without_a_gpu_there_is_no_context() -> None:
    assert host_bytes([], 3 * MIB, 3 * MIB) == 0 and own_bytes([]) == 0


def test_libraries_that_are_loaded_already_add_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Sequence[str]] = []

    def measured(names: Sequence[str]) -> dict[str, LibraryMemory]:
        asked.append(names)
        return dict.fromkeys(names, LibraryMemory(7, 8))

    monkeypatch.setattr(library, "_measure_in_child", measured)
    monkeypatch.setitem(sys.modules, ENGINE, sys)
    assert library_memory([ENGINE]) == {ENGINE: LibraryMemory()} and not asked
    # the child loads all of them, so that what is there already is not told as what comes after it
    assert library_memory([ENGINE, CUDA_ENGINE]) == {ENGINE: LibraryMemory(), CUDA_ENGINE: LibraryMemory(7, 8)}
    assert asked == [[ENGINE, CUDA_ENGINE]]


@pytest.mark.parametrize(
    ("more", "backend", "names"),
    [
        ("engines: [tensorrt, onnxruntime]", "auto", {CUDA}),
        ("engines: [onnxruntime-cuda, onnxruntime]", "auto", {CUDA, CUDA_ENGINE}),
        ("engines: [tensorrt, onnxruntime-cuda]", "auto", {CUDA, CUDA_ENGINE}),
        ("engines: [onnxruntime, onnxruntime-cuda]", "auto", {CUDA}),
        ("", "onnxruntime-cuda", {CUDA, CUDA_ENGINE}),
        ("engines: [onnxruntime]", "auto", set()),
        ("", "auto", set()),
    ],
)
def test_parts_of_a_gpu_are_measured_where_it_may_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: str, backend: str, names: set[str]
) -> None:
    asked: list[str] = []

    def library_memory(needed: list[str]) -> dict[str, LibraryMemory]:
        asked.extend(needed)
        return dict.fromkeys(needed, LibraryMemory(120 * MIB, 500 * MIB if needed else 0))

    monkeypatch.setattr(process_memory, "library_memory", library_memory)
    monkeypatch.setattr(process_memory, "why_not", lambda name, *_: "" if name == "onnxruntime" else "not here")
    parts = {part.name: part for part in process_memory.process_parts(pipeline(tmp_path, more, backend))}
    assert set(asked) == {ENGINE, *names}
    titles = {CUDA: ["CUDA"], CUDA_ENGINE: ["onnxruntime-cuda", "cuDNN"]}
    assert set(parts) == {"process", ENGINE, *(title for name in names for title in titles[name])}
    if names:
        assert parts["CUDA"].size_bytes == 120 * MIB  # the GPU's own is told, and does not count
        assert parts["CUDA"].note == "measured in a process that opens a context; 500.0 MiB more of the GPU's own"


def test_a_tensorrt_that_is_there_takes_the_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_memory, "why_not", lambda *_: "")
    file = pipeline(tmp_path, "engines: [tensorrt, onnxruntime-cuda]", "auto")
    assert process_memory._needed_libraries(file) == [ENGINE, CUDA]


@pytest.mark.parametrize("error", [OSError(12, "Cannot allocate memory"), subprocess.TimeoutExpired("python", 60)])
def test_a_measurement_that_fails_ends_no_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    def run(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.delitem(sys.modules, ENGINE, raising=False)
    file = pipeline(tmp_path, "engines: [onnxruntime]", "auto")
    assert [part.name for part in process_memory.process_parts(file)] == ["process"]
    assert "cannot measure what onnxruntime take" in caplog.text and "the memory plan leaves this out" in caplog.text


def test_without_a_gpu_there_are_no_parts_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_memory, "library_memory", lambda needed: dict.fromkeys(needed, LibraryMemory()))
    file = pipeline(tmp_path, "engines: [onnxruntime-cuda, onnxruntime]", "auto")
    assert [part.name for part in process_memory.process_parts(file)] == ["process", ENGINE]


def pipeline(folder: Path, more: str, backend: str) -> PipelineFile:
    (folder / "p.yaml").write_text(
        f"{more}\nmodels:\n  net: {{onnx: net.onnx, task: {{embed: none}}, backend: {backend}}}\n"
        "stages:\n  cam: {source: 'synthetic:noise'}\n  look: {infer: net, from: cam}\n"
    )
    (folder / "net.onnx").touch()
    return load_pipeline(folder / "p.yaml")
