"""ONNX models compiled for this machine, alone or with the settings of a pipeline file's section.

edgert.load_engine("m.onnx")(array)
"""

import threading
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edgert import backend as backends
from edgert.backend.base import Shaped
from edgert.board.host import core_count
from edgert.config import ModelConfig
from edgert.errors import ModelError, nearest
from edgert.files import FileStore, cache_folder
from edgert.graph import Model, TensorSpec, inputs, load, operators
from edgert.stages.preprocess import layout_of

Array = npt.NDArray[Any]


class LoadedEngine(AbstractContextManager["LoadedEngine"]):
    """Compiled model that any thread may call; each thread has separate bound tensors.

    ``engine(array)`` copies inputs and outputs, so that these belong to the caller. For a loop without copies, write
    into the ``inputs`` of a :meth:`session` and call its ``run``.
    """

    def __init__(self, engine: backends.Engine, path: Path) -> None:
        self._engine, self.path = engine, path
        self._local = threading.local()

    @property
    def inputs(self) -> tuple[backends.Tensor, ...]:
        """Names, shapes and dtypes of the inputs."""
        return self._engine.inputs

    @property
    def outputs(self) -> tuple[backends.Tensor, ...]:
        """Names, shapes and dtypes of the outputs."""
        return self._engine.outputs

    @property
    def info(self) -> Mapping[str, Any]:
        """Backend, number of threads, and whether it came from the cache."""
        return self._engine.info

    def session(self, profile: str | None = None) -> backends.Session:
        """Return a session with separate bound tensors, for one thread at a time."""
        return self._engine.session(profile)

    def __call__(self, *arrays: npt.ArrayLike, **named: npt.ArrayLike) -> Array | tuple[Array, ...]:
        """Run the model once.

        Args:
            arrays: the inputs in the model's order.
            named: inputs by name.

        Returns:
            The output, or a tuple of all outputs in the model's order; the arrays belong to the caller.

        Raises:
            ModelError: an input is missing, unknown, or has another shape or dtype.
        """
        if not hasattr(self._local, "session"):
            self._local.session = self._engine.session()
        session: backends.Session = self._local.session
        given = {**dict(zip((tensor.name for tensor in self.inputs), arrays, strict=False)), **named}
        self._check_names(given, len(arrays))
        for name, value in ((name, np.asarray(value)) for name, value in given.items()):
            bound = session.inputs[name]
            if value.shape != bound.shape or value.dtype != bound.dtype:
                raise ModelError(
                    f"input {name!r} got {value.dtype} {list(value.shape)}",
                    why=f"the model takes {bound.dtype} {list(bound.shape)}",
                    where=str(self.path),
                    fix=f"array.astype(np.{bound.dtype}), and reshape or resize it",
                )
            bound[...] = value
        outputs = tuple(array.copy() for array in session.run())
        return outputs[0] if len(outputs) == 1 else outputs

    def close(self) -> None:
        """Free the engine, which must not be called afterwards."""
        self._engine.close()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_names(self, given: Mapping[str, object], positional: int) -> None:
        names = [tensor.name for tensor in self.inputs]
        takes = f"inputs: {', '.join(f'{t.name} {list(t.shape)} {t.dtype}' for t in self.inputs)}"
        if positional > len(names):
            raise ModelError(f"{positional} inputs for a model of {len(names)}", where=str(self.path), fix=takes)
        for name in given:
            if name not in names:
                raise ModelError(f"no input {name!r}{nearest(name, names)}", where=str(self.path), fix=takes)
        if missing := [name for name in names if name not in given]:
            raise ModelError(f"input {missing[0]!r} is missing", where=str(self.path), fix=takes)


def load_engine(
    path: str | Path | Model,
    *,
    shapes: backends.Shapes | None = None,
    threads: int | None = None,
    backend: str = "auto",
    cache: bool = True,
) -> LoadedEngine:
    """Compile an ONNX model for this machine.

    Args:
        path: path of the ONNX file, or a loaded model.
        shapes: input name → shape, for a model with dynamic dimensions.
        threads: number of CPU threads; by default that of all available cores.
        backend: ``auto``, or a name of :data:`edgert.kinds.BACKENDS`.
        cache: whether the compiled engine is kept on disk for the next call.

    Raises:
        ModelError: the file does not exist or is not ONNX, or dimensions are dynamic.
        BuildError: the backend refuses the model.
    """
    model = path if isinstance(path, Model) else load(path, bound=False)
    store = FileStore(cache_folder() / "ort") if cache else None
    profiles = {"default": dict(shapes)} if shapes else {}
    options = backends.EngineOptions(threads or core_count(), profiles, store=store)
    return LoadedEngine(backends.backend(backend).compile(model, options), model.path)


