"""An execution context for one set of shapes, its tensors bound by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from edgert.backend.base import Shapes
from edgert.backend.trt.layout import Layout
from edgert.backend.trt.profiler import profiler_to
from edgert.backend.trt.vendor import ICudaEngine, IExecutionContext, Trt
from edgert.errors import BuildError, DeviceError, ModelError
from edgert.memory.cuda import Block, Stream

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


class Context:
    """Shapes are set once: changing them would spoil every CUDA graph that was recorded of it, so that other shapes are
    another context (https://docs.nvidia.com/deeplearning/tensorrt/latest/performance/best-practices.html, CUDA Graphs).

    Args:
        context: what TensorRT made.
        index: of the optimisation profile.
        shapes: of inputs; those that are not there have the engine's own.

    Raises:
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
    ) -> None:
        self._trt: Trt = trt
        self._engine: ICudaEngine = engine
        self._context: IExecutionContext = context
        self._stream, self._index, self._title = stream, index, title
        self._context.set_optimization_profile_async(index, stream.handle)
        stream.synchronize()  # shapes may be set only when the profile is
        names = [str(self._engine.get_tensor_name(at)) for at in range(self._engine.num_io_tensors)]
        self.inputs = tuple(name for name in names if self._is_input(name))
        self._set_shapes(shapes)
        self.layouts: Mapping[str, Layout] = {name: self._layout(name) for name in names}

    def bind(self, blocks: Mapping[str, Block]) -> None:
        """Tells where each tensor is, for good. Raises DeviceError for memory that TensorRT does not take."""
        for name, block in blocks.items():
            if not self._context.set_tensor_address(name, block.address):
                raise DeviceError(f"TensorRT does not take the memory of {name!r}", why="its log tells more")

    def enqueue(self) -> None:
        """Puts one run on the stream. Raises BuildError when TensorRT fails, DeviceError when the GPU is lost."""
        if not self._context.execute_async_v3(self._stream.handle):
            self._stream.synchronize()  # which tells whether it was the GPU
            raise BuildError("TensorRT failed while running", why="its log tells more", where=self._title)

    def profile(self, sink: Callable[[str, float], object]) -> None:
        """From now on every run tells its layers' names and milliseconds, and waits for the GPU to know them."""
        self._context.profiler = profiler_to(self._trt, sink)

    def _is_input(self, name: str) -> bool:
        mode = self._engine.get_tensor_mode(name)
        return bool(mode == self._trt.TensorIOMode.INPUT)

    def _set_shapes(self, shapes: Shapes) -> None:
        """Those of the outputs follow from them."""
        for name in self.inputs:
            self._set_shape(name, tuple(shapes.get(name) or self._engine.get_tensor_shape(name)))
        missing = self._context.infer_shapes()
        if missing:
            raise ModelError(
                f"input {missing[0]!r} has no shape",
                why="the engine's is dynamic and the profile gives none",
                where=self._title,
                fix="name the shapes of its inputs when opening it",
            )

    def _set_shape(self, name: str, shape: tuple[int, ...]) -> None:
        if not self._context.set_input_shape(name, shape):
            raise ModelError(
                f"input {name!r} cannot be {list(shape)}",
                why="no optimisation profile of the engine allows it",
                where=self._title,
                fix="build the engine with a profile that has this shape",
            )

    def _layout(self, name: str) -> Layout:
        if self._engine.get_tensor_location(name) != self._trt.TensorLocation.DEVICE:
            raise ModelError(
                f"tensor {name!r} is a shape",
                why="edgert feeds pictures; shapes that are computed must be in the model",
                where=self._title,
                fix="give the model static shapes",
            )
        vector = int(self._engine.get_tensor_components_per_element(name, self._index))
        return Layout(
            self._shape(name),
            tuple(self._context.get_tensor_strides(name)),
            dtype_of(self._engine, name, self._title),
            int(self._engine.get_tensor_vectorized_dim(name, self._index)),
            vector if vector > 1 else 1,
        )

    def _shape(self, name: str) -> tuple[int, ...]:
        shape = tuple(self._context.get_tensor_shape(name))
        if any(dim < 0 for dim in shape):
            raise ModelError(
                f"the size of output {name!r} depends on the data",
                why=f"TensorRT tells {list(shape)}",
                where=self._title,
                fix="end the model before NonMaxSuppression: edgert does that",
            )
        return shape


def dtype_of(engine: ICudaEngine, name: str, title: str) -> str:
    """NumPy's name for a tensor's type. Raises ModelError for a type that NumPy has not."""
    told = engine.get_tensor_dtype(name).name
    if told not in _DTYPES:
        raise ModelError(f"tensor {name!r} is of type {told}", why="edgert feeds plain tensors only", where=title)
    return _DTYPES[told]
