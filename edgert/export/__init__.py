"""Leaving edgert: what was built, for Triton, for any ONNX runtime, or for trtexec.

    open_source(path) → Source → leave(source, "triton", folder) → Left

What the format has no words for is named, in the files and in what is returned.
"""

from edgert.export.leave import FORMATS, Format, Left, leave
from edgert.export.source import Item, Source, open_source

__all__ = ["FORMATS", "Format", "Item", "Left", "Source", "leave", "open_source"]
