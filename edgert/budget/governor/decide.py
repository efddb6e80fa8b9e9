"""One decision: down at once, up only after headroom, and never back and forth.

A pure function of rules, memory and observation; whoever calls it every half second carries its memory along.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from edgert.budget.governor.estimate import blame, estimate_w, look, recent_w
from edgert.budget.governor.setting import Rules
from edgert.budget.governor.state import Action, Decision, Observation, Record, State
from edgert.budget.governor.trouble import Trouble, find_trouble, keeps

_MORE = 1.01  # a better setting gives at least so much more
_S = 1e9


def start(rules: Rules, at_ns: int = 0) -> State:
    """The memory to begin with, in the best setting that the predictions allow; without one, the most frugal.

    Raises:
        ValueError: there are no settings; see :func:`edgert.budget.governor.check_settings`.
    """
    if not rules.settings:
        raise ValueError("a governor without settings")
    state = State(0, tuple(Record() for _ in rules.settings), switched_ns=at_ns, steady_ns=at_ns)
    seen = Observation(at_ns)
    fits = [index for index in range(len(rules.settings)) if keeps(rules, state, index, seen, 0.0)]
    return replace(state, index=_best(rules, fits, None) if fits else _frugal(rules, state, seen))


def decide(rules: Rules, state: State, seen: Observation) -> Decision:
    """What to do now. Looks must come in the order of time.

    Returns:
        ``keep``; ``switch`` to a more frugal or a better setting; ``warn``, once each time a budget is exceeded that
        no switch can or may keep; ``stop``.
    """
    state = look(rules, state, seen)
    trouble = find_trouble(rules, state, seen)
    state = replace(state, margin_c=seen.margin_c)
    if trouble is not None and (trouble.eases or not state.was_told or rules.budget.when_exceeded == "stop"):
        return _exceeded(rules, replace(state, wanted_ns=None), seen, trouble)
    if trouble is None and not _is_uncertain(rules, state, seen):
        state = replace(state, exceeded_ns=None, was_told=False)
    if rules.budget.when_exceeded != "degrade":
        return Decision(Action("keep", state.index), state)
    return _improve(rules, state, seen)


def _exceeded(rules: Rules, state: State, seen: Observation, trouble: Trouble) -> Decision:
    since_ns = seen.at_ns if state.exceeded_ns is None else state.exceeded_ns
    state = replace(state, exceeded_ns=since_ns)
    if rules.budget.when_exceeded == "stop" and seen.at_ns - since_ns >= rules.patience.stop_s * _S:
        return Decision(Action("stop", state.index, f"{trouble.why}, for {rules.patience.stop_s:g} s"), state)
    target = _escape(rules, state, seen, trouble) if rules.budget.when_exceeded == "degrade" else state.index
    if target != state.index:
        return _switch(rules, blame(rules, state, seen, trouble.power_w, trouble.lasts), seen, target, trouble.why)
    if state.was_told or rules.budget.when_exceeded == "stop":
        return Decision(Action("keep", state.index), state)
    hint = "; no setting keeps it" if rules.budget.when_exceeded == "degrade" else ""
    return Decision(Action("warn", state.index, trouble.why + hint), replace(state, was_told=True))


def _escape(rules: Rules, state: State, seen: Observation, trouble: Trouble) -> int:
    """The best setting that helps; if none does, the one that draws least."""
    fits = _usable(rules, state, seen, lambda i: trouble.helps(i) and keeps(rules, state, i, seen, 0.0))
    if fits:
        return _best(rules, fits, seen.demand)
    return _frugal(rules, state, seen) if trouble.eases else state.index


def _improve(rules: Rules, state: State, seen: Observation) -> Decision:
    """Up, once a better setting has fitted for long enough."""
    better = _better(rules, state, seen) if _may_rise(rules, state, seen) else []
    if not better:
        return Decision(Action("keep", state.index), replace(state, wanted_ns=None))
    since_ns = seen.at_ns if state.wanted_ns is None else state.wanted_ns
    patience = rules.patience
    is_time = seen.at_ns - since_ns >= patience.headroom_s * _S
    if not is_time or seen.at_ns - state.switched_ns < patience.between_s * _S:
        return Decision(Action("keep", state.index), replace(state, wanted_ns=since_ns))
    target = _best(rules, better, seen.demand)
    return _switch(rules, state, seen, target, f"headroom for {(seen.at_ns - since_ns) / _S:.0f} s", rose=True)


def _may_rise(rules: Rules, state: State, seen: Observation) -> bool:
    """Whether enough is known and it is cool enough."""
    was_measured = state.common is not None
    knows = rules.budget.power_w is None or not was_measured or (state.is_learnt and recent_w(state) is not None)
    spare_c = rules.budget.margin_c + rules.patience.cool_margin_c
    return knows and (seen.margin_c is None or seen.margin_c >= spare_c)


def _better(rules: Rules, state: State, seen: Observation) -> list[int]:
    here, patience = rules.settings[state.index], rules.patience
    served = here.served(seen.demand)
    spare_new = patience.spare_new + patience.wary * sum(record.failures for record in state.records)

    def gains(index: int) -> bool:
        setting, known = rules.settings[index], state.records[index].own is not None
        gain = setting.served(seen.demand)
        eager = patience.eager * max(0.0, gain / max(served, 1e-9) - 1)
        spare = patience.spare_known if known else max(min(0.0, patience.spare_new), spare_new - eager)
        is_finer = gain >= served and setting.accuracy_rank < here.accuracy_rank
        return (gain > served * _MORE or is_finer) and keeps(rules, state, index, seen, spare)

    return _usable(rules, state, seen, gains)


def _switch(rules: Rules, state: State, seen: Observation, target: int, why: str, rose: bool = False) -> Decision:
    name, before = rules.settings[target].name, rules.settings[state.index].name
    state = replace(
        state, index=target, switched_ns=seen.at_ns, powers=(), is_learnt=False, rose=rose, late=0, wanted_ns=None
    )
    return Decision(Action("switch", target, f"{before} -> {name}: {why}"), state)


def _usable(rules: Rules, state: State, seen: Observation, fits: Callable[[int], bool]) -> list[int]:
    """Other settings that are not held back, as far as they fit."""
    others = (index for index in range(len(rules.settings)) if index != state.index)
    return [index for index in others if state.records[index].held_until_ns <= seen.at_ns and fits(index)]


def _best(rules: Rules, indices: Iterable[int], demand: float | None) -> int:
    """Most results; of as many, the most accurate; of those, the first in the list."""
    settings = rules.settings
    return min(indices, key=lambda i: (-settings[i].served(demand), settings[i].accuracy_rank, i))


def _frugal(rules: Rules, state: State, seen: Observation) -> int:
    return min(range(len(rules.settings)), key=lambda i: (estimate_w(rules, state, i, seen.demand), i))


def _is_uncertain(rules: Rules, state: State, seen: Observation) -> bool:
    """Whether nothing is known yet of how the setting in use does, so that trouble cannot be called over."""
    return rules.budget.power_w is not None and seen.power_w is not None and recent_w(state) is None
