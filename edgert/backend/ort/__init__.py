"""ONNX Runtime on the CPU: the engine that runs anywhere, and the only door to the onnxruntime package."""

from edgert.backend.ort.compile import OrtBackend
from edgert.backend.ort.function import Function
from edgert.backend.ort.own import OwnEngine
from edgert.backend.ort.session import OrtEngine

__all__ = ["Function", "OrtBackend", "OrtEngine", "OwnEngine"]
