"""The tensors of an engine, bound once by name: fed and read on the GPU, or from the host."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np

from edgert.backend.base import DEFAULT_PROFILE, Array, Shapes, checked_rows, row_count
from edgert.backend.gpu import GpuTensor, HostSides, OnHost
from edgert.backend.tensorrt.execution_context import Context, Layout
from edgert.errors import ModelError
from edgert.memory import aligned_empty
from edgert.memory.cuda import CudaDevice, Stream, tensor_kind


@dataclass(frozen=True, slots=True, eq=False)
class Queue:
    """A stream, and the lock to hold while enqueuing work on it.

    One for all sessions of a queue index, and for all engines of a DLA core, which then has one job at a time.
    """

    stream: Stream
    exclusive: threading.RLock


@dataclass(frozen=True, slots=True, eq=False)
class Bound:
    """An input or output, as TensorRT and as the host see it.

    Both are the same memory in a plain layout; else ``own`` is an array of the host's.
    """

    tensor: GpuTensor
    own: Array | None

    @property
    def host(self) -> Array:
        """Array that the host reads or writes."""
        return self.tensor.host if self.own is None else self.own

    def pack(self, layout: Layout) -> None:
        """Copy the caller's data to where TensorRT reads it."""
        if self.tensor.scale:
            steps = np.rint(self._part(layout) / np.float32(self.tensor.scale))  # to the nearest, as TensorRT rounds
            layout.pack(np.clip(steps, -128, 127).astype(np.int8), self.tensor.block.host)
        elif not layout.is_plain:
            layout.pack(self._part(layout), self.tensor.block.host)

    def unpack(self, layout: Layout) -> Array:
        """Copy TensorRT's data to where the caller reads it, and return that."""
        if not layout.is_plain:
            layout.unpack(self.tensor.block.host, self._part(layout))
        return self._part(layout)

    def _part(self, layout: Layout) -> Array:
        """Return the rows that a run of fewer rows uses."""
        return self.host if layout.shape == self.tensor.shape else self.host[: layout.shape[0]]


