"""Trace ids of frames after W3C Trace Context (https://www.w3.org/TR/trace-context), the same on all machines."""

import hashlib
import os
from collections import deque

from edgert.runtime.frame import Frame

_RUN = os.urandom(16)
SAMPLED = deque[str](maxlen=256)
"""Trace ids of the newest frames whose spans are exported from here."""


def trace_of(frame: Frame) -> str:
    """Return the trace id of a frame, which is in the messages of all machines about it."""
    if (delivery := frame.extra.delivery) is not None:
        return delivery.trace
    about = f"{frame.stream}/{frame.index}".encode()
    return hashlib.blake2b(about, digest_size=16, key=_RUN).hexdigest()


def span_of(trace: str) -> str:
    """Return the span id of a frame's way through this process."""
    return hashlib.blake2b(trace.encode(), digest_size=8, key=_RUN).hexdigest()


def traceparent_of(trace: str) -> str:
    """Return the ``traceparent`` header: the frame's trace, its span here, and whether its spans are exported."""
    return f"00-{trace}-{span_of(trace)}-{int(trace in SAMPLED):02d}"
