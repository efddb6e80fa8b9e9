"""``edgert inspect --dla`` shows what somebody has to look at; the rest for the asking."""

from __future__ import annotations

from pathlib import Path

from tests.helpers.command import ROOT, in_process

MODEL = str(ROOT / "pipelines" / "assets" / "parts.onnx")
BOARD = ("--board", "orin-nx-16gb")


def rows(tmp_path: Path, *more: str) -> list[str]:
    done = in_process("inspect", MODEL, "--dla", *BOARD, *more, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    return lines[next(number for number, line in enumerate(lines) if line.startswith("node ")) :]


def test_only_what_is_refused_or_to_verify(tmp_path: Path) -> None:
    found = rows(tmp_path)
    assert not any(" yes " in line for line in found)
    assert sum(" no " in line for line in found) == 4 and sum(" verify " in line for line in found) == 1
    assert "78 more nodes run there or fold away: --all" in found[-1]


def test_all_of_it(tmp_path: Path) -> None:
    found = rows(tmp_path, "--all")
    assert sum(" yes " in line for line in found) == 78 and "--all" not in found[-1]


def test_all_needs_dla(tmp_path: Path) -> None:
    done = in_process("inspect", MODEL, "--all", cwd=tmp_path)
    assert done.returncode == 2 and "--all" in done.stderr and "together with --dla" in done.stderr
