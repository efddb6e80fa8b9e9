"""Several engines of one model, each with its share of the frames, as one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from edgert.backend.base import Engine, Session


class Replicated:
    """See :class:`~edgert.backend.base.Engine`. Whoever deals frames looks at :attr:`parts`; others get the first.

    Args:
        parts: the engines, of equal inputs and outputs, and how many frames each gets of as many as there are weights
            in sum.
    """

    def __init__(self, parts: Sequence[tuple[Engine, int]]) -> None:
        self.parts = tuple(parts)
        first = self.parts[0][0]
        self.profiles, self.inputs, self.outputs = first.profiles, first.inputs, first.outputs
        self.outputs_known, self.batched, self.dynamic_batch = first.outputs_known, first.batched, first.dynamic_batch
        told = [{"weight": weight, **engine.info} for engine, weight in self.parts]
        self.info: Mapping[str, Any] = {**first.info, "parts": told}

    def session(self, profile: str | None = None) -> Session:
        """One of the first engine's. Raises ModelError for an unknown profile."""
        return self.parts[0][0].session(profile)

    def close(self) -> None:
        """Closes all."""
        for engine, _ in self.parts:
            engine.close()
