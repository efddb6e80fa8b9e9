"""Choice of the models on crops of the same frames, in a chain or in parallel, that run in one stage on a GPU."""

from collections.abc import Mapping, Sequence
from itertools import chain

from edgert.config import flow, stages as section
from edgert.runtime import Task, graph
from edgert.stages.gpu.gpu_crops import AlreadyInferred, InferCropsOfModels


def crop_chains(stages: Mapping[str, section.StageConfig]) -> list[list[str]]:
    """Return chains of stages that run on crops of the same boxes, where each is the only listener of the last."""
    listeners: dict[str, list[str]] = {name: [] for name in stages}
    for name, stage in stages.items():
        for other in flow.inputs_of(stage):
            listeners[other].append(name)

    def next_of(name: str) -> str | None:
        one, after = stages[name], listeners[name]
        other = stages[after[0]] if len(after) == 1 else None
        if not isinstance(one, section.InferStage) or not isinstance(other, section.InferStage):
            return None
        both_crop = one.crop is not None and other.crop is not None and one.every == other.every
        return after[0] if both_crop and len(flow.inputs_of(other)) == 1 else None

    followers = {name: after for name in stages if (after := next_of(name))}
    chains = []
    for first in followers.keys() - set(followers.values()):
        names = [first]
        while names[-1] in followers:
            names.append(followers[names[-1]])
        chains.append(names)
    return chains


def crop_siblings(stages: Mapping[str, section.StageConfig]) -> list[list[str]]:
    """Return groups of stages that run on crops of the same boxes and have the same input, interval and queue."""
    groups: dict[object, list[str]] = {}
    for name, stage in stages.items():
        if isinstance(stage, section.InferStage) and stage.crop is not None and len(flow.inputs_of(stage)) == 1:
            groups.setdefault((flow.inputs_of(stage), stage.every, stage.queue, stage.drop), []).append(name)
    return [names for names in groups.values() if len(names) > 1]


def run_together(parts: Sequence[Sequence[Task]]) -> None:
    """Let the first stage of a chain run all its models, where each stage is one task and all are on one GPU."""
    tasks = list(chain.from_iterable(parts))
    works = [task.stage for task in tasks if isinstance(task.stage, InferCropsOfModels)]
    if len(works) != len(parts) or len(tasks) != len(parts) or any(work.device != works[0].device for work in works):
        return
    tasks[0].stage = works[0].combined_with(works[1:])
    for task in tasks[1:]:
        task.stage, task.execution.reads = AlreadyInferred(task.name), "nothing"


def run_beside(parts: Sequence[list[Task]], streams: frozenset[str], capacity: int) -> None:
    """Insert a task before parallel stages that runs all their models on one GPU.

    Each stage passes on only its own records. The new task becomes the first task of the first stage.
    """
    on_gpus: dict[object, list[list[Task]]] = {}
    for tasks in parts:
        if isinstance(work := tasks[0].stage, InferCropsOfModels):
            on_gpus.setdefault(work.device, []).append(tasks)
    for own in on_gpus.values():
        works = [work for tasks in own if isinstance(work := tasks[0].stage, InferCropsOfModels)]
        if len(works) < 2:
            continue
        names = [frozenset(look.name for look in work.models) for work in works]
        head = Task(f"{own[0][0].name}:0", works[0].combined_with(works[1:]))
        for tasks, mine in zip(own, names, strict=True):
            tasks[0].stage, tasks[0].execution.reads = (
                AlreadyInferred(tasks[0].name, frozenset().union(*names) - mine),
                "nothing",
            )
            graph.connect(head, tasks[0], streams, capacity, "never")
        own[0].insert(0, head)
