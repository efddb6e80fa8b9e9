"""Search that halves the candidates in short rounds, varies the best one, and compares it with the default again."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

from edgert.clock import REAL, Clock
from edgert.errors import BudgetError, BuildError
from edgert.quantization.throughput import MOST_ROUNDS, timing, winner
from edgert.steps import Stopped
from edgert.tuner.candidates import SearchSpace, Tactic, combinations, neighbors, with_less_memory
from edgert.tuner.memory_use import Footprint
from edgert.tuner.rounds import GIVE_UP_RATIO, Round, RoundSetup, run_round
from edgert.tuner.trials import Journal, Trial, Tuned
from edgert.units import format_bytes

_SHORT = 7
"""Number of interleaved runs to find the slower half of many tactics."""
_FINALISTS, _LONG = 3, 45
"""Number of tactics that are compared with the first until the fastest is certain, and maximum number of runs; smaller
gains than these can show do not count."""
_MOST_OPEN = 8
"""Maximum number of engines that are open in addition to the first."""
_STEPS = 3
"""Maximum number of successive changes of ONNX Runtime's settings."""
LIMIT_S = 600.0
"""Seconds after which no further tactic is tried; the fastest so far is compared with the default."""
_OVER = f"not tried: {LIMIT_S / 60:g} minutes were over"
_NEVER_GIVE_UP = 1e9
"""Ratio for a round whose first tactic cannot be chosen, so that no other is left out."""


