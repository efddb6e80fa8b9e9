"""Models in float16, with float32 where float16 would not do."""

from edgert.quantization.fp16.storage import rounded
from edgert.quantization.fp16.to_fp16 import HalfGraph, Kept, Precision, to_half

__all__ = ["HalfGraph", "Kept", "Precision", "rounded", "to_half"]
