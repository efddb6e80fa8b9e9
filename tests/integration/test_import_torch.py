"""PyTorch's models imported for real; skipped where PyTorch and onnxscript are not installed (extra torch)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edgert
from edgert.backend.ort import Function
from edgert.errors import BuildError, ModelError
from edgert.graph import load
from edgert.importer.conversion import import_model

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed: extra torch")
pytest.importorskip("onnxscript", reason="onnxscript is not installed: extra torch")

pytestmark = pytest.mark.slow
MINE = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.drop = torch.nn.Conv2d(3, 4, 3, padding=1), torch.nn.Dropout(0.9)
        self.head = torch.nn.Linear(4, 5)

    def forward(self, image, scale):
        y = self.drop(torch.relu(self.conv(image)) * scale)
        return {"features": y, "scores": self.head(y.mean((2, 3)))}

def model():
    torch.manual_seed(0)
    return Net(), (torch.randn(2, 3, 16, 16), torch.ones(1))

def nothing():
    return Net()

def branching():
    class Odd(torch.nn.Module):
        def forward(self, x):
            return x + 1 if x.sum() > 0 else x - 1
    return Odd(), torch.ones(3)

def counting():
    class Largest(torch.nn.Module):
        def forward(self, x):
            found = x[x > 0.5]
            return found.sum() if found.numel() > 3 else found.sum() * 1
    return Largest(), torch.linspace(0, 1, 20)
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "mine.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_function_that_makes_a_module(mine: Path) -> None:
    made = import_model("mine:model", mine / "m.onnx", dynamic={"image": ["batch", None, None, None]})
    assert [str(spec) for spec in made.inputs] == ["image float32[batch, 3, 16, 16]", "scale float32[1]"]
    assert [one.name for one in made.differences] == ["features", "scores"]
    assert made.opset == 18 and max(one.relative for one in made.differences) < 1e-5
    run = Function(load(mine / "m.onnx"))
    assert run({"image": np.zeros((5, 3, 16, 16), "f4"), "scale": np.ones(1, "f4")})["scores"].shape == (5, 5)


def test_an_exported_program_and_inputs_of_the_users_own(mine: Path) -> None:
    script = (
        "import torch, mine; net, given = mine.model(); "
        "torch.export.save(torch.export.export(net.eval(), given), 'm.pt2')"
    )
    subprocess.run([sys.executable, "-c", script], check=True, cwd=mine)
    np.savez(mine / "own.npz", image=np.full((2, 3, 16, 16), 3, "f4"), scale=np.full(1, 2, "f4"))
    made = import_model("m.pt2", mine / "m.onnx", inputs=mine / "own.npz")
    assert [spec.name for spec in made.inputs] == ["image", "scale"] and made.differences[0].largest > 1


def test_what_cannot_be_exported_is_told_with_the_reason(mine: Path) -> None:
    with pytest.raises(BuildError, match="PyTorch cannot export mine:branching"):
        import_model("mine:branching", mine / "m.onnx")
    with pytest.raises(ModelError, match="mine:nothing gives no module with its inputs"):
        import_model("mine:nothing", mine / "m.onnx")
    assert not (mine / "m.onnx").exists()


def test_what_only_the_older_exporter_takes_is_compared_twice(mine: Path) -> None:
    made = import_model("mine:counting", mine / "m.onnx")
    assert "dynamo=False" in made.exporter and "torch.export cannot" in made.exporter
    with pytest.raises(BuildError, match="PyTorch cannot export mine:branching") as caught:
        import_model("mine:branching", mine / "other.onnx")
    assert "differs on a second input" in caught.value.why


@pytest.mark.parametrize("name", ["ssdlite320_mobilenet_v3_large", "fasterrcnn_mobilenet_v3_large_320_fpn"])
def test_detectors_of_torchvision_by_name(tmp_path: Path, name: str) -> None:
    pytest.importorskip("torchvision", reason="torchvision is not installed")
    made = import_model(f"torchvision:{name}", tmp_path / "m.onnx", weights="random", size=(320, 320))
    (found,) = made.differences
    assert found.boxes is not None and found.boxes.first > 10 and found.boxes.share >= 0.95


def test_models_of_timm_by_name(tmp_path: Path) -> None:
    pytest.importorskip("timm", reason="timm is not installed")
    made = import_model("timm:resnet18", tmp_path / "m.onnx", weights="random", size=(64, 64))
    assert made.inputs[0].shape == (1, 3, 64, 64) and made.differences[0].shape == (1, 1000)


def test_an_input_that_the_module_does_not_have_is_told(mine: Path) -> None:
    with pytest.raises(ModelError, match="no input 'images'; did you mean 'image'"):
        import_model("mine:model", mine / "m.onnx", dynamic={"images": ["n"]})


def test_dimensions_that_are_not_there_or_cannot_be_open_are_told(mine: Path) -> None:
    with pytest.raises(ModelError, match="'image' has no dimension 4") as caught:
        import_model("mine:model", mine / "m.onnx", dynamic={"image": ["n", None, None, None, "more"]})
    assert caught.value.fix == "4 names at most; _ for what stays fixed"
    with pytest.raises(BuildError, match="dimension 1 of 'image' cannot stay open"):  # its weights have three
        import_model("mine:model", mine / "m.onnx", dynamic={"image": ["n", "channels"]})
    assert not (mine / "m.onnx").exists()


def test_a_damaged_program_is_told(mine: Path) -> None:
    import zipfile

    with zipfile.ZipFile(mine / "m.pt2", "w") as archive:
        archive.writestr("m/archive_format", "pt2")
    with pytest.raises(BuildError, match="cannot be converted"):
        import_model("m.pt2", mine / "m.onnx")


def test_a_module_built_from_python(tmp_path: Path) -> None:
    class Net(torch.nn.Module):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            return torch.nn.functional.hardswish(x) * 2

    net, x = Net().train(), torch.randn(2, 7)
    with edgert.from_torch(net, output=tmp_path / "net.onnx", example_inputs=x, threads=1) as engine:
        np.testing.assert_allclose(engine(x.numpy()), net(x).numpy(), atol=1e-6)
    assert net.training and (tmp_path / "net.onnx").is_file()


def test_the_command_line(mine: Path) -> None:
    command = [sys.executable, "-m", "edgert", "import", "mine:model", "-o", "m.onnx", "--json", "-"]
    here = {**os.environ, "PYTHONPATH": str(Path(edgert.__file__).parents[1])}
    done = subprocess.run(command, capture_output=True, text=True, cwd=mine, env=here, check=True)
    report = json.loads(done.stdout)
    assert (
        report["path"] == "m.onnx"
        and set(report["differences"]) == {"features", "scores"}
        and "torch" in report["versions"]
    )
