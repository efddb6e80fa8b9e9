"""``edgert doctor`` and ``edgert inspect`` as a user types them."""

import json
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

from edgert.diagnosis import Finding
from tests.helpers import command
from tests.helpers.evaluation_data import data
from tests.helpers.models import node, save


def in_process(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The command on a terminal of 80 columns."""
    return command.in_process(*arguments, cwd=Path.cwd(), env={"COLUMNS": "80", **environment})


@pytest.fixture(scope="module")
def detector(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose image input is dynamic and whose output looks like YOLOX at 32x32."""
    stored = {"weight": np.zeros((7, 3, 8, 8), np.float32), "shape": np.array([1, 7, -1])}
    nodes = [
        node("Conv", ["images", "weight"], ["maps"], strides=[8, 8], name="stem"),
        node("Reshape", ["maps", "shape"], ["output"], name="flatten"),
    ]
    path = tmp_path_factory.mktemp("model") / "detector.onnx"
    return save(path, nodes, {"images": (1, 3, "height", "width")}, {"output": (1, 7, "cells")}, stored)


def test_doctor_fits_eighty_columns_and_says_what_is_missing(tmp_path: Path) -> None:
    terminal = {"COLUMNS": "80", "TTY_COMPATIBLE": "1", "NO_COLOR": "1"}
    done = in_process("doctor", EDGERT_CACHE=str(tmp_path), **terminal)
    assert done.returncode == 0, done.stderr
    assert max(len(re.sub(r"\x1b\[[\d;]*m", "", line)) for line in done.stdout.splitlines()) <= 80
    for name in ("Python", "board", "ONNX Runtime", "codecs", "GStreamer", "cameras"):
        assert name in done.stdout
    assert "edgert can run here" in done.stdout


def test_doctor_as_json(tmp_path: Path) -> None:
    done = in_process("doctor", "--json", "-", EDGERT_CACHE=str(tmp_path))
    report = json.loads(done.stdout)
    assert report["ok"] is True and "edgert can run here" in done.stderr
    assert {"name", "state", "detail", "fix"} == set(report["findings"][0])
    assert {finding["state"] for finding in report["findings"]} <= {"yes", "optional"}


def test_doctor_fails_when_something_required_is_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgert.diagnosis.doctor", lambda: [Finding("PyAV", "no", "not installed", "pip install av")])
    done = in_process("doctor", "--json", str(tmp_path / "out.json"))
    assert done.returncode == 1 and "edgert cannot run here: PyAV" in done.stdout
    assert json.loads((tmp_path / "out.json").read_text())["ok"] is False


def test_inspect_a_dynamic_model(detector: Path) -> None:
    done = in_process("inspect", str(detector))
    assert done.returncode == 0, done.stderr
    assert "images float32[1, 3, height, width]" in done.stdout
    assert "not counted" in done.stdout and "looks like" in done.stdout


def test_inspect_counts_every_profile(detector: Path) -> None:
    done = in_process(
        "inspect", str(detector), "--shape", "images=1x3x32x32", "--shape", "images=1x3x64x64", "--ops", "--json", "-"
    )
    assert done.returncode == 0, done.stderr
    profiles = json.loads(done.stdout)["profiles"]
    macs = 7 * 3 * 64  # per cell: 7 outputs of a kernel of 3x8x8
    assert [profile["macs"] for profile in profiles] == [16 * macs, 64 * macs]
    assert profiles[0]["shapes"] == {"images": [1, 3, 32, 32]}
    assert profiles[0]["outputs"] == ["output float32[1, 7, 16]"]
    assert "at images 1x3x64x64: 86.02 k MACs" in done.stderr and "100.0 %" in done.stderr


def test_inspect_says_what_the_output_looks_like(detector: Path) -> None:
    done = in_process("inspect", str(detector), "--shape", "images=1x3x64x64", "--json", "-")
    first = json.loads(done.stdout)["looks_like"][0]
    assert (first["task"], first["decoder"], first["classes"]) == ("detect", "yolov8", 3)


@pytest.mark.parametrize("shape", ["images", "images=", "=1x3", "images=1x3xa", "images=1x-3"])
def test_inspect_refuses_a_shape_that_is_none(detector: Path, shape: str) -> None:
    done = in_process("inspect", str(detector), "--shape", shape)
    assert done.returncode == 2 and "INPUT=1x3x320x320" in done.stderr


def test_inspect_tells_errors_without_a_traceback(detector: Path, tmp_path: Path) -> None:
    done = in_process("inspect", str(detector), "--shape", "image=1x3x64x64")
    assert done.returncode == 1 and "did you mean 'images'?" in done.stderr
    done = in_process("inspect", str(tmp_path / "none.onnx"))
    assert done.returncode == 1 and "does not exist" in done.stderr and "Traceback" not in done.stderr


def test_inspect_a_real_detector() -> None:
    model = data("models", "yolox_nano_416.onnx")
    done = in_process("inspect", str(model), "--json", "-")
    report = json.loads(done.stdout)
    assert (report["looks_like"][0]["task"], report["looks_like"][0]["decoder"]) == ("detect", "yolox")
    assert report["macs"] == sum(cost["macs"] for cost in report["costs"]) > 0
