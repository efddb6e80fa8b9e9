"""`edgert bench --peer`: both sides get the same input, and what cannot be compared is said."""

import sys
from pathlib import Path

import pytest

from edgert.benchmark.peers import compare_with_peer
from edgert.compiler.build_pipeline import build
from edgert.config import load_pipeline
from edgert.errors import BuildError, ConfigError, DeviceError
from edgert.graph import to_bytes
from tests.helpers.errors import raises
from tests.helpers.small_pipeline import network, small_pipeline

ROUNDS = 3
MODULE = """\
import torch

def load():
    return torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3, padding=1), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1))

def wrong():
    return 7

def narrow():
    return torch.nn.Conv2d(1, 4, 3)
"""


@pytest.fixture
def onnx(tmp_path: Path) -> Path:
    path = tmp_path / "net.onnx"
    path.write_bytes(to_bytes(network((1, 3, 16, 16))))
    return path


def test_a_model_beside_onnx_runtime(onnx: Path) -> None:
    (figure,) = compare_with_peer(onnx, "onnxruntime", rounds=ROUNDS)
    assert figure.name.startswith("net: edgert against onnxruntime 1.") and figure.n == ROUNDS
    assert figure.value > 0 and figure.detail["edgert_ms"] > 0 and figure.detail["peer_ms"] > 0
    assert figure.detail["relative_error"] < 1e-5 and figure.detail["edgert"].startswith("ort float")


def test_a_pipeline_in_its_precision_beside_the_file_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGERT_CACHE", str(tmp_path / "cache"))
    (figure,) = compare_with_peer(small_pipeline(tmp_path), "onnxruntime", rounds=ROUNDS)
    assert figure.name.startswith("parts: edgert") and figure.detail["relative_error"] < 0.2


def test_a_bundle_beside_its_float_model(tmp_path: Path) -> None:
    file = load_pipeline(small_pipeline(tmp_path))
    build(file, tmp_path / "small.edgert", board="host", cache=tmp_path / "cache")
    (figure,) = compare_with_peer(tmp_path / "small.edgert", "onnxruntime", rounds=ROUNDS)
    assert figure.name.startswith("parts: edgert") and figure.detail["relative_error"] < 0.2


def test_unknown_peers_are_refused(onnx: Path) -> None:
    with raises(ConfigError, "no peer 'openvno'; did you mean 'openvino'", fix="onnxruntime or openvino or torch"):
        next(compare_with_peer(onnx, "openvno"))


def test_torch_needs_a_module_and_nothing_else_does(onnx: Path) -> None:
    with raises(ConfigError, "PyTorch cannot run an ONNX file", fix="--torch module:function"):
        next(compare_with_peer(onnx, "torch"))
    with pytest.raises(ConfigError, match="--torch is for --peer torch"):
        next(compare_with_peer(onnx, "openvino", "net:load"))


def test_a_module_for_two_models_is_refused(tmp_path: Path) -> None:
    path = small_pipeline(tmp_path)
    text = (
        path.read_text()
        .replace("precision: int8", "precision: fp32")
        .replace("stages:\n", "stages:\n  more: {infer: b, from: cam}\n")
    )
    section = text.split("  parts:\n")[1].split("stages:")[0]
    path.write_text(text.replace("stages:\n", f"  b:\n{section}stages:\n", 1))
    with pytest.raises(ConfigError, match="which of 2 models 'net:load' is"):
        next(compare_with_peer(path, "torch", "net:load"))


@pytest.mark.parametrize(("peer", "package"), [("openvino", "OpenVINO"), ("torch", "PyTorch")])
def test_a_peer_that_is_missing_is_said_with_how_to_install_it(
    onnx: Path, peer: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from edgert.backend import openvino

    monkeypatch.setitem(sys.modules, peer, None)
    openvino._openvino.cache_clear()
    with raises(DeviceError, f"{package} is not installed", fix="pip install"):
        next(compare_with_peer(onnx, peer, "net:load" if peer == "torch" else None))


def test_a_module_beside_edgert(onnx: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    (tmp_path / "torch_net.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    (figure,) = compare_with_peer(onnx, "torch", "torch_net:load", rounds=ROUNDS)
    assert "edgert against torch 2." in figure.name and figure.detail["relative_error"] > 0  # other weights
    with raises(ConfigError, "returns int", why="nn.Module"):
        next(compare_with_peer(onnx, "torch", "torch_net:wrong"))
    with raises(BuildError, "cannot run", fix="[1, 3, 16, 16]"):
        next(compare_with_peer(onnx, "torch", "torch_net:narrow"))


def test_openvino_beside_edgert(onnx: Path) -> None:
    pytest.importorskip("openvino", reason="OpenVINO is not installed")
    (figure,) = compare_with_peer(onnx, "openvino", rounds=ROUNDS)
    assert "edgert against openvino 20" in figure.name and figure.detail["relative_error"] < 1e-3
