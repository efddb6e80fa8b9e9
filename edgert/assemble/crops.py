"""Models that look at crops of the same frames, one behind the other or beside it: where they are run together."""

from collections.abc import Mapping, Sequence
from itertools import chain

from edgert.config import stages as section
from edgert.config.flow import inputs_of
from edgert.runtime import Node
from edgert.runtime.branches import connect
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


def crop_siblings(stages: Mapping[str, section.StageConfig]) -> list[list[str]]:
    """Names of stages that look at crops of the same boxes and frames: two or more, which listen to the same stage
    alone, and in the same way."""
    alike: dict[object, list[str]] = {}
    for name, stage in stages.items():
        if isinstance(stage, section.InferStage) and stage.crop is not None and len(inputs_of(stage)) == 1:
            alike.setdefault((inputs_of(stage), stage.every, stage.queue, stage.drop), []).append(name)
    return [names for names in alike.values() if len(names) > 1]


def run_together(parts: Sequence[Sequence[Node]]) -> None:
    """Has the first of a chain's stages run the models of all, where each is one node, and they are on one GPU."""
    nodes = list(chain.from_iterable(parts))
    works = [node.work for node in nodes if isinstance(node.work, InferCropsTogether)]
    if len(works) != len(parts) or len(nodes) != len(parts) or any(work.device != works[0].device for work in works):
        return
    nodes[0].work = works[0].joined(works[1:])
    for node in nodes[1:]:
        node.work, node.reads = Looked(node.name), "nothing"


def run_beside(parts: Sequence[list[Node]], streams: frozenset[str], capacity: int) -> None:
    """Has a node before stages that listen to the same one run the models of all that are on one GPU; each passes on
    its own records. The node becomes the first of the first one's.

    Args:
        parts: the nodes of each; those that are one node are changed.
        streams, capacity: of the edges behind the node that is made.
    """
    on_gpus: dict[object, list[list[Node]]] = {}
    for nodes in parts:
        if isinstance(work := nodes[0].work, InferCropsTogether):
            on_gpus.setdefault(work.device, []).append(nodes)
    for own in on_gpus.values():
        works = [work for nodes in own if isinstance(work := nodes[0].work, InferCropsTogether)]
        if len(works) < 2:
            continue
        names = [frozenset(look.name for look in work.looks) for work in works]
        head = Node(f"{own[0][0].name}:0", works[0].joined(works[1:]))
        for nodes, mine in zip(own, names, strict=True):
            nodes[0].work, nodes[0].reads = Looked(nodes[0].name, frozenset().union(*names) - mine), "nothing"
            connect(head, nodes[0], streams, capacity, "never")
        own[0].insert(0, head)
