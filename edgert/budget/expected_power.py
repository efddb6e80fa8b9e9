"""Expected power of settings, from predictions and from measurements in the run.

power = predicted(demand, share) * common * own

``common`` is the error that all settings share; it rises when the board gets warm. ``own`` is the remaining error of a
setting, which is measured each time the setting is used.
"""

import math
from dataclasses import replace

from edgert.budget.rules import Observation, Record, Rules, State

_DEMAND_STEP = 0.04  # smallest change of demand, as a share of the throughput, that is not jitter of the sources
_LEARNING_RATE = 0.5  # per observation
_READINGS = 2
_MOST_DOUBLINGS = 6


def estimate_w(rules: Rules, state: State, index: int, demand: float | None, share: float = 1.0) -> float:
    """Return the expected power of a setting at a demand and a share of its throughput."""
    return rules.settings[index].predicted_w(demand, share) * _error(rules, state, index, demand)


def share_within(rules: Rules, state: State, index: int, demand: float | None, power_w: float) -> float:
    """Return the largest share of a setting's throughput whose expected power is within ``power_w``; 0 for none."""
    return rules.settings[index].share_within(power_w / _error(rules, state, index, demand), demand)


def _error(rules: Rules, state: State, index: int, demand: float | None) -> float:
    """Return the factor that corrects a setting's prediction.

    The own error of an untried setting is interpolated between its neighbors in predicted power, or is that of its only
    neighbor. Similar settings share what predictions leave out, such as decoding.
    """
    common, own = state.common or 1.0, state.records[index].own
    if own is not None:
        return common * own
    power_w = rules.settings[index].predicted_w(demand)
    known = ((rules.settings[one].predicted_w(demand), state.records[one].own) for one in state.tried)
    tried = [(drawn_w, own) for drawn_w, own in known if own is not None]
    below = max((one for one in tried if one[0] <= power_w), default=None)
    above = min((one for one in tried if one[0] > power_w), default=None)
    if below is None or above is None:
        near = below or above
        return common if near is None else common * near[1]
    part = (power_w - below[0]) / (above[0] - below[0])
    return common * (below[1] + part * (above[1] - below[1]))


def recent_w(state: State) -> float | None:
    """Return the mean power of the last second; None while no reading belongs to the setting in use."""
    return sum(state.powers) / len(state.powers) if state.powers else None


def with_observation(rules: Rules, state: State, seen: Observation) -> State:
    """Return the state with a new observation."""
    setting = rules.settings[state.index]
    change = setting.load(seen.demand, state.share) - setting.load(state.demand, state.share)
    changed = abs(change) > _DEMAND_STEP
    steady_ns = seen.at_ns if changed else state.steady_ns
    demand = seen.demand if changed or state.demand is None else state.demand
    is_settled = seen.at_ns - state.switched_ns >= rules.tolerances.sensor_s * 1e9
    powers = (*state.powers, seen.power_w)[-_READINGS:] if seen.power_w is not None and is_settled else ()
    blind_ns = None if seen.power_w is not None else seen.at_ns if state.blind_ns is None else state.blind_ns
    state = replace(
        state,
        steady_ns=steady_ns,
        demand=demand,
        powers=powers,
        blind_ns=blind_ns,
        late=_late_samples(rules, state, seen),
        overloaded=state.overloaded + 1 if seen.is_overloaded else 0,
    )
    return _learn(rules, state, seen)


def with_failure(rules: Rules, state: State, seen: Observation, power_w: float | None, lasts: bool) -> State:
    """Return the state after the setting in use failed.

    Args:
        rules: budget, settings and tolerances.
        state: state before.
        seen: observation that shows the failure.
        power_w: measured power; None if power was not the reason.
        lasts: whether to block the setting for a while.
    """
    tolerances, record = rules.tolerances, state.records[state.index]
    if power_w is not None and not state.is_learnt:
        ratio = power_w / max(rules.settings[state.index].predicted_w(seen.demand, state.share), 1e-9)
        own = max(record.own or 0.0, _own_error(rules, ratio, state.common))
        is_common = math.isfinite(tolerances.own_error) or state.common is None
        state = replace(state, common=ratio / own if is_common else state.common)
        record = replace(record, own=own)
    if lasts:
        hold_ns = round(tolerances.hold_s * 1e9) << min(record.failures, _MOST_DOUBLINGS)
        until_ns, failures = seen.at_ns + hold_ns, record.failures + 1
        record = replace(record, blocked_until_ns=until_ns, refused=state.share, failures=failures)
    return replace(state, records=_replaced(state.records, state.index, record))


def _late_samples(rules: Rules, state: State, seen: Observation) -> int:
    """Return the number of observations in a row with too much latency that the setting in use causes.

    No results while queues are full also count as too much latency.
    """
    limit_ms = rules.budget.latency_ms
    is_late = seen.is_overloaded if seen.latency_ms is None else limit_ms is not None and seen.latency_ms > limit_ms
    if limit_ms is None or not is_late:
        return 0
    is_settled = seen.at_ns - state.switched_ns >= 2 * rules.tolerances.sensor_s * 1e9
    return state.late + 1 if is_settled else 0


def _learn(rules: Rules, state: State, seen: Observation) -> State:
    power_w = recent_w(state)
    is_steady = seen.at_ns - state.steady_ns >= rules.tolerances.sensor_s * 1e9
    if power_w is None or not is_steady or len(state.powers) < _READINGS:
        return state
    if abs(state.powers[-1] - state.powers[0]) > rules.tolerances.agree * power_w:  # not yet steady
        return state
    ratio = power_w / max(rules.settings[state.index].predicted_w(state.demand, state.share), 1e-9)
    own = state.records[state.index].own
    if not state.is_learnt or own is None:
        own = _own_error(rules, ratio, state.common)
        records = _replaced(state.records, state.index, replace(state.records[state.index], own=own))
        return replace(state, records=records, common=ratio / own, is_learnt=True)
    common = state.common or ratio
    return replace(state, common=common + _LEARNING_RATE * (ratio / own - common))


def _own_error(rules: Rules, ratio: float, common: float | None) -> float:
    most = 1 + rules.tolerances.own_error
    return 1.0 if common is None else min(max(ratio / common, 1 / most), most)


def _replaced(records: tuple[Record, ...], index: int, record: Record) -> tuple[Record, ...]:
    return (*records[:index], record, *records[index + 1 :])
