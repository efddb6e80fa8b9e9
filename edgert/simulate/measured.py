"""What stages take besides their models, from the summary of a run that was measured."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from edgert.errors import ConfigError

_FIX = "write one: edgert run pipeline.yaml --json run.json, on that machine and at an easy rate"


@dataclass(frozen=True, slots=True)
class StageTimes:
    """Times of a run's stages.

    Attributes:
        busy_ms: stage → per result, with its model.
    """

    busy_ms: Mapping[str, float] = field(default_factory=dict)

    def busy_of(self, name: str) -> float:
        """Per result; of a stage with branches, of the first of them. 0 where it was not measured."""
        first = self.busy_ms.get(f"{name}:0")
        return self.busy_ms.get(name, 0.0) if first is None else first


def read_stage_times(path: Path) -> StageTimes:
    """Reads a summary that ``edgert run --json`` wrote. Raises ConfigError."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        busy_ms = {str(name): float(stage["busy_ms_per_result"]) for name, stage in data["stages"].items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        why = f"{type(error).__name__}: {error}"
        raise ConfigError(f"{path} is no summary of a run", why=why, fix=_FIX) from error
    if not all(math.isfinite(value) and value >= 0 for value in busy_ms.values()):
        raise ConfigError(f"{path} tells impossible times", why=f"{busy_ms}", fix=_FIX)
    return StageTimes(busy_ms)
