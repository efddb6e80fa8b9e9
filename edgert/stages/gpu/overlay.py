"""BGR images made from frames on a GPU, with results drawn on them, by one kernel launch per image."""

import struct
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import cast

import numpy as np
import numpy.typing as npt

from edgert.files import FileStore, cache_folder
from edgert.memory import Counter, cuda
from edgert.runtime.frame import Color, Frame
from edgert.stages.gpu.display_list import EDGE_BYTES, MOST_EDGES, DisplayList, PackedList, Region, Tiles, TooLongError
from edgert.stages.gpu.gpu_preprocess import SOURCES, chroma_size, fixed_matrix, hold, plane_on_gpu
from edgert.stages.gpu.kernels import Kernels
from edgert.stages.paint import INK, Shape

_DRAWING = struct.Struct("=6Q27i4x")
_LINES = struct.Struct("=5Q2i")
_TILE = (64, 16)
_BLOCK = (16, 16, 1)
_LIST_BYTES = 1 << 18
_LISTS = 3
"""Number of display lists, so that one is filled while others are sent and read."""
_TILES_BYTES = 1 << 22
"""Bytes of the region of tiles: about 600 labels at 1080p."""


def device_of(view: cuda.DeviceView) -> cuda.CudaDevice:
    """Return the GPU that a view's memory belongs to. Raises DeviceError if it cannot be opened."""
    if view.stream is not None:
        return cast("cuda.CudaDevice", view.stream.device)
    known: cuda.CudaDevice | None = getattr(view.lease, "device", None)
    return known or cuda.open_device(view.ordinal)


