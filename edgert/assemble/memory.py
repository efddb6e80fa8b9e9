"""A pipeline's memory on this machine, before anything of it is made.

    peak = process + libraries + engines + frames

Of an engine of ONNX Runtime, with w bytes of weights, a of activations at their peak (:mod:`edgert.graph.liveness`),
b of bound tensors, n nodes and r replicas:

    4 w + (1 + r) (a + b) + n * 7.5 KiB

Weights are there four times while an engine is opened: as edgert read them, as ONNX Runtime parsed them, as tensors,
and once more in the order in which kernels read them. A first run allocates tensor after tensor and leaves its pieces
to the arena; every further one asks for a whole block (SessionOptions.enable_mem_pattern), which those pieces are too
small for. ``tests/bench/bench_memory_plan.py`` measures, on models made for it, 3.6, 2.1 and 7.4 KiB. Not in
it: what compiling takes the first time, and calibrating; a model that is converted counts in 32 bits.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from glob import escape
from pathlib import Path

from edgert.assemble.frame_memory import frame_parts, is_live
from edgert.assemble.memory_step import STEPS, is_ort, turns_of
from edgert.assemble.model import replicas_of
from edgert.assemble.process_memory import process_parts
from edgert.board.memory import free_bytes, system_memory
from edgert.budget.footprint import Footprint, Part, check_footprint, shrunk
from edgert.budget.meter import rss_bytes
from edgert.config import ModelConfig, PipelineConfig, PipelineFile
from edgert.config.variant import users_of
from edgert.errors import EdgertError
from edgert.graph.clean import clean
from edgert.graph.liveness import peak_bytes
from edgert.graph.load import load
from edgert.graph.node import read
from edgert.graph.proto import tensor_bytes
from edgert.graph.shape import with_shapes
from edgert.ready import default_profile
from edgert.units import format_bytes

_LOG = logging.getLogger(__name__)
WEIGHT_COPIES, NODE_BYTES = 4, 7.5 * 2**10
ERROR = 0.08
"""By which plans were wrong at worst, of the eight models of ``tests/bench/bench_memory_plan.py``, rounded up."""
_SURELY = 1 / 16
"""Of what is planned for an engine that is none of ONNX Runtime on the processor, what it takes in any case: one copy
of its weights where four are planned, and one byte of each where four are."""
_UNREAD_TIMES, _UNREAD_BYTES = 60, 2**30
"""Tensors of one lane, of a model's file, and beside it: of eleven networks a style transfer has 55 times, all others 6
times at most."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes of a model in 32 bits: stored, alive at once, bound; and its nodes."""

    weights: int
    activations: int
    bindings: int
    nodes: int


def planned(file: PipelineFile, *, has_engines: bool = False) -> Footprint:
    """What a pipeline will take here, at its peak, made smaller as far as its memory budget or this machine asks for.

    Reads the models; makes nothing. Takes a second, for a child process that measures what libraries take.

    Args:
        has_engines: whether those of a bundle run the models, whatever the file says.

    Raises:
        EdgertError: a model cannot be read or its size is open; a library is missing.
    """
    return _shrunk(file, has_engines)[1]


def fitted(file: PipelineFile, *, has_engines: bool = False) -> tuple[PipelineFile, Footprint]:
    """The pipeline with shorter queues, fewer replicas and smaller batches, as far as its memory budget, or the memory
    of this machine, asks for them. A warning in the log says so where it fits, but less is free at the moment.

    Args:
        has_engines: as of :func:`planned`.

    Raises:
        BudgetError: it does not fit even so; says what would do.
        EdgertError: as :func:`planned`.
    """
    found, plan = _shrunk(file, has_engines)
    check_footprint(plan, file.where("models") if plan.keeps_budget else file.where("budgets", "memory"))
    more, free = plan.least_bytes - rss_bytes(), free_bytes()
    if 0 < free < more:
        told = f"at least {format_bytes(more)} more of memory are planned and {format_bytes(free)} are free now"
        _LOG.warning("%s: other programs will be swapped out, or one is ended", told)
    return found, plan


def is_modest(file: PipelineFile) -> bool:
    """Whether a pipeline takes no more than half of what is free at the moment, by all that is planned but libraries;
    so that nobody has to wait until those are measured, nor, where the models' files are small enough to tell, until
    they are read. True, too, of one that cannot be planned: who makes its engines will say why, or run it."""
    room_bytes = free_bytes() / 2
    if not room_bytes or _at_most(file) <= room_bytes:
        return True
    try:
        return _planned(file, (), False).most_bytes <= room_bytes
    except EdgertError as error:
        _LOG.debug("no memory plan: %s", error)
        return True


