"""What a CUDA context takes, measured where one can be opened."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from edgert.assemble import memory
from edgert.assemble.library import CUDA, ENGINE, context_bytes
from edgert.config import load_pipeline

MIB = 2**20
DISCRETE, JETSON = (SimpleNamespace(traits=SimpleNamespace(integrated=shared)) for shared in (False, True))


def test_a_gpu_with_memory_of_its_own_takes_only_what_the_process_grew_by() -> None:
    assert context_bytes([DISCRETE], 90 * MIB, 500 * MIB) == 90 * MIB  # type: ignore[list-item]


def test_on_a_jetson_what_the_gpu_maps_counts_too() -> None:
    assert context_bytes([JETSON], 90 * MIB, 200 * MIB) == 200 * MIB  # type: ignore[list-item]
    assert context_bytes([JETSON], 90 * MIB, -5 * MIB) == 90 * MIB  # type: ignore[list-item]


def test_without_a_gpu_there_is_no_context() -> None:
    assert context_bytes([], 3 * MIB, 3 * MIB) == 0


@pytest.mark.parametrize(
    "more, wants",
    [
        ("engines: [tensorrt, onnxruntime]", True),
        ("engines: [onnxruntime]", False),
        ("", False),
    ],
)
def test_its_part_is_measured_where_a_gpu_may_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: str, wants: bool
) -> None:
    asked: list[str] = []

    def library_bytes(needed: list[str]) -> dict[str, int]:
        asked.extend(needed)
        return dict.fromkeys(needed, 120 * MIB)

    monkeypatch.setattr(memory, "library_bytes", library_bytes)
    (tmp_path / "p.yaml").write_text(
        f"{more}\nmodels:\n  net: {{onnx: net.onnx, task: {{embed: none}}}}\n"
        "stages:\n  cam: {source: 'synthetic:noise'}\n  look: {infer: net, from: cam}\n"
    )
    (tmp_path / "net.onnx").touch()
    parts = {part.name: part for part in memory._process(load_pipeline(tmp_path / "p.yaml"))}
    assert ENGINE in asked and (CUDA in asked) is wants and ("CUDA" in parts) is wants
    if wants:
        assert parts["CUDA"].size_bytes == 120 * MIB and parts["CUDA"].note.startswith("measured")
