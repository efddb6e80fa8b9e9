"""Change a running pipeline: one handler, for Python and for a Unix socket beside the run."""

from edgert.control.operations import Control, Controlled

__all__ = ["Control", "Controlled"]
