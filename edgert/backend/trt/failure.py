"""The error of a build that TensorRT began and did not finish; unlike a refusal, it may help to try otherwise."""

from __future__ import annotations

from collections.abc import Sequence

from edgert.backend.trt.log import LogRecord
from edgert.errors import BuildError


class CompileError(BuildError):
    """TensorRT's compiler failed, or crashed.

    Attributes:
        log: what it said.
        crashed: whether it took its process down.
    """

    log: Sequence[LogRecord] = ()
    crashed: bool = False
