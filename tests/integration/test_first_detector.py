"""The commands of docs/first-detector.md, one after the other, with a small detector and random weights."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import edgert
from tests.helpers.documents import blocks

pytest.importorskip("torch", reason="PyTorch is not installed: extra torch")
pytest.importorskip("torchvision", reason="torchvision is not installed")
pytestmark = pytest.mark.slow
ROOT = Path(edgert.__file__).parents[1]


def test_the_five_commands_work(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    for number in range(8):
        shutil.copy(ROOT / "docs/hello.jpg", tmp_path / "photos" / f"{number}.jpg")
    lines = [piece.text.strip() for piece in blocks("sh") if piece.place.startswith("docs/first-detector.md")]
    assert [line.split()[1] for line in lines] == ["import", "new", "run", "plan", "quantize"]
    here = {**os.environ, "PYTHONPATH": str(ROOT)}
    for line in lines:
        line = line.replace("fasterrcnn_resnet50_fpn", "ssdlite320_mobilenet_v3_large --weights random")
        words = shlex.split(line.replace("clip.mp4", "photos/0.jpg"))
        command = [sys.executable, "-m", "edgert", *words[1:]]
        done = subprocess.run(command, cwd=tmp_path, env=here, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0 or words[1] == "plan", done.stderr  # 1: no mode keeps up with 30 frames a second
    assert (tmp_path / "out/results.jsonl").stat().st_size
    assert (tmp_path / "detector.int8.onnx").stat().st_size
