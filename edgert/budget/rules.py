"""The governor's records: its settings, budgets and tolerances, what it observes, remembers and decides."""

import math
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from edgert.errors import BudgetError
from edgert.meters.reading import Reading

WhenExceeded = Literal["warn", "degrade", "stop"]


@dataclass(frozen=True, slots=True)
class Setting:
    """One way to run the pipeline (placement, power mode, rate, model variant) with its predicted cost.

    Attributes:
        name: for people and logs.
        power_w: drawn at full throughput, in the unit of the budget's power.
        throughput: results per second that it can give.
        latency_ms: p99 from capture to sink.
        accuracy_rank: 0 is the most accurate model variant.
        idle_w: drawn without work; None: unknown, and less work is taken to save nothing.
        least_share: it may be run at any part of its throughput down to this, by leaving frames out evenly; 1: whole
            only.

    Raises:
        ValueError: no throughput, power that is negative or not finite, or a share that is none: a prediction that
            nothing can be chosen by.
    """

    name: str
    power_w: float
    throughput: float
    latency_ms: float = 0.0
    accuracy_rank: int = 0
    idle_w: float | None = None
    least_share: float = 1.0

    def __post_init__(self) -> None:
        numbers = (self.power_w, self.throughput, self.latency_ms, self.idle_w or 0.0)
        if not all(math.isfinite(number) and number >= 0 for number in numbers) or self.throughput == 0:
            raise ValueError(
                f"setting {self.name!r} has impossible power, throughput, latency or idle power: {numbers}"
            )
        if not 0 < self.least_share <= 1:
            raise ValueError(f"setting {self.name!r} has an impossible least share of throughput: {self.least_share}")

    def load(self, demand: float | None, share: float = 1.0) -> float:
        """Return the part of its throughput in use, out of ``share``; unknown demand takes all of it."""
        return share if demand is None else min(share, demand / self.throughput)

    def predicted_w(self, demand: float | None, share: float = 1.0) -> float:
        """Return the predicted power under that demand."""
        return self._least_w + (self.power_w - self._least_w) * self.load(demand, share)

    def served(self, demand: float | None, share: float = 1.0) -> float:
        """Return the results per second under that demand."""
        return self.throughput * self.load(demand, share)

    def share_within(self, power_w: float, demand: float | None) -> float:
        """Return the largest share, in hundredths, with no more predicted power than that; 0 where there is none."""
        if self.predicted_w(demand) <= power_w:
            return 1.0
        if self.power_w <= self._least_w:
            return 0.0
        share = math.floor(100 * (power_w - self._least_w) / (self.power_w - self._least_w)) / 100
        return share if share >= self.least_share else 0.0

    def name_at(self, share: float) -> str:
        """Return its name at a share of its throughput, for people."""
        return self.name if share == 1 else f"{self.name}, {share:.0%} of that"

    @property
    def _least_w(self) -> float:
        return self.power_w if self.idle_w is None else min(self.idle_w, self.power_w)


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits that the governor must keep; None means no limit.

    Attributes:
        power_w: averaged over a second.
        latency_ms: p99 from capture to sink.
        memory_bytes: of the process. No setting frees any, since all engines stay loaded. Memory is planned before the
            start; later growth beyond the budget is only reported, or stops the pipeline.
        margin_c: degrees to stay below the temperature at which the hardware throttles.
        when_exceeded: warn, choose another setting, or end the pipeline.
        unit: of ``power_w``: ``W``, or ``cores`` where CPU time replaces watts.
    """

    power_w: float | None = None
    latency_ms: float | None = None
    margin_c: float = 3.0
    when_exceeded: WhenExceeded = "warn"
    unit: str = "W"
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Tolerances:
    """Times and tolerances of a governor. The defaults fit Jetson's sensors, whose values are up to a second old.

    Attributes:
        sensor_s: after a switch, readings include the setting before, too: half a second between looks, 0.4 s that the
            sensor averages over, and up to 0.8 s that it lags.
        headroom_s: a better setting must have fitted for so long before it is taken.
        between_s: and so long after the last switch.
        cool_s: what heat needs to show that a switch helped.
        hold_s: a setting that failed is not taken again for so long; doubled each time it fails again.
        margin_known: part of the power budget that a better setting, tried before, must leave; negative, like those
            below, where something else keeps the budget meanwhile.
        margin_new: the same of one that was never tried; less by ``eager`` times what it gives more, and more by
            ``wary`` for each failure so far.
        margin_part: the same of one that was never tried and need not be run whole: it is tried at fewer frames first.
        margin_down: what a setting must leave that is taken because power was too much.
        over: part below the budget at which power counts as too much: what the noise of a sensor could hide.
        surge: part above the budget that needs no second reading to be believed.
        doubt_per_s, most_doubt: added to expected power for each second without a sensor, and at most.
        cool_margin_c: degrees more than the budget's margin that a better setting needs.
        stop_s: how long a budget must be exceeded before ``stop`` ends the pipeline.
        agree: part of the power by which two readings in a row may differ and still mean a steady state.
        own_error: part by which a setting's power may be mispredicted beyond what all settings have in common; what is
            seen beyond that is taken to be common: the machine has changed, and not the setting.
    """

    sensor_s: float = 1.7
    headroom_s: float = 5.0
    between_s: float = 10.0
    cool_s: float = 5.0
    hold_s: float = 30.0
    margin_known: float = 0.02
    margin_new: float = 0.04
    eager: float = 0.15
    wary: float = 0.05
    margin_part: float = 0.04
    margin_down: float = 0.03
    over: float = 0.005
    surge: float = 0.02
    doubt_per_s: float = 0.005
    most_doubt: float = 0.05
    cool_margin_c: float = 5.0
    stop_s: float = 2.0
    agree: float = 0.02
    own_error: float = math.inf


@dataclass(frozen=True, slots=True)
class Rules:
    """All that does not change while a governor works.

    Attributes:
        settings: in the order of preference among equals.
    """

    budget: Budget
    settings: tuple[Setting, ...]
    tolerances: Tolerances = Tolerances()


ActionKind = Literal["keep", "switch", "warn", "stop"]


@dataclass(frozen=True, slots=True)
class Observation:
    """One observation of the pipeline and its machine, every half second; None is not known.

    Attributes:
        at_ns: monotonic.
        power_w: averaged (energy over time) since the look before; None without a reading.
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
    def is_overloaded(self) -> bool:
        """Whether more results came than went on."""
        return self.lost > 0 or (self.queued is not None and self.queued >= 1.0)