@dataclass
class Search:
    """Search for the fastest tactic of one model.

    Attributes:
        measure: function that returns a tactic's memory; raises BuildError for a tactic that cannot run.
        journal: file of earlier measurements.
        free_bytes: memory for engines that are open at the same time.
        log: function called with each line of progress.
        memory_bytes: largest memory of a tactic's engine; None for no limit.
        latency_ms: largest 90th percentile of the time of one run; None for no limit.
        clock: clock of the time limit.
        trials: results of the tactics so far.
    """

    space: SearchSpace
    setup: RoundSetup
    measure: Callable[[Tactic], Footprint]
    journal: Journal
    free_bytes: int
    log: Callable[[str], object]
    memory_bytes: int | None = None
    latency_ms: float | None = None
    clock: Clock = REAL
    trials: dict[Tactic, Trial] = field(default_factory=dict)
    _end_ns: int = 0

    def run(self, live: bool, machine: Mapping[str, str]) -> Tuned:
        """Search for the fastest tactic, for live sources or for files; times depend on ``machine``.

        Raises BudgetError: no tactic meets the bounds. Raises BuildError: the default cannot run. Raises Stopped: a
        stop was requested; the error names the best tactic so far.
        """
        try:
            chosen, gain, runs = self._confirm(self._leader())
        except Stopped as error:
            ran = [one for one in self.trials.values() if one.gain is not None and not one.excluded]
            best = max(ran, key=lambda one: one.gain or 0.0, default=None)
            error.why = "nothing was compared yet"
            if best is not None:
                error.why = (
                    f"best so far: {best.tactic}, {best.gain:.2f} × as fast as the default, not yet compared again"
                )
            raise
        self._measure_memory(chosen)
        ranked = sorted(self.trials.values(), key=lambda one: -(one.gain or 0.0))
        return Tuned(self.space.default, chosen, gain, runs, live, machine, tuple(ranked), self.space.left_out)

    def _leader(self) -> Tactic:
        default = self.space.default
        self._end_ns = self.clock.now_ns() + round(LIMIT_S * 1e9)
        self._measure_memory(default)
        leader = self._best(default, self._runnable(combinations(self.space)[1:]))
        for _ in range(_STEPS):
            better = self._best(leader, self._within_memory(neighbors(leader, self.trials)))
            if better == leader:
                break
            leader = better
        return leader

    def _runnable(self, tactics: Sequence[Tactic]) -> list[Tactic]:
        """Return the tactics that can run within the memory.

        One tactic of each backend and form is tested in a child process. If none is left, ONNX Runtime is tried with
        settings that need less memory and are slower.
        """
        refused: dict[tuple[str, str], str] = {}
        for tactic in tactics:
            kind = (tactic.backend, tactic.form)
            if kind not in refused:
                refused[kind] = self._refusal(tactic)
            if refused[kind]:
                self._exclude(tactic, refused[kind])
        able = self._within_memory([one for one in tactics if self._may_win(one)])
        return able if able or self._may_win(self.space.default) else self._within_memory(with_less_memory(tactics))

    def _refusal(self, tactic: Tactic) -> str:
        try:
            self._measure_memory(tactic)
        except BuildError as error:
            return f"refused: {error.what}" + (f" ({error.why})" if error.why else "")
        return ""

    def _within_memory(self, tactics: Sequence[Tactic]) -> list[Tactic]:
        """Return the tactics within the memory; they are measured only if memory is limited."""
        for tactic in tactics if self.memory_bytes is not None else ():
            why = self._refusal(tactic)
            if why:
                self._exclude(tactic, why)
        return [one for one in tactics if self._may_win(one)]

    def _measure_memory(self, tactic: Tactic) -> None:
        found = Footprint(**self.journal.once(["memory", tactic.to_json()], lambda: asdict(self.measure(tactic))))
        self.trials[tactic] = replace(self._trial(tactic), memory_bytes=found.engine_bytes)
        most = self.memory_bytes
        if most is not None and found.engine_bytes > most:
            self._exclude(tactic, f"over the memory, {format_bytes(max(most, 0))}")

    def _best(self, first: Tactic, others: Sequence[Tactic]) -> Tactic:
        """Return the fastest tactic that may win; it is ``first`` unless another is certainly faster."""
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
        """Return the tactics fastest first, from a few runs in groups that fit into memory."""
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

    def _confirm(self, leader: Tactic) -> tuple[Tactic, float, int]:
        """Compare the leader with the default again, because the best of many is partly the best by chance.

        Return the chosen tactic, its speed relative to the default, and the number of runs.
        """
        default = self.space.default
        is_new = leader != default
        found = self._run_round([default, leader], MOST_ROUNDS) if is_new else self._run_round([default], _SHORT)
        times = list(found.times.values())
        is_faster = len(times) > 1 and winner(times) == 1
        if is_new and self._may_win(leader) and (is_faster or not self._may_win(default)):
            return leader, found.gain(leader), len(times[0])
        if not self._may_win(default):
            raise self._bounds_error()
        return default, 1.0, 0

    def _run_round(self, tactics: Sequence[Tactic], most: int) -> Round:
        """Run a round, or read its result from an earlier search in the journal."""
        give_up_ratio = GIVE_UP_RATIO if self._may_win(tactics[0]) else _NEVER_GIVE_UP

        def answer() -> dict[str, object]:
            self.log(f"{len(tactics)} interleaved: {'; '.join(map(str, tactics))}")
            found = run_round(self.setup, tactics, most, give_up_ratio)
            number = tactics.index
            return {
                "times": [[number(one), list(times)] for one, times in found.times.items()],
                "refused": [[number(one), why] for one, why in found.refused.items()],
            }

        question = ["round", [one.to_json() for one in tactics], most, give_up_ratio, self.setup.streams]
        data = self.journal.once(question, answer)
        found = Round(*({tactics[n]: value for n, value in data[part]} for part in ("times", "refused")))
        self._record_round(found)
        return found

    def _record_round(self, found: Round) -> None:
        base = self._trial(next(iter(found.times))).gain or 1.0  # the first tactic need not be the default
        for tactic in found.times:
            frame = timing(found.times[tactic])
            self.trials[tactic] = replace(self._trial(tactic), frame=frame, gain=base * found.gain(tactic))
            most = self.latency_ms
            if most is not None and frame.high_ms * tactic.frames > most:
                self._exclude(tactic, f"over the latency, {most:g} ms")
        for tactic, why in found.refused.items():
            self._exclude(tactic, why)

    def _is_over(self, tactics: Sequence[Tactic]) -> bool:
        """Return whether the time is over; then exclude those of these tactics that never ran."""
        is_over = self.clock.now_ns() > self._end_ns
        for tactic in tactics if is_over else ():
            if self._trial(tactic).frame is None:
                self._exclude(tactic, _OVER)
        return is_over

    def _bounds_error(self) -> BudgetError:
        known = [one for one in self.trials.values() if one.memory_bytes is not None or one.frame is not None]
        nearest = min(known, key=self._excess)
        memory = format_bytes(nearest.memory_bytes) if nearest.memory_bytes is not None else "unknown"
        run = f"{nearest.frame.high_ms * nearest.tactic.frames:.1f} ms" if nearest.frame else "unknown"
        return BudgetError(
            f"none of {len(self.trials)} tactics of {self.setup.config.onnx.name} meets the budgets",
            why=f"the closest is {nearest.tactic}: memory of its engine {memory}, a run {run}; {nearest.excluded}",
            where=str(self.setup.config.onnx),
            fix="allow a larger budget, use a smaller model or input, or set precision: int8",
        )

    def _excess(self, trial: Trial) -> float:
        found = [0.0]
        if self.memory_bytes is not None and trial.memory_bytes is not None:
            found.append(trial.memory_bytes / max(self.memory_bytes, 1))
        if self.latency_ms is not None and trial.frame is not None:
            found.append(trial.frame.high_ms * trial.tactic.frames / self.latency_ms)
        return max(found)

    def _trial(self, tactic: Tactic) -> Trial:
        return self.trials.get(tactic, Trial(tactic))

    def _exclude(self, tactic: Tactic, why: str) -> None:
        self.trials[tactic] = replace(self._trial(tactic), excluded=why)

    def _may_win(self, tactic: Tactic) -> bool:
        return not self._trial(tactic).excluded
