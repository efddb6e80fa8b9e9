"""The commands of docs/own-model-to-board.md, one after the other, print the lines that the page shows."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import cv2
import numpy as np
import pytest

from pipelines.conveyor import Conveyor
from tests.helpers.command import ROOT, edgert
from tests.helpers.documents import fenced

pytestmark = pytest.mark.slow
COMMANDS = ["new", "check", "plan", "plan", "build"]


def plain(text: str) -> str:
    """Return text with single spaces and without times, which no two runs share."""
    return " ".join(re.sub(r"\d[\d.]* s\b", "N s", text).split())


def test_every_command_prints_what_the_page_shows(tmp_path: Path) -> None:
    shutil.copy(ROOT / "pipelines/assets/parts.onnx", tmp_path / "model.onnx")
    (tmp_path / "photos").mkdir()
    image = np.empty((480, 640, 3), np.uint8)
    for seed in range(500, 508):
        Conveyor(640, 480, 30.0, seed).render(60, image)
        cv2.imwrite(str(tmp_path / "photos" / f"{seed}.jpg"), image)
    page = [(language, piece.text) for language, piece in fenced() if piece.place.startswith("docs/own-model-to-board")]
    assert [language for language, _ in page] == ["sh", "text"] * len(COMMANDS)
    lines, shown = [text.strip() for _, text in page[::2]], [text.splitlines() for _, text in page[1::2]]
    assert [line.split()[1] for line in lines] == COMMANDS
    for line, wanted in zip(lines, shown, strict=True):
        done = edgert(*shlex.split(line)[1:], cwd=tmp_path, env={"COLUMNS": "120"}, timeout_s=240)
        assert done.returncode == 0, done.stderr
        printed = plain(done.stdout)
        assert [one for one in wanted if plain(one) not in printed] == [], done.stdout
    assert (tmp_path / "model.edgert").stat().st_size
