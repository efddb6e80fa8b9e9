"""An execution context for one set of shapes, and the layouts of its tensors."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from edgert.backend.base import Array, Shapes
from edgert.backend.tensorrt.build_request import NUMPY_NAMES
from edgert.backend.tensorrt.library import ICudaEngine, IExecutionContext, IProfiler, Trt
from edgert.errors import BuildError, DeviceError, ModelError
from edgert.memory.buffer import U8
from edgert.memory.cuda import Block, Stream

# Layout of a tensor in TensorRT's memory: strides, and channels in vectors, such as in CHW16, CHW32 and DLA_HWC4.
#
# TensorRT reports strides in elements. In a tensor whose channels are stored c at a time, an element has c numbers:
# ``IExecutionContext.get_tensor_strides`` and ``ICudaEngine.get_tensor_components_per_element``.

Index: TypeAlias = "tuple[slice | int, ...]"


@dataclass(frozen=True, slots=True)
class Layout:
    """Memory layout of a tensor.

    Attributes:
        vector_dim: dimension that is stored in vectors; -1 for none.
        vector: number of numbers in an element; 1 without vectors.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    vector_dim: int = -1
    vector: int = 1

    @property
    def nbytes(self) -> int:
        """Size in bytes, padding included."""
        if 0 in self.shape:
            return 0
        last = sum((size - 1) * stride for size, stride in zip(self._elements, self.strides, strict=True))
        return (last + 1) * self.vector * np.dtype(self.dtype).itemsize

    @property
    def is_plain(self) -> bool:
        """Whether the tensor is a C-contiguous array, which callers can write in place."""
        return self.vector == 1 and self.strides == row_major(self.shape)

    @property
    def number_strides(self) -> tuple[int, ...]:
        """Strides in numbers. That of the dimension stored in vectors is between numbers of one vector."""
        along = enumerate(self.strides)
        return tuple(1 if self.vector > 1 and dim == self.vector_dim else step * self.vector for dim, step in along)

    def pack(self, values: Array, memory: U8) -> None:
        """Write an array of :attr:`shape` in TensorRT's layout, without padding."""
        for piece, index in self._pieces(values):
            self._view(memory)[index] = piece

    def unpack(self, memory: U8, values: Array) -> None:
        """Read memory in TensorRT's layout into an array of :attr:`shape`."""
        for piece, index in self._pieces(values):
            piece[...] = self._view(memory)[index]

    @property
    def _elements(self) -> tuple[int, ...]:
        return tuple(-(-size // self.vector) if dim == self.vector_dim else size for dim, size in enumerate(self.shape))

    def _view(self, memory: U8) -> Array:
        """Return memory as an array with one more dimension: the position in a vector."""
        item = np.dtype(self.dtype).itemsize
        strides = (*(stride * self.vector * item for stride in self.strides), item)
        shape = (*self._elements, self.vector)
        flat = memory[: self.nbytes].view(self.dtype)
        return np.lib.stride_tricks.as_strided(flat, shape, strides)

    def _pieces(self, values: Array) -> list[tuple[Array, Index]]:
        """Return the part of the array for each position in a vector, with its index in :meth:`_view`."""
        every: Index = (slice(None),) * len(self.shape)
        if self.vector == 1:
            return [(values, (*every, 0))]
        pieces = []
        for position in range(min(self.vector, self.shape[self.vector_dim])):
            part = (*every[: self.vector_dim], slice(position, None, self.vector))
            count = len(range(position, self.shape[self.vector_dim], self.vector))
            index = (*every[: self.vector_dim], slice(0, count), *every[self.vector_dim + 1 :], position)
            pieces.append((values[part], index))
        return pieces


def row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return strides of a C-contiguous array, in elements."""
    return tuple(math.prod(shape[dim + 1 :]) for dim in range(len(shape)))


# The profiler that TensorRT calls, defined in a function as its base class exists only once TensorRT is imported.


def create_profiler(trt: Trt, sink: Callable[[str, float], object]) -> IProfiler:
    """Return a profiler that calls ``sink`` with name and milliseconds of every layer, in order, in each run."""

    class Profiler(trt.IProfiler):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.IProfiler.__init__(self)

        def report_layer_time(self, layer_name: str, ms: float) -> None:
            sink(layer_name, ms)

    return Profiler()


class Context:
    """An execution context with fixed shapes.

    Changing its shapes would invalidate every CUDA graph recorded from it, so other shapes need another context. See
    https://docs.nvidia.com/deeplearning/tensorrt/latest/performance/best-practices.html, CUDA Graphs. ``on_first_run``
    is called once, after the first run was enqueued. ``last_error`` returns TensorRT's last line about an error. Raises
    ModelError: a shape is open, not allowed by the profile, or depends on the data; or a tensor is a shape.
    """

    def __init__(
        self,
        trt: Trt,
        engine: ICudaEngine,
        context: IExecutionContext,
        stream: Stream,
        *,
        index: int,
        shapes: Shapes,
        title: str,
        on_first_run: Callable[[], object] | None = None,
        last_error: Callable[[], str] = str,
    ) -> None:
        self._on_first_run, self._last_error = on_first_run, last_error
        self._trt: Trt = trt
        self._engine: ICudaEngine = engine
        self._context: IExecutionContext = context
        self._stream, self._index, self._title, self._shapes = stream, index, title, shapes
        self._context.set_optimization_profile_async(index, stream.handle)
        stream.synchronize()  # shapes may be set only after the profile
        names = [str(self._engine.get_tensor_name(at)) for at in range(self._engine.num_io_tensors)]
        mode = self._trt.TensorIOMode.INPUT
        self.inputs = tuple(name for name in names if self._engine.get_tensor_mode(name) == mode)
        self._set_shapes(shapes)
        self.layouts: Mapping[str, Layout] = {name: self._layout(name) for name in names}

    def is_for(self, shapes: Shapes, stream: Stream) -> bool:
        """Return whether the context runs these shapes of the same profile on this stream."""
        return shapes is self._shapes and stream is self._stream

    def bind(self, blocks: Mapping[str, Block]) -> None:
        """Set the address of each tensor, by name. Raises DeviceError for memory that TensorRT does not accept."""
        for name, block in blocks.items():
            if not self._context.set_tensor_address(name, block.address):
                raise DeviceError(
                    f"TensorRT does not accept the memory of tensor {name!r}",
                    why=self._last_error() or "it logged no reason",
                    where=self._title,
                )

    def enqueue(self) -> None:
        """Enqueue one run on the stream. Raises BuildError if TensorRT fails, and DeviceError if the GPU is lost."""
        if not self._context.execute_async_v3(self._stream.handle):
            why = self._last_error() or "it logged no reason"
            try:
                self._stream.synchronize()  # raises if the GPU failed
            except DeviceError as error:
                if "captur" not in error.why:  # a stream cannot be waited for while it is recorded
                    raise
            raise BuildError("TensorRT failed while running", why=why, where=self._title)
        if (on_first_run := self._on_first_run) is not None:
            self._on_first_run = None
            on_first_run()

    def profile(self, sink: Callable[[str, float], object]) -> None:
        """Call ``sink`` with name and milliseconds of every layer in later runs, each of which waits for the GPU."""
        self._context.profiler = create_profiler(self._trt, sink)

    def _set_shapes(self, shapes: Shapes) -> None:
        """Set the shapes of the inputs, from which TensorRT infers those of the outputs."""
        for name in self.inputs:
            shape = tuple(shapes.get(name) or self._engine.get_tensor_shape(name))
            if not self._context.set_input_shape(name, shape):
                raise ModelError(
                    f"input {name!r} cannot be {list(shape)}",
                    why="no optimization profile of the engine allows it",
                    where=self._title,
                    fix="build the engine with a profile that has this shape",
                )
        missing = self._context.infer_shapes()
        if missing:
            raise ModelError(
                f"input {missing[0]!r} has no shape",
                why="its shape in the engine is dynamic, and the profile gives none",
                where=self._title,
                fix="give the shapes of all inputs in the profile",
            )

    def _layout(self, name: str) -> Layout:
        if self._engine.get_tensor_location(name) != self._trt.TensorLocation.DEVICE:
            raise ModelError(
                f"tensor {name!r} is a shape",
                why="inputs and outputs must be tensors in GPU memory",
                where=self._title,
                fix="give the model static shapes",
            )
        shape = tuple(self._context.get_tensor_shape(name))
        if any(dim < 0 for dim in shape):
            raise ModelError(
                f"the size of output {name!r} depends on the data",
                why=f"TensorRT reports {list(shape)}",
                where=self._title,
                fix="export the model without NonMaxSuppression, which edgert does itself",
            )
        vector = int(self._engine.get_tensor_components_per_element(name, self._index))
        return Layout(
            shape,
            tuple(self._context.get_tensor_strides(name)),
            dtype_of(self._engine, name, self._title),
            int(self._engine.get_tensor_vectorized_dim(name, self._index)),
            vector if vector > 1 else 1,
        )


def dtype_of(engine: ICudaEngine, name: str, title: str) -> str:
    """Return NumPy's name of a tensor's type. Raises ModelError for a type that NumPy lacks."""
    kind = engine.get_tensor_dtype(name).name
    if kind not in NUMPY_NAMES:
        why = "edgert reads and writes tensors of NumPy's number types"
        raise ModelError(f"tensor {name!r} is of type {kind}", why=why, where=title)
    return NUMPY_NAMES[kind]
