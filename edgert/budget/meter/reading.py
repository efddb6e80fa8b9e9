"""One value of a meter, with where it comes from."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

Kind = Literal["measured", "modelled", "unavailable"]


@dataclass(frozen=True, slots=True)
class Reading:
    """A value, or why there is none. What could not be read is never 0.

    Attributes:
        value: in ``unit``; None exactly when ``kind`` is ``unavailable``.
        unit: ``W``, ``Hz``, ``%``, ``C``, ``B``, ``cores``; empty for a count.
        kind: whether hardware said so, a model did, or nobody.
        source: the file, library or model; for ``unavailable``, where it was looked for.
        why: for ``unavailable``, what was in the way; else a remark, or empty.

    Raises:
        ValueError: value and kind contradict each other, or the value is not finite.
    """

    value: float | None
    unit: str
    kind: Kind
    source: str
    why: str = ""

    def __post_init__(self) -> None:
        if (self.value is None) != (self.kind == "unavailable"):
            raise ValueError(f"a reading that is {self.kind} with value {self.value}")
        if self.value is not None and not math.isfinite(self.value):
            raise ValueError(f"a reading of {self.value}")

    @property
    def is_known(self) -> bool:
        """Whether there is a value, measured or modelled."""
        return self.value is not None


def measured(value: float, unit: str, source: str, why: str = "") -> Reading:
    """What hardware or kernel said. Raises ValueError when it is not finite."""
    return Reading(value, unit, "measured", source, why)


def modelled(value: float, unit: str, source: str, why: str = "") -> Reading:
    """What a model says in place of a meter. Raises ValueError when it is not finite."""
    return Reading(value, unit, "modelled", source, why)


def unavailable(unit: str, source: str, why: str) -> Reading:
    """No value, and why."""
    return Reading(None, unit, "unavailable", source, why)


Gauge = Callable[[], Reading]
"""Reads one value. Never raises, does not block."""


class Meter(Protocol):
    """Reads several values that belong together."""

    def read(self) -> Mapping[str, Reading]:
        """Name → reading, the same names each time. Never raises: what cannot be read is ``unavailable``."""
        ...


@dataclass(frozen=True, slots=True)
class Gauges:
    """Gauges by name as one :class:`Meter`."""

    by_name: Mapping[str, Gauge]

    def read(self) -> Mapping[str, Reading]:
        """See :meth:`Meter.read`."""
        return {name: gauge() for name, gauge in self.by_name.items()}
