"""What this machine cannot run models with."""

from __future__ import annotations

import sys

import pytest

from edgert import installation
from edgert.backend import openvino
from edgert.tuner.candidates import why_not


def test_onnx_runtime_is_never_absent() -> None:
    assert why_not("ort") == ""


def test_what_is_absent_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    openvino._openvino.cache_clear()
    monkeypatch.setitem(sys.modules, "openvino", None)
    assert why_not("openvino") == f"OpenVINO is not installed: {installation.command('openvino')}"
    openvino._openvino.cache_clear()


@pytest.mark.parametrize(("backend", "words"), [("onnxruntime-cuda", "CUDA"), ("tensorrt", "GPU|TensorRT")])
def test_a_gpu_that_is_not_there_is_named(backend: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from edgert.board.devices import cuda_driver

    driver = cuda_driver()
    if driver is not None and driver.gpus:
        pytest.skip(f"{driver.gpus[0].name} is here")
    assert any(word in why_not(backend) for word in words.split("|"))
