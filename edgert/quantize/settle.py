"""Whether more pictures would still move the ranges."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from edgert.quantize.histogram import Histogram
from edgert.quantize.threshold import PERCENTILE, threshold

Histograms = Mapping[str, Histogram]

CHECKPOINT = 32
"""Pictures between two looks at the ranges."""
TOLERANCE = 0.005
"""Ranges have settled when none moved by more than this share of itself over :data:`CHECKPOINT` pictures. Less than
one INT8 step (1/127) at the largest value."""


class Settling:
    """Compares each range's threshold with what it was one checkpoint before.

    Thresholds are computed only until one is found that moved, the last to move first: most looks cost next to nothing.

    Args:
        groups: tensors whose histograms add up to one range.
        method, percentile: how thresholds are chosen.
    """

    def __init__(self, groups: Iterable[tuple[str, ...]], method: str, percentile: float = PERCENTILE) -> None:
        self._groups = list(dict.fromkeys(groups))
        self._method, self._percentile = method, percentile
        self._seen: Histograms = {}
        self._known: dict[tuple[str, ...], float] = {}  # thresholds of the histograms last seen

    def has_settled(self, before: Histograms, now: Histograms) -> bool:
        """Whether no threshold moved from one checkpoint's histograms to the next one's."""
        known = self._known if before is self._seen else {}
        self._seen, self._known = now, {}
        for position, group in enumerate(self._groups):
            new = self._known[group] = self._threshold(now, group)
            old = known[group] if group in known else self._threshold(before, group)
            if abs(new - old) > TOLERANCE * old:
                self._groups.insert(0, self._groups.pop(position))
                return False
        return True

    def _threshold(self, histograms: Histograms, group: tuple[str, ...]) -> float:
        whole = Histogram.merged([histograms[name] for name in group])
        return threshold(whole, self._method, percentile=self._percentile)
