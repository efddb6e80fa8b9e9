"""The graph of stages that ``from`` defines: its order, its checks, and what follows for frames and models."""

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from edgert.config import stages as section
from edgert.config.model_section import ModelConfig, value_of, verb_of
from edgert.errors import ConfigError, nearest
from edgert.files import exists
from edgert.kinds import DECODERS
from edgert.policy import Drop, Reads

Stages = Mapping[str, section.StageConfig]
Where = Callable[[Iterable["str | int"]], str]


def inputs_of(stage: section.StageConfig) -> tuple[str, ...]:
    """Return the names of the stages that a stage listens to; none for a source."""
    return () if isinstance(stage, section.SourceStage) else stage.inputs


def topological_order(stages: Stages) -> list[str]:
    """Return all stage names, each after those of the stages that it listens to."""
    return list(TopologicalSorter({name: inputs_of(stage) for name, stage in stages.items()}).static_order())


def sources_of(stages: Stages) -> dict[str, frozenset[str]]:
    """Return, for every stage, the sources whose frames reach it."""
    found: dict[str, frozenset[str]] = {}
    for name in topological_order(stages):
        feeding = inputs_of(stages[name])
        found[name] = frozenset().union(*(found[other] for other in feeding)) if feeding else frozenset({name})
    return found


# Queues between stages.

FILE_QUEUE, LIVE_QUEUE = 4, 1
"""Capacity of a queue behind a file, enough for a decoder's bursts, and behind a camera, for only the newest result."""
STAGE_QUEUE = 2
"""Capacity of queues between stages: one result waits while the next is made."""
SEGMENT_QUEUE = 1
"""Capacity of queues between segments: bridges a late thread; each further result would need more tensors."""
_TWO_BATCHES = 16
"""Capacity up to which a queue holds two batches, so that threads switch half as often."""


