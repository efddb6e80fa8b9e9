"""Mistakes of the first day: what the command line says of each, and that it names the repair."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.command import in_process


@pytest.mark.parametrize("content", [b"PK\x03\x04\x00\xff" + bytes(60), b"\x80\x02}q\x00."])
@pytest.mark.parametrize("verb", ["run", "validate", "new", "import", "inspect"])
def test_a_checkpoint_is_exported_first(tmp_path: Path, verb: str, content: bytes) -> None:
    (tmp_path / "best.pt").write_bytes(content)
    done = in_process(verb, "best.pt", cwd=tmp_path)
    assert done.returncode == 1 and "yolo export model=best.pt format=onnx" in done.stderr, done.stderr
