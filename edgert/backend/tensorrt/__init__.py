"""The only package that uses TensorRT: 8.6 to 10.x (weakly typed), 11.x (strongly typed) and TensorRT-RTX.

    request_of(model, …) → build(request) → BuildResult     in a process of its own
    TrtEngine(plan, …) ── .session() ── .run()

Nothing here imports TensorRT before it is needed, and no number of an enumeration is ever stored: they were renumbered
in 11.0. Which names may be used is in ``tests/data/trt_api``, version by version, and a test holds this package to it.
"""

from edgert.backend.base import Span
from edgert.backend.tensorrt.build_process import BuildResult, Progress, build
from edgert.backend.tensorrt.build_request import BuildRequest, Format, Pools, request_of
from edgert.backend.tensorrt.retry import build_retrying
from edgert.backend.tensorrt.trt_engine import TrtEngine

__all__ = [
    "BuildRequest",
    "BuildResult",
    "Format",
    "Pools",
    "Progress",
    "Span",
    "TrtEngine",
    "build",
    "build_retrying",
    "request_of",
]
