"""Models in float16, with float32 where float16 would not do."""

from edgert.quantize.half.convert import HalfGraph, Kept, Precision, to_half
from edgert.quantize.half.storage import rounded

__all__ = ["HalfGraph", "Kept", "Precision", "rounded", "to_half"]
