"""Base of readers that decode outputs on the GPU and copy only a few bytes per image to the host."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from edgert.backend.gpu import GpuTensor
from edgert.errors import ModelError, StageError
from edgert.memory.cuda import Block, Kernel, Stream
from edgert.runtime import Record
from edgert.runtime.frame import U8
from edgert.stages.crop import Geometry
from edgert.stages.decode.decoder import Size
from edgert.stages.gpu.kernels import Kernels

FLOATS = ("float32", "float16")
CAPACITY = 4096
"""Maximum number of boxes of an image that are sorted, or copied to the host."""


def checked_count(count: int, score: float) -> int:
    """Return the number of boxes that passed the score.

    Raises StageError: the count is above the capacity, or negative, by which the kernel reports an overflow.
    """
    if 0 <= count <= CAPACITY:
        return count
    raise StageError(
        f"more than {CAPACITY} boxes score {score:g} or more",
        why="the GPU sorts no more, and such a threshold is hardly useful",
        fix="raise task: score",
    )


def why_not_single_output(outputs: Sequence[GpuTensor], dtypes: Sequence[str] = FLOATS) -> str:
    """Return why kernels that read one output of these types cannot read these outputs; empty if they can."""
    if len(outputs) != 1:
        return f"the kernels read one output, not {len(outputs)}"
    return (
        "" if outputs[0].dtype in dtypes else f"the kernels read {' and '.join(dtypes)} there, not {outputs[0].dtype}"
    )


class Reader(ABC):
    """Reader of an engine's outputs, which returns records on the host."""

    is_quick: ClassVar[bool] = False
    """Whether decoding takes the GPU less time than launching a separate CUDA graph for it takes the host."""
    _decoder: Any

    @abstractmethod
    def enqueue(self, rows: int, stream: Stream) -> None:
        """Enqueue decoding and copies of the first ``rows`` images. Does not wait."""

    def set_transforms(self, geometries: Sequence[Geometry]) -> None:  # noqa: B027 - most have the host do that
        """Set the transforms of the rows' images to source pixels. Call it before each run that is read."""

    @abstractmethod
    def copy_sizes(self, rows: int) -> Sequence[int]:
        """Return the bytes of each copy to the host that :meth:`enqueue` puts on the stream."""

    @abstractmethod
    def read(self, geometries: Sequence[Geometry]) -> list[Record]:
        """Return the records in source pixels, as new arrays. Call it after the stream's work is done."""

    def accepts(self, decoder: Any) -> bool:
        """Return whether :meth:`switch_decoder` can switch to another decoder of the same outputs."""
        return True

    def switch_decoder(self, decoder: Any) -> None:
        """Read as another decoder does from the next run on. The streams' work is done; recorded graphs stay."""
        self._decoder = decoder

    def close(self) -> None:  # noqa: B027 - outputs belong to the session
        """Free its memory. The stream's work must be done."""


class GpuReader(Reader):
    """Decoder of a batch on the GPU, with the same results as ``decoder`` on the host.

    The outputs, in the model's order and batch first, must outlive it. Raises ModelError: the kernels cannot decode
    these outputs; see :meth:`unsupported`.
    """

    source: ClassVar[str]
    """Name of the ``.cu`` file with the kernels, without its suffix."""
    is_small: ClassVar[bool] = True
    """Whether kernels write the answer into mapped host memory, because a copy would take longer than decoding."""

    def __init__(self, decoder: Any, outputs: Sequence[GpuTensor], network: Size, kernels: Kernels) -> None:
        if reason := self.unsupported(decoder, outputs, network):
            raise ModelError(
                "this output cannot be decoded on the GPU", why=reason, fix="decode it on the host: HostReader"
            )
        self._decoder = decoder
        self.rows, self._device, self._kernels = outputs[0].shape[0], kernels.device, kernels
        self._live: Block | None = None

    @classmethod
    @abstractmethod
    def unsupported(cls, decoder: Any, outputs: Sequence[GpuTensor], network: Size) -> str:
        """Return why the kernels cannot decode these outputs; empty if they can."""

    def enqueue(self, rows: int, stream: Stream) -> None:
        self._launch(rows, stream)
        self._out.download(stream, rows * self._pitch)

    def copy_sizes(self, rows: int) -> Sequence[int]:
        return [rows * self._pitch] if self._out.is_staged else []

    def read(self, geometries: Sequence[Geometry]) -> list[Record]:
        return [self._record(row, geometry) for row, geometry in enumerate(geometries)]

    def switch_decoder(self, decoder: Any) -> None:
        """See :meth:`Reader.switch_decoder`: recorded graphs read the decoder's numbers from memory."""
        super().switch_decoder(decoder)
        if self._live is not None:
            self._write(self._live, self._live_values(decoder))

    def close(self) -> None:
        self._out.release()
        if self._live is not None:
            self._live.release()

    def _live_values(self, decoder: Any) -> bytes:
        """Return the settings of a decoder that kernels read from memory, so that they can change."""
        return b""

    def _live_address(self) -> int:
        """Write the decoder's settings into GPU memory; return their address."""
        numbers = self._live_values(self._decoder)
        self._live = self._device.device_block(len(numbers))
        self._write(self._live, numbers)
        return self._live.address

    def _write(self, block: Block, numbers: bytes) -> None:
        stream = self._device.stream()
        array = np.frombuffer(numbers, np.uint8)
        self._device.run(self._device.copy_up, block.address, array, stream.raw, doing="copying")
        stream.synchronize()

    def _allocate_answers(self, pitch: int) -> list[U8]:
        """Allocate ``pitch`` bytes for each image, aligned to 16; return their host views."""
        self._pitch = -(-pitch // 16) * 16
        can_map = self.is_small and self._device.traits.can_map
        self._out = self._device.block(self.rows * self._pitch, "mapped" if can_map else None)
        return [self._out.host[row * self._pitch :][: self._pitch] for row in range(self.rows)]

    def _kernel(self, function: str, definitions: Mapping[str, int], dtype: str, source: str = "") -> Kernel:
        definitions = {"HALF": int(dtype == "float16"), **definitions}
        return self._kernels.kernel(source or self.source, definitions, function=function)

    @abstractmethod
    def _launch(self, rows: int, stream: Stream) -> None: ...

    @abstractmethod
    def _record(self, row: int, geometry: Geometry) -> Record: ...
