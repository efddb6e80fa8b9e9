"""Governor, which keeps the budgets of a running pipeline by choosing among planned settings."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TypeAlias

from edgert.budget.expected_power import estimate_w, recent_w, share_within, with_failure, with_observation
from edgert.budget.rules import Action, Keep, Observation, Record, Rules, State, Stop, Switch, Warn
from edgert.units import format_bytes

_S = 1e9
_LATE = 2  # observations in a row with too much latency before a switch
_URGENT_C = 1.0  # margin below which heat does not wait for ``cool_s``
_COOLER = 0.97  # largest relative power of a setting that helps against heat
_MORE = 1.01  # smallest relative gain of a better setting
_MORE_FRAMES = 1.03  # smallest relative gain at a share of its frames, so that small changes cause no switch
_PROBE_S = 30.0  # time without a switch before an equal setting is tried
_PROBED = 1.1  # smallest relative gain of such a setting at all its frames
_AS_MANY = 0.97  # smallest relative number of frames while it is tried
_BELOW = 0.97  # ratio to a share that failed from which a share counts as another
_OVERLOADED = 4  # observations in a row, two seconds, which is longer than a burst
_SWITCHES = 4  # maximum number of switches in as many times ``between_s``
_Target: TypeAlias = "tuple[int, float]"  # index of a setting, and share of its throughput


@dataclass(frozen=True, slots=True)
class _Exceeded:
    """Budget that is exceeded.

    Attributes:
        why: reason for people.
        share_that_helps: setting → largest share of its throughput at which the budget would be kept; 0 for none.
        power_w: measured power if that is too much.
        lasts: whether to block the setting in use for a while, because it fails at any demand.
        eases: whether less power helps even if no setting keeps the budget.
    """

    why: str
    share_that_helps: Callable[[int], float]
    power_w: float | None = None
    lasts: bool = False
    eases: bool = True


class Governor:
    """Controller that chooses a setting every half second; the caller keeps its state.

    It steps down at once, steps up only with headroom, and does not oscillate.

    Args:
        rules: budget, at least one setting, and tolerances; see :func:`edgert.budget.rules.check_settings`.
    """

    def __init__(self, rules: Rules) -> None:
        self.rules = rules

    def start(self, at_ns: int = 0) -> State:
        """Return the first state, with the best setting that predictions allow, or else the most frugal one."""
        state = State(0, tuple(Record() for _ in self.rules.settings), switched_ns=at_ns, steady_ns=at_ns)
        seen = Observation(at_ns)
        fits = self._usable(state, seen, lambda index: self._share_that_fits(state, seen, index, 0.0))
        index, share = self._best(fits, None) if fits else self._most_frugal(state, seen)
        return replace(state, index=index, share=share)

    def step(self, state: State, seen: Observation) -> tuple[State, Action]:
        """Return the state after an observation, and the action; observations must come in the order of time.

        A budget that no switch can keep gives one warning each time it is exceeded.
        """
        budget = self.rules.budget
        state = with_observation(self.rules, state, seen)
        exceeded = self._exceeded(state, seen)
        state = replace(state, margin_c=seen.margin_c)
        if exceeded is not None and (exceeded.eases or not state.was_reported or budget.when_exceeded == "stop"):
            return self._answer(replace(state, wanted_ns=None), seen, exceeded)
        is_unknown = budget.power_w is not None and seen.power_w is not None and recent_w(state) is None
        if exceeded is None and not is_unknown:  # otherwise the setting in use may still prove to be too much
            state = replace(state, exceeded_ns=None, was_reported=False)
        if budget.when_exceeded != "degrade":
            return state, Keep()
        return self._improve(state, seen)

    # A budget is exceeded: step down at once.

    def _answer(self, state: State, seen: Observation, exceeded: _Exceeded) -> tuple[State, Action]:
        """Return a switch to the best setting that helps, or to the most frugal one; otherwise a warning or a stop."""
        rules, why = self.rules, exceeded.why
        since_ns = seen.at_ns if state.exceeded_ns is None else state.exceeded_ns
        state = replace(state, exceeded_ns=since_ns)
        if rules.budget.when_exceeded == "stop" and seen.at_ns - since_ns >= rules.tolerances.stop_s * _S:
            return state, Stop(f"{why}, for {rules.tolerances.stop_s:g} s")
        here: _Target = (state.index, state.share)
        target = here
        if rules.budget.when_exceeded == "degrade":

            def share_of(index: int) -> float:
                return min(exceeded.share_that_helps(index), self._share_that_fits(state, seen, index, 0.0))

            fits = self._usable(state, seen, share_of)
            others = [other for other in fits if other[0] != state.index or other[1] < state.share]
            if others:
                target = self._best(others, seen.demand)
            elif exceeded.eases:
                target = self._most_frugal(state, seen)
        if target != here:
            failed = with_failure(rules, state, seen, exceeded.power_w, exceeded.lasts)
            return self._switch(failed, seen, target, why)
        if state.was_reported or rules.budget.when_exceeded == "stop":
            return state, Keep()
        hint = "; no setting keeps it" if rules.budget.when_exceeded == "degrade" else ""
        return replace(state, was_reported=True), Warn(why + hint)

    def _exceeded(self, state: State, seen: Observation) -> _Exceeded | None:
        """Return the first exceeded budget of power, heat, latency and memory; None if all are kept."""
        found = self._too_much_power(state, seen) or self._too_hot(state, seen) or self._too_late(state, seen)
        most, held = self.rules.budget.memory_bytes, seen.memory_bytes
        if found or most is None or held is None or held <= most:
            return found
        return _Exceeded(f"memory {format_bytes(held)} of {format_bytes(most)}", lambda index: 0.0, eases=False)

    def _too_much_power(self, state: State, seen: Observation) -> _Exceeded | None:
        rules, tolerances, cap = self.rules, self.rules.tolerances, self.rules.budget.power_w
        if cap is None:
            return None
        growth = self._growth_unseen(state, seen)
        expected = growth * estimate_w(rules, state, state.index, seen.demand, state.share)
        if seen.power_w is None:
            expected *= 1.0 + self._margin_of_untried(state, seen, state.index)
        measured = self._measured_over(state, seen, cap)
        factor = growth * max(1.0, (measured or 0.0) / max(expected, 1e-9))  # a reading above the learned power
        later = self._growth_unseen(state, seen, tolerances.most_doubt) / growth  # so that one step suffices
        most = cap * (1 - tolerances.margin_down) / later

        def share_that_helps(index: int) -> float:
            is_measured = index == state.index and measured is not None
            spare = 0.0 if is_measured else self._margin_of_untried(state, seen, index)
            return share_within(rules, state, index, seen.demand, most * (1 - spare) / factor)

        if measured is not None:
            return _Exceeded(self._beside_budget(measured), share_that_helps, measured, state.rose)
        # No reading covers the present demand: there is no sensor, or the demand is newer than its readings.
        is_new = seen.at_ns - state.steady_ns < tolerances.sensor_s * _S and state.steady_ns > state.switched_ns
        if expected > cap and (seen.power_w is None or (is_new and state.is_learnt)):
            sensor = "no sensor" if seen.power_w is None else "the sensor lags"
            return _Exceeded(f"{self._beside_budget(expected)}, modeled: {sensor}", share_that_helps)
        return None

    def _beside_budget(self, power_w: float) -> str:
        budget = self.rules.budget
        return f"{'power' if budget.unit == 'W' else 'CPU time'} {power_w:.4g} of {budget.power_w:.4g} {budget.unit}"

    def _measured_over(self, state: State, seen: Observation, cap: float) -> float | None:
        """Return the measured power if it is too much: in two readings, or in one that noise cannot explain.

        After a step up every reading above the budget counts, because the setting before kept it.
        """
        recent, tolerances = recent_w(state), self.rules.tolerances
        most = cap * (1 - min(tolerances.over, 0.0))
        if seen.power_w is not None and seen.power_w > most and state.rose and not state.is_learnt:
            return seen.power_w
        if recent is None:
            return None
        if state.powers[-1] > cap * (1 + tolerances.surge):
            return state.powers[-1]
        return recent if len(state.powers) > 1 and recent > cap * (1 - tolerances.over) else None

    def _growth_unseen(self, state: State, seen: Observation, least: float = 0.0) -> float:
        """Return the factor by which power may have grown without a reading, as the board may have warmed up.

        It is 1 if there was never a reading.
        """
        if state.blind_ns is None or state.common is None:
            return 1.0
        tolerances, blind_s = self.rules.tolerances, (seen.at_ns - state.blind_ns) / _S
        return 1.0 + max(least, min(tolerances.most_doubt, tolerances.doubt_per_s * blind_s))

    def _too_hot(self, state: State, seen: Observation) -> _Exceeded | None:
        rules, margin_c, least_c = self.rules, seen.margin_c, self.rules.budget.margin_c
        if margin_c is None or margin_c >= least_c or state.margin_c is None or margin_c >= state.margin_c:
            return None  # cool enough or cooling down
        wait_s = rules.tolerances.sensor_s if margin_c < _URGENT_C else rules.tolerances.cool_s
        if seen.at_ns - state.switched_ns < wait_s * _S:
            return None
        most_w = _COOLER * estimate_w(rules, state, state.index, seen.demand, state.share)

        def share_that_helps(index: int) -> float:
            return float(estimate_w(rules, state, index, seen.demand) <= most_w)

        why = f"{margin_c:.1f} C to throttling, of {least_c:.1f} C to be kept"
        return _Exceeded(why, share_that_helps, lasts=True)

    def _too_late(self, state: State, seen: Observation) -> _Exceeded | None:
        settings, limit_ms = self.rules.settings, self.rules.budget.latency_ms
        if limit_ms is None or state.late < _LATE:
            return None
        here_ms = settings[state.index].latency_ms
        endless = "endless, as queues are full and nothing comes out,"
        measured = endless if seen.latency_ms is None else f"{seen.latency_ms:.4g}"
        why = f"latency p99 {measured} of {limit_ms:.4g} ms"
        return _Exceeded(why, lambda index: float(settings[index].latency_ms < here_ms), lasts=True)

    # All budgets are kept: step up once there is headroom.

    def _improve(self, state: State, seen: Observation) -> tuple[State, Action]:
        """Return a switch to a better setting that has fitted for long enough, if power is known and heat allows it."""
        budget, tolerances, was_measured = self.rules.budget, self.rules.tolerances, state.common is not None
        is_known = budget.power_w is None or not was_measured or (state.is_learnt and recent_w(state) is not None)
        is_cool = seen.margin_c is None or seen.margin_c >= budget.margin_c + tolerances.cool_margin_c
        better = self._better(state, seen) if is_known and is_cool else []
        if not better:
            return replace(state, wanted_ns=None), Keep()
        since_ns = seen.at_ns if state.wanted_ns is None else state.wanted_ns
        between_ns = tolerances.between_s * _S
        recent = [at_ns for at_ns in state.lately_ns if seen.at_ns - at_ns < _SWITCHES * between_ns]
        is_time = seen.at_ns - since_ns >= tolerances.headroom_s * _S and seen.at_ns - state.switched_ns >= between_ns
        if not is_time or len(recent) > _SWITCHES - 2:  # room for two switches, as a step up may have to be undone
            return replace(state, wanted_ns=since_ns), Keep()
        why = f"headroom for {(seen.at_ns - since_ns) / _S:.0f} s"
        return self._switch(state, seen, self._best(better, seen.demand), why, rose=True)

    def _better(self, state: State, seen: Observation) -> list[_Target]:
        """Return settings that give more results, or as many from a more accurate model, and fit with a margin."""
        settings = self.rules.settings
        here = settings[state.index]
        served = here.served(seen.demand, state.share)

        def gains(target: _Target) -> bool:
            setting, gain = settings[target[0]], settings[target[0]].served(seen.demand, target[1])
            if state.overloaded >= _OVERLOADED and setting.latency_ms >= here.latency_ms:
                return False  # results are already lost
            more = _MORE if target[0] != state.index and target[1] == 1.0 else _MORE_FRAMES
            more = _AS_MANY if self._is_probe(state, seen, target[0], served) else more
            return gain > served * more or (gain >= served and setting.accuracy_rank < here.accuracy_rank)

        def share_of(index: int) -> float:
            if settings[index].served(seen.demand) < served * _AS_MANY:
                return 0.0  # cannot gain, which excludes most settings early
            share = self._share_that_fits(state, seen, index, self._margin_to_rise(state, seen, index, served))
            if not self._is_probe(state, seen, index, served):
                return share
            equal = self._share_that_fits(state, seen, index, self.rules.tolerances.margin_down)
            return max(share, min(equal, math.floor(100 * served / settings[index].throughput) / 100))

        return list(filter(gains, self._usable(state, seen, share_of)))

    def _is_probe(self, state: State, seen: Observation, index: int, served: float) -> bool:
        """Return whether to try a setting that was never measured, although no gain is predicted within the budget.

        It is tried once, after a long time without a switch, at the present frame rate, which takes similar power.
        """
        setting, record = self.rules.settings[index], state.records[index]
        is_calm = seen.at_ns - state.switched_ns >= _PROBE_S * _S and not state.failures
        is_new = setting.least_share < 1 and record.own is None and self.rules.budget.power_w is not None
        return is_calm and is_new and setting.served(seen.demand) > served * _PROBED

    def _margin_to_rise(self, state: State, seen: Observation, index: int, served: float) -> float:
        """Return the share of the power budget that a better setting must leave free."""
        tolerances, setting = self.rules.tolerances, self.rules.settings[index]
        if state.records[index].own is not None:
            return tolerances.margin_known
        if setting.least_share < 1:
            return self._margin_of_untried(state, seen, index)
        eager = tolerances.eager * max(0.0, setting.served(seen.demand) / max(served, 1e-9) - 1)
        wary = tolerances.wary * state.failures
        return max(min(0.0, tolerances.margin_new), tolerances.margin_new + wary - eager)

    def _margin_of_untried(self, state: State, seen: Observation, index: int) -> float:
        """Return the share of the power budget that an untried setting must leave free if it can skip frames.

        It is larger while another setting is blocked.
        """
        if state.records[index].own is not None or self.rules.settings[index].least_share == 1:
            return 0.0
        is_warned = any(record.blocked_until_ns > seen.at_ns for record in state.records)
        return self.rules.tolerances.margin_part + self.rules.tolerances.wary * is_warned

    # Settings to choose from.

    def _switch(
        self, state: State, seen: Observation, target: _Target, why: str, rose: bool = False
    ) -> tuple[State, Action]:
        settings, (index, share) = self.rules.settings, target
        before, after = settings[state.index].name_at(state.share), settings[index].name_at(share)
        state = replace(
            state,
            index=index,
            share=share,
            switched_ns=seen.at_ns,
            lately_ns=(*state.lately_ns, seen.at_ns)[1 - _SWITCHES :],
            powers=(),
            is_learnt=False,
            rose=rose,
            late=0,
            overloaded=0,
            wanted_ns=None,
        )
        return state, Switch(index, share, f"{before} -> {after}: {why}")

    def _share_that_fits(self, state: State, seen: Observation, index: int, spare: float) -> float:
        """Return the largest share at which a setting is expected to keep power and latency; 0 if none.

        ``spare`` is the share of the power budget to leave free.
        """
        cap, limit_ms = self.rules.budget.power_w, self.rules.budget.latency_ms
        if limit_ms is not None and self.rules.settings[index].latency_ms > limit_ms:
            return 0.0
        return 1.0 if cap is None else share_within(self.rules, state, index, seen.demand, cap * (1 - spare))

    def _usable(self, state: State, seen: Observation, share_of: Callable[[int], float]) -> list[_Target]:
        """Return settings with the share that fits; a blocked setting must stay below the share that failed."""

        def target(index: int) -> _Target:
            record = state.records[index]
            most = 1.0 if record.blocked_until_ns <= seen.at_ns else math.floor(100 * record.refused * _BELOW) / 100
            share = min(share_of(index), most)
            return index, share if share >= self.rules.settings[index].least_share else 0.0

        return [(index, share) for index, share in map(target, range(len(self.rules.settings))) if share]

    def _best(self, targets: Iterable[_Target], demand: float | None) -> _Target:
        """Return the setting with most results; of equal ones the most accurate, then the first."""
        settings = self.rules.settings
        return min(
            targets, key=lambda one: (-settings[one[0]].served(demand, one[1]), settings[one[0]].accuracy_rank, one)
        )

    def _most_frugal(self, state: State, seen: Observation) -> _Target:
        targets = [(index, setting.least_share) for index, setting in enumerate(self.rules.settings)]
        return min(targets, key=lambda one: (estimate_w(self.rules, state, one[0], seen.demand, one[1]), one))
