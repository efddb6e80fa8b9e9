"""A frame: pixels as they came from the camera or decoder, lent, never copied on the way."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
import numpy.typing as npt

from edgert.errors import StageError
from edgert.memory import Lease, lend

if TYPE_CHECKING:
    from edgert.memory.cuda import DeviceView

U8 = npt.NDArray[np.uint8]
PixelFormat = Literal["i420", "nv12", "yuyv", "bgr", "rgb", "gray"]
"""How pixels lie in memory: i420 = planes Y, U, V; nv12 = planes Y, interleaved UV; yuyv = one plane (h, w, 2)."""


@dataclass(frozen=True, slots=True)
class Color:
    """How YUV turns into RGB: the matrix (ITU-R BT.601 or BT.709) and whether luma spans 0–255 or 16–235."""

    matrix: Literal["bt601", "bt709"] = "bt601"
    full_range: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Frame:
    """One picture of one stream.

    Attributes:
        stream: name of the source stage.
        index: number of the frame in its stream, from 0; gaps are frames lost before the source saw them.
        timestamp_ns: monotonic clock when the frame was captured or decoded; latency counts from here.
        media_ns: position in the stream, never running backwards, also across reconnects.
        width, height: in pixels.
        format: how ``planes`` are to be read.
        planes: uint8 arrays, rows possibly padded: i420 (h,w) (h/2,w/2) (h/2,w/2) rounded up; nv12 (h,w)
            (h/2,w/2,2); yuyv (h,w,2); bgr and rgb (h,w,3); gray (h,w). Valid while ``lease`` is alive. Of a frame
            that is on a GPU, they are :class:`~edgert.memory.cuda.DeviceView`.
        lease: who owns the bytes. Whoever keeps a frame beyond the call that handed it over retains it.
        color: for the YUV formats.
        origin: (x, y) of this frame's first pixel in the full picture; other than (0, 0) only for crops.
        root: the full picture a crop was taken from.
    """

    stream: str
    index: int
    timestamp_ns: int
    media_ns: int
    width: int
    height: int
    format: PixelFormat
    planes: tuple[U8, ...]
    lease: Lease
    color: Color = Color()
    origin: tuple[int, int] = (0, 0)
    root: Frame | None = None

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """NumPy's array protocol, without a copy, for formats of one plane."""
        interface: dict[str, Any] = self._packed().__array_interface__
        return interface

    def __dlpack__(self, **options: Any) -> Any:
        """DLPack capsule, without a copy, for formats of one plane."""
        return self._packed().__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        device, number = self._packed().__dlpack_device__()
        return int(device), number

    def crop(self, x1: int, y1: int, x2: int, y2: int) -> Frame:
        """The part between (x1, y1) and (x2, y2), in this frame's pixels, as a view: no byte is copied.

        Edges are clipped to the frame and moved out to even pixels where chroma is subsampled. The crop lives
        under this frame's lease. Raises StageError when nothing is left.
        """
        x1, y1, x2, y2 = max(x1, 0), max(y1, 0), min(x2, self.width), min(y2, self.height)
        if x1 >= x2 or y1 >= y2:
            raise StageError(
                f"crop {x1},{y1}-{x2},{y2} is empty", why=f"the frame is {self.width}x{self.height}", where=self.stream
            )
        if self.format in ("i420", "nv12", "yuyv"):
            x1, y1 = x1 & ~1, y1 & ~1
            x2, y2 = min(x2 + (x2 & 1), self.width), min(y2 + (y2 & 1), self.height)
        planes = [self.planes[0][y1:y2, x1:x2]]
        planes += [plane[y1 // 2 : (y2 + 1) // 2, x1 // 2 : (x2 + 1) // 2] for plane in self.planes[1:]]
        return replace(
            self,
            width=x2 - x1,
            height=y2 - y1,
            planes=tuple(planes),
            origin=(self.origin[0] + x1, self.origin[1] + y1),
            root=self.root or self,
        )

    @property
    def is_on_gpu(self) -> bool:
        """Whether its planes are memory of a GPU."""
        return hasattr(self.planes[0], "__cuda_array_interface__")

    def to_host(self) -> Frame:
        """The frame with its planes on the host: itself, or a copy of a frame that is on a GPU, which is counted."""
        if not self.is_on_gpu:
            return self
        planes = tuple(plane.to_host() for plane in cast("tuple[DeviceView, ...]", self.planes))
        return replace(self, planes=planes, lease=lend(planes, self.lease.counter), root=None)

    def to_bgr(self) -> U8:
        """A new (height, width, 3) uint8 BGR picture. A copy, and counted as one; two for a frame on a GPU."""
        from edgert.runtime.color import bgr_from

        picture = bgr_from(self.to_host())
        self.lease.counter.copied(picture.nbytes)
        return picture

    def _packed(self) -> U8:
        if not self.lease.alive:
            raise StageError(
                f"frame {self.index} of {self.stream!r} was used after its release",
                why="its memory has gone back to the pool and may hold another picture",
                fix="retain the frame (frame.lease.retain()) or copy it while you have it",
            )
        if len(self.planes) != 1:
            raise StageError(
                f"a {self.format} frame is {len(self.planes)} planes, not one array",
                where=self.stream,
                fix="use frame.planes (no copy) or frame.to_bgr() (one copy)",
            )
        return self.planes[0]