def queue_of(before: section.StageConfig, after: section.StageConfig, live: bool) -> tuple[int, Drop]:
    """Return capacity and drop policy of one edge: the listener's setting, else the source's, else a default."""
    default = LIVE_QUEUE if live else FILE_QUEUE if isinstance(before, section.SourceStage) else STAGE_QUEUE
    if not live and isinstance(after, section.InferStage) and after.batch is not None:
        # Room for the next batch while this one is prepared; for two of small batches, so that threads switch less.
        default = max(default, after.batch.max, min(2 * after.batch.max, _TWO_BATCHES))
    if not live and isinstance(before, section.SourceStage) and before.source == "api":
        # A program may submit some frames before it reads a result; whole batches, as a part of one takes as long.
        default += max(FILE_QUEUE, min(default, _TWO_BATCHES) // 2)
    source = before if isinstance(before, section.SourceStage) else None
    queue = after.queue or (source and source.queue) or default
    drop = after.drop or (source and source.drop) or ("oldest" if live else "never")
    return queue, drop


# Which stages read pixels, and where.


def reads_of(stages: Stages, on_gpu: Collection[str]) -> dict[str, Reads]:
    """Return where every stage reads pixels, where the infer stages ``on_gpu`` read frames on a GPU."""
    found: dict[str, Reads] = {}
    drawn: dict[str, bool] = {}  # whether every result that a stage passes on has a drawn image
    for name in topological_order(stages):
        stage = stages[name]
        comes_drawn = bool(inputs_of(stage)) and all(drawn[other] for other in inputs_of(stage))
        drawn[name] = isinstance(stage, section.DrawStage) or (
            comes_drawn and not isinstance(stage, section.PythonStage | section.PackageStage | section.CropStage)
        )
        found[name] = _pixels_read(stage, name in on_gpu, comes_drawn)
    return found


def _pixels_read(stage: section.StageConfig, is_on_gpu: bool, comes_drawn: bool) -> Reads:
    if isinstance(stage, section.InferStage):
        return "anywhere" if is_on_gpu else "host"
    if isinstance(stage, section.PythonStage) or (isinstance(stage, section.TrackStage) and stage.reads_images):
        return "host"
    if isinstance(stage, section.DrawStage):
        return "anywhere" if stage.takes_gpu else "host"
    if isinstance(stage, section.SinkStage) and not stage.reads_images:
        return "nothing"
    if not isinstance(stage, section.SinkStage | section.PackageStage) or not stage.takes_images:
        return "nothing"
    if isinstance(stage, section.SinkStage) and stage.shows_images and comes_drawn:
        return "nothing" if stage.takes_gpu else "drawn"
    return "anywhere" if stage.takes_gpu else "host"


def stages_reached(stages: Stages, reads: Mapping[str, Reads], source: str) -> list[str]:
    """Return the stages that get a source's frames in the memory where the source made them.

    A stage that reads them on the host passes on its copy, so the stages behind it are left out.
    """
    found, feeding = list[str](), {source}
    for name in topological_order(stages):
        if feeding.isdisjoint(inputs_of(stages[name])):
            continue
        found.append(name)
        if reads[name] != "host":
            feeding.add(name)
    return found


_LAST_TO_STOP = ("high", "normal", "low")


def streams_of(stages: Stages) -> tuple[str, ...]:
    """Return the sources, the last to be stopped by a budget first: by priority, then in the file's order."""
    ranks = {
        name: _LAST_TO_STOP.index(stage.priority)
        for name, stage in stages.items()
        if isinstance(stage, section.SourceStage)
    }
    return tuple(sorted(ranks, key=ranks.__getitem__))


def upstream(stages: Stages, name: str) -> frozenset[str]:
    """Return the stages before a stage, direct and indirect."""
    direct = inputs_of(stages[name])
    return frozenset(direct).union(*(upstream(stages, other) for other in direct))


def check_flow(stages: Stages, models: Mapping[str, ModelConfig], where: Where) -> None:
    """Check the graph. Raises ConfigError: an unknown name, a cycle, no source, or stages that do not fit."""
    for name, stage in stages.items():
        _check_inputs(name, inputs_of(stage), stages, where)
        if isinstance(stage, section.InferStage) and stage.infer not in models:
            raise ConfigError(
                f"stage {name!r} runs model {stage.infer!r}, which is not among models{nearest(stage.infer, models)}",
                where=where(("stages", name, "infer")),
                fix=f"models here: {', '.join(models) or 'none'}",
            )
    try:
        topological_order(stages)
    except CycleError as error:
        ring = error.args[1]  # every stage feeds the next
        raise ConfigError(
            f"stages form a cycle: {' → '.join(ring)}",
            why="frames flow one way, from sources to sinks",
            where=where(("stages", ring[0], "from")),
        ) from error
    if not any(isinstance(stage, section.SourceStage) for stage in stages.values()):
        raise ConfigError("no stage is a source", where=where(("stages",)), fix="add one, e.g. camera: {source: ...}")
    for name, stage in stages.items():
        if isinstance(stage, section.TrackStage) or isinstance(getattr(stage, "crop", None), section.CropConfig):
            _check_has_boxes(name, stages, models, where)
        if isinstance(stage, section.InferStage) and stage.tiles is not None:
            _check_tiles(name, stage, models, where)
        if isinstance(stage, section.PackageStage | section.SinkStage):
            stage.check(name, stages, where)


def check_outputs(stages: Stages, read: Iterable[Path], where: Where) -> None:
    """Check the files of sinks. Raises ConfigError: two sinks write one file, or one writes a file that is read.

    ``read`` are the files that the pipeline reads.
    """
    taken = {os.path.realpath(path): "" for path in read}  # Path.resolve() raises RuntimeError for a loop of links
    streams = sources_of(stages)
    for name, stage in stages.items():
        path = getattr(stage, "path", None) if isinstance(stage, section.SinkStage) else None
        if not isinstance(path, Path) or (exists(path) and not (path.is_file() or path.is_dir())):
            continue  # several sinks may write to one pipe or device
        pattern = str(path / "{stream}" if getattr(stage, "sink", "") == "images" and not path.suffix else path)
        own = {os.path.realpath(pattern.replace("{stream}", stream)) for stream in streams[name]}
        for one in own:
            if one in taken:
                raise ConfigError(
                    f"stage {name!r} writes {str(path)!r}, which "
                    + (f"{taken[one]!r} writes, too" if taken[one] else "the pipeline reads"),
                    why="one would overwrite the file that the other needs",
                    where=where(("stages", name, "path")),
                    fix="choose another path",
                )
        taken |= dict.fromkeys(own, name)


def _check_inputs(name: str, inputs: tuple[str, ...], stages: Stages, where: Where) -> None:
    place = where(("stages", name, "from"))
    for other in inputs:
        if other not in stages:
            raise ConfigError(
                f"stage {name!r} listens to {other!r}, which is not a stage{nearest(other, stages)}",
                where=place,
                fix=f"stages here: {', '.join(stages)}",
            )
        if isinstance(stages[other], section.SinkStage):
            what = f"stage {name!r} listens to {other!r}, which is a sink"
            raise ConfigError(what, why="sinks pass nothing on", where=place)
    if len(set(inputs)) != len(inputs):
        raise ConfigError(f"stage {name!r} listens to one stage twice", where=place)


def _check_tiles(name: str, stage: section.InferStage, models: Mapping[str, ModelConfig], where: Where) -> None:
    """Check a model that is run on tiles. Raises ConfigError: the results of its tiles cannot be merged."""
    for one in variants_of(models, stage.infer):
        task = models[one].task
        kind = value_of(task) if verb_of(task) == "detect" else ""
        if not kind or getattr(DECODERS["detect"].get(kind), "has_masks", False):
            raise ConfigError(
                f"stage {name!r} cannot run {one!r} on tiles",
                why=f"it is for {verb_of(task)}"
                + (f": {kind}, whose objects have masks" if kind else "")
                + "; only boxes are put together from tiles",
                where=where(("stages", name, "tiles")),
                fix="run a model for detect without masks, or leave tiles out",
            )


_TASKS_WITH_BOXES = ("detect", "keypoints", "python")
"""Tasks whose records have boxes, or may have them: what a user's own decoder returns is not known here."""


def _check_has_boxes(name: str, stages: Stages, models: Mapping[str, ModelConfig], where: Where) -> None:
    """Check a stage that tracks or crops detections. Raises ConfigError: no stage before it detects anything."""
    others: list[str] = []
    for before in (stages[other] for other in upstream(stages, name)):
        if isinstance(before, section.PythonStage) or (isinstance(before, section.PackageStage) and before.detects):
            return
        if isinstance(before, section.InferStage):
            task = verb_of(models[before.infer].task)
            if task in _TASKS_WITH_BOXES and before.crop is None:
                return
            others.append(f"{before.infer!r} is for {task}" + (", of crops" if before.crop else ""))
    key = "track" if isinstance(stages[name], section.TrackStage) else "crop"
    fix = "let it listen to a stage that runs a model for detect or keypoints on the frame"
    raise ConfigError(
        f"stage {name!r} {key}s detections, but no stage before it detects anything",
        why="; ".join(sorted(others)),
        where=where(("stages", name, key)),
        fix=fix + (", or crop a fixed region: crop: [x1, y1, x2, y2]" if key == "crop" else ""),
        code="E106",
    )


def score_before(stages: Stages, models: Mapping[str, ModelConfig], name: str) -> float | None:
    """Return the lowest score of the detections that reach a stage; None where no model's task sets one."""
    before = (stages[other] for other in upstream(stages, name))
    used = [model for one in before if isinstance(one, section.InferStage) for model in variants_of(models, one.infer)]
    return min((score for one in used if (score := getattr(models[one].task, "score", None)) is not None), default=None)


def trackers_of(stages: Stages, models: Mapping[str, ModelConfig], model: str) -> Iterator[section.TrackStage]:
    """Yield the stages that track what a model detects, in the file's order."""
    for name, stage in stages.items():
        if isinstance(stage, section.TrackStage):
            before = (stages[other] for other in upstream(stages, name))
            if any(isinstance(one, section.InferStage) and model in variants_of(models, one.infer) for one in before):
                yield stage


def tracker_thresholds(stages: Stages, models: Mapping[str, ModelConfig]) -> dict[str, str]:
    """Return stage → the score thresholds from which it tracks objects, of trackers that have them."""
    trackers = {name: one for name, one in stages.items() if isinstance(one, section.TrackStage)}
    found = {name: one.thresholds(score_before(stages, models, name)) for name, one in trackers.items()}
    return {name: text for name, text in found.items() if text}


# Fallback models, used when a budget is exceeded: the chain that ``degrade_to`` forms.


def variants_of(models: Mapping[str, ModelConfig], name: str) -> tuple[str, ...]:
    """Return a model and its chain of fallback models."""
    found = [name]
    while (smaller := models[found[-1]].degrade_to) is not None:
        found.append(smaller)
    return tuple(found)


def fallback_levels(stages: Stages, models: Mapping[str, ModelConfig]) -> list[tuple[str, ...]]:
    """Return, for each level of degrading, the models in use: first where all chains are one step down."""
    used = dict.fromkeys(stage.infer for stage in stages.values() if isinstance(stage, section.InferStage))
    chains = [chain for name in used if len(chain := variants_of(models, name)) > 1]
    deepest = max(map(len, chains), default=1)
    return [tuple(model_at_level(chain, level) for chain in chains) for level in range(1, deepest)]


def model_at_level(chain: Sequence[str], level: int) -> str:
    """Return the model of a chain at a level of degrading; the last one beyond its end."""
    return chain[min(level, len(chain) - 1)]


def stages_at(stages: Stages, models: Mapping[str, ModelConfig], level: int) -> dict[str, section.StageConfig]:
    """Return the stages with the models that they run at a level of degrading."""
    found = dict(stages)
    for name, stage in stages.items():
        if isinstance(stage, section.InferStage):
            model = model_at_level(variants_of(models, stage.infer), level)
            found[name] = stage.model_copy(update={"infer": model})
    return found


def users_of(stages: Stages, models: Mapping[str, ModelConfig], name: str) -> list[section.InferStage]:
    """Return the stages that run a model, at least as a fallback."""
    infers = [stage for stage in stages.values() if isinstance(stage, section.InferStage)]
    return [stage for stage in infers if name in variants_of(models, stage.infer)]


def check_variants(models: Mapping[str, ModelConfig], where: Where) -> None:
    """Check fallback models. Raises ConfigError: one is not defined, leads back, or has another task."""
    for name, model in models.items():
        if (smaller := model.degrade_to) is None:
            continue
        place = where(("models", name, "degrade_to"))
        if smaller not in models:
            known = ", ".join(other for other in models if other != name) or "none"
            what = f"model {name!r} degrades to {smaller!r}, which is not among models{nearest(smaller, models)}"
            raise ConfigError(what, where=place, fix=f"other models here: {known}")
        task, other = verb_of(model.task), verb_of(models[smaller].task)
        if task != other:
            raise ConfigError(
                f"model {name!r} cannot degrade to {smaller!r}",
                why=f"one is for {task}, the other for {other}; what comes after them expects one kind of result",
                where=place,
                fix=f"a model with task: {{{task}: …}}",
            )
    for name in models:
        seen = [name]
        while (smaller := models[seen[-1]].degrade_to) is not None:
            if smaller in seen:
                raise ConfigError(
                    f"degrade_to forms a cycle: {' -> '.join((*seen, smaller))}",
                    where=where(("models", seen[-1], "degrade_to")),
                    fix="leave it out at the smallest model",
                )
            seen.append(smaller)


# Pipelines that are called frame by frame instead of being started.


def why_not_called(stages: Stages, pinned: Collection[str] = ()) -> tuple[str, str]:
    """Return why a pipeline cannot be called with its frames, and what to change; empty texts where it can.

    A call runs every stage in the caller's thread, on given frames, and returns one result for each. So frames come
    from one ``source: api`` without ``fps:``, no stage makes several frames of one, and no thread is pinned to a core.
    Everything else works as in a started pipeline. ``pinned`` are the stages whose threads are pinned to cores.
    """
    sources = {name: stage for name, stage in stages.items() if isinstance(stage, section.SourceStage)}
    foreign = [name for name, stage in sources.items() if stage.source != "api"]
    if foreign:
        return f"{foreign[0]!r} brings its own frames", "use results(…) or callbacks; or make it {source: api}"
    if len(sources) > 1:
        return f"it has {len(sources)} sources, and a call brings frames of one", "one pipeline for each source"
    for name, source in sources.items():
        if source.fps is not None:
            return f"{name!r} leaves frames out (fps:), and a call returns a result for each", "leave fps: out"
    for name, stage in stages.items():
        if isinstance(stage, section.CropStage) and isinstance(stage.crop, section.CropConfig):
            fix = "run the next model on crops: {infer: …, crop: {…}}; or submit frames and take results(…)"
            return f"{name!r} makes several frames of one, and a call returns one result for each", fix
    for name in pinned:
        fix = "placement: auto, or submit frames and take results(…)"
        return f"the model of {name!r} is placed on cores, and a call runs in the thread of its caller", fix
    return "", ""
