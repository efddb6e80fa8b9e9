"""How far the cost model is off on networks that it has not seen, and on what it must reproduce.

Every network with published times is predicted by a fit to all the others, and again by one without its family, by
precision and board by board: median error, 90 % quantile and rank correlation; so are rates of GPU and DLA together,
and what a CUDA graph saves. The shipped bars have to hold 85 to 95 % of the times of left-out publishers. HaX-CoNN's
totals and the scaling of NVIDIA's table over power modes are predicted by those same fits. Exits 1 where one misses its
bar. Takes two minutes; needs no evaluation data.
"""

import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import report

from edgert.benchmark.measure import Figure
from edgert.board.record import board
from edgert.placement.cost.coefficients import ENOUGH_ROWS, GpuCost, Relation, coefficients, sisters as load_sisters

sys.path.insert(0, str(Path(__file__).parents[2]))

from tools.fitting import sisters, together
from tools.fitting.chip import Chip, bar, by_board, kind_of, publishers, rank_correlation, timed_twice
from tools.fitting.main import fit_all
from tools.fitting.parts import Fit, contention_error, fit_sparse, sparse_gains
from tools.fitting.published import Design, Timing, published
from tools.fitting.solve import Trial
from tools.networks.table import is_transformer

ERROR_BAR, RANK_BAR, TOTAL_BAR = 0.25, 0.9, 0.15
MEDIAN_BAR, MOST_BAR, INT8_BAR, FAMILY_BAR, TRANSFORMER_BAR, TOGETHER_BAR = 0.07, 0.20, 0.30, 0.35, 0.25, 0.20
SPARSE_BAR = 0.15
HELD = (0.85, 0.95)
QUANTILES = {"median": 0.5, "90 % below": 0.9}
SISTER_BAR = 0.045
"""Of Orin NX: the same network measured on a sister board times the boards' predicted ratio."""
_TABLE = "Deep-Learning-Accelerator-SW"


def of_errors(title: str, errors: Sequence[float], most: float | None, **detail: float) -> Figure:
    """Return the median of errors, with the 90 % quantile in its detail."""
    detail["p90"] = float(np.quantile(errors, 0.9))
    return Figure(title, float(np.median(errors)), "", most, n=len(errors), detail=detail)


def board_figures(fit: Fit) -> Iterator[Figure]:
    kind = "gpu" if isinstance(fit.solution.cost, GpuCost) else "dla"
    for name, trials in by_board(fit.trials()).items():
        networks = len({trial.row.model for trial in trials})
        errors = [trial.error for trial in trials]
        yield of_errors(f"{name} {kind}, left out, median error", errors, ERROR_BAR, networks=networks)
        rank = rank_correlation(trials)
        if rank is not None:
            yield Figure(f"{name} {kind}, left out, Spearman", rank, "", RANK_BAR, "higher", n=len(errors))


def pooled(chips: Sequence[Chip]) -> Iterator[Figure]:
    """Times on all GPUs, by precision, without the network and without its family."""
    for title, trials in (
        ("network left out", [trial for chip in chips for trial in chip.gpu.trials()]),
        ("family left out", [trial for chip in chips for trial in chip.gpu.trials("family")]),
    ):
        is_network = title.startswith("network")
        groups: dict[str, list[Trial]] = {"all": list(trials)}
        for trial in trials:
            groups.setdefault(kind_of(trial)[1], []).append(trial)
            if is_transformer(trial.row.model):
                groups.setdefault("transformers", []).append(trial)
        for name, own in groups.items():
            errors = [trial.error for trial in own]
            networks = len({trial.row.model for trial in own})
            medians = {"all": MEDIAN_BAR, "transformers": TRANSFORMER_BAR} if is_network else {}
            most = {"all": MOST_BAR, "int8": INT8_BAR} if is_network else {"all": FAMILY_BAR}
            yield Figure(f"GPU, {title}, {name}, median error", float(np.median(errors)), "", medians.get(name),
                         n=len(own), detail={"networks": networks})  # fmt: skip
            yield Figure(f"GPU, {title}, {name}, 90 % below", float(np.quantile(errors, 0.9)), "", most.get(name),
                         n=len(own))  # fmt: skip


def held(chips: Sequence[Chip]) -> Iterator[Figure]:
    """Yield the share of rows inside the shipped bars, each row predicted without everything its publisher measured.

    ``unseen`` is the share inside bars that were taken over the other publishers alone.
    """
    trials = [trial for chip in chips for trial in chip.trials("publisher") if trial.row.part is None]
    groups: dict[str, list[Trial]] = {}
    for trial in trials:
        kind, precision = kind_of(trial)
        groups.setdefault(f"{kind} {precision}", []).append(trial)
        groups.setdefault(f"{trial.row.board.soc} {kind}", []).append(trial)
    for name, own in groups.items():
        if len(own) >= ENOUGH_ROWS and len(publishers(own)) > 1:
            others = {who: bar([one for one in own if one.row.publisher != who]) for who in publishers(own)}
            unseen = float(np.mean([trial.off <= others[trial.row.publisher] for trial in own]))
            yield from within(f"bars hold of {name}", [_is_inside(trial) for trial in own], {"unseen": unseen})