class GpuPainter:
    """Painter of images, on a separate stream. For one thread at a time.

    Raises DeviceError: there is no kernel compiler. Raises BuildError: the kernel does not compile.
    """

    def __init__(self, device: cuda.CudaDevice, counter: Counter, kernels: Kernels | None = None) -> None:
        self.device, self._counter = device, counter
        self._kernels = kernels or Kernels(device, FileStore(cache_folder() / "cuda"))
        self._compiled: dict[tuple[int, ...], cuda.Kernel] = {}
        self._kernel(SOURCES["nv12"], "nv12", False, False, True)  # the usual one, before frames come
        self.stream, self._event = device.stream(), device.event()
        self._images: cuda.ViewPool | None = None
        self._edges: cuda.Block | None = None
        self._lists = [_ListMemory(device, _LIST_BYTES) for _ in range(_LISTS)]
        self._block = device.block(_TILES_BYTES)
        self._tiles = Tiles(Region(self._block.host, self._block.address), self.stream.synchronize)

    def paint(self, source: Frame | cuda.DeviceView, size: tuple[int, int], shapes: Iterable[Shape]) -> cuda.DeviceView:
        """Return a new image made from a frame or an image on the GPU, with shapes on it. Does not wait.

        The image is (height, width, 3) uint8 BGR, contiguous, valid while a reference to it exists. If ``size`` is not
        the source's, pixels are scaled as on the host. Raises DeviceError: there is too little memory, or the GPU
        failed. Raises StageError: the frame was released.
        """
        with self.device:
            drawing = self._pack_list(size, list(shapes))
            image = self._take((size[1], size[0], 3))
            planes: tuple[object, ...] = source.planes if isinstance(source, Frame) else (source,)
            for writer in {getattr(plane, "stream", None) for plane in planes} - {self.stream}:
                if isinstance(writer, cuda.Stream):
                    self.stream.wait(self._event.record(writer))
            drawing.send(self.stream, self._tiles)
            for launch in self._launches(source, image, drawing.packed):
                launch.enqueue(self.stream)
            drawing.marks.after(self.stream)
            if isinstance(source, Frame):
                hold([source], self.stream)
            elif (after := getattr(source.lease, "after", None)) is not None:
                after(self.stream)
        return image

    def _launches(
        self, source: Frame | cuda.DeviceView, image: cuda.DeviceView, packed: PackedList
    ) -> Iterator[cuda.Launch]:
        """Yield the launches that make the image: edges of strokes, then the image itself."""
        height, width, _ = image.shape
        size = width, height
        if packed.segments:
            edges = self._edges_for(packed.segments)
            lines = _LINES.pack(packed.lines, packed.points, packed.items, edges, packed.lookups, *size)
            yield cuda.Launch(self._strokes, lines, (packed.line_count, 1, 1), (32, 1, 1))
        made = _of_frame(source, size) if isinstance(source, Frame) else _of_image(source, size)
        key, (addresses, pitches, numbers) = made
        where = *addresses, image.address, packed.items, packed.lookups
        argument = _DRAWING.pack(*where, *pitches, packed.item_count, *numbers)
        yield cuda.Launch(self._kernel(*key), argument, (-(-width // _TILE[0]), -(-height // _TILE[1]), 1), _BLOCK)

    def _edges_for(self, segments: int) -> int:
        """Return the address of GPU memory for edges of strokes, which each image reuses."""
        nbytes = segments * MOST_EDGES * EDGE_BYTES
        if self._edges is None or self._edges.nbytes < nbytes:
            if self._edges is not None:
                self.stream.synchronize()
                self._edges.release()
            self._edges = self.device.device_block(2 * nbytes)
        return self._edges.address

    def close(self) -> None:
        """Wait for the GPU and free the memory. Images that are still referred to stay valid."""
        if self.device.is_open:
            self.stream.synchronize()
        for block in (self._block, self._edges, *(one.block for one in self._lists)):
            if block is not None:
                block.release()
        if self._images is not None:
            self._images.close()
        self._images = None

    def _pack_list(self, size: tuple[int, int], shapes: list[Shape]) -> "_ListMemory":
        """Write the shapes into the list used longest ago, and return it."""
        self._tiles.empty_if_full()
        drawing = self._lists.pop(0)
        while True:
            drawing.empty()
            packer = DisplayList(size, drawing.region, self._tiles)
            try:
                packer.add(shapes)
                drawing.packed = packer.finish()
                break
            except TooLongError:
                larger = _ListMemory(self.device, 2 * drawing.block.nbytes)
                drawing.block.release()
                drawing = larger
        self._lists.append(drawing)
        return drawing

    def _take(self, shape: tuple[int, int, int]) -> cuda.DeviceView:
        nbytes = shape[0] * shape[1] * shape[2]
        if self._images is None or self._images.nbytes != nbytes:
            if self._images is not None:
                self._images.close()
            self._images = cuda.ViewPool(self.device, nbytes, self._counter)
        return self._images.take(shape, self.stream)

    def _kernel(self, number: int, form: str, luma_area: bool, chroma_area: bool, aligned: bool) -> cuda.Kernel:
        ink = INK[0] | INK[1] << 8 | INK[2] << 16
        pixel, red = 4 if form.endswith("a") else 3, 0 if form.startswith("rgb") else 2
        key = number, pixel, red, luma_area, chroma_area, aligned
        if key not in self._compiled:
            names = "FORMAT", "PIXEL", "RED", "LUMA_AREA", "CHROMA_AREA", "ALIGNED"
            definitions = {"INK": ink, **{name: int(value) for name, value in zip(names, key, strict=True)}}
            self._compiled[key] = self._kernels.kernel("overlay", definitions)
            self._strokes = self._kernels.kernel("overlay", definitions, function="strokes")
        return self._compiled[key]


class _ListMemory:
    """Memory for one display list at a time."""

    def __init__(self, device: cuda.CudaDevice, nbytes: int) -> None:
        self.block: cuda.Block = device.block(nbytes)
        self.marks = cuda.StreamMarks(device)
        self.packed = PackedList(0, 0, 0, 0, 0, 0, 0)
        self.empty()

    def empty(self) -> None:
        """Wait until the GPU has read the last list, and empty it."""
        self.marks.synchronize()
        self.region = Region(self.block.host, self.block.address)

    def send(self, stream: cuda.Stream, tiles: Tiles) -> None:
        """Copy the list and new tiles to the GPU. The copy is not counted, as these are no pixels of frames."""
        if not self.block.is_staged:
            return
        device = self.block.device
        for region in (self.region, tiles.region):
            if region.used > region.sent:
                part = region.host[region.sent : region.used]
                copy = device.driver.memcpy_htod_async
                device.run(copy, region.address + region.sent, part, stream.raw, doing="copying")
                region.sent = region.used


def why_unreadable(frame: Frame) -> str:
    """Return why the kernel cannot make the same image of a frame as the host; empty if it can."""
    if frame.format not in SOURCES:
        return f"the kernel reads {', '.join(SOURCES)}, not {frame.format}"
    if frame.format == "yuyv" and frame.width % 2:
        return "its last pixel has no color of its own"
    return ""


_Key = tuple[int, str, bool, bool, bool]
_Argument = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
"""Addresses of three planes, their pitches, and the fields of the kernel's struct behind the number of items."""


def _of_image(image: cuda.DeviceView, size: tuple[int, int]) -> tuple[_Key, _Argument]:
    height, width = image.shape[:2]
    key = SOURCES["bgr"], "bgr", size != (width, height), False, size[0] % 4 == 0
    numbers = width, height, 0, 0, *size, 0, 0, 0, 0, 0, *[0] * 12
    return key, ((image.address, 0, 0), (image.strides[0], 0, 0), numbers)


def _of_frame(frame: Frame, size: tuple[int, int]) -> tuple[_Key, _Argument]:
    planes = [plane_on_gpu(plane, frame) for plane in frame.planes]
    addresses, pitches = zip(*planes, *[(0, 0)] * (3 - len(planes)), strict=True)
    width, height = size
    is_scaled = size != (frame.width, frame.height)
    chroma = chroma_size(frame)
    shares_rows = is_scaled or frame.format != "yuyv"
    wanted = (width + 1) // 2, (height + 1) // 2 if shares_rows else height
    matrix, floor, shift = _arithmetic(frame.color, width % 2 == 0 and height % 2 == 0)
    luma_area, chroma_area = _shrinks((frame.width, frame.height), size), _shrinks(chroma, wanted)
    key = SOURCES[frame.format], frame.format, luma_area, chroma_area, width % 4 == 0
    numbers = frame.width, frame.height, *chroma, *size, *wanted, int(shares_rows), floor, shift, *matrix
    return key, (addresses, pitches, numbers)


def _shrinks(source: tuple[int, int], wanted: tuple[int, int]) -> bool:
    """Return whether a plane is scaled by area, as :func:`~edgert.runtime.frame.bgr_into` decides it."""
    return source[0] > 2 * wanted[0] or source[1] > 2 * wanted[1]


# OpenCV's conversion of BT.601, limited range, in 20 bits: modules/imgproc/src/color_yuv.simd.hpp, ITUR_BT_601_*.
_ONE_BITS = 20
_LUMA, _U_TO_BLUE, _U_TO_GREEN, _V_TO_GREEN, _V_TO_RED = 1220542, 2116026, -409993, -852492, 1673527


@lru_cache(maxsize=16)
def _arithmetic(color: Color, is_even: bool) -> tuple[tuple[int, ...], int, int]:
    """Return the kernel's matrix, floor and shift, for the two ways of :func:`~edgert.runtime.frame.bgr_into`."""
    if color != Color() or not is_even:
        rows = fixed_matrix(color, "bgr").reshape(3, 4) + np.array([0, 0, 0, 512], np.int32)
        return tuple(rows.ravel().tolist()), 0, 10
    weights: npt.NDArray[np.int64] = np.array([[_U_TO_BLUE, 0], [_U_TO_GREEN, _V_TO_GREEN], [0, _V_TO_RED]], np.int64)
    offsets = (1 << (_ONE_BITS - 1)) - 16 * _LUMA - 128 * weights.sum(axis=1)
    rows = np.column_stack([np.full(3, _LUMA), weights, offsets])
    return tuple(rows.ravel().tolist()), 16, _ONE_BITS
