"""Which is faster, of two boards, power modes, precisions or placements: how often a prediction has it right.

Every pair of published speeds of one network by one publisher that differs in one of these is decided by fits that
never saw the network, and compared with what was measured. Speeds within 3 % of one another are ties, which count
neither way. Where a decision is wrong, the error bars that a plan prints have to overlap: then it said that it cannot
tell. Wrong decisions and ties are printed by name.

python tests/bench/bench_decisions.py [--json FILE]      # a minute; needs no evaluation data
"""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import report

sys.path.insert(0, str(Path(__file__).parents[2]))

from edgert.benchmark.measure import Figure
from tools.fitting.decisions import KINDS, Decision, decisions, options_of, timed
from tools.fitting.main import fit_all

RIGHT_BAR = 0.95


def measure() -> Iterator[Figure]:
    chips = fit_all()
    found = list(decisions(options_of(chips)))
    strangers = list(decisions(timed([trial for chip in chips for fit in (chip.gpu, chip.dla) if fit
                                      for trial in fit.trials("family")])))  # fmt: skip
    yield from figures(found, strangers)


def figures(found: Sequence[Decision], strangers: Sequence[Decision]) -> Iterator[Figure]:
    """Return the shares that are right, and how many wrong ones no bar excuses; ``strangers`` lack the family."""
    for kind in (*KINDS, "all"):
        own, others = ([one for one in some if kind in (one.kind, "all")] for some in (found, strangers))
        clear = [one for one in own if not one.is_tie]
        apart = sum(not one.overlaps for one in clear)
        detail: dict[str, float] = {
            "ties": len(own) - len(clear),
            "told apart": apart,
            "networks": len({one.one.work[0] for one in clear}),
        }
        family = [one.is_right for one in others if not one.is_tie]
        if family:
            detail["family left out"] = sum(family) / len(family)
        if clear:
            right = sum(one.is_right for one in clear) / len(clear)
            yield Figure(f"decisions: {kind}, right", right, "", RIGHT_BAR, "higher", n=len(clear), detail=detail)
    wrong = [one for one in found if not one.is_tie and not one.is_right]
    for title, some in (("wrong", wrong), ("tie", [one for one in found if one.is_tie])):
        for one in some:
            print(f"  {title}: {one}{'' if one.overlaps else ', and the bars do not overlap'}")
    sure = [one for one in wrong if not one.overlaps]
    named = {"wrong": [str(one) for one in wrong]}
    yield Figure("decisions: wrong, with bars that do not overlap", len(sure), "", 0, n=len(found), detail=named)


if __name__ == "__main__":
    report.main("Decisions between published speeds", measure)