# Compilation with a section of a pipeline file, and the shapes of its inputs.

ENGINE_STORE_BYTES = 16 * 2**30
"""Limit of the cache of TensorRT engines; the least recently used is removed first."""


def build_engine(
    model: Model,
    config: ModelConfig,
    threads: int | None,
    batch: int = 1,
    by: backends.Backend | None = None,
    precision: str = "fp32",
) -> backends.Engine:
    """Compile a model with the settings of its section, in its own precision.

    ``by`` replaces the backend of the section; ``batch`` is used where the model's batch size is dynamic. ``precision``
    is that in which a TensorRT with precision flags may compute a float32 model. Raises BuildError: the backend refuses
    the model. Raises ModelError: dimensions are dynamic, and there is neither ``input: size`` nor ``profiles:``.
    """
    profiles: Mapping[str, backends.Shapes] = config.profiles or default_profile(model, config, batch)
    chosen = by or backends.backend(config.backend)
    store = engine_store() if chosen.name == "tensorrt" else FileStore(cache_folder() / "ort")
    tuning, builder = config.tuning, config.tensorrt
    spans = open_spans(model, config, batch)
    options = backends.EngineOptions(threads, profiles, spans, precision, store=store, tuning=tuning, builder=builder)
    made = chosen.compile(model, options)
    made.info = {"precision": own_precision(model), **made.info}
    return made


def own_precision(model: Model) -> str:
    """Return a model's precision: ``int8`` with integer nodes, ``fp16`` with float16 weights, else ``fp32``."""
    if any(node.op_type in operators.QDQ or operators.is_integer(node.op_type) for node in model.proto.graph.node):
        return "int8"
    return "fp16" if any(one.data_type == _FLOAT16 for one in model.proto.graph.initializer) else "fp32"


_FLOAT16 = 10  # of onnx.TensorProto, whose package is not imported for it


def engine_store() -> FileStore:
    """Return the cache of TensorRT engines, which take minutes to compile."""
    return FileStore(cache_folder() / "engine", ENGINE_STORE_BYTES)


def default_profile(model: Model, config: ModelConfig, batch: int = 1) -> Mapping[str, backends.Shapes]:
    """Return the shapes of a model with dynamic dimensions and without profiles.

    ``input: shape`` determines batch and size where it has them; else these are ``batch`` and ``input: size``. Raises
    ModelError if the model fixes another size.
    """
    _check_size(model, config)
    return {backends.DEFAULT_PROFILE: {name: span.usual for name, span in _spans(model, config, batch).items()}}


def open_spans(model: Model, config: ModelConfig, batch: int = 1) -> Mapping[str, backends.Span]:
    """Return input → possible shapes, where ``input: shape`` allows several; else an empty mapping."""
    return _spans(model, config, batch) if config.input.shape.is_open else {}


def check_open(model: Model, config: ModelConfig) -> None:
    """Raise ModelError if the model file does not allow ``shape`` and ``size`` of ``input:``.

    Models made from it, such as quantized ones, may have the usual size only; this is not checked here.
    """
    _check_size(model, config)
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


def _check_size(model: Model, config: ModelConfig) -> None:
    """Raise ModelError if the model, or its ``profiles:``, cannot have ``input: size``."""
    if config.input.size is None:
        return
    width, height = config.input.size
    for spec in inputs(model):
        letters = _letters(spec, config, model.path) if len(spec.shape) == 4 else {}
        axes = {letter: axis for axis, letter in letters.items()}
        for shape in (spec.shape, *(profile.get(spec.name, ()) for profile in config.profiles.values())):
            sizes = [shape[axes[letter]] for letter in "WH"] if len(shape) == len(axes) == 4 else []
            if any(
                isinstance(size, int) and size != wanted for size, wanted in zip(sizes, (width, height), strict=False)
            ):
                fixed = "x".join(str(size) if isinstance(size, int) else "any" for size in sizes)
                imgsz = f"imgsz={width}" if width == height else f"imgsz={height},{width}"
                raise ModelError(
                    f"the model cannot be run at {width}x{height}: its input {spec.name!r} is fixed at {fixed}",
                    why="input: size is for models that leave height and width open",
                    fix=f"leave input: size out, or export the model with {imgsz}, or with open height and width",
                )