def unseen_publishers(chips: Sequence[Chip]) -> Iterator[Figure]:
    """Times without everything that their publisher measured, and how far apart two publishers of the same are.

    A copy of another publisher's times would be that far off, so the fit must not be farther. ``unexplained`` is what
    is left of it when the launch and the call, which rows state, are taken out as the fit predicts them.
    """
    groups: dict[str, list[tuple[Trial, Trial]]] = defaultdict(list)
    for pair in (pair for chip in chips for pair in timed_twice(chip.trials())):
        kind, precision = kind_of(pair[0])
        for name in (kind.upper(), f"{pair[0].row.board.soc} {kind} {precision}"):
            groups[name].append(pair)
    apart = {
        name: np.log([one.row.time_ms / other.row.time_ms for one, other in same]) for name, same in groups.items()
    }
    for name, same in groups.items():
        rest = abs(apart[name] - np.log([one.predicted_ms / other.predicted_ms for one, other in same]))
        for title, quantile in QUANTILES.items():
            detail = {"unexplained": float(np.quantile(rest, quantile))}
            value = float(np.quantile(abs(apart[name]), quantile))
            yield Figure(f"{name}, two publishers of the same, apart, {title}", value, "", n=len(same), detail=detail)
    trials = [trial for chip in chips for trial in chip.trials("publisher") if trial.row.part is None]
    errors = [trial.error for trial in trials if kind_of(trial)[0] == "gpu"]
    for title, quantile in QUANTILES.items():
        value, most = float(np.quantile(errors, quantile)), float(np.quantile(abs(apart["GPU"]), quantile))
        yield Figure(f"GPU, publisher left out, {title}", value, "", most, n=len(errors))
    for name in sorted(publishers(trials)):
        own = [trial for trial in trials if trial.row.publisher == name]
        ratio = float(np.exp(np.mean([np.log(trial.predicted_ms / trial.row.time_ms) for trial in own])))
        detail = {"predicted / published": ratio, "median error": float(np.median([trial.error for trial in own]))}
        share = float(np.mean([_is_inside(trial) for trial in own]))
        yield Figure(f"publisher {name}, inside the bars", share, "", n=len(own), detail=detail)


def within(title: str, inside: Sequence[bool], detail: dict[str, Any]) -> Iterator[Figure]:
    """Yield the share of rows inside their bars, against its least and its largest allowed value."""
    share = float(np.mean(inside))
    yield Figure(f"{title}, at least", share, "", HELD[0], "higher", n=len(inside), detail=detail)
    yield Figure(f"{title}, at most", share, "", HELD[1], n=len(inside))


def _is_inside(trial: Trial) -> bool:
    return trial.off <= (coefficients(trial.row.board.soc).bar(*kind_of(trial)) or 0.0)


def at_once(chips: Sequence[Chip]) -> Iterator[Figure]:
    """Rates of GPU and DLA together; ``sum`` is what they would be if nobody slowed another."""
    start = next(chip.coefficients.contention for chip in chips if chip.coefficients.soc in together.CLOSELY)
    for chip in chips:
        if chip.dla is not None:
            soc = chip.coefficients.soc
            found = together.leave_out_rates(soc, chip.gpu, chip.dla, start)
            errors, plain = ([abs(one[at] / one[0].fps - 1) for one in found] for at in (1, 2))
            title = f"{soc} GPU+DLA, network left out, median error"
            yield of_errors(title, errors, TOGETHER_BAR, sum=float(np.median(plain)))


def graphs() -> Iterator[Figure]:
    """What a CUDA graph saves of a run: predicted by the shipped coefficients over published."""
    for group in published()["graphs"]:
        record = board(group["board"])
        cost, ratios = coefficients(record.soc).gpu, []
        for model, size, precision, batch, without_ms, with_ms in group["rows"]:
            what = (record, record.mode(group["mode"]), model, size, precision, batch, "gpu", with_ms, "", "")
            slow, fast = Design([Timing(*what, recorded=one) for one in (False, True)], 1.0).predict_ms(cost)
            ratios.append(float((slow - fast) / (without_ms - with_ms)))
        yield Figure(f"{record.soc}, saved by a CUDA graph, predicted / published", float(np.median(ratios)), "x",
                     n=len(ratios), detail={"least": min(ratios), "most": max(ratios)})  # fmt: skip


