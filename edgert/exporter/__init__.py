"""Leaving edgert: what was built, for Triton, for any ONNX runtime, or for trtexec.

    open_source(path) → Source → write_export(source, ExportOptions("triton", folder)) → Exported

:func:`check_export` says before a pipeline is built what cannot write_export.

What the format has no words for is named, in the files and in what is returned.
"""

from edgert.exporter.export_formats import FORMATS, Exported, ExportOptions, Format, check_export, write_export
from edgert.exporter.source import Item, Outline, Source, open_source

__all__ = [
    "FORMATS",
    "ExportOptions",
    "Exported",
    "Format",
    "Item",
    "Outline",
    "Source",
    "check_export",
    "open_source",
    "write_export",
]
