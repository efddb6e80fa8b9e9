"""ONNX Runtime on the CPU: the engine that runs anywhere, and the only door to the onnxruntime package."""

from edgert.backend.ort.compile import OrtBackend
from edgert.backend.ort.function import Function

__all__ = ["Function", "OrtBackend"]
