"""``edgert import``: what reaches the converter, and what is refused before one starts."""

import json
import stat
import zipfile
from pathlib import Path

import numpy as np
import pytest

from edgert.importer import conversion_process
from tests.helpers.command import in_process


@pytest.fixture
def spy(tmp_path: Path) -> Path:
    """A program in the place of a Python with PyTorch: it keeps what it is given, and fails."""
    path = tmp_path / "python"
    path.write_text(f'#!/bin/sh\nfor last; do :; done\ncp -r "$last" {tmp_path}/asked\necho broken >&2\nexit 3\n')
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.fixture
def program(tmp_path: Path) -> str:
    with zipfile.ZipFile(tmp_path / "m.pt2", "w") as archive:
        archive.writestr("m/archive_format", "pt2")
    return "m.pt2"


def test_what_is_asked_for_reaches_the_converter(tmp_path: Path, spy: Path, program: str) -> None:
    np.savez(tmp_path / "inputs.npz", image=np.full((1, 2), 7, np.float32))
    options = ("--opset", "17", "--shape", "image=1x2", "--inputs", "inputs.npz", "--signature", "score")
    done = in_process("import", program, *options, "--python", str(spy), cwd=tmp_path)
    assert done.returncode == 1 and "broken" in done.stderr, done.stderr
    request = conversion_process.read_request(tmp_path / "asked")
    assert (request.opset, request.shapes, request.signature) == (17, {"image": [1, 2]}, "score")
    feeds = conversion_process.read_arrays(tmp_path / "asked" / conversion_process.FEEDS)
    assert feeds["image"].tolist() == [[7, 7]]
    assert not (tmp_path / "m.onnx").exists()


def test_weights_and_size_of_a_model_by_name_reach_the_converter(tmp_path: Path, spy: Path) -> None:
    options = ("--weights", "random", "--size", "640x480", "-o", "m.onnx", "--python", str(spy))
    assert in_process("import", "torchvision:resnet18", *options, cwd=tmp_path).returncode == 1
    request = conversion_process.read_request(tmp_path / "asked")
    assert (request.weights, request.size) == ("random", [640, 480])


def test_open_dimensions_of_a_function_are_named(tmp_path: Path, spy: Path) -> None:
    options = ("--dynamic", "image=batch,_,h,w", "--python", str(spy))
    assert in_process("import", "mine:model", *options, cwd=tmp_path).returncode == 1
    request = conversion_process.read_request(tmp_path / "asked")
    assert json.loads(json.dumps(request.dynamic)) == {"image": ["batch", None, "h", "w"]} and request.opset == 18


@pytest.mark.parametrize(
    ("options", "code", "says"),
    [
        (("--opset", "12"), 2, "--opset"),
        (("--shape", "image"), 2, "write INPUT=1x3x320x320"),
        (("--shape", "image=1x3xtwo"), 2, "write INPUT=1x3x320x320"),
        (("--dynamic", "batch,_"), 1, "write INPUT=batch,_,height,width"),
        (("--tolerance=-1",), 2, "--tolerance"),
        (("--inputs", "gone.npz"), 1, "cannot read inputs 'gone.npz'"),
        (("--python", "gone"), 1, "cannot run"),
    ],
)
def test_mistakes(tmp_path: Path, program: str, options: tuple[str, ...], code: int, says: str) -> None:
    done = in_process("import", program, *options, cwd=tmp_path)
    assert done.returncode == code and says in done.stderr, done.stderr
    assert not (tmp_path / "m.onnx").exists()