@dataclass(frozen=True, slots=True)
class Record:
    """The knowledge about one setting.

    Attributes:
        own: its measured power over the prediction, corrected by what all settings have in common; None before it was
            tried.
        blocked_until_ns: not to be taken before.
        refused: the share of its throughput that failed last, which blocks it.
        failures: how often it had to be left.
    """

    own: float | None = None
    blocked_until_ns: int = 0
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
        blind_ns: since when there is no reading of power; None: there is one.
        margin_c: of the look before.
        wanted_ns: since when a better setting would fit; None: none does.
        late: how many looks in a row latency was too long.
        overloaded: how many looks in a row queues were full, or lost results.
        exceeded_ns: since when a budget is exceeded; None: it is kept.
        was_reported: whether it was reported.
        tried: indices of settings whose own error is known, from ``records``.
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
    overloaded: int = 0
    exceeded_ns: int | None = None
    was_reported: bool = False
    share: float = 1.0
    lately_ns: tuple[int, ...] = ()
    tried: tuple[int, ...] = field(init=False, repr=False)
    failures: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        known = tuple(index for index, record in enumerate(self.records) if record.own is not None)
        object.__setattr__(self, "tried", known)
        object.__setattr__(self, "failures", sum(record.failures for record in self.records))


# What a governor decides.


