"""Predictions from times that were measured on another board or in another power mode.

The same network in the same precision and batch was published for several boards of a chip. Each such row is predicted
by coefficients that never saw the network, and again with what a second board shows: its measured over its predicted
time, to a power that is fitted without the network, too. One kind of pair is of two boards, the other of two modes of
one board.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from edgert.placement.cost.coefficients import ENOUGH_ROWS, RELATIONS, Accuracy, Relation, SisterCost, Sisters
from tools.fitting.chip import accuracy_of, bar, kind_of
from tools.fitting.solve import Trial
from tools.networks.table import network_of


@dataclass(frozen=True, slots=True)
class Pair:
    """A row that was left out, and the same network on another ``board`` or in another ``mode``."""

    relation: Relation
    trial: Trial
    log_factor: float

    @property
    def log_off(self) -> float:
        """Logarithm of measured over predicted time."""
        return float(np.log(self.trial.row.time_ms / self.trial.predicted_ms))

    @property
    def kind(self) -> str:
        return kind_of(self.trial)[0]

    def corrected(self, weight: float) -> Trial:
        """Return the row corrected by that share of the other's factor."""
        return Trial(self.trial.row, self.trial.predicted_ms * float(np.exp(weight * self.log_factor)))


def pairs(trials: Sequence[Trial]) -> list[Pair]:
    """Return pairs of complete networks on one chip: of different boards, and of different modes of one board."""
    alike: dict[tuple[object, ...], list[Trial]] = defaultdict(list)
    for trial in trials:
        row = trial.row
        if row.part is None:
            alike[row.model, row.size, row.precision, row.batch, row.accelerator].append(trial)
    return [pair for group in alike.values() for trial in group for pair in _of(trial, group)]


def _of(trial: Trial, group: Sequence[Trial]) -> Iterator[Pair]:
    found: dict[str, list[float]] = defaultdict(list)
    for other in group:
        if (other.row.board.name, other.row.mode) != (trial.row.board.name, trial.row.mode):
            found[other.row.board.name].append(float(np.log(other.row.time_ms / other.predicted_ms)))
    for name, factors in found.items():
        yield Pair("mode" if name == trial.row.board.name else "board", trial, float(np.median(factors)))


def weight(known: Sequence[Pair]) -> float:
    """Return the exponent of the other's factor, 0 to 1, that predicts these rows best; networks count the same."""
    counts = Counter(network_of(pair.trial.row.model) for pair in known)
    share = np.array([1 / counts[network_of(pair.trial.row.model)] for pair in known])
    own, other = (np.array([getattr(pair, name) for pair in known]) for name in ("log_off", "log_factor"))
    return float(np.clip((share * own * other).sum() / (share * other * other).sum(), 0.0, 1.0))


def corrected(known: Sequence[Pair]) -> list[Trial]:
    """Return each pair corrected with an exponent from other networks."""
    networks = [network_of(pair.trial.row.model) for pair in known]
    weights = {
        name: weight([pair for pair, other in zip(known, networks, strict=True) if other != name])
        for name in set(networks)
    }
    return [pair.corrected(weights[name]) for pair, name in zip(known, networks, strict=True)]


def fit_sisters(trials: Mapping[str, Sequence[Trial]]) -> Sisters:
    """Return the fit for each relation; with too few pairs the bars of predictions without a profile stay."""
    every = [pair for own in trials.values() for pair in pairs(own)]
    return Sisters(**{one: _cost([pair for pair in every if pair.relation == one]) for one in RELATIONS})


def _cost(known: Sequence[Pair]) -> SisterCost:
    by_kind = {kind: [pair for pair in known if pair.kind == kind] for kind in ("gpu", "dla")}
    weights = {kind: round(weight(own), 3) for kind, own in by_kind.items() if own}
    made = {kind: corrected(own) for kind, own in by_kind.items() if own}
    found: dict[str, dict[str, dict[str, Accuracy]]] = {}
    for kind, trials in made.items():
        for soc, precision in sorted({(trial.row.board.soc, kind_of(trial)[1]) for trial in trials}):
            own = [trial for trial in trials if (trial.row.board.soc, kind_of(trial)[1]) == (soc, precision)]
            if len(own) >= ENOUGH_ROWS:
                found.setdefault(soc, {}).setdefault(kind, {})[precision] = accuracy_of(own, own, bar(own))
    return SisterCost(weight=weights, accuracy=found)
