"""A board that draws power, gets warm and is watched by a poor sensor: what governors are tried on.

Made by chance from a seed: 4 to 16 settings whose power is mispredicted by up to 20 % together and 3 % each, load
steps, a surrounding that gets hotter or cooler, leakage, a sensor that averages over 0.4 s, is up to 0.8 s late, noisy
by 0.3 % and drops out. Time goes in steps of 0.1 s; a governor looks every 0.5 s.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from edgert.budget.governor import Governor
from edgert.budget.rules import Budget, Observation, Rules, Setting, Tolerances

STEP_S, PERIOD_S, PHASES, PHASE_S = 0.1, 0.5, 4, 45.0
SETTLE_S = 5.0
"""After a load step, and after the start: what a sensor's lag, one correction and its proof take."""
THROTTLE_C = 95.0
LEAST_SHARE = 0.5
"""Of a setting's frames, which may be left out evenly."""
_LEAK_PER_C, _WARM_C = 0.003, 50.0


@dataclass(frozen=True)
class Truth:
    power_w: float
    idle_w: float
    throughput: float

    def power(self, demand: float, warmth_c: float, share: float = 1.0) -> float:
        """Watts under that demand at that temperature, at a share of the throughput."""
        load = min(share, demand / self.throughput)
        return (self.idle_w + (self.power_w - self.idle_w) * load) * (1 + _LEAK_PER_C * (warmth_c - _WARM_C))

    def most(self, cap_w: float, warmth_c: float) -> float:
        """Results per second that a cap allows at that temperature, at any share; 0 where it allows none."""
        share = (cap_w / (1 + _LEAK_PER_C * (warmth_c - _WARM_C)) - self.idle_w) / (self.power_w - self.idle_w)
        return self.throughput * min(share, 1.0) if share >= LEAST_SHARE else 0.0


@dataclass(frozen=True)
class Scenario:
    settings: tuple[Setting, ...]
    truths: tuple[Truth, ...]
    cap_w: float
    demands: tuple[float, ...]
    ambients_c: tuple[float, ...]
    c_per_w: float
    tau_s: float
    lag_s: float
    dropouts: tuple[tuple[float, float], ...]
    seed: int


@dataclass(frozen=True)
class Outcome:
    """How a governor did, beside the best setting that would have kept the cap, looked for at every moment."""

    over_s: float
    throughput: float
    best: float
    finest: float
    switches: int
    rate: float
    pairs: int
    log: tuple[str, ...]

    @property
    def share(self) -> float:
        """Of the best throughput; above 1 where a share of a better setting was worth more than any whole one."""
        return self.throughput / self.best if self.best else 1.0

    @property
    def finest_share(self) -> float:
        return self.throughput / self.finest if self.finest else 1.0


def scenario(seed: int) -> Scenario:
    """The same for the same seed. In every phase some setting keeps the cap."""
    chance = random.Random(seed)
    idle_w = chance.uniform(3.0, 6.0)
    count = chance.randint(4, 16)
    settings = _settings(chance, count, idle_w)
    common = chance.uniform(0.8, 1.2)
    truths = tuple(
        Truth(s.power_w * common * chance.uniform(0.97, 1.03), idle_w * common, s.throughput) for s in settings
    )
    top = max(s.throughput for s in settings)
    frugal = min(truth.power(1e9, 75.0) for truth in truths)
    most = max(truth.power(1e9, 50.0) for truth in truths)
    ambient = chance.uniform(20.0, 30.0)
    return Scenario(
        settings,
        truths,
        cap_w=frugal * 1.03 + chance.random() * max(0.0, most - frugal),
        demands=tuple(top * chance.uniform(0.2, 1.2) for _ in range(PHASES)),
        ambients_c=tuple(ambient + chance.choice((0.0, 0.0, 10.0, 20.0)) for _ in range(PHASES)),
        c_per_w=25.0 / most,
        tau_s=chance.uniform(15.0, 60.0),
        lag_s=chance.uniform(0.0, 0.8),
        dropouts=tuple((at, at + chance.uniform(2.0, 15.0)) for at in _moments(chance)),
        seed=seed,
    )


