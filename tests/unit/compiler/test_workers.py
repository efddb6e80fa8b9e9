"""How many models a build works on at a time."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from edgert.compiler import build_pipeline

MIB = 2**20


@pytest.mark.parametrize(
    ("cores", "free_mib", "models", "workers"),
    [
        (8, 64_000, 3, 3),  # no more than there are
        (2, 64_000, 3, 2),  # one for each core
        (8, 1_300, 3, 2),  # 400 MiB and twelve times the largest file each
        (8, 100, 3, 1),  # one goes even where memory is short
        (8, 0, 3, 1),  # a system that does not tell
    ],
)
def test_models_go_side_by_side_as_far_as_cores_and_memory_allow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cores: int, free_mib: int, models: int, workers: int
) -> None:
    monkeypatch.setattr(build_pipeline, "core_count", lambda: cores)
    monkeypatch.setattr(build_pipeline, "free_bytes", lambda: free_mib * MIB)
    jobs: dict[str, Any] = {}
    for number in range(models):
        onnx = tmp_path / f"{number}.onnx"
        onnx.write_bytes(bytes((number + 1) * 5 * MIB))
        jobs[str(number)] = SimpleNamespace(config=SimpleNamespace(onnx=onnx))
    assert build_pipeline._workers(jobs) == workers