class TrtSession:
    """TensorRT execution context with bound tensors; see :class:`~edgert.backend.gpu.GpuSession`.

    The host's arrays are one side of the memory that TensorRT reads and writes; tensors in a DLA's layout are packed
    and unpacked in between. Addresses never change: a DLA registers each one. Every number of rows has an execution
    context of its own.

    Args:
        open_context: opens a context for input shapes.
        shapes: of the inputs, of all rows.
        scales: int8 input → what one step is worth, where the host's array has real numbers.
        dynamic: whether fewer rows can be run.
        of_profile: its name.
        sizes: below all, in order, the numbers of rows there can be contexts for; others are run as the next larger.
            Empty where there can be for any. Contexts are opened when they are first run, or by :meth:`open`.
        batched: for every output, whether its first dimension is the batch.
        recordable: whether runs may be recorded as CUDA graphs: not with DLA layers.
        on_host: the tensors that the host touches, too.

    Attributes:
        renewed: numbers of rows that are to be recorded when there is time for that.
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
        of_profile: str = DEFAULT_PROFILE,
        sizes: Sequence[int] = (),
        batched: Sequence[bool] = (),
        on_host: OnHost = "all",
    ) -> None:
        self.device, self.stream, self.exclusive = device, queue.stream, queue.exclusive
        self.dynamic, self.recordable = dynamic, recordable
        self.sizes, self._batched, self.of_profile = sizes, batched, of_profile
        self._open_context, self._scales, self._title = open_context, scales, title
        self.renewed: set[int] = set()
        self._done = device.event()
        with self._on_stream():
            whole = open_context(shapes)
        bound = dict[str, Bound]()
        try:
            for name, layout in whole.layouts.items():
                bound[name] = self._bound(name, layout, _is_touched(on_host, name in whole.inputs))
            whole.bind({name: one.tensor.block for name, one in bound.items()})
        except BaseException:  # nothing ran: no work of the GPU's is to be waited for
            for one in bound.values():
                one.tensor.block.release()
            raise
        self._inputs = {name: bound[name] for name in whole.inputs}
        self._outputs = {name: one for name, one in bound.items() if name not in self._inputs}
        self.inputs_on_gpu: dict[str, GpuTensor] = {name: one.tensor for name, one in self._inputs.items()}
        self.outputs_on_gpu: tuple[GpuTensor, ...] = tuple(one.tensor for one in self._outputs.values())
        self.inputs: Mapping[str, Array] = HostSides(self._inputs)
        self.rows = row_count(self.inputs_on_gpu.values())
        self._contexts = {self.rows: whole}

    @property
    def outputs(self) -> tuple[Array, ...]:
        """Outputs of the last run, all rows, in the model's order."""
        return tuple(one.host for one in self._outputs.values())

    def run(self, rows: int | None = None) -> Sequence[Array]:
        with self._on_stream():
            context = self._context(rows)
            for name, one in self._inputs.items():
                one.pack(context.layouts[name])
                one.tensor.block.upload(self.stream, max(context.layouts[name].nbytes, 1))
            context.enqueue()
            for name, one in self._outputs.items():
                one.tensor.block.download(self.stream, max(context.layouts[name].nbytes, 1))
            self._done.record(self.stream)
        self._done.synchronize()
        found = [one.unpack(context.layouts[name]) for name, one in self._outputs.items()]
        if rows is None or not self.sizes:
            return found
        return [array[:rows] if cut else array for array, cut in zip(found, self._batched, strict=True)]

    def enqueue(self, rows: int | None = None) -> None:
        with self._on_stream():
            self._context(rows).enqueue()

    def open(self, rows: int) -> None:
        """Open the context for ``rows``, unless it exists. The stream must not be recording meanwhile."""
        if rows not in self._contexts:
            shapes = {name: (rows, *one.tensor.shape[1:]) for name, one in self._inputs.items()}
            with self.device:
                self._contexts[rows] = self._bound_to(self._open_context(shapes))

    def place(self, on_host: OnHost) -> None:
        """Move its tensors to suit those that the host reads or writes; before the first run. Raises DeviceError."""
        for bound, is_input in ((self._inputs, True), (self._outputs, False)):
            for name, one in bound.items():
                old, for_host = one.tensor.block, _is_touched(on_host, is_input)
                if old.is_staged != (tensor_kind(self.device.kind, for_host, self.device.tensors) == "staged"):
                    block = self.device.tensor_block(old.nbytes, for_host=for_host)
                    bound[name] = replace(one, tensor=replace(one.tensor, block=block))
                    old.release()
        self.inputs_on_gpu = {name: one.tensor for name, one in self._inputs.items()}
        self.outputs_on_gpu = tuple(one.tensor for one in self._outputs.values())
        for context in self._contexts.values():
            self._bound_to(context)

    def profile(self, sink: Callable[[str, float], object]) -> None:
        """Call ``sink`` with name and milliseconds of every layer in later runs of all rows; they get slower."""
        self._contexts[self.rows].profile(sink)

    def close(self) -> None:
        """Free contexts and memory once the GPU is done. May be called twice."""
        self._contexts.clear()
        blocks = [one.tensor.block for one in (*self._inputs.values(), *self._outputs.values())]
        self._inputs, self._outputs, self.inputs_on_gpu, self.outputs_on_gpu = {}, {}, {}, ()
        if blocks:
            self.device.drain()
        for block in blocks:
            block.release()

    @contextmanager
    def _on_stream(self) -> Iterator[None]:
        """Hold the stream for this thread; another one might be recording it."""
        with self.device, self.exclusive:
            yield

    def _context(self, rows: int | None) -> Context:
        """Return the context for a number of rows; for all where the engine cannot run fewer."""
        if not self._contexts:
            raise ModelError("the session is closed", why="its memory was freed", where=self._title)
        count = checked_rows(rows if self.dynamic else None, self.rows, self._title)
        if self.sizes:
            count = next((size for size in self.sizes if size >= count), self.rows)
        self.open(count)
        return self._contexts[count]

    def _bound_to(self, context: Context) -> Context:
        context.bind({name: one.tensor.block for name, one in {**self._inputs, **self._outputs}.items()})
        return context

    def _bound(self, name: str, layout: Layout, for_host: bool) -> Bound:
        block = self.device.tensor_block(max(layout.nbytes, 1), for_host=for_host)
        strides = () if layout.is_plain else layout.number_strides
        scale = self._scales.get(name, 0.0) if layout.dtype == "int8" else 0.0
        own: Array | None = None
        if scale or not layout.is_plain:
            own = aligned_empty(layout.shape, "float32" if scale else layout.dtype)
            own[...] = 0
        return Bound(GpuTensor(name, layout.shape, layout.dtype, block, strides, scale), own)


def _is_touched(on_host: OnHost, is_input: bool) -> bool:
    return on_host == "all" or (on_host == "outputs" and not is_input)
