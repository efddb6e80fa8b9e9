"""One governor at work: gets observations, decides, has the decision carried out, and records it.

No clock and no thread: whoever looks every :data:`PERIOD_S` calls :meth:`Loop.step`, a control thread in a real run, an
event in a simulated one.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from edgert.budget.governor import Action, Observation, Rules, Setting, State, decide, start
from edgert.budget.governor.settings import ActionKind

PERIOD_S = 0.5
"""Between two looks: Jetson's sensors average over 0.43 s, so that looking more often sees nothing new."""
_KEPT_EVENTS = 1000

Carry = Callable[[Action], None]
"""Carries out a ``switch`` (to the setting whose index is in the action) or a ``stop``; called for a ``warn``, too."""


@dataclass(frozen=True, slots=True)
class Event:
    """Something that a governor did.

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
    """What a governor did in a run.

    Attributes:
        setting: the one in use.
        seconds: setting → how long it was in use; those that never were are left out.
        switches, warnings: how many.
        events: the last thousand, the oldest first.
        notes: what else there is to say, as of a meter that vanished.
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


@dataclass(slots=True)
class _Tally:
    """What a loop adds up."""

    last_ns: int
    seconds: dict[str, float] = field(default_factory=dict)
    counts: dict[ActionKind, int] = field(default_factory=dict)
    looks: int = 0  # at queues
    queued: float = 0.0
    lost: int = 0

    def add(self, seen: Observation) -> None:
        """Counts what queues held and lost."""
        self.lost += seen.lost
        if seen.queued is not None:
            self.looks, self.queued = self.looks + 1, self.queued + seen.queued


class Loop:
    """Keeps the budgets of one run. For one thread at a time; :meth:`report` may be called from any.

    Args:
        rules: budget, settings and patience.
        carry: carries out what was decided; not called for ``keep``.
        at_ns: when the run begins, on the clock of the observations.

    Raises:
        ValueError: there are no settings.
    """

    def __init__(self, rules: Rules, carry: Carry, at_ns: int) -> None:
        self.rules, self._carry, self._began_ns = rules, carry, at_ns
        self._state = start(rules, at_ns)
        self._tally = _Tally(at_ns)
        self._events: deque[Event] = deque(maxlen=_KEPT_EVENTS)
        if self._state.index or self._state.share < 1:
            why = "the best that is predicted to keep the budgets"
            carry(Action("switch", self._state.index, why, self._state.share))

    @property
    def state(self) -> State:
        """The governor's memory."""
        return self._state

    @property
    def setting(self) -> Setting:
        """The one in use."""
        return self.rules.settings[self._state.index]

    def step(self, seen: Observation) -> Action:
        """One look: decides, carries out, notes. Looks must come in the order of time."""
        self._spend(seen.at_ns)
        self._tally.add(seen)
        decision = decide(self.rules, self._state, seen)
        self._state = decision.state
        if decision.action.kind != "keep":
            self._note(seen.at_ns, decision.action)
            self._carry(decision.action)
        return decision.action

    def report(self, notes: tuple[str, ...] = ()) -> GovernorReport:
        """What it did so far."""
        tally = self._tally
        counts = tally.counts
        return GovernorReport(
            self.setting.name,
            dict(tally.seconds),
            counts.get("switch", 0),
            counts.get("warn", 0),
            tuple(self._events),
            notes,
            tally.queued / tally.looks if tally.looks else None,
            tally.lost,
            self.setting.accuracy_rank,
        )

    def _spend(self, at_ns: int) -> None:
        tally, name = self._tally, self.setting.name
        tally.seconds[name] = tally.seconds.get(name, 0.0) + (at_ns - tally.last_ns) / 1e9
        tally.last_ns = at_ns

    def _note(self, at_ns: int, action: Action) -> None:
        counts = self._tally.counts
        counts[action.kind] = counts.get(action.kind, 0) + 1
        name = self.setting.called(action.share)
        self._events.append(Event((at_ns - self._began_ns) / 1e9, action.kind, name, action.reason))