@dataclass(frozen=True, slots=True)
class Keep:
    """Change nothing."""

    kind: ClassVar[ActionKind] = "keep"
    reason: ClassVar[str] = ""


@dataclass(frozen=True, slots=True)
class Switch:
    """Use another setting from now on, or another share of its frames.

    Attributes:
        setting: its index.
        share: part of its frames that go on, evenly.
        reason: for people.
    """

    kind: ClassVar[ActionKind] = "switch"
    setting: int
    share: float
    reason: str


@dataclass(frozen=True, slots=True)
class Warn:
    """Report a budget that is exceeded."""

    kind: ClassVar[ActionKind] = "warn"
    reason: str


@dataclass(frozen=True, slots=True)
class Stop:
    """End the pipeline."""

    kind: ClassVar[ActionKind] = "stop"
    reason: str


Action = Keep | Switch | Warn | Stop


# Whether budgets can be kept at all, checked before a pipeline starts.


def check_settings(rules: Rules) -> None:
    """Refuse a budget that no setting is predicted to keep.

    Raises:
        BudgetError: it names the closest setting and what that one needs; or there is no setting at all.
    """
    budget = rules.budget
    if not rules.settings:
        raise BudgetError("the governor has no settings", why="nothing was planned for this pipeline and board")
    if any(_excess(setting, budget) <= 1.0 for setting in rules.settings):
        return
    closest = min(rules.settings, key=lambda setting: _excess(setting, budget))
    needs, would_keep = [], []  # the latter in the form of the pipeline file
    if budget.power_w:
        needs.append(f"{closest.power_w:.4g} of {budget.power_w:.4g} {budget.unit}")
        most = math.ceil(10 * closest.power_w) / 10
        would_keep.append(f"power: {most:g}W" if budget.unit == "W" else f"cpu: {most:g}")
    if budget.latency_ms:
        needs.append(f"{closest.latency_ms:.4g} of {budget.latency_ms:.4g} ms")
        would_keep.append(f"latency: {math.ceil(closest.latency_ms)}ms")
    fix = f"budgets: {{{', '.join(would_keep)}}}"
    raise BudgetError(
        "no setting keeps the budgets",
        why=f"the closest, {closest.name}, is predicted to need {' and '.join(needs)}",
        where="budgets",
        fix=f"{fix}; or a larger board: edgert plan --board all; or when_exceeded: warn",
        code="E702",
    )


def check_meter(budget: Budget, power: Reading) -> str:
    """Return a warning about a power budget on a machine without a power sensor; empty if none is needed.

    Args:
        budget: the budget.
        power: measured; or modeled, which the budget is then kept by; or unavailable, and then it is not watched.

    Raises:
        BudgetError: ``when_exceeded: stop`` on such a machine: a pipeline is not ended because of modeled power.
    """
    if budget.power_w is None or power.kind == "measured":
        return ""
    why = f"{power.source}: {power.why}" if power.why else power.source
    if budget.when_exceeded == "stop":
        raise BudgetError(
            "a power budget cannot be enforced here",
            why=f"this machine has no power sensor ({why})",
            where="budgets.power",
            fix="when_exceeded: warn or degrade use modeled values; or leave budgets.power out",
        )
    if not power.is_known:
        warning = f"budgets.power is not watched: no power sensor, and no model of this machine ({why})"
        return f"{warning}; budgets.cpu limits CPU time instead"
    return f"budgets.power is kept by modeled values: no power sensor ({why})"


def _excess(setting: Setting, budget: Budget) -> float:
    """Return the largest factor by which a budget is missed; up to 1 when all are kept."""
    pairs = ((setting.power_w, budget.power_w), (setting.latency_ms, budget.latency_ms))
    return max((value / limit for value, limit in pairs if limit), default=0.0)
