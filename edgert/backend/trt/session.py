"""One execution context with its inputs and outputs bound once, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from edgert.backend.base import Shapes
from edgert.backend.trt.device import Array, Block, Device
from edgert.backend.trt.layout import Layout
from edgert.backend.trt.vendor import ICudaEngine, IExecutionContext, Trt
from edgert.errors import BuildError, DeviceError, ModelError
from edgert.memory import aligned_empty

_DTYPES = {
    "FLOAT": "float32",
    "HALF": "float16",
    "INT8": "int8",
    "UINT8": "uint8",
    "INT32": "int32",
    "INT64": "int64",
    "BOOL": "bool",
}
"""TensorRT's name → NumPy's; types that NumPy has not are left out."""


@dataclass(slots=True)
class Bound:
    """One input or output: what the caller sees, and what TensorRT sees."""

    name: str
    layout: Layout
    block: Block
    values: Array
    is_input: bool

    def before(self) -> None:
        """Brings what the caller wrote to where TensorRT reads it."""
        if not self.layout.is_plain:
            self.layout.pack(self.values, self.block.host)

    def after(self) -> None:
        """Brings what TensorRT wrote to where the caller reads it."""
        if not self.layout.is_plain:
            self.layout.unpack(self.block.host, self.values)


class TrtSession:
    """See :class:`~edgert.backend.base.Session`.

    Inputs and outputs are the host's side of memory shared with the GPU, written and read in place; a tensor in a DLA's
    or vectorised layout is packed and unpacked on the way. Addresses never change: a DLA registers each one.
    """

    def __init__(
        self,
        trt: Trt,
        engine: ICudaEngine,
        context: IExecutionContext,
        device: Device,
        *,
        index: int,
        shapes: Shapes,
        dynamic: bool,
        graph: bool,
        title: str,
    ) -> None:
        if context is None:
            raise DeviceError("TensorRT made no execution context", why="it has too little memory", where=title)
        self._context: IExecutionContext = context
        self._engine: ICudaEngine = engine
        self._trt: Trt = trt
        self._device, self._title, self._dynamic, self._graph = device, title, dynamic, graph
        self._stream = device.stream()
        self._context.set_optimization_profile_async(index, self._stream.handle)
        self._stream.synchronize()  # shapes may be set only when the profile is
        self._bound = self._bind(index, shapes)
        self._inputs = [one for one in self._bound if one.is_input]
        self._outputs = [one for one in self._bound if not one.is_input]
        self.inputs: Mapping[str, Array] = {one.name: one.values for one in self._inputs}
        self.outputs: tuple[Array, ...] = tuple(one.values for one in self._outputs)
        self.rows = min((array.shape[0] for array in self.inputs.values() if array.ndim), default=1)
        self._count = self.rows
        self._launch: Callable[[], None] | None = None
        self._runs = 0

    def run(self, rows: int | None = None) -> Sequence[Array]:
        """Runs; see :class:`~edgert.backend.base.Session`.

        Raises:
            BuildError: TensorRT fails.
            ModelError: more rows than there are, or none.
        """
        count = self.rows if rows is None or not self._dynamic else rows
        if not 1 <= count <= self.rows:
            raise ModelError(f"cannot run {count} rows", why=f"this session has {self.rows}", where=self._title)
        with self._device:
            return self._run(count)

    def _run(self, count: int) -> Sequence[Array]:
        if count != self._count:
            self._resize(count)
        for one in self._inputs:
            one.before()
            one.block.upload(self._stream)
        self._enqueue()
        for one in self._outputs:
            one.block.download(self._stream)
        self._stream.synchronize()
        for one in self._outputs:
            one.after()
        return [one.values for one in self._outputs]

    def close(self) -> None:
        """Gives the memory back; the context first, which reads it. Twice is once."""
        with self._device:
            self._launch = None
            self._context = None
            for one in self._bound:
                one.block.release()
            self._bound.clear()

    def _enqueue(self) -> None:
        """The first run after a change of shapes goes out by itself: TensorRT allocates in it, which a graph cannot."""
        if self._graph and self._runs and self._launch is None:
            self._launch = self._device.capture(self._stream, self._execute)
        (self._launch or self._execute)()
        self._runs += 1

    def _execute(self) -> None:
        if not self._context.execute_async_v3(self._stream.handle):
            raise BuildError("TensorRT failed while running", why="its log tells more", where=self._title)

    def _bind(self, index: int, shapes: Shapes) -> list[Bound]:
        """Input shapes first: those of the outputs follow from them."""
        names = [str(self._engine.get_tensor_name(at)) for at in range(self._engine.num_io_tensors)]
        inputs = [name for name in names if self._engine.get_tensor_mode(name) == self._trt.TensorIOMode.INPUT]
        for name in inputs:
            self._set_shape(name, tuple(shapes.get(name) or self._engine.get_tensor_shape(name)))
        missing = self._context.infer_shapes()
        if missing:
            raise ModelError(
                f"input {missing[0]!r} has no shape",
                why="the engine's is dynamic and the profile gives none",
                where=self._title,
            )
        return [self._bound_tensor(name, name in inputs, index) for name in names]

    def _set_shape(self, name: str, shape: tuple[int, ...]) -> None:
        if not self._context.set_input_shape(name, shape):
            raise ModelError(
                f"input {name!r} cannot be {list(shape)}",
                why="no optimisation profile of the engine allows it",
                where=self._title,
                fix="build the engine with a profile that has this shape",
            )

    def _bound_tensor(self, name: str, is_input: bool, index: int) -> Bound:
        if self._engine.get_tensor_location(name) != self._trt.TensorLocation.DEVICE:
            raise ModelError(
                f"tensor {name!r} is a shape",
                why="edgert feeds pictures; shapes that are computed must be in the model",
                where=self._title,
                fix="give the model static shapes",
            )
        layout = self._layout(name, index)
        block = self._device.block(max(layout.nbytes, 1))
        if not self._context.set_tensor_address(name, block.address):
            raise DeviceError(f"TensorRT does not take the memory of {name!r}", why="its log tells more")
        values = layout.plain(block.host) if layout.is_plain else aligned_empty(layout.shape, layout.dtype)
        return Bound(name, layout, block, values, is_input)

    def _layout(self, name: str, index: int) -> Layout:
        shape = tuple(self._context.get_tensor_shape(name))
        if any(dim < 0 for dim in shape):
            raise ModelError(
                f"the size of output {name!r} depends on the data",
                why=f"TensorRT tells {list(shape)}",
                where=self._title,
                fix="end the model before NonMaxSuppression: edgert does that",
            )
        vector = int(self._engine.get_tensor_components_per_element(name, index))
        return Layout(
            shape,
            tuple(self._context.get_tensor_strides(name)),
            dtype_of(self._engine, name, self._title),
            int(self._engine.get_tensor_vectorized_dim(name, index)),
            vector if vector > 1 else 1,
        )

    def _resize(self, count: int) -> None:
        """Other shapes in the same memory, which is that of the largest."""
        for one in self._inputs:
            self._set_shape(one.name, (count, *one.layout.shape[1:]))
        self._context.infer_shapes()
        for one in self._bound:
            shape = tuple(self._context.get_tensor_shape(one.name))
            one.layout = Layout(
                shape,
                tuple(self._context.get_tensor_strides(one.name)),
                one.layout.dtype,
                one.layout.vector_dim,
                one.layout.vector,
            )
            if one.layout.is_plain:
                one.values = one.layout.plain(one.block.host)
            else:
                whole = self.inputs[one.name] if one.is_input else self.outputs[self._outputs.index(one)]
                one.values = whole[: shape[0]]
        self._count, self._launch, self._runs = count, None, 0


def dtype_of(engine: ICudaEngine, name: str, title: str) -> str:
    """NumPy's name for a tensor's type. Raises ModelError for a type that NumPy has not."""
    told = engine.get_tensor_dtype(name).name
    if told not in _DTYPES:
        raise ModelError(f"tensor {name!r} is of type {told}", why="edgert feeds plain tensors only", where=title)
    return _DTYPES[told]
