"""Protocols of inference backends: compiling a model into an engine, opening sessions, and running them.

    Backend.compile(model, options) → Engine ── .session(profile) → Session ── .run() → outputs

A session owns its input and output tensors for its lifetime. Callers write into the inputs and read the outputs in
place, so nothing is copied on the way in or out.
"""

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy.typing as npt

from edgert import limits
from edgert.config.model_section import TensorRtConfig, TuningConfig
from edgert.errors import ArtifactError, BuildError, ModelError, nearest
from edgert.files import FileStore
from edgert.graph import Model, type_inference
from edgert.graph.model import label
from edgert.memory import aligned_empty

log = logging.getLogger("edgert.backend")

Array = npt.NDArray[Any]
RunOnce = Callable[[], Mapping[str, Array]]
"""Function that runs a model once on fixed inputs, and returns new arrays by output name."""
Shapes = Mapping[str, tuple[int, ...]]
"""Static shapes by input name."""

DEFAULT_PROFILE = "default"


@dataclass(frozen=True, slots=True)
class Tensor:
    """Name, static shape and NumPy dtype name of a bound tensor."""

    name: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, slots=True)
class Span:
    """Shapes that an input may have in one profile: the smallest, the one to optimize for, and the largest."""

    least: tuple[int, ...]
    usual: tuple[int, ...]
    most: tuple[int, ...]

    @property
    def is_fixed(self) -> bool:
        """Whether there is only one shape."""
        return self.least == self.most


Store = FileStore
"""Cache of compiled engines between runs."""
_LOGGED: set[str] = set()  # each message once, as read-only folders are normal on robots


def cache_content(store: Store, key: str, content: bytes) -> None:
    """Store the content. A failed write only costs time at the next start; it is logged once."""
    try:
        store.put(key, content)
    except ArtifactError as error:
        log.log(logging.DEBUG if str(error) in _LOGGED else logging.WARNING, "%s", error)
        _LOGGED.add(str(error))


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """Options for compiling an engine.

    Attributes:
        threads: CPU threads that the engine may use; None leaves them to the backend.
        profiles: named input shapes, needed if the model's shapes are dynamic. The first is the default.
        spans: all shapes that one profile allows, by input, for backends whose engines support it (TensorRT). Other
            backends, and every session, have the shapes of ``profiles``. Empty: only those.
        precision: ``fp32`` or ``fp16``, in which a TensorRT with precision flags (8.6 to 10.x) may compute a float32
            model. Elsewhere, and for INT8, the quantizer converts the model itself.
        store: cache of compiled engines; None: the engine is always compiled.
        tuning: settings of ONNX Runtime, which other backends ignore.
        builder: settings of TensorRT's builder, which other backends ignore.
    """

    threads: int | None = None
    profiles: Mapping[str, Shapes] = field(default_factory=dict)
    spans: Mapping[str, Span] = field(default_factory=dict)
    precision: str = "fp32"
    store: Store | None = None
    tuning: TuningConfig = field(default_factory=TuningConfig)
    builder: TensorRtConfig = field(default_factory=TensorRtConfig)


@runtime_checkable
class Session(Protocol):
    """One set of bound tensors, for one thread at a time.

    ``inputs`` are written in place, by name; :meth:`run` fills the outputs, in the model's order.
    """

    inputs: Mapping[str, Array]

    def run(self, rows: int | None = None) -> Sequence[Array]:
        """Run the engine on the present inputs; block until done. Return the outputs, valid until the next run.

        ``rows`` is for models with a dynamic batch size; by default all run. Raises BuildError: the engine fails.
        Raises ModelError: there are fewer rows, or ``rows`` is 0.
        """


