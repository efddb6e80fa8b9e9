"""What came of trying tactics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from edgert.precision.speed import Timing
from edgert.tune.tactic import Tactic, tactic_of


@dataclass(frozen=True, slots=True)
class Trial:
    """One tactic, as it did when it was last run.

    Attributes:
        tactic: which.
        barred: why it cannot be chosen, however fast; empty where it can.
        frame: milliseconds per frame; None where it never ran.
        gain: how many times as fast as the default in the same turns, the median; None where it never ran.
        memory_bytes: what its engine adds to a process at its peak; None where that was not measured.
    """

    tactic: Tactic
    barred: str = ""
    frame: Timing | None = None
    gain: float | None = None
    memory_bytes: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def trial_of(data: Mapping[str, Any]) -> Trial:
    """What :meth:`Trial.to_json` gave."""
    frame = Timing(**data["frame"]) if data["frame"] else None
    return Trial(**{**data, "tactic": tactic_of(data["tactic"]), "frame": frame})


@dataclass(frozen=True, slots=True)
class Tuned:
    """What a search found.

    Attributes:
        default: what runs without it.
        chosen: the fastest that keeps every bound; the default where none was surely faster.
        gain: how many times as fast as the default, the median of ``runs`` turns run for nothing else; 1 for itself.
        runs: turns behind ``gain``; 0 for the default itself.
        live: whether it holds for cameras, or for files.
        machine: what the times depend on.
        tried: every tactic, fastest first; those that never ran come last.
        left_out: what could not be searched here → why.
    """

    default: Tactic
    chosen: Tactic
    gain: float
    runs: int
    live: bool
    machine: Mapping[str, str]
    tried: Sequence[Trial]
    left_out: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "default": self.default.to_json(),
            "chosen": self.chosen.to_json(),
            "gain": self.gain,
            "runs": self.runs,
            "live": self.live,
            "machine": dict(self.machine),
            "tried": [trial.to_json() for trial in self.tried],
            "left_out": dict(self.left_out),
        }

    @property
    def told(self) -> str:
        """One line for people."""
        if self.chosen == self.default:
            return f"{self.default} stays: nothing of {len(self.tried)} tactics is surely faster"
        return f"{self.chosen}: {self.gain:.2f} × as fast as {self.default} (n={self.runs})"


def tuned_of(data: Mapping[str, Any]) -> Tuned:
    """What :meth:`Tuned.to_json` gave. Raises TypeError or KeyError for data of another edgert."""
    found = {"default": tactic_of(data["default"]), "chosen": tactic_of(data["chosen"])}
    return Tuned(**{**data, **found, "tried": tuple(map(trial_of, data["tried"]))})
