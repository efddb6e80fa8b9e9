"""Buffers in a Jetson's video memory (NVMM) as images on the GPU: mapped once, returned when the GPU has read them."""

import logging
import threading
from collections.abc import Callable
from itertools import count

from edgert.errors import DeviceError
from edgert.memory import Counter
from edgert.memory.cuda import CudaDevice, Loans, StreamLease
from edgert.runtime.frame import U8, Color
from edgert.stages.source.nvmm_mapping import Access, JetsonCalls, MappedSurface, Surface, jetson_calls, map_surface
from edgert.stages.source.planes import device_planes

log = logging.getLogger("edgert.source")

_POLL_S = 0.1


class NvmmLoans:
    """Loans of one stream's NVMM buffers, each until the GPU has read it.

    A pool's buffers come again and again. Each is mapped when it first comes, and stays mapped until :meth:`forget`,
    because mapping costs several system calls. A thread of this object returns buffers: it waits for the GPU while the
    reader waits for the camera.
    """

    def __init__(
        self, device: CudaDevice, counter: Counter, where: str = "", calls: Callable[[], JetsonCalls] = jetson_calls
    ) -> None:
        self._device, self._where, self._calls = device, where, calls
        self._stream = device.stream()
        self._lock = threading.Lock()
        self._mapped: dict[tuple[int, int], MappedSurface] = {}
        self._held: dict[int, tuple[MappedSurface, object]] = {}
        self._loans = Loans(device, counter, self._give_back)
        self._access: Access | None = None
        self._failure: DeviceError | None = None
        self._closed = threading.Event()
        self._reclaimer = threading.Thread(target=self._reclaim, name=f"edgert-{where}-nvmm", daemon=True)

    def start(self) -> None:
        """Return buffers in the background from now on, as soon as the GPU has read them."""
        self._reclaimer.start()

    def take(self, surface: int, owner: object, keep: bool = True) -> tuple[tuple[U8, ...], StreamLease, Color | None]:
        """Return planes (NV12), lease and colors of an NvBufSurface; colors are None where it does not declare them.

        ``owner`` keeps the buffer alive. ``keep`` says that the pool in use has the buffer, which will come again.

        Raises DeviceError: kernels cannot read the image.
        """
        with self._lock, self._device:
            image = self._image(surface, keep)
            # Keys are reused numbers, which bounds the GPU events. An address would not do: a buffer may come twice.
            key = next(number for number in count() if number not in self._held)
            self._held[key] = image, owner
        lease = self._loans.lend(key)
        size = image.width, image.height
        return device_planes("nv12", size, image.planes, lease, self._device, self._stream), lease, image.color

    def reclaim(self) -> None:
        """Return buffers that the GPU has read; only where :meth:`start` was not called."""
        self._loans.reclaim()

    def check(self) -> None:
        """Raise DeviceError when the GPU's work with a buffer failed."""
        if self._failure is not None:
            raise self._failure

    def forget(self) -> None:
        """Unmap every buffer, in reverse order; those in use follow when their lease ends. From any thread.

        Call it while the pool's buffers exist: before their size changes, and before the pipeline's state becomes NULL.
        """
        with self._lock:
            images, self._mapped = list(self._mapped.values()), {}
            for image in reversed(images):
                self._unmap(image)

    def close(self) -> None:
        """Wait for the GPU and unmap every buffer; buffers in use go back when their lease ends."""
        self._closed.set()
        if self._reclaimer.is_alive():
            self._reclaimer.join()
        self._loans.close()
        self.forget()

    def _image(self, surface: int, keep: bool) -> MappedSurface:
        batch = Surface.from_address(surface)
        key = surface, int(batch.surface_list[0].buffer_desc) if batch.surface_list else 0
        image = self._mapped.get(key)
        if image is None:
            image, access = map_surface(surface, self._calls(), self._access)
            if access != self._access:
                why = f" ({access.why})" if access.why else ""
                log.info("%s: CUDA reads video memory in place, by %s%s", self._where or "NVMM", access.way, why)
                self._access = access
            if keep:
                self._mapped[key] = image
        return image

    def _give_back(self, key: int) -> None:
        with self._lock:
            image, _ = self._held.pop(key)
            if image not in self._mapped.values():
                self._unmap(image)

    def _unmap(self, image: MappedSurface) -> None:
        if any(image is leased for leased, _ in self._held.values()):
            return
        try:
            with self._device:
                image.close()
        except DeviceError as error:  # nothing can be done about it, and no frame is affected
            log.warning("%s: %s: %s", self._where or "NVMM", error.what, error.why)

    def _reclaim(self) -> None:
        try:
            while not self._closed.is_set():
                self._loans.reclaim(_POLL_S)
        except DeviceError as error:
            self._failure = error
