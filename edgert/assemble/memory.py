"""Memory plan of a pipeline on this machine, predicted before anything is made, and steps that reduce it.

    peak = process + libraries + engines + frames

An engine of ONNX Runtime with w bytes of weights, a bytes of activations at their peak (:mod:`edgert.graph.count`), b
bytes of bound tensors, n nodes and r replicas takes:

    2 w + (1 + r) (a + b) + n * 7.5 KiB

While an engine is opened, there are two copies of the weights: edgert's and ONNX Runtime's. The first run allocates
tensor after tensor, and the pieces stay in the arena. Every later run requests one block
(SessionOptions.enable_mem_pattern), for which those pieces are too small.
``tests/bench/bench_memory_plan.py`` measures 2.0, 2.1 and 7.3 KiB for the three factors. The first compilation and
calibration are not included. The plan of a converted model is that of 32 bits.
"""

import logging
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from glob import escape
from pathlib import Path

from edgert.assemble.models import batch_of, replicas_of
from edgert.assemble.process_memory import process_parts
from edgert.board.host import free_bytes, system_memory
from edgert.budget.footprint import Footprint, Part, Step, check_footprint, shrunk
from edgert.config import DrawStage, InferStage, PipelineConfig, PipelineFile, SinkStage, SourceStage, StageConfig
from edgert.config.engine_choice import ORT
from edgert.config.flow import inputs_of, queue_of, upstream, users_of, variants_of
from edgert.engine import default_profile
from edgert.errors import EdgertError
from edgert.files import total_bytes
from edgert.graph import clean, load, read, with_shapes
from edgert.graph.count import peak_bytes
from edgert.graph.model import tensor_bytes
from edgert.meters import rss_bytes
from edgert.stages.source import kinds, python_images
from edgert.units import format_bytes

# Memory of frames: of sources, drawn images, decoders and encoders.

_ASSUMED_PX = (1920, 1080)  # size of a file or stream whose size is unknown
_POOL = 4  # initial buffers of a source
_IMAGES = 6  # images that a drawing stage or a video sink holds
_I420, _BGR = 1.5, 3.0
_MOST_REFERENCES, _REFERENCE_PX = 16, 32_768 * 256
"""Maximum reference frames of an H.264 decoder, and their pixels at level 4.1: ITU-T H.264, A.3.1 and table A-1."""
_LOOKAHEAD = 10 + 3 + 1
"""Frames inside x264 at preset veryfast: look-ahead, B frames and a reference (x264 --fullhelp)."""


def frame_parts(file: PipelineFile) -> Iterator[Part]:
    """Yield the memory parts of sources, drawn images, and videos."""
    stages = file.config.stages
    for name, stage in stages.items():
        if isinstance(stage, SourceStage):
            yield from _source_parts(name, stage, file)
        elif isinstance(stage, DrawStage) or (isinstance(stage, SinkStage) and stage.sink == "video"):
            above = (stages[other] for other in upstream(stages, name))
            sizes = [_size(one, file) for one in above if isinstance(one, SourceStage)]
            width, height, note = max(sizes, key=lambda size: size[0])  # the widest source
            if isinstance(stage, DrawStage):
                yield Part(name, "cpu", "frames", round(_IMAGES * width * height * _BGR), f"{_IMAGES} images{note}")
            else:
                held = _IMAGES + _LOOKAHEAD
                yield Part(name, "cpu", "encoder", round(held * width * height * _I420), f"{held} frames{note}")