def play(plan: Scenario, tolerances: Tolerances = Tolerances()) -> Outcome:  # noqa: B008 - it is frozen
    chance = random.Random(plan.seed + 1)
    rules = Rules(Budget(plan.cap_w, when_exceeded="degrade"), plan.settings, tolerances)
    governor = Governor(rules)
    state = governor.start()
    warmth_c = plan.ambients_c[0] + plan.c_per_w * plan.truths[state.index].power(plan.demands[0], 50.0)
    history: list[float] = []
    switches: list[tuple[float, str]] = []
    over_s = done = best = finest = 0.0
    per_look = round(PERIOD_S / STEP_S)
    for look in range(round(PHASES * PHASE_S / PERIOD_S)):
        now_s = look * PERIOD_S
        phase = int(now_s / PHASE_S)
        demand, ambient_c = plan.demands[phase], plan.ambients_c[phase]
        spent = []
        for _ in range(per_look):
            power_w = plan.truths[state.index].power(demand, warmth_c, state.share)
            warmth_c += STEP_S / plan.tau_s * (ambient_c + plan.c_per_w * power_w - warmth_c)
            history.append(power_w)
            spent.append(power_w)
        mean_w = sum(spent) / per_look
        feasible = [t for t in plan.truths if t.power(demand, warmth_c) <= plan.cap_w]
        if now_s % PHASE_S >= SETTLE_S and feasible and mean_w > plan.cap_w:
            over_s += PERIOD_S
        done += min(demand, plan.truths[state.index].throughput * state.share) * PERIOD_S
        best += max((min(demand, t.throughput) for t in feasible), default=0.0) * PERIOD_S
        finest += max(min(demand, truth.most(plan.cap_w, warmth_c)) for truth in plan.truths) * PERIOD_S
        after_s = now_s + PERIOD_S
        blind = any(begin <= after_s < end for begin, end in plan.dropouts)
        seen = Observation(
            round(after_s * 1e9),
            None if blind else _sensed(history, plan.lag_s, per_look) * chance.gauss(1.0, 0.003),
            demand * chance.gauss(1.0, 0.005),
            margin_c=THROTTLE_C - warmth_c,
        )
        state, action = governor.step(state, seen)
        if action.kind == "switch":
            switches.append((after_s, action.reason))
    seconds = PHASES * PHASE_S
    log = tuple(f"{at:6.1f} s {text}" for at, text in switches)
    throughputs = done / seconds, best / seconds, finest / seconds
    return Outcome(over_s, *throughputs, len(switches), _rate(switches), _pairs(switches), log)


def _sensed(history: Sequence[float], lag_s: float, per_look: int) -> float:
    """Mean of the sensor's values in the last look; each is a mean over 0.4 s that ended ``lag_s`` ago."""
    lag = round(lag_s / STEP_S)
    values = []
    for back in range(per_look):
        end = max(1, len(history) - back - lag)
        window = history[max(0, end - 4) : end]
        values.append(sum(window) / len(window))
    return sum(values) / len(values)


def _settings(chance: random.Random, count: int, idle_w: float) -> tuple[Setting, ...]:
    """Of falling throughput, by 5 to 20 % each; dynamic power falls with a power of it, as clocks and voltages do."""
    settings, throughput, steep = [], chance.uniform(30.0, 200.0), chance.uniform(1.0, 2.2)
    dynamic_w, top = chance.uniform(8.0, 45.0), throughput
    for index in range(count):
        power_w = idle_w + dynamic_w * (throughput / top) ** steep
        settings.append(Setting(f"s{index}", power_w, throughput, 1e3 / throughput, 0, idle_w, LEAST_SHARE))
        throughput *= chance.uniform(0.8, 0.95)
    return tuple(settings)


def _moments(chance: random.Random) -> list[float]:
    return [chance.uniform(10.0, PHASES * PHASE_S - 20.0) for _ in range(chance.randint(0, 2))]


def _rate(switches: Sequence[tuple[float, str]]) -> float:
    """The most switches per 10 s in any stretch of steady load, which begins when a load step has settled."""
    steady = [int(at / PHASE_S) for at, _ in switches if at % PHASE_S > SETTLE_S]
    return max((steady.count(phase) for phase in steady), default=0) * 10.0 / (PHASE_S - SETTLE_S)


def _pairs(switches: Sequence[tuple[float, str]]) -> int:
    """How often one switch followed another within 10 s at steady load: a rise that was taken back, or heat."""
    steady = [at for at, _ in switches if at % PHASE_S > SETTLE_S]
    return sum(later - at < 10.0 for at, later in pairwise(steady))
