"""Comparisons of published speeds: which board, power mode, precision or placement of a network is faster.

Predictions are those of fits that never saw the network. Two speeds are compared where one publisher measured both and
nothing but the one choice differs.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass
from itertools import combinations

from edgert.board.record import board
from edgert.board.sections import Mode
from edgert.placement.cost.coefficients import Coefficients, DlaCost, coefficients
from tools.fitting import together
from tools.fitting.chip import Chip, kind_of
from tools.fitting.published import Design, Timing, groups
from tools.fitting.solve import Trial

TIE = 0.03
"""Speeds nearer than this are the same: some are published as whole frames a second, of which one is up to 2.8 %."""
KINDS = ("board", "mode", "precision", "placement")


@dataclass(frozen=True, slots=True)
class Choice:
    """Names of what is chosen; the mode includes clocks that were set by hand."""

    board: str
    mode: str
    precision: str
    placement: str


@dataclass(frozen=True, slots=True)
class Option:
    """A published speed, and its prediction; ``work`` is network, side and batch: what has to be the same."""

    work: tuple[str, int, str]
    publisher: str
    choice: Choice
    measured_ms: float
    predicted_ms: float
    bar: float


@dataclass(frozen=True, slots=True)
class Decision:
    """Two options that differ in one thing, which ``kind`` names."""

    kind: str
    one: Option
    other: Option

    @property
    def is_tie(self) -> bool:
        """Whether the measurements do not show which is faster."""
        times_ms = self.one.measured_ms, self.other.measured_ms
        return max(times_ms) < (1 + TIE) * min(times_ms)

    @property
    def is_right(self) -> bool:
        """Whether the option that was predicted to be faster is faster."""
        measured = self.one.measured_ms - self.other.measured_ms
        return measured * (self.one.predicted_ms - self.other.predicted_ms) > 0

    @property
    def overlaps(self) -> bool:
        """Whether the error bars of the predictions overlap, so that they do not show which is faster."""
        fast, slow = sorted((self.one, self.other), key=lambda option: option.predicted_ms)
        return fast.predicted_ms * (1 + fast.bar) >= slow.predicted_ms / (1 + slow.bar)

    def __str__(self) -> str:
        ways = [getattr(option.choice, self.kind) for option in (self.one, self.other)]
        model, size, batch = self.one.work
        rest = [value for name, value in zip(KINDS, astuple(self.one.choice), strict=True) if name != self.kind]
        measured, predicted = (
            getattr(self.one, name) / getattr(self.other, name) for name in ("measured_ms", "predicted_ms")
        )
        return (
            f"{model} {size} b{batch}, {', '.join(rest)}: {ways[0]} takes {measured:.2f} of {ways[1]}, "
            f"predicted {predicted:.2f}"
        )


def decisions(options: Iterable[Option]) -> Iterator[Decision]:
    """Yield all pairs of one publisher and network that differ in one thing.

    A power mode of one board is none of another's: boards are compared in modes without clocks set by hand.
    """
    groups: dict[tuple[object, str], list[Option]] = defaultdict(list)
    for option in options:
        groups[option.work, option.publisher].append(option)
    for group in groups.values():
        for one, other in combinations(group, 2):
            pairs = zip(KINDS, astuple(one.choice), astuple(other.choice), strict=True)
            differ = [name for name, first, second in pairs if first != second]
            is_by_hand = "MHz" in one.choice.mode + other.choice.mode
            if differ[:1] == ["board"] and not is_by_hand:
                differ = [name for name in differ if name != "mode"]
            if len(differ) == 1:
                yield Decision(differ[0], one, other)


def options_of(chips: Sequence[Chip]) -> list[Option]:
    """Return every published speed of a complete network, predicted by fits without it."""
    found = []
    start = next(chip.coefficients.contention for chip in chips if chip.coefficients.soc in together.CLOSELY)
    for chip in chips:
        found += timed(chip.trials())
        if chip.dla is not None:
            left_out = together.leave_out_rates(chip.coefficients.soc, chip.gpu, chip.dla, start)
            found += [_at_once(row, fps, chip.coefficients) for row, fps, _ in left_out]
        found += timed(compared(chip))
    return found


def timed(trials: Iterable[Trial]) -> list[Option]:
    """Return the options of one accelerator."""
    found = []
    for trial in trials:
        row = trial.row
        bar = coefficients(row.board.soc).bar(*kind_of(trial))
        if row.part is None and bar is not None:
            choice = Choice(row.board.name, clocked(row.board.name, row.mode), row.precision, row.accelerator)
            work = (row.model, row.size, str(row.batch))
            times_ms = row.time_ms / row.batch, trial.predicted_ms / row.batch
            found.append(Option(work, publisher(row.source), choice, *times_ms, bar))
    return found


def compared(chip: Chip) -> Iterator[Trial]:
    """Yield predictions of rows that are in no fit, for comparison with rows that are."""
    for record, mode, group in groups("compared"):
        if record.soc != chip.coefficients.soc:
            continue
        for model, size, precision, batch, accelerator, time_ms in group["rows"]:
            row = Timing(
                record, mode, model, size, precision, batch, accelerator, time_ms, group["source"], group["publisher"]
            )
            fit = chip.gpu if accelerator == "gpu" else chip.dla
            assert fit is not None
            cost = fit.without(model)
            design = Design([row], cost.fp16_share if isinstance(cost, DlaCost) else 1.0)
            yield Trial(row, float(design.predict_ms(cost)[0]))


def _at_once(row: together.Together, fps: float, costs: Coefficients) -> Option:
    """Return the option of GPU and DLA together, with the wider of both bars."""
    bars = [costs.bar(kind, "int8") or 0.0 for kind in ("gpu", "dla0")]
    choice = Choice(row.board.name, clocked(row.board.name, row.mode), "int8", "gpu and dla")
    batches = dict.fromkeys(map(str, (row.gpu_batch, row.dla_batch)))  # one, where both have the same
    work = (row.model, row.size, " and ".join(batches))
    return Option(work, publisher(row.source), choice, 1e3 / row.fps, 1e3 / fps, max(bars))


def clocked(name: str, mode: Mode) -> str:
    """Return the name of a mode, with the clocks that were set by hand."""
    usual = board(name).mode(mode.name)
    changed = (
        (key, getattr(mode, key))
        for key in ("gpu_mhz", "dla_mhz", "emc_mhz")
        if getattr(mode, key) != getattr(usual, key)
    )
    return " ".join([mode.name, *(f"{key[:3].upper()} {mhz:g} MHz" for key, mhz in changed)])


def publisher(source: str) -> str:
    """Return the publisher: the repository on GitHub without the commit, else the page."""
    parts = source.split("/")
    return "/".join(parts[2:5]) if parts[2] == "github.com" else source