def of_sisters(chips: Sequence[Chip]) -> Iterator[Figure]:
    """Rows of networks that were published for several boards or modes of a chip: with what another one shows, the
    weight of which has not seen the network, beside the prediction without; and what the shipped bars hold of them."""
    every = [pair for chip in chips for pair in sisters.pairs(chip.trials())]
    for relation, whose in (("mode", "another mode of the board"), ("board", "a sister board")):
        for kind in ("gpu", "dla"):
            known = [pair for pair in every if (pair.relation, pair.kind) == (relation, kind)]
            if not known:
                continue
            rows = list(zip(known, sisters.corrected(known), strict=True))
            by_board: dict[str, list[tuple[sisters.Pair, Trial]]] = {}
            for pair, trial in rows:
                by_board.setdefault(trial.row.board.name, []).append((pair, trial))
            for name, own in {"all": rows, **by_board}.items():
                if len(own) >= ENOUGH_ROWS:
                    plain, errors = [pair.trial.error for pair, _ in own], [trial.error for _, trial in own]
                    without = float(np.median(plain))
                    is_orin_nx = (name, relation) == ("orin-nx-16gb", "board")
                    most = SISTER_BAR if is_orin_nx else without if name == "all" else None
                    detail = {"without": without, "p90 without": float(np.quantile(plain, 0.9))}
                    yield of_errors(f"{name} {kind}, by {whose}, median error", errors, most, **detail)
            yield from _held_of_sisters(relation, kind, whose, [trial for _, trial in rows])


def _held_of_sisters(relation: Relation, kind: str, whose: str, trials: Sequence[Trial]) -> Iterator[Figure]:
    shipped = load_sisters()
    for soc, precision in sorted({(trial.row.board.soc, kind_of(trial)[1]) for trial in trials}):
        own = [trial for trial in trials if (trial.row.board.soc, kind_of(trial)[1]) == (soc, precision)]
        most = shipped.bar(relation, soc, kind, precision)
        if most is not None:
            detail = {"bar": most, "bar without": coefficients(soc).bar(kind, precision)}
            title = f"bars by {whose} hold of {soc} {kind} {precision}"
            yield from within(title, [trial.off <= most for trial in own], detail)


def sparse(chip: Chip) -> Iterator[Figure]:
    """What weights with two zeros in four save on the DLA, by a speedup that has not seen the network."""
    dla = chip.coefficients.dla
    assert dla is not None
    errors = []
    for model in dict.fromkeys(name for name, _ in sparse_gains(dla)):
        gains = sparse_gains(fit_sparse(dla, but=model), model)
        errors += [abs(made / real - 1) for made, real in gains.values()]
    yield of_errors("2 DLAs, sparse over dense weights, network left out, median error", errors, SPARSE_BAR)


def haxconn(fit: Fit) -> Iterator[Figure]:
    for trial in fit.trials():
        if trial.row.model in ("googlenet", "alexnet"):
            what = f"{trial.row.model} {trial.row.accelerator}"
            yield Figure(f"HaX-CoNN {what}, left out, error", trial.error, "", TOTAL_BAR)


def modes(fit: Fit) -> Iterator[Figure]:
    """Images a second in a mode over those in MAXN: the worst of NVIDIA's networks."""
    rows = [trial for trial in fit.trials() if _TABLE in trial.row.source and trial.row.part is None]
    left_out = {(trial.row.model, trial.row.mode.name): trial.predicted_ms for trial in rows}
    for mode in sorted({trial.row.mode.name for trial in rows} - {"MAXN"}):
        errors = {trial.row.model: _off(rows, left_out, trial) for trial in rows if trial.row.mode.name == mode}
        name = f"2 DLAs in {mode} over MAXN, left out, worst error"
        yield Figure(name, max(errors.values()), "", TOTAL_BAR, n=len(errors), detail=dict(errors))


def _off(rows: list[Trial], predicted: dict[tuple[str, str], float], trial: Trial) -> float:
    model, mode = trial.row.model, trial.row.mode.name
    full = next(other for other in rows if other.row.model == model and other.row.mode.name == "MAXN")
    measured = full.row.time_ms / trial.row.time_ms
    return abs(predicted[model, "MAXN"] / predicted[model, mode] / measured - 1)


def of_chip(chip: Chip) -> Iterator[Figure]:
    soc = chip.coefficients.soc
    for fit in filter(None, (chip.gpu, chip.dla)):
        yield from board_figures(fit)
        if soc == "tegra194":
            yield from haxconn(fit)
    if soc == "tegra234" and chip.dla:
        yield from modes(chip.dla)
        yield from sparse(chip)


def measure() -> Iterator[Figure]:
    chips = fit_all()
    yield from pooled(chips)
    yield from held(chips)
    yield from unseen_publishers(chips)
    yield from of_sisters(chips)
    yield from at_once(chips)
    yield from graphs()
    for chip in chips:
        yield from of_chip(chip)
    cost = coefficients("tegra194").contention
    yield Figure("contention, mean error over PCCS's matrix", contention_error(cost.ceiling, cost.floor), "", n=100)


if __name__ == "__main__":
    report.main("Cost model against published speeds", measure)
