"""Records of the governor: settings, budgets and tolerances, observations, state and actions."""

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
        name: name for people and logs.
        power_w: power at full throughput, in the unit of the budget.
        throughput: maximum results per second.
        latency_ms: 99th percentile of the latency from capture to sink.
        accuracy_rank: rank of the model variant; 0 is the most accurate.
        idle_w: power without work; None if unknown, and then less work is assumed to save nothing.
        least_share: smallest share of the throughput at which it may run, by skipping frames evenly; 1 if all frames
            must be processed.

    Raises:
        ValueError: the throughput is 0, a number is negative or not finite, or the share is impossible.
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
        """Return the share of the throughput in use, at most ``share``; an unknown demand uses all of it."""
        return share if demand is None else min(share, demand / self.throughput)

    def predicted_w(self, demand: float | None, share: float = 1.0) -> float:
        """Return the predicted power at a demand."""
        return self._least_w + (self.power_w - self._least_w) * self.load(demand, share)

    def served(self, demand: float | None, share: float = 1.0) -> float:
        """Return the results per second at a demand."""
        return self.throughput * self.load(demand, share)

    def share_within(self, power_w: float, demand: float | None) -> float:
        """Return the largest share, in hundredths, whose predicted power is at most ``power_w``; 0 if there is none."""
        if self.predicted_w(demand) <= power_w:
            return 1.0
        if self.power_w <= self._least_w:
            return 0.0
        share = math.floor(100 * (power_w - self._least_w) / (self.power_w - self._least_w)) / 100
        return share if share >= self.least_share else 0.0

    def name_at(self, share: float) -> str:
        """Return the name with a share of the throughput, for people."""
        return self.name if share == 1 else f"{self.name}, {share:.0%} of that"

    @property
    def _least_w(self) -> float:
        return self.power_w if self.idle_w is None else min(self.idle_w, self.power_w)


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits that the governor must keep; None for no limit.

    Attributes:
        power_w: mean power over a second.
        latency_ms: 99th percentile of the latency from capture to sink.
        memory_bytes: memory of the process. No setting frees any, because all engines stay loaded. So growth beyond the
            budget is only reported, or ends the pipeline.
        margin_c: degrees to stay below the throttling temperature.
        when_exceeded: whether to warn, choose another setting, or end the pipeline.
        unit: unit of ``power_w``: ``W``, or ``cores`` where CPU time replaces watts.
    """

    power_w: float | None = None
    latency_ms: float | None = None
    margin_c: float = 3.0
    when_exceeded: WhenExceeded = "warn"
    unit: str = "W"
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Tolerances:
    """Times and tolerances of a governor; the defaults fit Jetson's sensors, whose values are up to a second old.

    Margins are shares of the power budget. They are negative where something else keeps the budget meanwhile.

    Attributes:
        sensor_s: time after a switch in which readings include the setting before. It is 0.5 s between observations,
            0.4 s of the sensor's average, and up to 0.8 s of lag.
        headroom_s: time for which a better setting must have fitted before a step up.
        between_s: minimum time between two switches before a step up.
        cool_s: time until the temperature shows that a switch helped.
        hold_s: time for which a setting that failed is blocked; doubled with each further failure.
        margin_known: margin that a better setting must leave if it was tried before.
        margin_new: margin that a better setting must leave if it was never tried.
        eager: reduction of ``margin_new`` per relative gain in results.
        wary: increase of ``margin_new`` and ``margin_part`` after failures.
        margin_part: margin of an untried setting that may run at fewer frames first.
        margin_down: margin of a setting that is chosen because power was exceeded.
        over: margin below the budget within which power counts as exceeded, because of a sensor's noise.
        surge: excess above the budget that needs no second reading.
        doubt_per_s, most_doubt: growth of the expected power per second without a sensor, and its maximum.
        cool_margin_c: degrees beyond the budget's margin that a better setting needs.
        stop_s: time for which a budget must be exceeded before ``stop`` ends the pipeline.
        agree: relative difference of two readings in a row up to which they count as steady.
        own_error: largest error of a setting's prediction beyond the error that all settings have in common. An error
            beyond that counts as common: the machine has changed, not the setting.
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
    """Constant input of a governor.

    Attributes:
        budget: limits to keep.
        settings: settings to choose from, in the order of preference among equals.
        tolerances: times and tolerances.
    """

    budget: Budget
    settings: tuple[Setting, ...]
    tolerances: Tolerances = Tolerances()


ActionKind = Literal["keep", "switch", "warn", "stop"]


