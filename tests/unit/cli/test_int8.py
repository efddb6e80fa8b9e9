"""``edgert calibrate``, ``quantize`` and ``eval`` on a network of one convolution: what each option changes."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import command
from tests.helpers.small_pipeline import small_pipeline


@pytest.fixture
def place(tmp_path: Path) -> Path:
    small_pipeline(tmp_path / "p", photos=12)
    return tmp_path / "p"


def run(place: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return command.in_process(*arguments, cwd=place, env={"EDGERT_CACHE": str(place.parent / "cache")})


def calibrated(place: Path, *options: str, name: str = "ranges.json") -> dict[str, Any]:
    done = run(place, "calibrate", "small.yaml", *options, "-o", name)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads((place / name).read_text())
    return found


def test_it_takes_the_pipelines_images_and_at_most_the_limit(place: Path) -> None:
    assert calibrated(place)["images"] == 12
    assert calibrated(place, "--limit", "9")["images"] == 9


def test_ranges_do_not_depend_on_the_number_of_processes(place: Path) -> None:
    """In a process of its own: workers import the main module of who starts them."""
    options = ("--workers", "2", "-o", "two.json")
    env = {"EDGERT_CACHE": str(place.parent / "cache")}
    done = command.edgert("calibrate", "small.yaml", *options, cwd=place, env=env)
    assert done.returncode == 0, done.stderr
    assert json.loads((place / "two.json").read_text()) == calibrated(place)
    assert run(place, "calibrate", "small.yaml", "--workers", "0").returncode == 2


def test_a_method_is_kept_with_the_ranges(place: Path) -> None:
    assert calibrated(place, "--method", "minmax")["method"] == "minmax"
    unknown = run(place, "calibrate", "small.yaml", "--method", "minmix")
    assert unknown.returncode == 1 and "minmax" in unknown.stderr


def test_a_cluster_needs_its_extra_or_its_address(place: Path) -> None:
    done = run(place, "calibrate", "small.yaml", "--dask", "tcp://127.0.0.1:1")
    assert done.returncode == 1 and "error: " in done.stderr and not (place / "ranges.json").exists()


def test_eval_sees_what_is_set(place: Path) -> None:
    common = ("eval", "small.yaml", "--data", "photos", "--metric", "cosine", "--precision", "int8")
    done = run(place, *common, "--set", "models.parts.onnx=gone.onnx")
    assert done.returncode == 1 and "gone.onnx" in done.stderr
    done = run(place, *common, "--model", "prats")
    assert done.returncode == 1 and "parts" in done.stderr


def test_a_calibration_cache_names_its_tensorrt(place: Path) -> None:
    calibrated(place)
    options = ("--ranges", "ranges.json", "--target", "cache", "-o", "m.cache")
    for version, number in (("8.6.1", "8601"), ("10.3.0", "100300")):
        done = run(place, "quantize", "small.yaml", *options, "--trt", version)
        assert done.returncode == 0, done.stderr
        assert (place / "m.cache").read_text().startswith(f"TRT-{number}-")
