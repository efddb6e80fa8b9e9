"""ONNX Runtime backends for CPUs and NVIDIA GPUs. Only this package imports onnxruntime."""

from edgert.backend.ort.cpu import Function, OrtBackend
from edgert.backend.ort.custom_ops import CustomOpEngine
from edgert.backend.ort.runtime import OrtEngine

__all__ = ["CustomOpEngine", "Function", "OrtBackend", "OrtEngine"]
