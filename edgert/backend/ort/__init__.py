"""ONNX Runtime: the engine that runs anywhere, and on NVIDIA GPUs. The only package that imports onnxruntime."""

from edgert.backend.ort.cpu import OrtBackend
from edgert.backend.ort.custom_ops import CustomOpEngine
from edgert.backend.ort.runtime import OrtEngine
from edgert.backend.ort.timing import Function

__all__ = ["CustomOpEngine", "Function", "OrtBackend", "OrtEngine"]