@dataclass(frozen=True, slots=True)
class Observation:
    """Observation of the pipeline and its machine, every half second; None where a value is unknown.

    Attributes:
        at_ns: monotonic time.
        power_w: mean power since the observation before.
        demand: results per second that the sources request.
        latency_ms: 99th percentile of recent latencies.
        margin_c: degrees below the throttling temperature.
        memory_bytes: resident memory of the process.
        queued: fill of the fullest queue of live frames, 0 to 1.
        lost: number of results that these queues dropped since the observation before.
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
        """Whether live frames arrive faster than they are processed."""
        return self.lost > 0 or (self.queued is not None and self.queued >= 1.0)


@dataclass(frozen=True, slots=True)
class Record:
    """Experience with one setting.

    Attributes:
        own: measured over predicted power, without the factor that all settings have in common; None if never tried.
        blocked_until_ns: time until which it is blocked.
        refused: share of its throughput that failed last.
        failures: number of failures.
    """

    own: float | None = None
    blocked_until_ns: int = 0
    refused: float = 1.0
    failures: int = 0


@dataclass(frozen=True, slots=True)
class State:
    """State of a governor.

    Attributes:
        index: index of the setting in use.
        records: experience with each setting.
        switched_ns: time of the last switch.
        steady_ns: time since which neither setting nor demand changed.
        common: measured over predicted power that all settings share, such as of a warm board; None if unknown.
        is_learnt: whether power was measured since the last switch.
        rose: whether the last switch was a step up.
        demand: demand for which power is measured.
        powers: last readings since the switch, newest last.
        blind_ns: time since which there is no reading of power; None if there is one.
        margin_c: margin of the observation before.
        wanted_ns: time since which a better setting would fit; None if none does.
        late: number of observations in a row with a latency beyond the limit.
        overloaded: number of observations in a row with full queues or lost results.
        exceeded_ns: time since which a budget is exceeded; None if all are kept.
        was_reported: whether the excess was reported.
        share: share of the setting's throughput in use.
        lately_ns: times of the last few switches, newest last.
        tried: indices of settings that were tried, from ``records``.
        failures: number of failures of all settings, from ``records``.
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


@dataclass(frozen=True, slots=True)
class Keep:
    """Action that changes nothing."""

    kind: ClassVar[ActionKind] = "keep"
    reason: ClassVar[str] = ""


@dataclass(frozen=True, slots=True)
class Switch:
    """Switch to another setting, or to another share of its frames.

    Attributes:
        setting: index of the setting.
        share: share of its frames to process, evenly spread.
        reason: reason for people.
    """

    kind: ClassVar[ActionKind] = "switch"
    setting: int
    share: float
    reason: str


@dataclass(frozen=True, slots=True)
class Warn:
    """Report of an exceeded budget."""

    kind: ClassVar[ActionKind] = "warn"
    reason: str


@dataclass(frozen=True, slots=True)
class Stop:
    """End of the pipeline."""

    kind: ClassVar[ActionKind] = "stop"
    reason: str


Action = Keep | Switch | Warn | Stop


def check_settings(rules: Rules) -> None:
    """Raise BudgetError if no setting is predicted to keep the budget, or if there is no setting.

    Raises:
        BudgetError: the error names the closest setting and its needs.
    """
    budget = rules.budget
    if not rules.settings:
        raise BudgetError("the governor has no settings", why="nothing was planned for this pipeline and board")
    if any(_excess(setting, budget) <= 1.0 for setting in rules.settings):
        return
    closest = min(rules.settings, key=lambda setting: _excess(setting, budget))
    needs, would_keep = [], []  # ``would_keep`` has values for the pipeline file, none below those that are there
    if budget.power_w:
        needs.append(f"{closest.power_w:.4g} of {budget.power_w:.4g} {budget.unit}")
        most = max(math.ceil(10 * closest.power_w) / 10, budget.power_w)
        would_keep.append(f"power: {most:g}W" if budget.unit == "W" else f"cpu: {most:g}")
    if budget.latency_ms:
        needs.append(f"{closest.latency_ms:.4g} of {budget.latency_ms:.4g} ms")
        would_keep.append(f"latency: {max(math.ceil(closest.latency_ms), budget.latency_ms):g}ms")
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
        budget: limits to keep.
        power: reading of the power, which may be measured, modeled or unavailable.

    Raises:
        BudgetError: the budget has ``when_exceeded: stop``, which modeled power must not trigger.
    """
    if budget.power_w is None or power.kind == "measured":
        return ""
    why = f"{power.source}: {power.why}" if power.why else power.source
    if budget.when_exceeded == "stop":
        raise BudgetError(
            "a power budget cannot be enforced here",
            why=f"this machine has no power sensor ({why})",
            where="budgets.power",
            fix="set when_exceeded: warn or degrade, which use modeled values; or leave budgets.power out",
        )
    if not power.is_known:
        warning = f"budgets.power is not watched: no power sensor, and no model of this machine ({why})"
        return f"{warning}; budgets.cpu limits CPU time instead"
    return f"budgets.power is kept by modeled values: no power sensor ({why})"


def _excess(setting: Setting, budget: Budget) -> float:
    pairs = ((setting.power_w, budget.power_w), (setting.latency_ms, budget.latency_ms))
    return max((value / limit for value, limit in pairs if limit), default=0.0)
