"""Leaving edgert: what was built, for Triton, for any ONNX runtime, or for trtexec.

    open_source(path) → Source → leave(source, Wanted("triton", folder)) → Left

:func:`check_leave` says before a pipeline is built what cannot leave.

What the format has no words for is named, in the files and in what is returned.
"""

from edgert.exporter.exported import Item, Outline, Source, open_source
from edgert.exporter.write import FORMATS, Format, Left, Wanted, check_leave, leave

__all__ = ["FORMATS", "Format", "Item", "Left", "Outline", "Source", "Wanted", "check_leave", "leave", "open_source"]