def _source_parts(name: str, stage: SourceStage, file: PipelineFile) -> Iterator[Part]:
    width, height, note = _size(stage, file)
    kind = kinds.kind_of(stage.source, file.document.path.parent)
    pixel = _BGR if kind in ("python", "synthetic", "images", "api") else _I420
    stages = file.config.stages
    fed = [other for listener, other in stages.items() if name in upstream(stages, listener)]
    under_way = sum(1 + queue_before(other, file) for other in fed)  # in stages and in the queues before them
    held = max(_POOL, 1 + under_way)
    yield Part(name, "cpu", "frames", round(held * width * height * pixel), f"{held} frames of {width}x{height}{note}")
    if kind in ("file", "videos", "network"):
        references = max(1, min(_MOST_REFERENCES, _REFERENCE_PX // (width * height)))
        size_bytes = round(references * width * height * _I420)
        yield Part(name, "cpu", "decoder", size_bytes, f"{references} reference frames{note}")


def queue_before(stage: StageConfig, file: PipelineFile) -> int:
    """Return the capacity of the longest queue before a stage."""
    before = [file.config.stages[name] for name in inputs_of(stage)]
    return max((queue_of(other, stage, is_live(other, file))[0] for other in before), default=0)


def frame_size(stage: SourceStage, file: PipelineFile) -> tuple[int, int]:
    """Return width and height of a source's frames; assumed if the file does not set them."""
    return _size(stage, file)[:2]


def _size(stage: SourceStage, file: PipelineFile) -> tuple[int, int, str]:
    if stage.size is not None:
        return (*stage.size, "")
    kind = kinds.kind_of(stage.source, file.document.path.parent)
    return (*python_images.DEFAULT_SIZE, "") if kind in ("python", "synthetic") else (*_ASSUMED_PX, "; size assumed")


def is_live(stage: object, file: PipelineFile) -> bool:
    """Return whether a stage is a live source."""
    return isinstance(stage, SourceStage) and kinds.is_live(stage, file.document.path.parent)


# Steps that reduce a pipeline's memory.


def alternating_models(config: PipelineConfig) -> list[tuple[str, ...]]:
    """Return groups of models that never run at the same time, so that their engines may share one arena.

    These are the chains of ``degrade_to`` whose threads no other stage uses.
    """
    used = dict.fromkeys(stage.infer for stage in config.stages.values() if isinstance(stage, InferStage))
    chains = [variants_of(config.models, name) for name in used]
    runs = Counter(name for chain in chains for name in chain)

    def alternates(name: str) -> bool:
        model = config.models[name]
        return runs[name] == 1 and is_ort(config, name) and model.placement == "auto" and model.tuning.arena

    return [chain for chain in chains if len(chain) > 1 and all(map(alternates, chain))]


def is_ort(config: PipelineConfig, name: str) -> bool:
    """Return whether the file determines that a model's engine is ONNX Runtime on the CPU."""
    model = config.models[name]
    return model.backend == "ort" or (model.backend == "auto" and set(config.engines) <= {ORT})


def _with_section(file: PipelineFile, section: str, items: Mapping[str, object]) -> PipelineFile | None:
    """Return the pipeline with a changed section; None if the section is the same."""
    if items == getattr(file.config, section):
        return None
    return replace(file, config=file.config.model_copy(update={section: items}))


def _halve_queues(file: PipelineFile) -> PipelineFile | None:
    stages = dict(file.config.stages)
    for name, stage in file.config.stages.items():
        now = queue_before(stage, file)
        if now > 1:
            stages[name] = stage.model_copy(update={"queue": now // 2})
    return _with_section(file, "stages", stages)


def _remove_replica(file: PipelineFile) -> PipelineFile | None:
    """Return the pipeline with one replica less of the model that has most; None if all have one."""
    config = file.config
    used = {stage.infer for stage in config.stages.values() if isinstance(stage, InferStage)}
    live = any(is_live(stage, file) for stage in config.stages.values())
    counts = {name: replicas_of(config, name, live) for name in used if config.models[name].placement == "auto"}
    most = max(counts, key=lambda name: counts[name], default="")
    if not most or counts[most] <= 1:
        return None
    models = {**config.models, most: config.models[most].model_copy(update={"replicas": counts[most] - 1})}
    return _with_section(file, "models", models)


def _halve_batches(file: PipelineFile) -> PipelineFile | None:
    stages = dict(file.config.stages)
    for name, stage in file.config.stages.items():
        if isinstance(stage, InferStage) and stage.batch is not None and stage.batch.max > 1:
            batch = stage.batch.model_copy(update={"max": stage.batch.max // 2})
            stages[name] = stage.model_copy(update={"batch": batch})
    return _with_section(file, "stages", stages)


def _share_arenas(file: PipelineFile) -> PipelineFile | None:
    """Return the pipeline with one arena for models that never run at the same time; None without such models."""
    config = file.config
    alternating = {name for chain in alternating_models(config) for name in chain}
    shared = {
        name: one.model_copy(update={"tuning": one.tuning.model_copy(update={"shared_arena": True})})
        for name, one in config.models.items()
        if name in alternating
    }
    return _with_section(file, "models", {**config.models, **shared})


QUEUES: Step[PipelineFile] = ("queues half as long", _halve_queues)
STEPS: tuple[Step[PipelineFile], ...] = (
    ("one arena for models that take turns", _share_arenas),
    QUEUES,
    ("a replica less", _remove_replica),
    ("batches half as large", _halve_batches),
)
"""Steps that reduce a pipeline's memory, the least harmful first."""


_LOG = logging.getLogger(__name__)
WEIGHT_COPIES, NODE_BYTES = 2, 7.5 * 2**10
ERROR = 0.11
"""Largest relative error of plans for the eight models of ``tests/bench/bench_memory_plan.py``, rounded up."""
_LEAST_SHARE = 1 / 8
"""Part of a plan that engines other than ONNX Runtime on the CPU take at least: one of two copies of the weights, and
one of four bytes of each weight."""
_UNREAD_TIMES, _UNREAD_BYTES = 60, 2**30
"""Assumed tensors of one inference slot: a multiple of the model file's size, and a constant. Of eleven networks, a
style transfer has 55 times its size, all others at most 6 times."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes of a model's weights, peak activations and bound tensors in 32 bits, and the number of its nodes."""

    weights: int
    activations: int
    bindings: int
    nodes: int


def plan_memory(file: PipelineFile, *, has_engines: bool = False) -> Footprint:
    """Return the peak memory of a pipeline on this machine, reduced as its memory budget or the machine requires.

    Reads the models and makes nothing. Takes a second, for a child process that measures the libraries. With
    ``has_engines``, engines of a bundle run the models. Raises EdgertError: a model cannot be read, or its size is
    open.
    """
    return _plan_reduced(file, has_engines)[1]


def fit_memory(file: PipelineFile, *, has_engines: bool = False) -> tuple[PipelineFile, Footprint]:
    """Return the pipeline with shorter queues, fewer replicas and smaller batches where memory requires it.

    The limits are its memory budget and this machine's memory. Logs a warning where less memory is free at the moment.
    Raises BudgetError: the pipeline does not fit after all steps; the error names the budget that would suffice. Raises
    EdgertError: as for :func:`plan_memory`.
    """
    found, plan = _plan_reduced(file, has_engines)
    check_footprint(plan, file.where("models") if plan.keeps_budget else file.where("budgets", "memory"))
    more, free = plan.least_bytes - rss_bytes(), free_bytes()
    if 0 < free < more:
        needs = f"at least {format_bytes(more)} more of memory are planned and {format_bytes(free)} are free now"
        _LOG.warning("%s: other programs will be swapped out or ended", needs)
    return found, plan


def check_room(before: PipelineFile, after: PipelineFile, known: Footprint | None) -> Footprint | None:
    """Return the memory plan of a running pipeline after a change; None if it certainly fits.

    The changed pipeline is not reduced. ``known`` is the plan of the start or the last change; None: the pipeline
    certainly fitted then. Raises BudgetError: the pipeline does not fit. Raises EdgertError: as for
    :func:`plan_memory`.
    """
    if after.config.budgets.memory is None and fits_easily(after):
        return None
    if known is not None:
        process = tuple(part for part in known.parts if part.kind == "runtime")
    else:
        held_bytes = max(0, rss_bytes() - _plan_unreduced(before, (), False).total_bytes)
        process = (Part("process", "cpu", "runtime", held_bytes, "measured: this process without engines and frames"),)
    plan = _plan_unreduced(after, process, has_engines=False)
    check_footprint(plan, after.where("stages") if plan.keeps_budget else after.where("budgets", "memory"))
    return plan


def fits_easily(file: PipelineFile) -> bool:
    """Return whether a pipeline takes at most half of the free memory, so that no exact plan is needed.

    It uses the sizes of files first, then a plan without libraries, which take a second to measure. True as well if
    planning fails: making the engines then works or raises the reason.
    """
    room_bytes = free_bytes() / 2
    if not room_bytes or _upper_bound_bytes(file) <= room_bytes:
        return True
    try:
        return _plan_unreduced(file, (), False).most_bytes <= room_bytes
    except EdgertError as error:
        _LOG.debug("no memory plan: %s", error)
        return True


def _upper_bound_bytes(file: PipelineFile) -> int:
    """Return an upper bound from the sizes of model files and of files beside them with the same name."""
    most = _UNREAD_BYTES + sum(part.size_bytes for part in frame_parts(file))
    for name, replicas in _replicas(file).items():
        onnx = file.config.models[name].onnx
        stored = total_bytes(onnx.parent.glob(f"{escape(onnx.stem)}*"))
        most += stored * (WEIGHT_COPIES + (1 + replicas) * _UNREAD_TIMES)
    return most


def _replicas(file: PipelineFile) -> dict[str, int]:
    config = file.config
    live = any(is_live(stage, file) for stage in config.stages.values())
    users = {name: users_of(config.stages, config.models, name) for name in config.models}
    return {name: max(replicas_of(config, user.infer, live) for user in users[name]) for name in users if users[name]}


def _plan_reduced(file: PipelineFile, has_engines: bool) -> tuple[PipelineFile, Footprint]:
    process = tuple(process_parts(file))
    return shrunk(file, lambda one: _plan_unreduced(one, process, has_engines), STEPS)


def _plan_unreduced(file: PipelineFile, process: tuple[Part, ...], has_engines: bool) -> Footprint:
    config, engines = file.config, list[Part]()
    for name, replicas in _replicas(file).items():
        with file.locating(file.where("models", name)):
            engines += engine_parts(name, sizes_of(config, name), replicas)
    # Models that never run at the same time may share an arena, as large as the largest of them needs.
    at = {part.name: number for number, part in enumerate(engines) if part.kind == "activations"}
    for turns in alternating_models(config):
        if all(config.models[name].tuning.shared_arena for name in turns):
            largest = max(turns, key=lambda name: engines[at[name]].size_bytes)
            note = f"in the arena of {largest}, as they take turns"
            for name in set(turns) - {largest}:
                engines[at[name]] = replace(engines[at[name]], size_bytes=0, note=note)
    elsewhere = [part for part in engines if has_engines or not is_ort(config, part.name)]
    doubt_bytes = round(sum(part.size_bytes for part in elsewhere) * (1 - _LEAST_SHARE))
    parts, machine_bytes = (*process, *engines, *frame_parts(file)), system_memory().most_bytes
    return Footprint(parts, config.budgets.memory, machine_bytes, error=ERROR, doubt_bytes=doubt_bytes)


def engine_parts(name: str, sizes: Sizes, replicas: int) -> tuple[Part, ...]:
    """Return the memory parts of one model's engine of ONNX Runtime."""
    slots = 1 + replicas
    return (
        Part(name, "cpu", "weights", WEIGHT_COPIES * sizes.weights, f"{WEIGHT_COPIES} copies while opened"),
        Part(name, "cpu", "activations", slots * sizes.activations, f"{slots} times what is alive at once"),
        Part(name, "cpu", "bindings", slots * sizes.bindings, f"{slots} sets of inputs and outputs"),
        Part(name, "cpu", "structure", round(sizes.nodes * NODE_BYTES), f"{sizes.nodes} nodes"),
    )


def sizes_of(config: PipelineConfig, name: str) -> Sizes:
    """Return the sizes of a model, from its graph. Raises ModelError if it is unreadable or its size is open."""
    model = config.models[name]
    profiles = model.profiles or default_profile(load(model.onnx), model, batch_of(config, name))
    return _sizes(model.onnx, tuple((key, tuple(shape)) for key, shape in next(iter(profiles.values()), {}).items()))


@cache
def _sizes(path: Path, shapes: tuple[tuple[str, tuple[int, ...]], ...]) -> Sizes:
    model = load(path)
    graph = read(clean(with_shapes(model, dict(shapes)) if shapes else model)[0])
    ends = [spec for spec in (*graph.inputs, *graph.outputs) if spec.is_static]
    bound = sum(tensor_bytes(spec.dtype, math.prod(dim for dim in spec.shape if isinstance(dim, int))) for spec in ends)
    weights = sum(array.nbytes for array in graph.constants.values())
    return Sizes(weights, max(0, peak_bytes(graph) - bound), bound, len(graph.nodes))
