"""The only package that uses TensorRT: 8.6 to 10.x (weakly typed), 11.x (strongly typed) and TensorRT-RTX.

    request_of(model, …) → build(request) → BuildResult     in a separate process
    TrtEngine(plan, …) ── .session() ── .run()

TensorRT is imported when it is first needed. Numbers of enumerations are never stored, as 11.0 changed them. A test
checks that each name used here exists in every version of TensorRT: they are listed in ``tests/data/trt_api``.
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
