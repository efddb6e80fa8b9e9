"""Engines behind one small interface. A vendor's package is imported when its backend first compiles a model."""

from edgert.backend.base import (
    DEFAULT_PROFILE,
    Backend,
    Engine,
    EngineOptions,
    Session,
    Shapes,
    Span,
    Store,
    Tensor,
    trial_run,
)
from edgert.kinds import BACKENDS


def backend(name: str) -> Backend:
    """Return a backend by name; ``auto`` is the best one here. Raises ConfigError for an unknown name."""
    found: Backend = BACKENDS.get(name)()
    return found


__all__ = [
    "DEFAULT_PROFILE",
    "Backend",
    "Engine",
    "EngineOptions",
    "Session",
    "Shapes",
    "Span",
    "Store",
    "Tensor",
    "backend",
    "trial_run",
]
