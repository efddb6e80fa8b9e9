"""Where frames come from: one file per kind of source, and :func:`source_for` to choose."""

from edgert.stages.source.select import kind_of, source_for

__all__ = ["kind_of", "source_for"]
