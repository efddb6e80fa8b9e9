"""Governor at work in a run: it takes observations, decides, applies the decision, and records it.

It has no clock and no thread. :meth:`Loop.step` is called every :data:`PERIOD_S`, by a thread in a real run and by an
event in a simulation.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, replace

from edgert.budget.governor import Governor
from edgert.budget.rules import Action, ActionKind, Observation, Rules, Setting, Switch

PERIOD_S = 0.5
"""Interval of observations; Jetson's sensors average over 0.43 s, so that a shorter interval would show nothing new."""
_KEPT_EVENTS = 1000

CarryOut = Callable[[Action], None]
"""Function that applies an action other than ``Keep``."""


@dataclass(frozen=True, slots=True)
class Event:
    """Action of a governor.

    Attributes:
        at_s: time since the run began.
        kind: ``switch``, ``warn`` or ``stop``.
        setting: name of the setting from then on, with the share of its frames.
        reason: reason for people.
    """

    at_s: float
    kind: ActionKind
    setting: str
    reason: str


@dataclass(frozen=True, slots=True)
class GovernorReport:
    """Report of a governor in a run.

    Attributes:
        setting: name of the setting in use.
        seconds: setting → time in use, without settings that were never used.
        switches, warnings: number of switches and warnings.
        events: the last thousand actions, the oldest first.
        notes: further notes, such as a meter that vanished.
        queued: mean fill of the fullest queue of live frames, 0 to 1; None without live frames.
        lost: number of results that these queues dropped.
        level: fallback level of the setting in use; 0 runs the models of the file.
    """

    setting: str
    seconds: dict[str, float]
    switches: int
    warnings: int
    events: tuple[Event, ...]
    notes: tuple[str, ...] = ()
    queued: float | None = None
    lost: int = 0
    level: int = 0

    def after(self, past: GovernorReport) -> GovernorReport:
        """Return the report of a run whose governor had other rules before."""
        seconds = Counter(past.seconds)
        seconds.update(self.seconds)
        return replace(
            self,
            seconds=dict(seconds),
            switches=past.switches + self.switches,
            warnings=past.warnings + self.warnings,
            events=(*past.events, *self.events)[-_KEPT_EVENTS:],
            notes=(*past.notes, *self.notes),
            lost=past.lost + self.lost,
        )


class Loop:
    """Governor of one run, for one thread at a time; :meth:`report` may be called from any thread.

    Attributes:
        state: state of the governor.

    Args:
        rules: budget, at least one setting, and tolerances.
        carry_out: function that applies actions other than ``Keep``.
        at_ns: time of the start, on the clock of the observations.
        began_ns: time when the run began, if that was before.
    """

    def __init__(self, rules: Rules, carry_out: CarryOut, at_ns: int, began_ns: int | None = None) -> None:
        self.rules, self._carry_out = rules, carry_out
        self._began_ns = at_ns if began_ns is None else began_ns
        self._governor = Governor(rules)
        self.state = self._governor.start(at_ns)
        self._last_ns = at_ns
        self._seconds: dict[str, float] = {}
        self._counts: Counter[ActionKind] = Counter()
        self._looks, self._queued, self._lost = 0, 0.0, 0  # number of readings of queues, their sum, and losses
        self._events: deque[Event] = deque(maxlen=_KEPT_EVENTS)
        if self.state.index or self.state.share < 1:
            why = "the best that is predicted to keep the budgets"
            carry_out(Switch(self.state.index, self.state.share, why))

    @property
    def setting(self) -> Setting:
        """Setting in use."""
        return self.rules.settings[self.state.index]

    def step(self, seen: Observation) -> Action:
        """Decide on an observation, apply the action, record it and return it.

        Observations must come in the order of time.
        """
        name = self.setting.name
        self._seconds[name] = self._seconds.get(name, 0.0) + (seen.at_ns - self._last_ns) / 1e9
        self._last_ns = seen.at_ns
        self._lost += seen.lost
        if seen.queued is not None:
            self._looks, self._queued = self._looks + 1, self._queued + seen.queued
        self.state, action = self._governor.step(self.state, seen)
        if action.kind != "keep":
            self._counts[action.kind] += 1
            at_s, setting = (seen.at_ns - self._began_ns) / 1e9, self.setting.name_at(self.state.share)
            self._events.append(Event(at_s, action.kind, setting, action.reason))
            self._carry_out(action)
        return action

    def report(self, notes: tuple[str, ...] = ()) -> GovernorReport:
        """Return the report so far."""
        return GovernorReport(
            self.setting.name,
            dict(self._seconds),
            self._counts["switch"],
            self._counts["warn"],
            tuple(self._events),
            notes,
            self._queued / self._looks if self._looks else None,
            self._lost,
            self.setting.accuracy_rank,
        )
