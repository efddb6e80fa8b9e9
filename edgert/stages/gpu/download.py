"""Download of frames and drawn images from a GPU, for stages that read them on the host."""

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import numpy as np

from edgert.errors import DeviceError
from edgert.memory import TYPICAL_BUFFERS, Lease, Pool
from edgert.memory.cuda import CudaDevice, DeviceView, Event, SharedPool, Stream, StreamLease
from edgert.runtime import Frame, Result
from edgert.runtime.frame import U8, full_frame, origin_of, with_planes


class Downloader:
    """Download of a stage's results from GPUs. Pixels on the host stay as they are. For one thread.

    Copies are counted. They are in pinned memory, from which a later model can upload without another host copy. Only
    this thread waits for a copy, and other stages that need the same frame share it. Memory is reused.
    """

    def __init__(self) -> None:
        self._paths: dict[CudaDevice, _CopyPath] = {}

    def to_host(self, result: Result) -> Result:
        """Return the result with its frame and its drawn image on the host; take over the hold on the frame.

        Raises DeviceError: the GPU failed, or there is too little memory.
        """
        result, frame = self.with_host_image(result), result.frame
        if frame.is_on_gpu:
            result = replace(result, frame=self._host_copy(frame))
            frame.lease.release()
        return result

    def with_host_image(self, result: Result) -> Result:
        """Return the result with its drawn image, if any, on the host, and its frame unchanged. Raises DeviceError."""
        image: object = result.image
        return replace(result, image=self.image(image)) if isinstance(image, DeviceView) else result

    def image(self, view: DeviceView) -> U8:
        """Return a copy of a drawn image, valid while a reference to it exists. Raises DeviceError."""
        (on_host,), lease = self._path_of(view).download([view], view.nbytes)
        lease.release()
        return on_host

    def _host_copy(self, frame: Frame) -> Frame:
        """Return a copy on the host with one hold for the caller: the copy of another stage, or a new one."""
        shared = frame.lease
        if not isinstance(shared, StreamLease):
            return self._download_frame(frame)
        with shared.copying:
            copy = shared.copy
            if isinstance(copy, Frame) and _region(copy) == _region(frame):
                copy.lease.retain()
                return copy
            made = self._download_frame(frame)
            if copy is None:
                shared.share(made, made.lease.retain())
            return made

    def _download_frame(self, frame: Frame) -> Frame:
        views = cast("tuple[DeviceView, ...]", frame.planes)
        full = cast("tuple[DeviceView, ...]", (full_frame(frame)).planes)  # since crops come in all sizes
        planes, lease = self._path_of(views[0]).download(views, sum(map(_span, full)))
        return with_planes(frame, tuple(planes), lease)

    def _path_of(self, view: DeviceView) -> "_CopyPath":
        if view.stream is None:
            raise DeviceError("this memory cannot be copied to the host", why="the stream that wrote it is unknown")
        device = cast("CudaDevice", view.stream.device)
        if device not in self._paths:
            self._paths[device] = _CopyPath(device)
        return self._paths[device]


_SIZES = 4
"""Number of buffer sizes for which memory is kept: frames of some sources, and drawn images."""


class _CopyPath:
    """Copy path from one GPU to the host."""

    def __init__(self, device: CudaDevice) -> None:
        self.device, self._stream = device, device.stream()
        self._written, self._done = device.event(), Event(device, patient=True)
        self._supplies: dict[int, list[Pool]] = {}

    def download(self, views: Sequence[DeviceView], nbytes: int) -> tuple[list[U8], Lease]:
        """Copy views to host memory of ``nbytes``; return arrays of the same shapes and strides, and their lease."""
        buffer, lease = self._acquire(nbytes)
        arrays, start = list[U8](), 0
        with self.device:
            for view in views:
                part = buffer[start : start + _span(view)]
                if isinstance(view.stream, Stream):
                    self._stream.wait(self._written.record(view.stream))
                self.device.driver.memcpy_dtoh_async(part, view.address, self._stream.raw)
                arrays.append(np.ndarray(view.shape, np.uint8, part.data, strides=view.strides))
                start += part.nbytes
            self._done.record(self._stream).synchronize()
        self.device.counter.copied(start)
        return arrays, lease

    def _acquire(self, nbytes: int) -> tuple[U8, Lease]:
        """Return a pinned buffer, or a pageable one if the stage keeps more frames than usual.

        Pinned memory is limited because it cannot be swapped.
        """
        if nbytes not in self._supplies:
            if len(self._supplies) == _SIZES:
                self._supplies.clear()
            self._supplies[nbytes] = []
            if self.device.traits.cached:
                pinned = SharedPool(self.device, nbytes, most=TYPICAL_BUFFERS)
                self._supplies[nbytes].append(pinned)
        supplies = self._supplies[nbytes]
        for supply in supplies:
            if (leased := supply.acquire()) is not None:
                return leased
        supplies.append(Pool(nbytes, self.device.counter))
        return self._acquire(nbytes)


def _region(frame: Frame) -> tuple[int, ...]:
    return (*origin_of(frame), frame.width, frame.height)


def _span(view: DeviceView) -> int:
    """Return the bytes from the first to the last of a view, including gaps between rows."""
    return sum((size - 1) * step for size, step in zip(view.shape, view.strides, strict=True)) + view.dtype.itemsize
