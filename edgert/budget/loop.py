"""One governor at work: it gets observations, decides, carries out the decision, and records it.

It has no clock and no thread. Every :data:`PERIOD_S` :meth:`Loop.step` is called: by a control thread in a real run, by
an event in a simulated one.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, replace

from edgert.budget.governor import Governor
from edgert.budget.rules import Action, ActionKind, Observation, Rules, Setting, Switch

PERIOD_S = 0.5
"""Between two looks: Jetson's sensors average over 0.43 s, so that looking more often sees nothing new."""
_KEPT_EVENTS = 1000

CarryOut = Callable[[Action], None]
"""Carries out an action that is not ``Keep``."""


@dataclass(frozen=True, slots=True)
class Event:
    """An action of a governor.

    Attributes:
        at_s: since the loop began.
        kind: ``switch``, ``warn`` or ``stop``.
        setting: in use from then on, and at which share of its frames.
        reason: for people.
    """

    at_s: float
    kind: ActionKind
    setting: str
    reason: str


@dataclass(frozen=True, slots=True)
class GovernorReport:
    """The record of a governor in a run.

    Attributes:
        setting: the one in use.
        seconds: setting → how long it was in use; those that never were are left out.
        switches, warnings: how many.
        events: the last thousand, the oldest first.
        notes: further remarks, such as a meter that vanished.
        queued: how full the fullest queue of live frames was, the mean of all looks, 0 to 1; None without any.
        lost: results that those queues dropped.
        level: of the setting in use: 0 is every model as it was written, each further level has one more fallback
            model.
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
        """Return the record of a run whose governor had other rules before."""
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
    """The governor of one run, for one thread at a time; :meth:`report` may be called from any.

    Attributes:
        state: the governor's memory.

    Args:
        rules: budget, settings and patience.
        carry_out: carries out what was decided; not called for ``Keep``.
        at_ns: when it begins, on the clock of the observations.
        began_ns: when the run began, if that was before.

    Raises:
        ValueError: there are no settings.
    """

    def __init__(self, rules: Rules, carry_out: CarryOut, at_ns: int, began_ns: int | None = None) -> None:
        self.rules, self._carry_out = rules, carry_out
        self._began_ns = at_ns if began_ns is None else began_ns
        self._governor = Governor(rules)
        self.state = self._governor.start(at_ns)
        self._last_ns = at_ns
        self._seconds: dict[str, float] = {}
        self._counts: Counter[ActionKind] = Counter()
        self._looks, self._queued, self._lost = 0, 0.0, 0  # at queues
        self._events: deque[Event] = deque(maxlen=_KEPT_EVENTS)
        if self.state.index or self.state.share < 1:
            why = "the best that is predicted to keep the budgets"
            carry_out(Switch(self.state.index, self.state.share, why))

    @property
    def setting(self) -> Setting:
        """The setting in use."""
        return self.rules.settings[self.state.index]

    def step(self, seen: Observation) -> Action:
        """Decide on one observation, carry the action out, and record it.

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
        """Return the record so far."""
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
