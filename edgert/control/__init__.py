"""Change a running pipeline: one handler, for Python and for a Unix socket beside the run."""

from edgert.control.controlled import Controlled
from edgert.control.operations import Control

__all__ = ["Control", "Controlled"]
