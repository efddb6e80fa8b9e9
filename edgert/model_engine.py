"""A model and its section of the pipeline file, made ready to run: engine, input, decoder."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edgert.backend import DEFAULT_PROFILE, Backend, Engine, EngineOptions, Shapes, Span, Tuning, backend
from edgert.backend.base import BuilderSettings, Shaped
from edgert.config import ModelConfig
from edgert.errors import ModelError
from edgert.files import FileStore, cache_folder
from edgert.graph import Model, TensorSpec, inputs
from edgert.stages.preprocess import layout_of

ENGINE_STORE_BYTES = 16 * 2**30
"""Size of the cache of TensorRT engines; the least recently used goes first."""


def build_engine(
    model: Model, config: ModelConfig, threads: int | None, batch: int = 1, by: Backend | None = None
) -> Engine:
    """Compiles one model with the settings of its section; its precision is that of the model given.

    Args:
        batch: rows, where the model's batch size is dynamic.
        by: the backend that compiles it, in place of the one in the section.

    Raises:
        BuildError: the backend refuses the model.
        ModelError: dynamic dimensions and neither ``input: size`` nor profiles.
    """
    profiles: Mapping[str, Shapes] = config.profiles or default_profile(model, config, batch)
    chosen = by or backend(config.backend)
    store = engine_store() if chosen.name == "tensorrt" else FileStore(cache_folder() / "ort")
    tuning = Tuning(**config.tuning.model_dump())
    options = EngineOptions(
        threads,
        profiles,
        open_spans(model, config, batch),
        store=store,
        tuning=tuning,
        builder=builder_settings(config),
    )
    return chosen.compile(model, options)


def builder_settings(config: ModelConfig) -> BuilderSettings:
    """The settings of a section for TensorRT."""
    settings = config.tensorrt
    return BuilderSettings(
        settings.workspace,
        settings.dla_sram,
        settings.dla_local,
        settings.dla_global,
        settings.optimization,
        settings.version_compatible,
        settings.refit,
    )


def engine_store() -> FileStore:
    """The cache of TensorRT engines, which take minutes to make."""
    return FileStore(cache_folder() / "engine", ENGINE_STORE_BYTES)


def default_profile(model: Model, config: ModelConfig, batch: int = 1) -> Mapping[str, Shapes]:
    """Shapes for a model with dynamic dimensions and no profiles: batch as given, unless ``input: shape`` sets it;
    size from ``input: size`` or ``shape``, there the usual one."""
    return {DEFAULT_PROFILE: {name: span.usual for name, span in _spans(model, config, batch).items()}}


def open_spans(model: Model, config: ModelConfig, batch: int = 1) -> Mapping[str, Span]:
    """Input → the shapes it may have, where ``input: shape`` names several; empty where it does not."""
    return _spans(model, config, batch) if config.input.shape.is_open else {}


def check_open(model: Model, config: ModelConfig) -> None:
    """Holds ``input: shape`` to the model as its file has it. Raises ModelError for a size that it does not leave open.

    A model made from it (quantized, or for a DLA) may have the usual size and no other; that is not asked here.
    """
    extents = config.input.shape.extents
    for spec in inputs(model) if extents else ():
        for axis, letter in _letters(spec, config, model.path).items():
            dim, (least, _, largest) = spec.shape[axis], extents.get(letter, (0, 0, 0))
            if letter in extents and isinstance(dim, int) and (least, largest) != (dim, dim):
                raise ModelError(
                    f"input {spec.name!r} cannot have {letter} from {least} to {largest}",
                    why=f"the model fixes it to {dim}: {spec}",
                    where=str(model.path),
                    fix=f"leave {letter} out of input: shape, or export the model with that dimension dynamic",
                )


def _spans(model: Model, config: ModelConfig, batch: int) -> Mapping[str, Span]:
    specs = [spec for spec in inputs(model) if spec.shape and not all(isinstance(dim, int) for dim in spec.shape)]
    return {spec.name: _span(spec, config, batch, model.path) for spec in specs}


def _span(spec: TensorSpec, config: ModelConfig, batch: int, path: Path) -> Span:
    known = _extents(config, batch)
    letters = _letters(spec, config, path)
    shape = enumerate(spec.shape)
    found = [(dim, dim, dim) if isinstance(dim, int) else known.get(letters.get(axis, "")) for axis, dim in shape]
    sizes = [extent for extent in found if extent is not None]
    if len(sizes) < len(spec.shape):
        raise ModelError(
            f"input {spec.name!r} has dynamic dimensions {list(spec.shape)}",
            why="tensors are allocated once, so their size must be known",
            where=str(path),
            fix="write input: {size: WIDTHxHEIGHT}, or profiles: {default: {" + spec.name + ": [1, 3, 640, 640]}}",
        )
    least, usual, most = (tuple(extent[which] for extent in sizes) for which in range(3))
    return Span(least, usual, most)


def _extents(config: ModelConfig, batch: int) -> dict[str, tuple[int, int, int]]:
    """Letter → least, usual and largest size. As many rows as the pipeline fills, within what ``shape`` allows."""
    channels = 1 if config.input.color == "gray" else 3
    width, height = config.input.size or (0, 0)
    sizes = {"N": batch, "C": channels, "H": height, "W": width}
    known = {letter: (size, size, size) for letter, size in sizes.items() if size}
    known.update(config.input.shape.extents)
    if config.input.shape.N is not None:
        least, usual, largest = config.input.shape.N
        known["N"] = (least, min(max(usual, batch), largest), largest)
    return known


def _letters(spec: TensorSpec, config: ModelConfig, path: Path) -> dict[int, str]:
    """Axis → its letter in the layout; of an input that is no image, the batch only."""
    if len(spec.shape) != 4:
        return {0: "N"}
    channels = 1 if config.input.color == "gray" else 3
    likely = tuple(dim if isinstance(dim, int) else channels if n == 1 else -1 for n, dim in enumerate(spec.shape))
    return dict(enumerate(layout_of(likely, config.input.layout, channels, str(path)).upper()))


def one_image(engine: Shaped) -> list[tuple[int, ...]]:
    """The shapes of the outputs for one image of the batch, as decoders see them."""
    return [t.shape[1:] if batched else t.shape for t, batched in zip(engine.outputs, engine.batched, strict=True)]


def image_input(session_inputs: Mapping[str, Any], path: str) -> str:
    """The one input that takes the image. Raises ModelError if there is none, or others besides it."""
    images = [name for name, array in session_inputs.items() if array.ndim == 4]
    if len(images) != 1 or len(session_inputs) != 1:
        shapes = ", ".join(f"{name} {list(array.shape)}" for name, array in session_inputs.items())
        raise ModelError(
            "a pipeline feeds a model one image and nothing else",
            why=f"this model's inputs: {shapes}",
            where=path,
            fix="export the model with the image as its only input, or use edgert.load_engine",
        )
    return images[0]
