"""Survey of which part of a network a DLA can run: verdicts per node, segments, shares of the work, and fixes."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from typing import Any

from dla import MAX_LOADABLES, Answer, Node, Region, Summary, Target, Verdict, check_graph, regions, summarize
from edgert.errors import ConfigError
from edgert.graph import Graph
from edgert.graph.count import multiply_adds
from edgert.graph.dla_node import dla_nodes

_POSSIBLE_ANSWERS: tuple[Answer, ...] = ("yes", "verify")


@dataclass(frozen=True)
class Survey:
    """A graph checked for one DLA.

    Attributes:
        target: DLA generation, TensorRT release and precision.
        nodes: nodes in graph order.
        verdicts: verdict of each node.
        macs: multiply-adds of each node.
        regions: segments of nodes with the answer ``yes``; each becomes a loadable.
        hoped: segments if every ``verify`` turns out to be ``yes``; each has at least one ``yes``.
        stranded: positions of nodes that could run there, but stay on the GPU because all their neighbors do.
        summary: counts and shares of the work.
    """

    target: Target
    nodes: tuple[Node, ...]
    verdicts: tuple[Verdict, ...]
    macs: tuple[int, ...]
    regions: tuple[Region, ...]
    hoped: tuple[Region, ...]
    stranded: frozenset[int]
    summary: Summary

    @property
    def loadables(self) -> int:
        """Number of loadables of the nodes with the answer ``yes``; a core holds 16, over all engines."""
        return len(self.regions)

    @property
    def fits_core(self) -> bool:
        """Whether one core can hold all loadables."""
        return self.loadables <= MAX_LOADABLES

    @property
    def allowed(self) -> frozenset[str]:
        """Names of the nodes that run on the DLA: answer ``yes``, and not stranded."""
        sure = (place for place, verdict in enumerate(self.verdicts) if verdict.answer == "yes")
        return frozenset(self.nodes[place].name for place in sure if place not in self.stranded)

    @property
    def fixes(self) -> tuple[str, ...]:
        """Changes of the model that would move more work to the DLA, most work first."""
        reasons = (*self.summary.refusals, *self.summary.doubts)
        return tuple(dict.fromkeys(reason.fix for reason in reasons if reason.fix))

    def segment_of(self, place: int) -> int | None:
        """Return the number, from 1, of the segment in ``regions`` that contains a node; None where none does."""
        return self._segments.get(place)

    @cached_property
    def _segments(self) -> Mapping[int, int]:
        return {place: number for number, region in enumerate(self.regions, 1) for place in region.places}

    def to_json(self) -> dict[str, Any]:
        """Return the survey as dicts, lists, strings and numbers."""
        rows = [
            {"name": node.name, "op": node.op, "macs": macs, **asdict(verdict), "form": verdict.int8_form}
            for node, verdict, macs in zip(self.nodes, self.verdicts, self.macs, strict=True)
        ]
        return {
            "target": asdict(self.target),
            "release": asdict(self.target.release),
            "summary": asdict(self.summary),
            "fits_core": self.fits_core,
            "fixes": list(self.fixes),
            "segments": [self._segment(region) for region in self.regions],
            "segments_hoped": [self._segment(region) for region in self.hoped],
            "nodes": rows,
        }

    def _segment(self, region: Region) -> dict[str, Any]:
        names = [self.nodes[place].name for place in region.places]
        return {**asdict(region), "places": list(region.places), "nodes": names}


@dataclass(frozen=True, slots=True)
class Difference:
    """A number before and after a change of a graph.

    Attributes:
        what: title of the number.
        before: number before the change, as text with its unit.
        after: number after the change, as text with its unit.
        is_better: whether the change is an improvement; None where nothing changed or neither direction is better.
    """

    what: str
    before: str
    after: str
    is_better: bool | None


def target_of(generation: int | None, tensorrt: str, precision: str) -> Target:
    """Return the target for a user's options; raise ConfigError where no such target exists."""
    try:
        return Target(generation or 0, tensorrt, precision)  # type: ignore[arg-type]  # Target checks its arguments
    except ValueError as error:
        raise ConfigError(
            f"no such DLA target: {error}", fix="give, for example, --trt 10.3 --precision int8"
        ) from error


def survey(
    graph: Graph,
    target: Target,
    scaled: Collection[str] | None = None,
    macs: Mapping[str, int] | None = None,
) -> Survey:
    """Return the survey of a graph that was cleaned as a build does.

    Args:
        graph: graph with static shapes.
        target: DLA generation, TensorRT release and precision.
        scaled: tensors with an INT8 scale, or tensor → scale; None before calibration.
        macs: node name → multiply-adds; None counts them from the shapes.
    """
    nodes = dla_nodes(graph)
    work = multiply_adds(graph) if macs is None else dict(macs)
    verdicts = check_graph(nodes, target, scaled)

    find_regions = partial(regions, nodes, verdicts, target, macs=work, outputs=graph.output_names)
    sure, maybe = find_regions(stranded=False), find_regions(answers=_POSSIBLE_ANSWERS, stranded=False)
    stranded = _places(find_regions()) - _places(sure)
    hoped = tuple(region for region in maybe if any(verdicts[place].answer == "yes" for place in region.places))
    counted = tuple(work.get(node.name, 0) for node in nodes)
    summary = summarize(nodes, verdicts, sure, hoped, work)
    return Survey(target, nodes, verdicts, counted, sure, hoped, stranded, summary)


def _places(found: Iterable[Region]) -> frozenset[int]:
    return frozenset(place for region in found for place in region.places)


_COMPARED = (
    ("work on the DLA", "macs_yes", True),
    ("work to be verified", "macs_verify", False),
    ("nodes", "nodes", None),
    ("nodes on the DLA", "yes", True),
    ("nodes refused", "no", False),
    ("nodes to be verified", "verify", False),
    ("segments (loadables)", "segments", False),
)
"""Rows of a comparison: title, attribute of the summary, and whether more is better (None: neither)."""


def compare(before: Survey, after: Survey) -> tuple[Difference, ...]:
    """Return what changed between two surveys of one network, for example by rewrites."""
    found = []
    for what, name, more in _COMPARED:
        old, new = getattr(before.summary, name), getattr(after.summary, name)
        is_better = None if old == new or more is None else (new > old) == more
        first, second = (f"{100 * one:.1f} %" if name.startswith("macs") else str(one) for one in (old, new))
        found.append(Difference(what, first, second, is_better))
    return tuple(found)
