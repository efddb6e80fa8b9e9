"""A PyTorch network as an engine on the GPU, for benches of what stands around an engine."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from edgert.backend.gpu import GpuTensor
from edgert.errors import DeviceError
from edgert.memory.cuda import CudaDevice


class _Shared:
    def __init__(self, tensor: GpuTensor) -> None:
        self.__cuda_array_interface__ = {
            "version": 3,
            "shape": tensor.shape,
            "typestr": np.dtype(tensor.dtype).str,
            "data": (tensor.block.address, False),
            "strides": None,
        }


class TorchSession:
    """See :class:`~edgert.backend.gpu.GpuSession`. All tensors that PyTorch makes on the way lie in its own cache."""

    def __init__(self, net: Any, side: int, device: CudaDevice, stream: Any, guard: threading.RLock) -> None:
        import torch

        self._torch, self._net = torch, net
        self.device, self.stream, self.exclusive = device, stream, guard
        self.dynamic, self.recordable = False, True
        self._external = torch.cuda.ExternalStream(stream.handle)
        dtype = str(next(net.parameters()).dtype).removeprefix("torch.")
        image = self._tensor("x", (1, 3, side, side), dtype)
        self._x = self._shared(image)
        with torch.inference_mode():
            shape = tuple(net(self._x).shape)
        out = self._tensor("y", shape, dtype)
        self._y = self._shared(out)
        self.inputs_on_gpu: Mapping[str, GpuTensor] = {"x": image}
        self.outputs_on_gpu = (out,)
        self.inputs = {"x": image.host}

    def enqueue(self, rows: int | None = None) -> None:
        """See :class:`~edgert.backend.gpu.GpuSession`. Raises DeviceError when PyTorch fails."""
        try:
            with self._torch.cuda.stream(self._external), self._torch.inference_mode():
                self._y.copy_(self._net(self._x))
        except RuntimeError as error:
            raise DeviceError("PyTorch failed", why=str(error).splitlines()[0]) from error

    def run(self, rows: int | None = None) -> Sequence[Any]:
        """Runs once and brings the output to the host."""
        self.enqueue(rows)
        (out,) = self.outputs_on_gpu
        out.block.download(self.stream)
        self.stream.synchronize()
        return [out.host]

    def close(self) -> None:
        """Frees the tensors that are ours."""
        self.device.synchronize()
        for tensor in (*self.inputs_on_gpu.values(), *self.outputs_on_gpu):
            tensor.block.release()

    def _tensor(self, name: str, shape: tuple[int, ...], dtype: str) -> GpuTensor:
        return GpuTensor(name, shape, dtype, self.device.block(int(np.prod(shape)) * np.dtype(dtype).itemsize))

    def _shared(self, tensor: GpuTensor) -> Any:
        """PyTorch's tensor over the same memory."""

        return self._torch.as_tensor(_Shared(tensor), device="cuda")


class TorchEngine:
    """Sessions of one network, which share its weights and a stream."""

    batched = (True,)
    outputs_known = True

    def __init__(self, net: Any, side: int, device: CudaDevice) -> None:
        self.device, self._net, self._side = device, net, side
        self._stream, self._guard = device.stream(), threading.RLock()
        self._sessions: list[TorchSession] = []

    def session(self, profile: str | None = None, on_host: str = "all", queue_index: int = 0) -> TorchSession:
        """A new set of tensors."""
        self._sessions.append(TorchSession(self._net, self._side, self.device, self._stream, self._guard))
        return self._sessions[-1]

    def close(self) -> None:
        """Frees all tensors."""
        for session in self._sessions:
            session.close()
        self._sessions.clear()
