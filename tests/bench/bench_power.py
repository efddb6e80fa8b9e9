"""How far predicted watts are off: of idle boards, and of loads that the fit has not seen.

Idle: every reading that a board file cites against what plans reckon with in the modes that it holds for. Loaded:
every published reading of a network, at the plug or of the module, predicted by a fit to all other networks. Exits 1
where an idle reading is more than 15 % off, where the median of a chip's loaded ones is above 15 % or their 90 %
quantile above 40 %, and where the error bar that `plan` prints holds for fewer than 85 % of them or, needlessly wide,
for more than 95 %. Takes a few seconds; needs no data.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import report

from edgert.benchmark.measure import Figure
from edgert.board.record import Board, boards

sys.path.insert(0, str(Path(__file__).parents[2]))

from tools.fitting.power import Fitted, fit_all, ratio_errors

IDLE_BAR, MEDIAN_BAR, P90_BAR = 0.15, 0.15, 0.4
HELD = 0.85, 0.95
_FEWEST = 12
"""Rows of a chip, from which on its error bar is checked."""


def idle_figures(board: Board) -> Iterator[Figure]:
    """What plans reckon with, whatever the clocks, against every reading in the modes that it holds for."""
    errors: dict[str, float] = {}
    for mode in board.modes:
        for line in board.idle:
            alike = [other for other in board.idle if other.clocks == line.clocks]
            own = [other for other in alike if mode.name in other.modes]
            if line in (own or [other for other in alike if not other.modes]):
                key = f"{line.watts:g} W, clocks {line.clocks}"
                errors[key] = max(errors.get(key, 0.0), abs((board.idle_w(mode) or 0.0) / line.watts - 1))
    if errors:
        detail = {key: round(error, 3) for key, error in errors.items()}
        yield Figure(
            f"{board.name} idle, worst error", max(errors.values()), "", IDLE_BAR, n=len(errors), detail=detail
        )


def loaded_figures(soc: str, fitted: Fitted) -> Iterator[Figure]:
    """Of left-out networks, the plug and the module apart; and whether the printed bar holds."""
    errors: dict[str, list[float]] = {}
    for row, predicted in fitted.trials:
        errors.setdefault(row.meter, []).append(abs(predicted / row.watts - 1))
    for meter, found in errors.items():
        detail = {"p90": round(float(np.quantile(found, 0.9)), 3)}
        # of single rails nobody predicts; they are in the fit to tell the engines apart
        bar = None if meter == "rail" else MEDIAN_BAR
        yield Figure(
            f"{soc} {meter}, left out, median error", float(np.median(found)), "", bar, n=len(found), detail=detail
        )
    whole = [error for meter, found in errors.items() if meter != "rail" for error in found]
    yield Figure(f"{soc}, left out, p90", float(np.quantile(whole, 0.9)), "", P90_BAR, n=len(whole))
    accuracy = fitted.chip.accuracy
    if accuracy is not None and len(whole) >= _FEWEST:
        held = float(np.mean([error <= accuracy.p90 for error in whole]))
        name = f"{soc}, left out, part within the bar of {accuracy.p90:.0%}"
        yield Figure(f"{name}: at least", held, "", HELD[0], "higher", n=len(whole))
        yield Figure(f"{name}: at most", held, "", HELD[1], n=len(whole))


def measure() -> Iterator[Figure]:
    for board in boards():
        yield from idle_figures(board)
    for soc, fitted in fit_all().items():
        if fitted.trials:
            yield from loaded_figures(soc, fitted)
        if soc == "tegra234":
            off = ratio_errors(fitted.chip.cost)
            detail = {"p90": round(float(np.quantile(off, 0.9)), 3)}
            name = "images a joule, DLA over GPU, median error over NVIDIA's table"
            yield Figure(name, float(np.median(off)), "", n=len(off), detail=detail)


if __name__ == "__main__":
    report.main("Predicted watts against published readings", measure)
