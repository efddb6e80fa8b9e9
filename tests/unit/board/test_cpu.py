"""What the kernel says of the CPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgert.board.host import saturates_bytes


@pytest.mark.parametrize(
    ("text", "saturates"),
    [
        ("model name\t: Xeon\nflags\t\t: sse2 avx2 avx512f avx512_vnni\n", False),
        ("flags\t\t: avx2 avx_vnni\n", False),
        ("flags\t\t: avx2 avx512f\n", True),
        ("Features\t: asimd asimddp\nCPU implementer\t: 0x41\n", False),
        ("", False),
    ],
)
def test_who_adds_products_of_bytes_in_16_bits(tmp_path: Path, text: str, saturates: bool) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "cpuinfo").write_text(text)
    assert saturates_bytes(tmp_path) is saturates
