"""The search: it halves the candidates in short rounds, varies the best one, and compares it with the default again."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

from edgert.clock import REAL, Clock
from edgert.errors import BudgetError, BuildError
from edgert.quantization.throughput import MOST_ROUNDS, winner
from edgert.steps import Stopped
from edgert.tuner.candidates import SearchSpace, Tactic, combinations, neighbors, with_less_memory
from edgert.tuner.memory_use import Footprint
from edgert.tuner.rounds import GIVE_UP_RATIO, Round, RoundSetup, run_round
from edgert.tuner.trials import Journal, Trial, Tuned
from edgert.units import format_bytes

_SHORT = 7
"""Interleaved runs that find the slower half of many tactics."""
_FINALISTS, _LONG = 3, 45
"""Tactics that are run beside the first until it is sure which is fastest, and runs after which that is given up:
smaller gains are not looked for."""
_MOST_OPEN = 8
"""Engines that are open at a time beside the first, at most."""
_STEPS = 3
"""Changes inside ONNX Runtime one after the other, at most."""
LIMIT_S = 600.0
"""Seconds after which no other tactic is tried: the fastest one by then is compared with the default."""
_OVER = f"not tried: {LIMIT_S / 60:g} minutes were over"
_NEVER_GIVE_UP = 1e9
"""How many times as slow a tactic may be where the first cannot be chosen itself."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits that a tactic must not exceed; None for no limit.

    Attributes:
        memory_bytes: for its engine.
        latency_ms: for one run of it, at the 90th percentile.
    """

    memory_bytes: int | None = None
    latency_ms: float | None = None


@dataclass
class Search:
    """The search for one model.

    Attributes:
        measure: returns a tactic's memory, from a process of its own; raises BuildError for one that cannot run.
        free_bytes: memory for engines that are open at the same time.
        log: called with one line at a time.
        clock: by which :data:`LIMIT_S` ends.
        trials: results of every tactic that was looked at.
    """

    space: SearchSpace
    setup: RoundSetup
    bounds: Bounds
    measure: Callable[[Tactic], Footprint]
    journal: Journal
    free_bytes: int
    log: Callable[[str], object]
    clock: Clock = REAL
    trials: dict[Tactic, Trial] = field(default_factory=dict)
    _end_ns: int = 0

    def run(self, live: bool, machine: Mapping[str, str]) -> Tuned:
        """Search for the fastest tactic.

        Args:
            live: whether the result is for cameras, or for files.
            machine: what the times depend on.

        Raises:
            BudgetError: no tactic meets the bounds.
            BuildError: the default cannot run.
            Stopped: a stop was requested; it names the best so far.
        """
        try:
            chosen, gain, runs = self._settled(self._leader())
        except Stopped as error:
            ran = [one for one in self.trials.values() if one.gain is not None and not one.excluded]
            best = max(ran, key=lambda one: one.gain or 0.0, default=None)
            error.why = "nothing was compared yet"
            if best is not None:
                error.why = (
                    f"best so far: {best.tactic}, {best.gain:.2f} × as fast as the default, not yet compared again"
                )
            raise
        self._weigh(chosen)
        ranked = sorted(self.trials.values(), key=lambda one: -(one.gain or 0.0))
        return Tuned(self.space.default, chosen, gain, runs, live, machine, tuple(ranked), self.space.left_out)

    def _leader(self) -> Tactic:
        """Return the fastest tactic found, not yet compared with the default."""
        default = self.space.default
        self._end_ns = self.clock.now_ns() + round(LIMIT_S * 1e9)
        self._weigh(default)
        leader = self._best(default, self._able(combinations(self.space)[1:]))
        for _ in range(_STEPS):
            better = self._best(leader, self._bounded(neighbors(leader, self.trials)))
            if better == leader:
                break
            leader = better
        return leader

    def _able(self, tactics: Sequence[Tactic]) -> list[Tactic]:
        """Return the tactics whose backend accepts their form, within the memory.

        One tactic of each backend and form tests that in a process of its own. Where nothing else is left, ONNX Runtime
        gives up some speed for less memory.
        """
        refused: dict[tuple[str, str], str] = {}
        for tactic in tactics:
            kin = (tactic.backend, tactic.form)
            if kin not in refused:
                refused[kin] = self._refusal(tactic)
            if refused[kin]:
                self._bar(tactic, refused[kin])
        able = self._bounded([one for one in tactics if self._may_win(one)])
        return able if able or self._may_win(self.space.default) else self._bounded(with_less_memory(tactics))

    def _refusal(self, tactic: Tactic) -> str:
        try:
            self._weigh(tactic)
        except BuildError as error:
            return f"refused: {error.what}" + (f" ({error.why})" if error.why else "")
        return ""

    def _bounded(self, tactics: Sequence[Tactic]) -> list[Tactic]:
        """Return those within the memory; each of them is measured only where memory is limited."""
        for tactic in tactics if self.bounds.memory_bytes is not None else ():
            why = self._refusal(tactic)
            if why:
                self._bar(tactic, why)
        return [one for one in tactics if self._may_win(one)]

    def _weigh(self, tactic: Tactic) -> None:
        """Measure a tactic's memory, and exclude it where that is too much. Raises BuildError: it cannot run."""
        found = Footprint(**self.journal.once(["memory", asdict(tactic)], lambda: asdict(self.measure(tactic))))
        self.trials[tactic] = replace(self._trial(tactic), memory_bytes=found.engine_bytes)
        most = self.bounds.memory_bytes
        if most is not None and found.engine_bytes > most:
            self._bar(tactic, f"over the memory, {format_bytes(max(most, 0))}")

    def _best(self, first: Tactic, others: Sequence[Tactic]) -> Tactic:
        """Return the fastest that may win; ``first``, where it may, unless another is surely faster."""
        while len(others) > _FINALISTS:
            ranked = self._ranked(first, others)
            others = ranked[: max(_FINALISTS, math.ceil(len(others) / 2))]
        if not others or self._is_over(others):
            left = [one for one in (first, *others) if self._may_win(one)]
            return left[0] if left else first
        times = self._run_round([first, *others], _LONG).times
        allowed = [one for one in times if self._may_win(one)]
        return allowed[winner([times[one] for one in allowed])] if allowed else first

    def _ranked(self, first: Tactic, others: Sequence[Tactic]) -> list[Tactic]:
        """Return the tactics fastest first, by a few runs beside the same ``first``, in groups that fit into memory."""
        gains: dict[Tactic, float] = {}
        each = self._trial(self.space.default).memory_bytes or 1
        together = max(1, min(_MOST_OPEN, self.free_bytes // (2 * each) - 1))  # others may need twice as much
        for start in range(0, len(others), together):
            some = others[start : start + together]
            if self._is_over(some):
                continue
            found = self._run_round([first, *some], _SHORT)
            gains |= {one: found.gain(one) for one in list(found.times)[1:] if self._may_win(one)}
        return sorted(gains, key=lambda one: -gains[one])

    def _settled(self, leader: Tactic) -> tuple[Tactic, float, int]:
        """Compare the leader with the default once more: of many tactics the best is also the luckiest.

        Returns:
            The chosen one, how many times as fast it is, and in how many runs that was measured.
        """
        default = self.space.default
        is_new = leader != default
        found = self._run_round([default, leader], MOST_ROUNDS) if is_new else self._run_round([default], _SHORT)
        times = list(found.times.values())
        is_faster = len(times) > 1 and winner(times) == 1
        if is_new and self._may_win(leader) and (is_faster or not self._may_win(default)):
            return leader, found.gain(leader), len(times[0])
        if not self._may_win(default):
            raise self._nothing_left()
        return default, 1.0, 0

    def _run_round(self, tactics: Sequence[Tactic], most: int) -> Round:
        """Run a round, or read its earlier result from an interrupted search or one with other budgets."""
        give_up_ratio = GIVE_UP_RATIO if self._may_win(tactics[0]) else _NEVER_GIVE_UP

        def answer() -> dict[str, object]:
            self.log(f"{len(tactics)} interleaved: {'; '.join(map(str, tactics))}")
            found = run_round(self.setup, tactics, most, give_up_ratio)
            number = tactics.index
            return {
                "times": [[number(one), list(times)] for one, times in found.times.items()],
                "refused": [[number(one), why] for one, why in found.refused.items()],
            }

        requested = ["round", [asdict(one) for one in tactics], most, give_up_ratio, self.setup.streams]
        known = self.journal.once(requested, answer)
        found = Round(*({tactics[n]: value for n, value in known[part]} for part in ("times", "refused")))
        self._learn(found)
        return found

    def _learn(self, found: Round) -> None:
        base = self._trial(next(iter(found.times))).gain or 1.0  # of the first, which need not be the default
        for tactic in found.times:
            frame = found.timing(tactic)
            self.trials[tactic] = replace(self._trial(tactic), frame=frame, gain=base * found.gain(tactic))
            most = self.bounds.latency_ms
            if most is not None and frame.high_ms * tactic.frames > most:
                self._bar(tactic, f"over the latency, {most:g} ms")
        for tactic, why in found.refused.items():
            self._bar(tactic, why)

    def _is_over(self, tactics: Sequence[Tactic]) -> bool:
        """Return whether there is no time for these; it is then recorded for those that never ran."""
        is_over = self.clock.now_ns() > self._end_ns
        for tactic in tactics if is_over else ():
            if self._trial(tactic).frame is None:
                self._bar(tactic, _OVER)
        return is_over

    def _nothing_left(self) -> BudgetError:
        """Return an error that names the tactic closest to the bounds."""
        known = [one for one in self.trials.values() if one.memory_bytes is not None or one.frame is not None]
        nearest = min(known, key=self._excess)
        memory = format_bytes(nearest.memory_bytes) if nearest.memory_bytes is not None else "unknown"
        run = f"{nearest.frame.high_ms * nearest.tactic.frames:.1f} ms" if nearest.frame else "unknown"
        return BudgetError(
            f"none of {len(self.trials)} tactics of {self.setup.config.onnx.name} meets the budgets",
            why=f"the closest is {nearest.tactic}: memory of its engine {memory}, a run {run}; {nearest.excluded}",
            where=str(self.setup.config.onnx),
            fix="a larger budget, a smaller model or input, or precision: int8",
        )

    def _excess(self, trial: Trial) -> float:
        """Return the largest ratio of use to limit."""
        bounds, found = self.bounds, [0.0]
        if bounds.memory_bytes is not None and trial.memory_bytes is not None:
            found.append(trial.memory_bytes / max(bounds.memory_bytes, 1))
        if bounds.latency_ms is not None and trial.frame is not None:
            found.append(trial.frame.high_ms * trial.tactic.frames / bounds.latency_ms)
        return max(found)

    def _trial(self, tactic: Tactic) -> Trial:
        return self.trials.get(tactic, Trial(tactic))

    def _bar(self, tactic: Tactic, why: str) -> None:
        self.trials[tactic] = replace(self._trial(tactic), excluded=why)

    def _may_win(self, tactic: Tactic) -> bool:
        return not self._trial(tactic).excluded
