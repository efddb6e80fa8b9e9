"""What the kernel says of the CPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgert.board.cpu import multiplies_bytes


@pytest.mark.parametrize(
    ("text", "known"),
    [
        ("model name\t: Xeon\nflags\t\t: sse2 avx2 avx512f avx512_vnni\n", True),
        ("flags\t\t: avx2 avx_vnni\n", True),
        ("flags\t\t: avx2 avx512f\n", False),
        ("Features\t: asimd asimddp\nCPU implementer\t: 0x41\n", False),
        ("", False),
    ],
)
def test_who_multiplies_bytes(tmp_path: Path, text: str, known: bool) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "cpuinfo").write_text(text)
    assert multiplies_bytes(tmp_path) is known
