"""Engines behind one small interface. Vendor packages are imported when a backend is first asked to compile."""

from edgert.backend.base import (
    DEFAULT_PROFILE,
    DEFAULT_TUNING,
    Backend,
    Engine,
    EngineOptions,
    Session,
    Shapes,
    Span,
    Store,
    Tensor,
    Tuning,
)
from edgert.kinds import BACKENDS


def backend(name: str) -> Backend:
    """Return the backend of a name; ``auto`` is the best one here. Raises ConfigError for an unknown name."""
    made: Backend = BACKENDS.get(name)()
    return made


__all__ = [
    "DEFAULT_PROFILE",
    "DEFAULT_TUNING",
    "Backend",
    "Engine",
    "EngineOptions",
    "Session",
    "Shapes",
    "Span",
    "Store",
    "Tensor",
    "Tuning",
    "backend",
]