@contextmanager
def deadline(end: Callable[[], None]) -> Iterator[None]:
    """Call ``end`` if the block takes longer than :data:`edgert.limits.TRIAL_RUN_S`."""
    timer = threading.Timer(limits.TRIAL_RUN_S, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def trial_run(session: Session) -> Sequence[Array]:
    """Run one row as :meth:`Session.run` does; raise BuildError after :data:`edgert.limits.TRIAL_RUN_S`."""
    with deadline(getattr(session, "interrupt", lambda: None)):
        return session.run(1)


class Shaped(Protocol):
    """An engine or a chain of engines that reports the shapes of its outputs."""

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        """Output tensors in the model's order."""

    @property
    def batched(self) -> tuple[bool, ...]:
        """Whether the first dimension is the batch, for each output."""


@runtime_checkable
class Engine(Protocol):
    """A compiled model. Sessions of one engine may run at the same time.

    Attributes:
        profiles: names for :meth:`session`; the first is the default.
        outputs_known: whether the shapes in ``outputs`` are certain; they are not if they depend on the data.
        batched: whether the first dimension is the batch, for every output.
        dynamic_batch: whether a session may run fewer rows than it has.
        info: plain data for the summary, such as backend, threads, whether it was cached, and seconds to compile.
    """

    profiles: tuple[str, ...]
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    outputs_known: bool
    batched: tuple[bool, ...]
    dynamic_batch: bool
    info: Mapping[str, Any]

    def session(self, profile: str | None = None) -> Session:
        """Return a new set of bound tensors. Raises ModelError for an unknown profile."""

    def close(self) -> None:
        """Free the engine's memory. Sessions must not run any more."""


def share_first_dimension(inputs: Sequence[Sequence[object]], outputs: Sequence[Sequence[object]]) -> tuple[bool, ...]:
    """Return for every output whether its first dimension is that of the first input, by number or by name.

    A dimension of unknown size, such as after NonMaxSuppression, is not the batch.
    """
    batch = inputs[0][0] if inputs and inputs[0] else None
    return tuple(bool(shape) and batch is not None and shape[0] == batch for shape in outputs)


def has_open_batch(shapes: Iterable[Sequence[object]]) -> bool:
    """Return whether the shapes of all inputs share one first dimension of unknown size, by name or None."""
    batches = {shape[0] if shape else 1 for shape in shapes}
    return len(batches) == 1 and not isinstance(batches.pop(), int)


def row_count(arrays: Iterable[Any]) -> int:
    """Return the number of rows of the batch in input tensors, on host or GPU."""
    return min((array.shape[0] for array in arrays if array.ndim), default=1)


def checked_rows(rows: int | None, most: int, where: str = "") -> int:
    """Return the number of rows to run, ``most`` for None. Raises ModelError if it is not 1 to ``most``."""
    count = most if rows is None else rows
    if not 1 <= count <= most:
        raise ModelError(f"cannot run {count} rows", why=f"this session has {most}", where=where)
    return count


def checked_profile(name: str | None, profiles: Sequence[str], where: str = "") -> str:
    """Return the name of the profile for a session, the first for None. Raises ModelError for an unknown one."""
    if name is not None and name not in profiles:
        fix = f"profiles: {', '.join(profiles)}"
        raise ModelError(f"no profile {name!r}{nearest(name, profiles)}", where=where, fix=fix)
    return name or profiles[0]


def closed_error(where: str) -> ModelError:
    """Return the error of a session that is opened after :meth:`Engine.close`."""
    return ModelError("the engine is closed", why="its memory was freed", where=where)


class Backend(Protocol):
    """A way to run models."""

    name: str

    def compile(self, model: Model, options: EngineOptions) -> Engine:
        """Compile, or read from the store. Raises BuildError, ModelError or DeviceError."""


def bound_input(name: str, shape: Sequence[object], dtype: str, path: str) -> Array:
    """Return a zeroed, aligned tensor for an input. Raises ModelError for a dimension that is no number."""
    tensor = aligned_empty(static_shape(name, shape, path), dtype)
    tensor.fill(0)
    return tensor


def static_shape(name: str, shape: Sequence[object], path: str) -> tuple[int, ...]:
    """Return the shape of an input. Raises ModelError for a dimension that is no number."""
    sizes = tuple(dim for dim in shape if isinstance(dim, int))
    if len(sizes) != len(shape):
        raise ModelError(
            f"input {name!r} has dynamic dimensions {list(shape)}",
            why="tensors are allocated once, so their size must be known",
            where=path,
            fix=f"set input: size, or a profile: profiles: {{default: {{{name}: [1, 3, 320, 320]}}}}",
            code="E204",
        )
    return sizes


def refuse_custom_operators(model: Model, engine: str) -> None:
    """Raise BuildError, with the engine's name, if a node of the model has a custom operator."""
    for position, node in enumerate(model.proto.graph.node):
        operator = type_inference.custom_operator_of(node)
        if operator is not None:
            raise BuildError(
                f"{engine} cannot run node {label(node, position)!r}",
                why=f"{operator} is a custom operator: a Python function, perhaps with a CUDA kernel for TensorRT",
                where=str(model.path),
                fix="use backend: ort, or TensorRT if the operator has a kernel; or write it with ONNX operators",
            )
