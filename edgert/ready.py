"""A model and its section of the pipeline file, made ready to run: engine, input, decoder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edgert.artifact import FileStore, cache_folder
from edgert.backend import DEFAULT_PROFILE, Engine, EngineOptions, Shapes, backend
from edgert.backend.base import Shaped
from edgert.config import ModelConfig
from edgert.errors import ModelError
from edgert.graph.model import Model
from edgert.graph.spec import TensorSpec, inputs
from edgert.stages.preprocess import layout_of


def build_engine(model: Model, config: ModelConfig, threads: int, batch: int = 1) -> Engine:
    """Compiles one model as its section says; its precision is that of the model given.

    Args:
        batch: rows, where the model's batch size is dynamic.

    Raises:
        BuildError: the backend refuses the model.
        ModelError: dynamic dimensions and neither ``input: size`` nor profiles.
    """
    profiles: Mapping[str, Shapes] = config.profiles or default_profile(model, config, batch)
    store = FileStore(cache_folder() / "ort")
    return backend(config.backend).compile(model, EngineOptions(threads, profiles, store=store))


def default_profile(model: Model, config: ModelConfig, batch: int = 1) -> Mapping[str, Shapes]:
    """Shapes for a model with dynamic dimensions and no profiles: batch as given, size from ``input: size``."""
    shapes: dict[str, tuple[int, ...]] = {}
    for spec in inputs(model):
        if spec.shape and not all(isinstance(dim, int) for dim in spec.shape):
            shapes[spec.name] = _filled(spec, config, batch, model.path)
    return {DEFAULT_PROFILE: shapes}


def _filled(spec: TensorSpec, config: ModelConfig, batch: int, path: Path) -> tuple[int, ...]:
    channels = 1 if config.input.color == "gray" else 3
    likely = tuple(dim if isinstance(dim, int) else channels if n == 1 else -1 for n, dim in enumerate(spec.shape))
    size: dict[int, int] = {0: batch}
    if len(likely) == 4:
        nchw = layout_of(likely, config.input.layout, channels, str(path)) == "nchw"
        size[1 if nchw else 3] = channels
        if config.input.size:
            width, height = config.input.size
            size.update({2: height, 3: width} if nchw else {1: height, 2: width})
    shape = tuple(dim if isinstance(dim, int) else size.get(n) for n, dim in enumerate(spec.shape))
    if None in shape:
        raise ModelError(
            f"input {spec.name!r} has dynamic dimensions {list(spec.shape)}",
            why="tensors are allocated once, so their size must be known",
            where=str(path),
            fix="write input: {size: WIDTHxHEIGHT}, or profiles: {default: {" + spec.name + ": [1, 3, 640, 640]}}",
        )
    return tuple(dim for dim in shape if dim is not None)


def one_picture(engine: Shaped) -> list[tuple[int, ...]]:
    """The shapes of the outputs for one picture of the batch, as decoders see them."""
    return [t.shape[1:] if batched else t.shape for t, batched in zip(engine.outputs, engine.batched, strict=True)]


def picture_input(session_inputs: Mapping[str, Any], path: str) -> str:
    """The one input that takes the picture. Raises ModelError if there is none, or others besides it."""
    pictures = [name for name, array in session_inputs.items() if array.ndim == 4]
    if len(pictures) != 1 or len(session_inputs) != 1:
        shapes = ", ".join(f"{name} {list(array.shape)}" for name, array in session_inputs.items())
        raise ModelError(
            "a pipeline feeds a model one picture and nothing else",
            why=f"this model's inputs: {shapes}",
            where=path,
            fix="export the model with the picture as its only input, or use edgert.load_engine",
        )
    return pictures[0]
