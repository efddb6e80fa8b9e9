"""Sessions of ONNX Runtime over GPU memory: bound once, fed and read on the GPU or from the host."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from edgert.backend.base import Array, Shapes, static_shape
from edgert.backend.gpu import GpuTensor
from edgert.backend.ort.runtime import first_line, ort, ort_errors
from edgert.backend.ort.tensors import OrtEngine, OrtSession, dtype_of
from edgert.errors import DeviceError, EdgertError
from edgert.memory.cuda import CudaDevice, Stream
from edgert.memory.cuda.driver import failed, is_lost


class OrtCudaEngine(OrtEngine):
    """See :class:`~edgert.backend.gpu.GpuEngine`. All sessions put their work on one stream, and share the weights.

    The sizes of all outputs must follow from the profile's shapes.
    """

    def __init__(
        self,
        session: Any,
        profiles: Mapping[str, Shapes],
        path: str,
        info: Mapping[str, Any],
        device: CudaDevice,
        stream: Stream,
    ) -> None:
        self.device, self.stream, self._guard = device, stream, threading.RLock()
        self._sessions: list[OrtCudaSession] = []
        super().__init__(session, profiles, path, info)
        self._sessions.pop().close()  # the one that told the shapes
        self.outputs_known = True

    def session(self, profile: str | None = None) -> OrtCudaSession:
        """A new set of bound tensors."""
        shapes = self.shapes_of(profile)
        made = OrtCudaSession(self.open_session(), shapes, self.path, self.device, self.stream, self._guard)
        self._sessions.append(made)
        return made

    def close(self) -> None:
        """Drops ONNX Runtime's session and the memory of all of ours, once the GPU is done."""
        for session in self._sessions:
            session.close()
        self._sessions.clear()
        super().close()


class OrtCudaSession(OrtSession):
    """See :class:`~edgert.backend.gpu.GpuSession`."""

    def __init__(
        self, session: Any, shapes: Shapes, path: str, device: CudaDevice, stream: Stream, guard: threading.RLock
    ) -> None:
        self.device, self.stream, self.exclusive, self.recordable = device, stream, guard, True
        self.inputs_on_gpu: dict[str, GpuTensor] = {}
        self.outputs_on_gpu: tuple[GpuTensor, ...] = ()
        self._bindings: dict[int, Any] = {}
        self._settings = ort().RunOptions()
        self._settings.add_run_config_entry("disable_synchronize_execution_providers", "1")
        super().__init__(session, shapes, path)
        self.run()  # allocates the outputs, whose shapes a first run shows

    def enqueue(self, rows: int | None = None) -> None:
        """See :class:`~edgert.backend.gpu.GpuSession`.

        Raises:
            BuildError: ONNX Runtime fails.
            DeviceError: the GPU has too little memory.
            ModelError: more rows than there are, or none.
        """
        count = self._count(rows)
        if count not in self._bindings:
            self.run(count)
        try:
            with self.exclusive:
                self._session.run_with_iobinding(self._bindings[count], self._settings)
        except ort_errors() as error:
            raise self._failed(error) from error

    def close(self) -> None:
        """Frees the tensors, once the GPU is done with them. Twice is once."""
        self._bindings.clear()
        self._runs.clear()
        tensors = [*self.inputs_on_gpu.values(), *self.outputs_on_gpu]
        self.inputs_on_gpu, self.outputs_on_gpu = {}, ()
        if tensors:
            self.device.settle()
        for tensor in tensors:
            tensor.block.release()

    def _bind(self, rows: int) -> Callable[[], Sequence[Array]]:
        """Binds the first ``rows`` rows; what it returns runs from host memory to host memory."""
        feeds = {name: array[:rows] if rows < self.rows else array for name, array in self.inputs.items()}
        with self.exclusive:
            first = self._session.run(None, feeds)
        arguments = self._session.get_outputs()
        if not self.outputs_on_gpu:
            pairs = zip(arguments, first, strict=True)
            self.outputs_on_gpu = tuple(self._tensor(arg, array.shape, "output") for arg, array in pairs)
        binding = self._session.io_binding()
        for name, array in feeds.items():
            self._place(binding.bind_input, self.inputs_on_gpu[name], array.shape)
        for tensor, array in zip(self.outputs_on_gpu, first, strict=True):
            self._place(binding.bind_output, tensor, array.shape)
        self._bindings[rows] = binding
        pairs = zip(self.outputs_on_gpu, first, strict=True)
        outputs = [tensor.host[: len(array)] if array.ndim else tensor.host for tensor, array in pairs]
        return lambda: self._run_from_host(rows, outputs)

    def _run_from_host(self, rows: int, outputs: Sequence[Array]) -> Sequence[Array]:
        for tensor in self.inputs_on_gpu.values():
            tensor.block.upload(self.stream)
        self.enqueue(rows)
        for tensor in self.outputs_on_gpu:
            tensor.block.download(self.stream)
        self.stream.synchronize()
        return outputs

    def _input(self, arg: Any, shapes: Shapes) -> Array:
        shape = static_shape(arg.name, shapes.get(arg.name) or arg.shape, self._path)
        tensor = self.inputs_on_gpu[arg.name] = self._tensor(arg, shape, "input")
        return tensor.host

    def _tensor(self, arg: Any, shape: tuple[int, ...], role: str) -> GpuTensor:
        dtype = dtype_of(arg, f"{role} {arg.name!r}", self._path)
        nbytes = math.prod(shape) * np.dtype(dtype).itemsize
        return GpuTensor(arg.name, tuple(shape), dtype, self.device.block(max(nbytes, 1)))

    def _place(self, bind: Any, tensor: GpuTensor, shape: tuple[int, ...]) -> None:
        dtype = np.dtype(tensor.dtype).type
        bind(tensor.name, "cuda", self.device.ordinal, dtype, shape, tensor.block.address)

    def _failed(self, error: Exception) -> EdgertError:
        if is_out_of_memory(error):
            return DeviceError("the GPU has too little memory", why=first_line(error), where=self._path)
        if is_lost(str(error)):
            return failed(error, "running the model").at(self._path)
        return super()._failed(error)


def is_out_of_memory(error: Exception) -> bool:
    """Whether it is the GPU's memory that was too small, by ONNX Runtime's words or CUDA's."""
    text = str(error).lower()
    return any(part in text for part in ("out of memory", "failed to allocate memory", "cuda failure 2:", "too little"))
