"""Sessions of an engine: tensors that are bound once, and written and read on the GPU or by the host."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from edgert.backend.base import DEFAULT_PROFILE, Array, Shapes, checked_rows, row_count
from edgert.backend.gpu import GpuTensor, HostSides, OnHost
from edgert.backend.tensorrt.execution_context import Context, Layout
from edgert.errors import ModelError
from edgert.memory import aligned_empty
from edgert.memory.cuda import CudaDevice, Stream


@dataclass(frozen=True, slots=True, eq=False)
class Queue:
    """A stream, and the lock to hold while enqueuing work on it.

    All sessions of a queue index share one; so do all engines of a DLA core, so that it has one job at a time.
    """

    stream: Stream
    exclusive: threading.RLock


@dataclass(frozen=True, slots=True, eq=False)
class BoundTensor:
    """An input or output in TensorRT's memory, and as an array for the host.

    ``converted`` is a separate array for the host if layout or type differ.
    """

    tensor: GpuTensor
    converted: Array | None

    @property
    def host(self) -> Array:
        """Array that the host reads or writes."""
        return self.tensor.host if self.converted is None else self.converted

    def pack(self, layout: Layout) -> None:
        """Convert the host's array to TensorRT's layout."""
        if self.tensor.scale:
            steps = np.rint(self._rows(layout) / np.float32(self.tensor.scale))  # to the nearest, as TensorRT rounds
            layout.pack(np.clip(steps, -128, 127).astype(np.int8), self.tensor.block.host)
        elif not layout.is_plain:
            layout.pack(self._rows(layout), self.tensor.block.host)

    def unpack(self, layout: Layout) -> Array:
        """Convert TensorRT's data to the host's array, and return it."""
        if not layout.is_plain:
            layout.unpack(self.tensor.block.host, self._rows(layout))
        return self._rows(layout)

    def _rows(self, layout: Layout) -> Array:
        """Return the rows of the host's array that a run with this layout uses."""
        return self.host if layout.shape == self.tensor.shape else self.host[: layout.shape[0]]


