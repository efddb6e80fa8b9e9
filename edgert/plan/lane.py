"""How models run in a simulated pipeline: by a plan's row on a board, by measured profiles on this machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from edgert.assemble.model import replicas_of, threads_of
from edgert.board.core import core_accelerators
from edgert.config import InferStage, ModelConfig, PipelineFile
from edgert.graph.clean import clean
from edgert.graph.load import load
from edgert.graph.node import Graph, read
from edgert.graph.shape import with_shapes
from edgert.graph.spec import inputs
from edgert.place.partition import partition
from edgert.place.predict import part_ms
from edgert.place.profile import Profile
from edgert.place.request import accelerators_of, assign, check_accelerators, weights_of
from edgert.place.step import Step, steps
from edgert.plan.design import Lane
from edgert.plan.row import Row
from edgert.ready import default_profile
from edgert.simulate.core import ANY_CORE, CoreStep


@dataclass(frozen=True, eq=False)
class BoardLanes:
    """Engines as a row of a plan places them. One that uses several accelerators is run by as many threads, each with
    tensors of its own, so that the accelerators work at the same time."""

    file: PipelineFile
    row: Row

    def __call__(self, name: str, stage: InferStage, live: bool) -> Sequence[Lane]:
        """See :data:`edgert.plan.design.Lanes`."""
        model = next(one for one in self.row.models if one.name == stage.infer)
        rows = rows_of(self.file.config.models[stage.infer], stage)
        lanes = []
        for engine in model.engines:
            count = len(engine.accelerators)
            run = steps(model.network, engine.assignment)
            lanes += [Lane((run,), engine.share / count, rows=rows)] * count
        return lanes


@dataclass(frozen=True, eq=False)
class HostLanes:
    """Engines as ``edgert run`` sets them up here, with the times of profiles.

    Args:
        profiles: model → its profile.
    """

    file: PipelineFile
    profiles: Mapping[str, Profile]

    def __call__(self, name: str, stage: InferStage, live: bool) -> Sequence[Lane]:
        """See :data:`edgert.plan.design.Lanes`. Raises PlacementError for a placement that this machine has not."""
        config, profile = self.file.config.models[stage.infer], self.profiles[stage.infer]
        rows = rows_of(config, stage)
        check_accelerators(accelerators_of(config.placement), core_accelerators())
        if isinstance(config.placement, dict):
            return [_split(config, profile, config.placement)]
        if placed := weights_of(config.placement):
            return [Lane(((_step(profile, core, core),),), weight, (core,), rows) for core, weight in placed.items()]
        count = replicas_of(self.file.config, stage.infer, live)
        threads = max(1, threads_of(self.file.config, stage.infer) // count)
        step = _step(profile, next(iter(profile.whole)), ANY_CORE, threads)
        return [Lane(((step,),), rows=rows)] * count

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """What had to be assumed."""
        return tuple(
            f"{name}: several threads are taken to share its work without loss; profiles are of one thread"
            for name, config in self.file.config.models.items()
            if config.placement == "auto" and threads_of(self.file.config, name) > 1
        ) + tuple(
            f"{name}: its profile has no jitter, so a p99 is too low; measure its profile again (edgert bench --units)"
            for name, profile in self.profiles.items()
            if not all(whole.jitter for whole in profile.whole.values())
        )


def rows_of(config: ModelConfig, stage: InferStage) -> int:
    """Crops or frames that fit in one run: all where the model leaves its batch open, else as many as it has rows."""
    first = inputs(load(config.onnx))[0].shape[:1]
    wanted = stage.crop.limit if stage.crop is not None else stage.batch.max if stage.batch is not None else 1
    return first[0] if first and isinstance(first[0], int) else wanted


def _step(profile: Profile, measured: str, core: str, threads: int = 1) -> Step:
    whole = profile.whole[measured]
    return CoreStep(core, whole.alone_ms / threads, crowded=whole.contention, threads=threads, jitter=whole.jitter)


def _split(config: ModelConfig, profile: Profile, globs: Mapping[str, str]) -> Lane:
    graph = static_graph(config)
    parts = partition(graph, assign(graph, globs, [node.name for node in read(load(config.onnx)).nodes]))
    timed = []
    for number, part in enumerate(parts):
        core, time_ms = part.accelerator, part_ms(profile, graph, parts, number)
        whole = profile.whole[core]
        timed.append((CoreStep(core, time_ms, crowded=whole.contention, jitter=whole.jitter),))
    return Lane(tuple(timed), cores=tuple(part.accelerator for part in parts))


def static_graph(config: ModelConfig) -> Graph:
    """The model as a profile knows it: of fixed shapes, with everything folded."""
    model = load(config.onnx)
    shapes = next(iter((config.profiles or default_profile(model, config)).values()))
    return read(clean(with_shapes(model, shapes))[0])
