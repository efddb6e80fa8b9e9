"""``edgert calibrate``, ``edgert quantize`` and ``precision: int8``, as a user meets them."""

import json
import subprocess
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import yaml

from edgert.installation import demo_images
from tests.helpers import command
from tests.helpers.command import ROOT

PARTS = ROOT / "pipelines" / "assets" / "parts.onnx"
IMAGES = ("--images", demo_images(), "--limit", "8")
INPUT = ("--input", "letterbox rgb std=255")


def edgert(*arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Runs it in a folder with a cache of its own beside it."""
    return command.edgert(*map(str, arguments), cwd=cwd, env=_cache(cwd))


def in_process(*arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    """The same by a call in this process."""
    return command.in_process(*map(str, arguments), cwd=cwd, env=_cache(cwd))


def _cache(folder: Path) -> dict[str, str]:
    return {"EDGERT_CACHE": str(folder.parent / f"{folder.name}.cache")}


@pytest.fixture(scope="module")
def ranges(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ranges") / "ranges.json"
    done = in_process("calibrate", PARTS, *IMAGES, *INPUT, "-o", path, cwd=path.parent)
    assert done.returncode == 0 and "8 images" in done.stderr
    return path


def test_ranges_are_for_people_and_machines(ranges: Path) -> None:
    table = json.loads(ranges.read_text())
    assert table["images"] == 8
    assert not list(ranges.parent.glob(".*.state"))


def test_an_int8_model_and_its_report(ranges: Path, tmp_path: Path) -> None:
    out, page = tmp_path / "small.onnx", tmp_path / "page.html"
    done = in_process("quantize", "hello", *IMAGES, "--ranges", ranges, "-o", out, "--report", page, "--keep", "*head*",
                  cwd=tmp_path)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "agreement" in done.stderr and "<html" in page.read_text()[:200].lower()
    session = onnxruntime.InferenceSession(str(out))
    (spec,) = session.get_inputs()
    assert all(np.isfinite(array).all() for array in session.run(None, {spec.name: np.zeros(spec.shape, np.float32)}))
    assert out.stat().st_size < 0.6 * PARTS.stat().st_size  # the heads were kept


def test_a_calibration_cache(ranges: Path, tmp_path: Path) -> None:
    out = tmp_path / "parts.cache"
    done = in_process("quantize", PARTS, *INPUT, "--ranges", ranges, "--target", "cache", "-o", out, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    first, *lines = out.read_text().splitlines()
    assert first == "TRT-100300-EntropyCalibration2" and len(lines) > 50


def test_a_pipeline_runs_int8_and_finds_it_again(tmp_path: Path) -> None:
    written = yaml.safe_load((ROOT / "pipelines" / "hello.yaml").read_text())
    assert written["models"]["parts"]["precision"] == "int8"
    few = ("--set", "models.parts.calibrate.limit=8", "--set", "stages.belt.limit=12")
    arguments = ("run", "hello", *few, "--json", "-")
    first = in_process(*arguments, cwd=tmp_path)
    second = in_process(*arguments, cwd=tmp_path)
    assert first.returncode == second.returncode == 0, first.stderr + second.stderr
    assert "INT8 is made once" in first.stderr and "INT8 is made once" not in second.stderr
    assert json.loads(second.stdout)["frames_out"] == 12


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("calibrate", PARTS), "needs images"),
        (("calibrate", PARTS, "--images", "nowhere"), "no images at"),
        (("calibrate", PARTS, "--images", demo_images(), "--limit", "3"), "3 images"),
        (("calibrate", PARTS, *IMAGES, "--method", "entropi"), "did you mean 'entropy'"),
        (("quantize", PARTS, *IMAGES, *INPUT, "--target", "dlaa"), "did you mean 'dla'"),
        (("quantize", PARTS, *INPUT, "--ranges", "none.json"), "none.json"),
        (
            ("quantize", PARTS, *IMAGES, *INPUT, "--task", "detect yolox", "--data", "x", "--metric", "mapp"),
            "did you mean 'map'",
        ),
        (("quantize", PARTS, *IMAGES, *INPUT, "--max-drop", "0.1"), "labeled images"),
        (("run", "hello", "--set", "models.parts.calibrate=null"), "needs images"),
    ],
)
def test_what_cannot_be_is_told_and_nothing_is_written(
    arguments: tuple[object, ...], message: str, tmp_path: Path
) -> None:
    done = in_process(*arguments, cwd=tmp_path)
    assert done.returncode == 1 and message in done.stderr, done.stderr
    assert "Traceback" not in done.stderr
    assert [path for path in tmp_path.iterdir() if path.name != "out"] == []


def test_ranges_of_another_model_or_damaged_are_refused(ranges: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.json"
    damaged.write_text(ranges.read_text()[:-200])
    done = in_process("quantize", PARTS, *INPUT, "--ranges", damaged, cwd=tmp_path)
    assert done.returncode == 1 and "damaged.json" in done.stderr
    table = json.loads(ranges.read_text())
    damaged.write_text(json.dumps({**table, "model": "0" * 64}))
    done = in_process("quantize", PARTS, *INPUT, "--ranges", damaged, cwd=tmp_path)
    assert done.returncode == 1 and "another model" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["damaged.json"]


def test_a_place_that_cannot_be_written_is_told(ranges: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    done = in_process("quantize", PARTS, *INPUT, "--ranges", ranges, "-o", "file/small.onnx", cwd=tmp_path)
    assert done.returncode == 1 and "cannot write" in done.stderr and "Traceback" not in done.stderr
