"""A model of a pipeline file in float16."""

from __future__ import annotations

from dataclasses import dataclass

from edgert.config import ModelConfig
from edgert.errors import ModelError
from edgert.graph.clean import clean
from edgert.graph.model import Model
from edgert.graph.node import read, write
from edgert.graph.shape import with_shapes
from edgert.quantize.half import Kept, to_half
from edgert.quantize.recipe import matching
from edgert.ready import default_profile


@dataclass(frozen=True, slots=True, eq=False)
class HalfModel:
    """A float16 model and the nodes that stayed float32."""

    model: Model
    kept: tuple[Kept, ...]


def half_model(model: Model, config: ModelConfig, *, open_batch: bool = False) -> HalfModel:
    """Converts a model; nodes of ``quantize: {keep: …}`` stay float32, and those that float16 would spoil.

    Args:
        open_batch: a batch size that the model leaves open stays so; else it is what the section says, or 1.

    Raises:
        ModelError: dimensions stay open.
        CalibrationError: ``keep`` names nothing.
    """
    if len(config.profiles) > 1:
        raise ModelError(
            f"a model with {len(config.profiles)} profiles is converted at one size",
            why="which nodes overflow is decided from shapes",
            where=str(model.path),
            fix="leave one profile, or precision: fp32",
        )
    shapes = next(iter((config.profiles or default_profile(model, config)).values()))
    ready, _ = clean(with_shapes(model, shapes, open_batch=open_batch) if shapes else model)
    graph = read(ready)
    keep = matching(config.quantize.keep, [node.name for node in graph.nodes], "quantize.keep")
    half = to_half(graph, keep=keep)
    return HalfModel(write(half.graph, ready), half.kept)
