"""What the README tells people to type and write works, and the generated docs say what the code says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.command import ROOT, edgert, environment

README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """The README's pipeline, with the shipped model in place of the reader's, and a scene in place of his camera."""
    assets = ROOT / "pipelines" / "assets"
    (tmp_path / "parts.onnx").symlink_to(assets / "parts.onnx")
    (tmp_path / "parts.txt").symlink_to(assets / "parts.txt")
    (yaml,) = blocks("yaml")
    path = tmp_path / "pipeline.yaml"
    path.write_text(yaml)
    return path


def test_the_yaml_runs(written: Path) -> None:
    scene = ["--set=stages.camera.source=synthetic:conveyor", "--set=stages.camera.limit=10"]
    done = edgert("run", "pipeline.yaml", *scene, "--set=stages.page.port=0", cwd=written.parent)
    assert done.returncode == 0, done.stderr
    assert (written.parent / "out" / "events.jsonl").read_text().count("\n") == 10


def test_the_python_runs(written: Path) -> None:
    (code,) = blocks("python")
    written.write_text(
        written.read_text()
        .replace("v4l2:///dev/video0", "synthetic:conveyor")
        .replace("fps: 30}", "fps: 30, limit: 10}")
        .replace("{sink: http, from: paint}", "{sink: http, from: paint, port: 0}")
    )
    (written.parent / "classifier.onnx").symlink_to(ROOT / "pipelines" / "assets" / "parts.onnx")
    first = "import numpy, edgert as _e; array = numpy.zeros(_e.load_engine('classifier.onnx').inputs[0].shape, 'f')\n"
    run = [sys.executable, "-c", first + code]
    done = subprocess.run(run, cwd=written.parent, env=environment(), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("[") >= 10


def test_every_command_and_link_exists() -> None:
    commands = [line.split("#")[0].strip() for block in blocks("sh") for line in block.splitlines()]
    for target in re.findall(r"make (\w+)", "\n".join(commands)):
        assert f"\n{target}:" in (ROOT / "Makefile").read_text()
    for verb in re.findall(r"^edgert (\w+)", "\n".join(commands), flags=re.MULTILINE):
        assert f"## edgert {verb}\n" in (ROOT / "docs" / "cli.md").read_text()
    for link in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (ROOT / link).exists(), link


def test_generated_docs_are_up_to_date() -> None:
    run = [sys.executable, "scripts/write_docs.py", "--check"]
    done = subprocess.run(run, cwd=ROOT, env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
