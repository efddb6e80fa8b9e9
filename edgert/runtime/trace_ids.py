"""Trace ids of frames as W3C's Trace Context has them (https://www.w3.org/TR/trace-context): one on all machines."""

from __future__ import annotations

import hashlib
import os
from collections import deque

from edgert.runtime.frame import Frame

_RUN = os.urandom(16)
SAMPLED = deque[str](maxlen=256)
"""Trace ids of the newest frames whose spans are exported from here."""


def trace_of(frame: Frame) -> str:
    """Return the trace id of a frame, by which messages of all machines about it are found."""
    if frame.delivery is not None:
        return frame.delivery.trace
    about = f"{frame.stream}/{frame.index}".encode()
    return hashlib.blake2b(about, digest_size=16, key=_RUN).hexdigest()


def span_of(trace: str) -> str:
    """Return the id of the span that is a frame's way through this process."""
    return hashlib.blake2b(trace.encode(), digest_size=8, key=_RUN).hexdigest()


def traceparent_of(trace: str) -> str:
    """Return the header that says where a message belongs, and whether the frame's spans are exported."""
    return f"00-{trace}-{span_of(trace)}-{int(trace in SAMPLED):02d}"
