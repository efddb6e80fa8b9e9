"""Models that look at crops of the same frames, one behind the other: where they are run together."""

from collections.abc import Mapping, Sequence
from itertools import chain

from edgert.config import stages as section
from edgert.config.flow import inputs_of
from edgert.runtime import Node
from edgert.stages.gpu.gpu_crops import InferCropsTogether, Looked


def crop_chains(stages: Mapping[str, section.StageConfig]) -> list[list[str]]:
    """Names of stages that look at crops of the same boxes and frames: two or more, each alone in listening to the one
    before."""
    listeners: dict[str, list[str]] = {name: [] for name in stages}
    for name, stage in stages.items():
        for other in inputs_of(stage):
            listeners[other].append(name)

    def next_of(name: str) -> str | None:
        one, after = stages[name], listeners[name]
        other = stages[after[0]] if len(after) == 1 else None
        if not isinstance(one, section.InferStage) or not isinstance(other, section.InferStage):
            return None
        alike = one.crop is not None and other.crop is not None and one.every == other.every
        return after[0] if alike and len(inputs_of(other)) == 1 else None

    follows = {name: after for name in stages if (after := next_of(name))}
    chains = []
    for first in follows.keys() - set(follows.values()):
        names = [first]
        while names[-1] in follows:
            names.append(follows[names[-1]])
        chains.append(names)
    return chains


def run_together(parts: Sequence[Sequence[Node]]) -> None:
    """Has the first of a chain's stages run the models of all, where each is one node, and they are on one GPU."""
    nodes = list(chain.from_iterable(parts))
    works = [node.work for node in nodes if isinstance(node.work, InferCropsTogether)]
    if len(works) != len(parts) or len(nodes) != len(parts) or any(work.device != works[0].device for work in works):
        return
    nodes[0].work = works[0].joined(works[1:])
    for node in nodes[1:]:
        node.work, node.reads = Looked(node.name), "nothing"
