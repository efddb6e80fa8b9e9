"""Which budget is exceeded, and which settings would keep it."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from edgert.budget.estimate import estimate_w, recent_w, share_within
from edgert.budget.rules import Budget, Observation, Rules, Setting, State
from edgert.errors import BudgetError
from edgert.meters.reading import Reading
from edgert.units import format_bytes

_LATE = 2  # looks in a row with a long latency before something is done
_URGENT_C = 1.0
_COOLER = 0.97  # of its power: less would not be felt


@dataclass(frozen=True, slots=True)
class Trouble:
    """A budget that is exceeded.

    Attributes:
        why: for people.
        helps: the largest share of a setting's throughput at which this budget would be kept; 0 where none is.
        power_w: what was drawn, if a sensor measured that it was too much.
        lasts: the setting in use is at fault whatever the demand, and should be left alone for a while.
        eases: whether drawing less power makes it less, even where no setting keeps the budget.
    """

    why: str
    helps: Callable[[int], float]
    power_w: float | None = None
    lasts: bool = False
    eases: bool = True


def find_trouble(rules: Rules, state: State, seen: Observation) -> Trouble | None:
    """Return the first of power, heat, latency and memory that is exceeded; None while all are kept."""
    found = _power(rules, state, seen) or _heat(rules, state, seen) or _latency(rules, state, seen)
    most, held = rules.budget.memory_bytes, seen.memory_bytes
    if found or most is None or held is None or held <= most:
        return found
    return Trouble(f"memory {format_bytes(held)} of {format_bytes(most)}", lambda index: 0.0, eases=False)


def keeps(rules: Rules, state: State, index: int, seen: Observation, spare: float) -> float:
    """Return the largest share at which a setting is expected to keep power and latency; 0 where none does.

    A part of the power is kept to spare.
    """
    cap, limit_ms = rules.budget.power_w, rules.budget.latency_ms
    if limit_ms is not None and rules.settings[index].latency_ms > limit_ms:
        return 0.0
    return 1.0 if cap is None else share_within(rules, state, index, seen.demand, cap * (1 - spare))


def untried(rules: Rules, state: State, index: int, seen: Observation) -> float:
    """Return the part of the power budget that an untried setting must leave free, where fewer frames will do.

    It is more while another setting is blocked because it failed.
    """
    if state.records[index].own is not None or rules.settings[index].least_share == 1:
        return 0.0
    is_warned = any(record.blocked_until_ns > seen.at_ns for record in state.records)
    return rules.patience.spare_part + rules.patience.wary * is_warned


def _power(rules: Rules, state: State, seen: Observation) -> Trouble | None:
    cap = rules.budget.power_w
    if cap is None:
        return None
    doubt = _doubt(rules, state, seen)
    expected = doubt * estimate_w(rules, state, state.index, seen.demand, state.share)
    expected *= 1.0 if seen.power_w is not None else 1.0 + untried(rules, state, state.index, seen)
    drawn = _measured_over(rules, state, seen, cap)
    factor = doubt * max(1.0, (drawn or 0.0) / max(expected, 1e-9))  # a reading above what was learnt so far
    lasting = _doubt(rules, state, seen, rules.patience.most_doubt) / doubt  # so that one step is enough
    most = cap * (1 - rules.patience.spare_down) / lasting

    def helps(index: int) -> float:
        is_seen = index == state.index and drawn is not None
        unsure = 0.0 if is_seen else untried(rules, state, index, seen)
        return share_within(rules, state, index, seen.demand, most * (1 - unsure) / factor)

    if drawn is not None:
        return Trouble(_told(rules, drawn), helps, drawn, state.rose)
    # No reading covers the present demand: the sensor is gone, or the demand is younger than readings.
    is_new = seen.at_ns - state.steady_ns < rules.patience.sensor_s * 1e9 and state.steady_ns > state.switched_ns
    if expected > cap and (seen.power_w is None or (is_new and state.is_learnt)):
        sensor = "no sensor" if seen.power_w is None else "the sensor lags"
        return Trouble(f"{_told(rules, expected)}, modeled: {sensor}", helps)
    return None


def _told(rules: Rules, drawn: float) -> str:
    """Return power beside its budget, or the CPU time that replaces it."""
    budget = rules.budget
    return f"{'power' if budget.unit == 'W' else 'CPU time'} {drawn:.4g} of {budget.power_w:.4g} {budget.unit}"


def _measured_over(rules: Rules, state: State, seen: Observation, cap: float) -> float | None:
    """Return the measured power if it is too much: over two readings, or in one that no noise explains.

    After a rise any reading above the budget counts, however old: the setting before kept it.
    """
    recent, patience = recent_w(state), rules.patience
    most = cap * (1 - min(patience.over, 0.0))
    if seen.power_w is not None and seen.power_w > most and state.rose and not state.is_learnt:
        return seen.power_w
    if recent is None:
        return None
    if state.powers[-1] > cap * (1 + patience.surge):
        return state.powers[-1]
    return recent if len(state.powers) > 1 and recent > cap * (1 - patience.over) else None


def _doubt(rules: Rules, state: State, seen: Observation, least: float = 0.0) -> float:
    """Return how much more than expected may be drawn: the board may have warmed up while there is no reading.

    It counts only where there was a reading before.
    """
    if state.blind_ns is None or state.common is None:
        return 1.0
    blind_s = (seen.at_ns - state.blind_ns) / 1e9
    return 1.0 + max(least, min(rules.patience.most_doubt, rules.patience.doubt_per_s * blind_s))


def _heat(rules: Rules, state: State, seen: Observation) -> Trouble | None:
    margin_c, least_c = seen.margin_c, rules.budget.margin_c
    if margin_c is None or margin_c >= least_c or state.margin_c is None or margin_c >= state.margin_c:
        return None  # far from it, or getting better
    patience = rules.patience
    wait_s = patience.sensor_s if margin_c < _URGENT_C else patience.cool_s
    if seen.at_ns - state.switched_ns < wait_s * 1e9:
        return None
    here = estimate_w(rules, state, state.index, seen.demand, state.share)
    why = f"{margin_c:.1f} C to throttling, of {least_c:.1f} C to be kept"
    return Trouble(why, lambda index: float(estimate_w(rules, state, index, seen.demand) <= _COOLER * here), lasts=True)


def _latency(rules: Rules, state: State, seen: Observation) -> Trouble | None:
    limit_ms = rules.budget.latency_ms
    if limit_ms is None or state.late < _LATE:
        return None
    here_ms = rules.settings[state.index].latency_ms
    endless = "endless, as queues are full and nothing comes out,"
    measured = endless if seen.latency_ms is None else f"{seen.latency_ms:.4g}"
    why = f"latency p99 {measured} of {limit_ms:.4g} ms"
    return Trouble(why, lambda index: float(rules.settings[index].latency_ms < here_ms), lasts=True)


# Whether a budget can be kept at all, checked before a pipeline starts.


def check_settings(rules: Rules) -> None:
    """Refuse a budget that no setting is predicted to keep.

    Raises:
        BudgetError: it names the closest setting and what that one needs; or there is no setting at all.
    """
    budget = rules.budget
    if not rules.settings:
        raise BudgetError("the governor has no settings", why="nothing was planned for this pipeline and board")
    if any(_far(setting, budget) <= 1.0 for setting in rules.settings):
        return
    closest = min(rules.settings, key=lambda setting: _far(setting, budget))
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


def _far(setting: Setting, budget: Budget) -> float:
    """Return the largest factor by which a budget is missed; up to 1 when all are kept."""
    pairs = ((setting.power_w, budget.power_w), (setting.latency_ms, budget.latency_ms))
    return max((value / limit for value, limit in pairs if limit), default=0.0)