def _at_most(file: PipelineFile) -> int:
    """What a pipeline hardly exceeds, as far as files tell that nobody has read: with all that lies beside a model
    under its name, where large ones keep their weights."""
    most = _UNREAD_BYTES + sum(part.size_bytes for part in frame_parts(file))
    for name, replicas in _replicas(file).items():
        onnx = file.config.models[name].onnx
        stored = sum(found.stat().st_size for found in onnx.parent.glob(f"{escape(onnx.stem)}*"))
        most += stored * (WEIGHT_COPIES + (1 + replicas) * _UNREAD_TIMES)
    return most


def _replicas(file: PipelineFile) -> dict[str, int]:
    """Of every model that a stage runs, be it in the place of another."""
    config = file.config
    live = any(is_live(stage, file) for stage in config.stages.values())
    users = {name: users_of(config.stages, config.models, name) for name in config.models}
    return {name: max(replicas_of(config, user.infer, live) for user in users[name]) for name in users if users[name]}


def _shrunk(file: PipelineFile, has_engines: bool) -> tuple[PipelineFile, Footprint]:
    process = tuple(process_parts(file))
    return shrunk(file, lambda one: _planned(one, process, has_engines), STEPS)


def _planned(file: PipelineFile, process: tuple[Part, ...], has_engines: bool) -> Footprint:
    engines = tuple(_engines(file))
    elsewhere = [part for part in engines if has_engines or not is_ort(file.config, part.name)]
    doubt_bytes = round(sum(part.size_bytes for part in elsewhere) * (1 - _SURELY))
    parts = (*process, *engines, *frame_parts(file))
    machine_bytes = system_memory().most_bytes
    return Footprint(parts, file.config.budgets.memory, machine_bytes, error=ERROR, doubt_bytes=doubt_bytes)


def _engines(file: PipelineFile) -> Iterator[Part]:
    found = list[Part]()
    for name, replicas in _replicas(file).items():
        try:
            sizes = sizes_of(file.config, name)
        except EdgertError as error:
            raise file.located(error, file.where("models", name))  # noqa: B904 - the same error, with its place
        found += engine_parts(name, sizes, replicas)
    yield from _shared(file.config, found)


def _shared(config: PipelineConfig, parts: list[Part]) -> list[Part]:
    """Engines' parts where models that take turns share an arena: it is as large as the largest of them needs."""
    arenas = {part.name: part.size_bytes for part in parts if part.kind == "activations"}
    inside = dict[str, str]()
    for turns in turns_of(config):
        if all(config.models[name].tuning.shared_arena for name in turns):
            largest = max(turns, key=lambda name: arenas[name])
            inside |= {name: largest for name in turns if name != largest}
    return [
        replace(part, size_bytes=0, note=f"in the arena of {inside[part.name]}, as they take turns")
        if part.kind == "activations" and part.name in inside
        else part
        for part in parts
    ]


def engine_parts(name: str, sizes: Sizes, replicas: int) -> tuple[Part, ...]:
    """Of one model's engine of ONNX Runtime."""
    lanes = 1 + replicas
    return (
        Part(name, "cpu", "weights", WEIGHT_COPIES * sizes.weights, f"{WEIGHT_COPIES} copies while opened"),
        Part(name, "cpu", "activations", lanes * sizes.activations, f"{lanes} times what is alive at once"),
        Part(name, "cpu", "bindings", lanes * sizes.bindings, f"{lanes} sets of inputs and outputs"),
        Part(name, "cpu", "structure", round(sizes.nodes * NODE_BYTES), f"{sizes.nodes} nodes"),
    )


def sizes_of(config: PipelineConfig, name: str) -> Sizes:
    """What a model's graph says of it. Raises ModelError: it cannot be read, or its size is open."""
    model = config.models[name]
    return _sizes(model.onnx, _shapes(model, batch_of(config, name)))


def batch_of(config: PipelineConfig, model: str) -> int:
    """Rows that a model of dynamic batch size is given."""
    users = users_of(config.stages, config.models, model)
    asked = [user.crop.limit for user in users if user.crop] + [user.batch.max for user in users if user.batch]
    return max(asked, default=1)


def _shapes(model: ModelConfig, batch: int) -> tuple[tuple[str, tuple[int, ...]], ...]:
    profiles = model.profiles or default_profile(load(model.onnx), model, batch)
    return tuple((name, tuple(shape)) for name, shape in next(iter(profiles.values()), {}).items())


@cache
def _sizes(path: Path, shapes: tuple[tuple[str, tuple[int, ...]], ...]) -> Sizes:
    model = load(path)
    graph = read(clean(with_shapes(model, dict(shapes)) if shapes else model)[0])
    ends = [spec for spec in (*graph.inputs, *graph.outputs) if spec.is_static]
    bound = sum(tensor_bytes(spec.dtype, math.prod(dim for dim in spec.shape if isinstance(dim, int))) for spec in ends)
    weights = sum(array.nbytes for array in graph.constants.values())
    return Sizes(weights, max(0, peak_bytes(graph) - bound), bound, len(graph.nodes))
