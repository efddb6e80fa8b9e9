"""Which backends this machine cannot run models with, so that a search says so once and goes on without them."""

from __future__ import annotations


def why_not(backend: str) -> str:
    """Why a backend runs nothing here, and what to install, in one line; empty where it can, as far as is known before
    it gets a model."""
    if backend == "openvino":
        from edgert.backend import openvino

        return openvino.why_not()
    if backend == "onnxruntime-cuda":
        from edgert.backend.ort import cuda

        return cuda.why_not()
    if backend == "tensorrt":
        from edgert.backend.trt.backend import TrtBackend

        return TrtBackend().why_not()
    return ""