def _spans(model: Model, config: ModelConfig, batch: int) -> Mapping[str, backends.Span]:
    channels = 1 if config.input.color == "gray" else 3
    width, height = config.input.size or (0, 0)
    sizes = {"N": batch, "C": channels, "H": height, "W": width}
    known = {letter: (size, size, size) for letter, size in sizes.items() if size} | dict(config.input.shape.extents)
    if config.input.shape.N is not None:  # as many rows as the pipeline fills, within what the shape allows
        least, usual, largest = config.input.shape.N
        known["N"] = (least, min(max(usual, batch), largest), largest)
    spans = {}
    for spec in inputs(model):
        if not spec.shape or all(isinstance(dim, int) for dim in spec.shape):
            continue
        letters = _letters(spec, config, model.path)
        shape = enumerate(spec.shape)
        found = [(dim, dim, dim) if isinstance(dim, int) else known.get(letters.get(axis, "")) for axis, dim in shape]
        extents = [extent for extent in found if extent is not None]
        if len(extents) < len(spec.shape):
            raise ModelError(
                f"input {spec.name!r} has dynamic dimensions {list(spec.shape)}",
                why="tensors are allocated once, so their size must be known",
                where=str(model.path),
                fix="write input: {size: WIDTHxHEIGHT}, or profiles: {default: {" + spec.name + ": [1, 3, 640, 640]}}",
            )
        spans[spec.name] = backends.Span(*(tuple(extent[which] for extent in extents) for which in range(3)))
    return spans


def _letters(spec: TensorSpec, config: ModelConfig, path: Path) -> dict[int, str]:
    """Return axis → its letter in the layout; only that of the batch for an input that is no image."""
    if len(spec.shape) != 4:
        return {0: "N"}
    channels = 1 if config.input.color == "gray" else 3
    is_last = spec.shape[3] == channels  # the dynamic dimension before them is then a height, as in TensorFlow's models
    likely = [channels if axis == 1 and not is_last else -1 for axis in range(4)]
    likely = [dim if isinstance(dim, int) else guess for dim, guess in zip(spec.shape, likely, strict=True)]
    return dict(enumerate(layout_of(tuple(likely), config.input.layout, channels, str(path)).upper()))


def output_shapes(engine: Shaped) -> list[tuple[int, ...]]:
    """Return the shapes of the outputs for one image, without the batch dimension, as decoders receive them."""
    return [t.shape[1:] if batched else t.shape for t, batched in zip(engine.outputs, engine.batched, strict=True)]


_PROMPTS = ("prompt", "text", "txt", "token", "input_ids", "caption", "attention_mask", "point_", "query_embed")
"""Parts of names of prompt inputs in exported models."""


def wrong_inputs_error(shapes: Mapping[str, Sequence[object]], path: str) -> ModelError:
    """Return the error for a model whose inputs are not one image."""
    prompt = next((name for name in shapes if any(word in name.lower() for word in _PROMPTS)), None)
    shown = ", ".join(f"{name} [{', '.join(map(str, shape))}]" for name, shape in shapes.items()) or "nothing"
    if prompt is not None and len(shapes) > 1:
        return ModelError(
            f"this model needs a prompt besides the image: input {prompt!r}",
            why=f"it takes {shown}; the prompt comes from another model, which is not in this file",
            where=path,
            fix="set the classes before the export, so that they become part of the file (YOLO-World and YOLOE: "
            "model.set_classes([...])), or run it with edgert.load_engine",
        )
    ranks = [len(shape) for shape in shapes.values()]
    if ranks == [3]:
        sizes = ", ".join(map(str, *shapes.values()))
        return ModelError(
            "the model's input has no batch dimension",
            why=f"a pipeline writes images into [N, C, H, W] or [N, H, W, C], and this model takes {shown}",
            where=path,
            fix=f"export the model with an input of [1, {sizes}]",
        )
    return ModelError(
        "a pipeline feeds a model one image and nothing else",
        why=f"this model takes {shown}",
        where=path,
        fix="export the model with the image as its only input, or use edgert.load_engine",
    )


def image_input(session_inputs: Mapping[str, Any], path: str) -> str:
    """Return the one input that takes the image. Raise ModelError if there is none, or more than one input."""
    images = [name for name, array in session_inputs.items() if array.ndim == 4]
    if len(images) != 1 or len(session_inputs) != 1:
        raise wrong_inputs_error({name: array.shape for name, array in session_inputs.items()}, path)
    return images[0]
