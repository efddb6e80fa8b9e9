"""What ``edgert eval`` says of a version that agrees by chance."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
from typer.testing import CliRunner

from edgert.cli import app
from edgert.graph import to_bytes
from edgert.quantization.evaluate import EvaluateOptions, Evaluation, evaluate
from tests.helpers.models import constant


def evaluated(folder: Path, scores: list[float]) -> Evaluation:
    for name, numbers in (("net", [1.0, 2.0]), ("other", scores)):
        (folder / f"{name}.onnx").write_bytes(to_bytes(constant({"y": [numbers]}, (1, 3, 16, 16))))
    (folder / "images").mkdir()
    for n in range(3):
        cv2.imwrite(str(folder / "images" / f"{n}.png"), np.full((16, 16, 3), 50 * n, np.uint8))
    found = evaluate(
        folder / "net.onnx",
        data=str(folder / "images"),
        against=[folder / "other.onnx"],
        input="stretch std=255",
        options=EvaluateOptions(task="classify logits"),
    )
    assert found is not None and found.result.comparisons[0].other == 1.0
    return found


def test_noise_and_an_agreement_that_says_little_are_warned_of(tmp_path: Path) -> None:
    found = evaluated(tmp_path, [7.0, 8.0])
    assert found.warnings == (
        "other.onnx: the noise of output 'y' is larger than its signal (-11.6 dB)",
        "agreement with net says little: its result is the same on all 3 images",
    )
    assert found.to_json()["warnings"] == list(found.warnings)
    assert [one.text for one in found.report().notes if one.level == "warning"] == [
        f"{text[:1].upper()}{text[1:]}." for text in found.warnings
    ]


def test_a_version_that_is_the_same_is_not_warned_of(tmp_path: Path) -> None:
    assert evaluated(tmp_path, [1.1, 2.1]).warnings == ()


def test_the_command_prints_the_warnings(tmp_path: Path) -> None:
    evaluated(tmp_path, [7.0, 8.0])
    words = ["eval", "net.onnx", "--against", "other.onnx", "--data", "images", "--task", "classify logits"]
    words = [str(tmp_path / word) if (tmp_path / word).exists() else word for word in words]
    done = CliRunner().invoke(app, [*words, "--input", "stretch std=255"])
    assert done.exit_code == 0 and "is larger than its signal (-11.6 dB)" in " ".join(done.output.split())