class TrtSession:
    """Bound tensors with an execution context for each number of rows; see :class:`~edgert.backend.gpu.GpuSession`.

    The host reads and writes the memory of plain tensors; tensors in a DLA's layout are converted. Addresses never
    change, as a DLA registers each one.

    Args:
        scales: value of one step by int8 input, for inputs whose arrays on the host have real numbers.
        recordable: whether runs may be recorded as CUDA graphs; they may not with DLA layers.
        sizes: numbers of rows, below the maximum and in order, that can have contexts; other numbers run as the next
            larger. Empty: all numbers can. A context is opened at its first run, or by :meth:`open`.

    Attributes:
        renewed: numbers of rows whose runs should be recorded when there is time.
    """

    def __init__(
        self,
        open_context: Callable[[Shapes], Context],
        device: CudaDevice,
        queue: Queue,
        *,
        shapes: Shapes,
        scales: Mapping[str, float],
        dynamic: bool,
        recordable: bool,
        title: str,
        profile_name: str = DEFAULT_PROFILE,
        sizes: Sequence[int] = (),
        batched: Sequence[bool] = (),
        on_host: OnHost = "all",
    ) -> None:
        self.device, self.stream, self.exclusive = device, queue.stream, queue.exclusive
        self.dynamic, self.recordable = dynamic, recordable
        self.sizes, self._batched, self.profile_name = sizes, batched, profile_name
        self._open_context, self._scales, self._title = open_context, scales, title
        self.renewed: set[int] = set()
        self._done = device.event()
        with self._hold_stream():
            context = open_context(shapes)
        bound = dict[str, BoundTensor]()
        try:
            for name, layout in context.layouts.items():
                bound[name] = self._allocate(name, layout, _is_on_host(on_host, name in context.inputs))
            context.bind({name: one.tensor.block for name, one in bound.items()})
        except BaseException:  # nothing ran, so the GPU uses none of it
            for one in bound.values():
                one.tensor.block.release()
            raise
        self._inputs = {name: bound[name] for name in context.inputs}
        self._outputs = {name: one for name, one in bound.items() if name not in self._inputs}
        self.inputs_on_gpu: dict[str, GpuTensor] = {name: one.tensor for name, one in self._inputs.items()}
        self.outputs_on_gpu: tuple[GpuTensor, ...] = tuple(one.tensor for one in self._outputs.values())
        self.inputs: Mapping[str, Array] = HostSides(self._inputs)
        self.rows = row_count(self.inputs_on_gpu.values())
        self._contexts = {self.rows: context}

    def run(self, rows: int | None = None) -> Sequence[Array]:
        with self._hold_stream():
            context = self._context(rows)
            for name, one in self._inputs.items():
                one.pack(context.layouts[name])
                one.tensor.block.upload(self.stream, max(context.layouts[name].nbytes, 1))
            context.enqueue()
            for name, one in self._outputs.items():
                one.tensor.block.download(self.stream, max(context.layouts[name].nbytes, 1))
            self._done.record(self.stream)
        self._done.synchronize()
        arrays = [one.unpack(context.layouts[name]) for name, one in self._outputs.items()]
        if rows is None or not self.sizes:
            return arrays
        return [array[:rows] if batched else array for array, batched in zip(arrays, self._batched, strict=True)]

    def enqueue(self, rows: int | None = None) -> None:
        with self._hold_stream():
            self._context(rows).enqueue()

    def open(self, rows: int) -> None:
        """Open the context for ``rows`` unless it is open. The stream must not be recorded meanwhile."""
        if rows not in self._contexts:
            shapes = {name: (rows, *one.tensor.shape[1:]) for name, one in self._inputs.items()}
            with self.device:
                self._contexts[rows] = self._bind(self._open_context(shapes))

    def profile(self, sink: Callable[[str, float], object]) -> None:
        """Call ``sink`` with name and milliseconds of every layer in later runs of all rows, which become slower."""
        self._contexts[self.rows].profile(sink)

    def close(self) -> None:
        """Free the contexts, wait for the GPU, and free the memory. May be called twice."""
        self._contexts.clear()
        blocks = [one.tensor.block for one in (*self._inputs.values(), *self._outputs.values())]
        self._inputs, self._outputs, self.inputs_on_gpu, self.outputs_on_gpu = {}, {}, {}, ()
        if blocks:
            self.device.drain()
        for block in blocks:
            block.release()

    @contextmanager
    def _hold_stream(self) -> Iterator[None]:
        """Hold the stream for this thread, as another thread might record it."""
        with self.device, self.exclusive:
            yield

    def _context(self, rows: int | None) -> Context:
        """Return the context for a number of rows, or for all if the engine cannot run fewer."""
        if not self._contexts:
            raise ModelError("the session is closed", why="its memory was freed", where=self._title)
        count = checked_rows(rows if self.dynamic else None, self.rows, self._title)
        if self.sizes:
            count = next((size for size in self.sizes if size >= count), self.rows)
        self.open(count)
        return self._contexts[count]

    def _bind(self, context: Context) -> Context:
        context.bind({name: one.tensor.block for name, one in {**self._inputs, **self._outputs}.items()})
        return context

    def _allocate(self, name: str, layout: Layout, for_host: bool) -> BoundTensor:
        block = self.device.tensor_block(max(layout.nbytes, 1), for_host=for_host)
        strides = () if layout.is_plain else layout.number_strides
        scale = self._scales.get(name, 0.0) if layout.dtype == "int8" else 0.0
        converted: Array | None = None
        if scale or not layout.is_plain:
            converted = aligned_empty(layout.shape, "float32" if scale else layout.dtype)
            converted[...] = 0
        return BoundTensor(GpuTensor(name, layout.shape, layout.dtype, block, strides, scale), converted)


def _is_on_host(on_host: OnHost, is_input: bool) -> bool:
    return on_host == "all" or (on_host == "outputs" and not is_input)
