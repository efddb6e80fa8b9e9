"""The governor: it keeps budgets while a pipeline runs, by choosing among planned settings.

It steps down at once, steps up only after headroom, and never oscillates. It is a pure function of rules, state and
observation; its caller, every half second, keeps the state.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import replace

from edgert.budget.estimate import blame, estimate_w, look, recent_w
from edgert.budget.feasible import Trouble, find_trouble, keeps, untried
from edgert.budget.rules import Action, ActionKind, Decision, Observation, Record, Rules, State

_MORE = 1.01  # a better setting gives at least so much more
_MORE_FRAMES = 1.03  # and one that is not run whole, as it would be corrected for every degree
_PROBE_S = 30.0  # in one setting, before an equal one is tried for what it might give
_PROBED = 1.1  # at least so much more, run whole
_AS_MANY = 0.97  # frames meanwhile
_BELOW = 0.97  # of a share that failed: less is no other
_OVERLOADED = 4  # looks in a row, two seconds: more than a burst
_SWITCHES = 4  # in as many times the patience between two: the rate of switches that is promised
_S = 1e9
_Aim = tuple[int, float]  # a setting, and the share of its throughput


def start(rules: Rules, at_ns: int = 0) -> State:
    """Return the first state, in the best setting that the predictions allow; without one, the most frugal.

    Raises:
        ValueError: there are no settings; see :func:`edgert.budget.feasible.check_settings`.
    """
    if not rules.settings:
        raise ValueError("the governor has no settings")
    state = State(0, tuple(Record() for _ in rules.settings), switched_ns=at_ns, steady_ns=at_ns)
    seen = Observation(at_ns)
    fits = _usable(rules, state, seen, lambda index: keeps(rules, state, index, seen, 0.0))
    index, share = _best(rules, fits, None) if fits else _frugal(rules, state, seen)
    return replace(state, index=index, share=share)


def decide(rules: Rules, state: State, seen: Observation) -> Decision:
    """Decide what to do now; observations must come in the order of time.

    Returns:
        ``keep``; ``switch`` to a more frugal or a better setting; ``warn``, once each time a budget is exceeded that no
            switch can or may keep; ``stop``.
    """
    state = look(rules, state, seen)
    trouble = find_trouble(rules, state, seen)
    state = replace(state, margin_c=seen.margin_c)
    if trouble is not None and (trouble.eases or not state.was_reported or rules.budget.when_exceeded == "stop"):
        return _exceeded(rules, replace(state, wanted_ns=None), seen, trouble)
    unknown = rules.budget.power_w is not None and seen.power_w is not None and recent_w(state) is None
    if trouble is None and not unknown:  # else the setting in use may still turn out to be too much
        state = replace(state, exceeded_ns=None, was_reported=False)
    if rules.budget.when_exceeded != "degrade":
        return Decision(_stay(state), state)
    return _improve(rules, state, seen)


def _exceeded(rules: Rules, state: State, seen: Observation, trouble: Trouble) -> Decision:
    since_ns = seen.at_ns if state.exceeded_ns is None else state.exceeded_ns
    state = replace(state, exceeded_ns=since_ns)
    if rules.budget.when_exceeded == "stop" and seen.at_ns - since_ns >= rules.patience.stop_s * _S:
        return Decision(_stay(state, "stop", f"{trouble.why}, for {rules.patience.stop_s:g} s"), state)
    here = state.index, state.share
    target = here
    if rules.budget.when_exceeded == "degrade":  # to the best setting that helps; if none does, that which draws least
        fits = _usable(rules, state, seen, lambda i: min(trouble.helps(i), keeps(rules, state, i, seen, 0.0)))
        others = [aim for aim in fits if aim[0] != state.index or aim[1] < state.share]
        if others:
            target = _best(rules, others, seen.demand)
        elif trouble.eases:
            target = _frugal(rules, state, seen)
    if target != here:
        return _switch(rules, blame(rules, state, seen, trouble.power_w, trouble.lasts), seen, target, trouble.why)
    if state.was_reported or rules.budget.when_exceeded == "stop":
        return Decision(_stay(state), state)
    hint = "; no setting keeps it" if rules.budget.when_exceeded == "degrade" else ""
    return Decision(_stay(state, "warn", trouble.why + hint), replace(state, was_reported=True))


def _stay(state: State, kind: ActionKind = "keep", why: str = "") -> Action:
    return Action(kind, state.index, why, state.share)


def _improve(rules: Rules, state: State, seen: Observation) -> Decision:
    """Step up once a better setting has fitted for long enough, enough is known and it is cool enough."""
    patience, was_measured = rules.patience, state.common is not None
    knows = rules.budget.power_w is None or not was_measured or (state.is_learnt and recent_w(state) is not None)
    is_cool = seen.margin_c is None or seen.margin_c >= rules.budget.margin_c + patience.cool_margin_c
    better = _better(rules, state, seen) if knows and is_cool else []
    if not better:
        return Decision(_stay(state), replace(state, wanted_ns=None))
    since_ns = seen.at_ns if state.wanted_ns is None else state.wanted_ns
    between_ns = patience.between_s * _S
    recent = [at_ns for at_ns in state.lately_ns if seen.at_ns - at_ns < _SWITCHES * between_ns]
    is_time = seen.at_ns - since_ns >= patience.headroom_s * _S and seen.at_ns - state.switched_ns >= between_ns
    if not is_time or len(recent) > _SWITCHES - 2:  # room for two switches: a rise may have to be taken back
        return Decision(_stay(state), replace(state, wanted_ns=since_ns))
    target = _best(rules, better, seen.demand)
    return _switch(rules, state, seen, target, f"headroom for {(seen.at_ns - since_ns) / _S:.0f} s", rose=True)


def _better(rules: Rules, state: State, seen: Observation) -> list[_Aim]:
    here = rules.settings[state.index]
    served = here.served(seen.demand, state.share)

    def gains(aim: _Aim) -> bool:
        setting, gain = rules.settings[aim[0]], rules.settings[aim[0]].served(seen.demand, aim[1])
        if state.overloaded >= _OVERLOADED and setting.latency_ms >= here.latency_ms:
            return False  # of what it gives already, some is lost
        more = _MORE if aim[0] != state.index and aim[1] == 1.0 else _MORE_FRAMES
        more = _AS_MANY if _is_probe(rules, state, seen, aim[0], served) else more
        return gain > served * more or (gain >= served and setting.accuracy_rank < here.accuracy_rank)

    def fits(index: int) -> float:
        if rules.settings[index].served(seen.demand) < served * _AS_MANY:
            return 0.0  # cannot gain: most settings, at every look
        share = keeps(rules, state, index, seen, _spare(rules, state, seen, index, served))
        if not _is_probe(rules, state, seen, index, served):
            return share
        equal = keeps(rules, state, index, seen, rules.patience.spare_down)
        return max(share, min(equal, math.floor(100 * served / rules.settings[index].throughput) / 100))

    return list(filter(gains, _usable(rules, state, seen, fits)))


def _is_probe(rules: Rules, state: State, seen: Observation, index: int, served: float) -> bool:
    """Return whether to try a setting of which only a prediction is known, though it promises no more.

    That is done once, after a long time without a change, at the present frame rate, which takes about as much power.
    """
    setting, record = rules.settings[index], state.records[index]
    is_calm = seen.at_ns - state.switched_ns >= _PROBE_S * _S and not state.failures
    is_new = setting.least_share < 1 and record.own is None and rules.budget.power_w is not None
    return is_calm and is_new and setting.served(seen.demand) > served * _PROBED


def _spare(rules: Rules, state: State, seen: Observation, index: int, served: float) -> float:
    """Return the part of the power budget that a setting has to leave free to be worth a try."""
    patience = rules.patience
    if state.records[index].own is not None:
        return patience.spare_known
    eager = patience.eager * max(0.0, rules.settings[index].served(seen.demand) / max(served, 1e-9) - 1)
    if rules.settings[index].least_share < 1:
        return untried(rules, state, index, seen)
    wary = patience.wary * state.failures
    return max(min(0.0, patience.spare_new), patience.spare_new + wary - eager)


def _switch(rules: Rules, state: State, seen: Observation, target: _Aim, why: str, rose: bool = False) -> Decision:
    before = rules.settings[state.index].called(state.share)
    index, share = target
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
    return Decision(Action("switch", index, f"{before} -> {rules.settings[index].called(share)}: {why}", share), state)


def _usable(rules: Rules, state: State, seen: Observation, fits: Callable[[int], float]) -> list[_Aim]:
    """Return settings with the share that fits; a blocked one is limited to less than the share that failed."""

    def aim(index: int) -> _Aim:
        record = state.records[index]
        most = 1.0 if record.blocked_until_ns <= seen.at_ns else math.floor(100 * record.refused * _BELOW) / 100
        share = min(fits(index), most)
        return index, share if share >= rules.settings[index].least_share else 0.0

    return [(index, share) for index, share in map(aim, range(len(rules.settings))) if share]


def _best(rules: Rules, aims: Iterable[_Aim], demand: float | None) -> _Aim:
    """Return the setting with most results; of equal ones the most accurate, then the first in the list."""
    settings = rules.settings
    return min(aims, key=lambda aim: (-settings[aim[0]].served(demand, aim[1]), settings[aim[0]].accuracy_rank, aim))


def _frugal(rules: Rules, state: State, seen: Observation) -> _Aim:
    aims = [(index, setting.least_share) for index, setting in enumerate(rules.settings)]
    return min(aims, key=lambda aim: (estimate_w(rules, state, aim[0], seen.demand, aim[1]), aim))
