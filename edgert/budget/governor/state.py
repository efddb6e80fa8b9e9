"""What a governor sees, what it remembers, and what it wants done."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

ActionKind = Literal["keep", "switch", "warn", "stop"]


@dataclass(frozen=True, slots=True)
class Observation:
    """One look at the pipeline and its machine, every half second. None is not known.

    Attributes:
        at_ns: monotonic.
        power_w: averaged (energy over time) since the look before; None when no sensor tells.
        demand: results per second that the sources ask for.
        latency_ms: p99 of the recent past.
        margin_c: degrees to throttling.
        memory_bytes: resident in the process.
        queued: how full the fullest queue of live frames is, 0 to 1.
        lost: results that those queues dropped since the look before.
    """

    at_ns: int
    power_w: float | None = None
    demand: float | None = None
    latency_ms: float | None = None
    margin_c: float | None = None
    memory_bytes: int | None = None
    queued: float | None = None
    lost: int = 0

    @property
    def is_crowded(self) -> bool:
        """Whether more came than went on."""
        return self.lost > 0 or (self.queued is not None and self.queued >= 1.0)


@dataclass(frozen=True, slots=True)
class Record:
    """What is known of one setting.

    Attributes:
        own: its measured power over what the prediction, corrected by what all settings have in common, says; None
            before it was tried.
        held_until_ns: not to be taken before.
        refused: the share of its throughput that failed last, which it is held back from.
        failures: how often it had to be left.
    """

    own: float | None = None
    held_until_ns: int = 0
    refused: float = 1.0
    failures: int = 0


@dataclass(frozen=True, slots=True)
class State:
    """A governor's memory.

    Attributes:
        index: the setting in use.
        share: part of its throughput that it is run at.
        records: of each setting.
        switched_ns: when it came into use.
        lately_ns: when the last few switches were, newest last.
        steady_ns: since when neither setting nor demand changed.
        common: measured over predicted power, as far as all settings share it: a warm board, a poor prediction.
        is_learnt: whether the setting in use was measured since the switch to it.
        rose: whether that switch was to a better one.
        demand: that learning is based on.
        powers: the last readings since the switch, newest last.
        blind_ns: since when no sensor tells of power; None: one does.
        margin_c: of the look before.
        wanted_ns: since when a better setting would fit; None: none does.
        late: how many looks in a row latency was too long.
        crowded: how many looks in a row queues were full, or lost results.
        exceeded_ns: since when a budget is exceeded; None: it is kept.
        was_told: whether that was reported.
        tried: indices of settings whose own error is known, and ``failures``: how often any had to be left; both of
            ``records``, told here as every setting is judged by them at every look.
    """

    index: int
    records: tuple[Record, ...]
    switched_ns: int = 0
    steady_ns: int = 0
    common: float | None = None
    is_learnt: bool = False
    rose: bool = False
    demand: float | None = None
    powers: tuple[float, ...] = ()
    blind_ns: int | None = None
    margin_c: float | None = None
    wanted_ns: int | None = None
    late: int = 0
    crowded: int = 0
    exceeded_ns: int | None = None
    was_told: bool = False
    share: float = 1.0
    lately_ns: tuple[int, ...] = ()
    tried: tuple[int, ...] = field(init=False, repr=False)
    failures: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        known = tuple(index for index, record in enumerate(self.records) if record.own is not None)
        object.__setattr__(self, "tried", known)
        object.__setattr__(self, "failures", sum(record.failures for record in self.records))


@dataclass(frozen=True, slots=True)
class Action:
    """What to do now.

    Attributes:
        kind: ``keep`` as it is, ``switch`` to another setting, ``warn`` the user, or ``stop`` the pipeline.
        setting: index of the setting to use from now on.
        reason: for people; empty for ``keep``.
        share: part of that setting's frames that go on, evenly.
    """

    kind: ActionKind
    setting: int
    reason: str = ""
    share: float = 1.0


@dataclass(frozen=True, slots=True)
class Decision:
    """An action, and the memory to bring along next time."""

    action: Action
    state: State = field(repr=False)
