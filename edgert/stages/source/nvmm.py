"""A Jetson's own video memory (NVMM) on the GPU: NvBufSurface → EGLImage → CUDA, and back in reverse order.

What an element such as ``nvarguscamerasrc`` or ``nvv4l2decoder`` gives is a buffer whose mapped bytes are an
``NvBufSurface``. The chain below gives addresses that kernels read; no pixel moves. Sources of structs and calls:

- ``nvbufsurface.h`` of JetPack 5 and 6, the same in DeepStream:
  https://docs.nvidia.com/metropolis/deepstream/5.0.1/sdk-api/Api/BufSurface/BufSurface.html
- ``CUeglFrame``, https://docs.nvidia.com/cuda/cuda-driver-api/structCUeglFrame__v1.html

Only what is read stands in the structs; their sizes and offsets are held to the headers by tests. JetPack 6 uses a
reserved word behind these fields (``paramex``); nothing before it moved. None of this has run on a board.
"""

import ctypes
from collections.abc import Callable, Sequence
from functools import lru_cache

from edgert.errors import DeviceError
from edgert.memory import Counter
from edgert.memory.cuda import CudaDevice, Loans, StreamLease
from edgert.runtime.frame import U8
from edgert.stages.source.planes import device_planes

_MAX_PLANES, _PADDING = 4, 4
_SURFACE_ARRAY = 4
"""``NVBUF_MEM_SURFACE_ARRAY``: the only kind of memory that becomes an EGLImage."""
_PITCH_LAYOUT = 0  # NVBUF_LAYOUT_PITCH
_EGL_FRAME_PITCH = 1  # CU_EGL_FRAME_TYPE_PITCH
_READ_ONLY = 1  # CU_GRAPHICS_MAP_RESOURCE_FLAGS_READ_ONLY
_U32 = ctypes.c_uint32
_NOT_READ = "an image in NVMM memory cannot be read by kernels"
_FIX = "… ! nvvidconv bl-output=false ! video/x-raw(memory:NVMM),format=NV12"


class PlaneParams(ctypes.Structure):
    """``NvBufSurfacePlaneParams``."""

    _fields_ = (
        ("num_planes", _U32),
        *((name, _U32 * _MAX_PLANES) for name in ("width", "height", "pitch", "offset", "psize", "bytes_per_pix")),
        ("reserved", ctypes.c_void_p * (_PADDING * _MAX_PLANES)),
    )


class MappedAddress(ctypes.Structure):
    """``NvBufSurfaceMappedAddr``."""

    _fields_ = (
        ("addr", ctypes.c_void_p * _MAX_PLANES),
        ("egl_image", ctypes.c_void_p),
        ("reserved", ctypes.c_void_p * _PADDING),
    )


class SurfaceParams(ctypes.Structure):
    """``NvBufSurfaceParams``: one image."""

    _fields_ = (
        ("width", _U32),
        ("height", _U32),
        ("pitch", _U32),
        ("color_format", ctypes.c_int),
        ("layout", ctypes.c_int),
        ("buffer_desc", ctypes.c_uint64),
        ("data_size", _U32),
        ("data_ptr", ctypes.c_void_p),
        ("plane_params", PlaneParams),
        ("mapped_addr", MappedAddress),
        ("reserved", ctypes.c_void_p * _PADDING),
    )


class Surface(ctypes.Structure):
    """``NvBufSurface``: a batch of images, here of one."""

    _fields_ = (
        ("gpu_id", _U32),
        ("batch_size", _U32),
        ("num_filled", _U32),
        ("is_contiguous", ctypes.c_bool),
        ("mem_type", ctypes.c_int),
        ("surface_list", ctypes.POINTER(SurfaceParams)),
        ("reserved", ctypes.c_void_p * _PADDING),
    )


class EglFrame(ctypes.Structure):
    """``CUeglFrame``; its union of arrays and pitched pointers is read as pointers."""

    _fields_ = (
        ("planes", ctypes.c_void_p * 3),
        *((name, _U32) for name in ("width", "height", "depth", "pitch", "plane_count", "num_channels")),
        *((name, ctypes.c_int) for name in ("frame_type", "egl_color_format", "cu_format")),
    )


class JetsonCalls:
    """The C functions of libnvbufsurface and libcuda, each returning 0 for success; pointers as whole numbers.

    The CUDA context must be current. Raises DeviceError without the libraries.
    """

    def __init__(self) -> None:
        try:
            self._surface = ctypes.CDLL("libnvbufsurface.so.1.0.0")
            self._cuda = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            fix = "NVMM is a Jetson's: elsewhere end the pipeline with … ! videoconvert"
            raise DeviceError("there is no NVMM memory here", why=str(error), fix=fix) from error

    def map_egl(self, surface: int) -> int:
        # Of the first image; its address is then in the struct.
        return int(self._surface.NvBufSurfaceMapEglImage(ctypes.c_void_p(surface), 0))

    def unmap_egl(self, surface: int) -> int:
        return int(self._surface.NvBufSurfaceUnMapEglImage(ctypes.c_void_p(surface), 0))

    def register(self, resource: ctypes.c_void_p, image: int, flags: int) -> int:
        return int(self._cuda.cuGraphicsEGLRegisterImage(ctypes.byref(resource), ctypes.c_void_p(image), flags))

    def frame(self, frame: EglFrame, resource: int) -> int:
        function = self._cuda.cuGraphicsResourceGetMappedEglFrame
        return int(function(ctypes.byref(frame), ctypes.c_void_p(resource), 0, 0))

    def unregister(self, resource: int) -> int:
        return int(self._cuda.cuGraphicsUnregisterResource(ctypes.c_void_p(resource)))


jetson_calls = lru_cache(maxsize=1)(JetsonCalls)


class OnGpu:
    """An NvBufSurface mapped into CUDA until :meth:`close`, which must come after the GPU's work with it.

    Args:
        surface: its address; valid for as long as the buffer that it came from.

    Attributes:
        planes: of the first image, their addresses and bytes per row.
        width, height: pixels.

    Raises:
        DeviceError: it is not pitch-linear memory of a Jetson, or a call fails; what was mapped by then is let go.
    """

    def __init__(self, surface: int, calls: JetsonCalls) -> None:
        self._surface, self._calls = surface, calls
        self._undo: list[tuple[str, int]] = []
        batch = Surface.from_address(surface)
        if batch.mem_type not in (0, _SURFACE_ARRAY) or not batch.surface_list:
            why = f"its memory type is {batch.mem_type}, with {batch.num_filled} images"
            raise DeviceError("a buffer is no image in NVMM memory", why=why, fix=_FIX)
        params: SurfaceParams = batch.surface_list[0]
        if params.layout != _PITCH_LAYOUT:
            raise DeviceError(_NOT_READ, why="its layout is block linear", fix=_FIX)
        self.width, self.height = int(params.width), int(params.height)
        try:
            self.planes = self._mapped(params)
        except DeviceError:
            self.close()
            raise

    def close(self) -> None:
        """Lets it go in reverse order. Twice is once. Raises DeviceError when a call fails."""
        while self._undo:
            name, handle = self._undo.pop()
            _checked(getattr(self._calls, name)(handle), name)

    def _mapped(self, params: SurfaceParams) -> Sequence[tuple[int, int]]:
        _checked(self._calls.map_egl(self._surface), "NvBufSurfaceMapEglImage")
        self._undo.append(("unmap_egl", self._surface))
        resource = ctypes.c_void_p()
        image = int(params.mapped_addr.egl_image or 0)
        _checked(self._calls.register(resource, image, _READ_ONLY), "cuGraphicsEGLRegisterImage")
        self._undo.append(("unregister", int(resource.value or 0)))
        frame = EglFrame()
        _checked(self._calls.frame(frame, int(resource.value or 0)), "cuGraphicsResourceGetMappedEglFrame")
        if frame.frame_type != _EGL_FRAME_PITCH:
            raise DeviceError(_NOT_READ, why="CUDA sees it as arrays", fix=_FIX)
        return [(int(frame.planes[n] or 0), int(params.plane_params.pitch[n])) for n in range(frame.plane_count)]


def _checked(code: int, name: str) -> None:
    if code:
        raise DeviceError("an image in NVMM memory cannot be used by CUDA", why=f"{name} returned {code}", fix=_FIX)


class NvmmLoans:
    """Makes planes of NVMM buffers, for one thread. Each keeps its buffer until the GPU has read it.

    Args:
        calls: gives the C functions, when the first image is there.
    """

    def __init__(self, device: CudaDevice, counter: Counter, calls: Callable[[], JetsonCalls] = jetson_calls) -> None:
        self._device, self._calls = device, calls
        self._stream = device.stream()
        self._mapped: dict[int, tuple[OnGpu, object]] = {}
        self._loans = Loans(device, counter, self._give_back)

    def take(self, surface: int, owner: object) -> tuple[tuple[U8, ...], StreamLease]:
        """Planes (NV12) and lease of the NvBufSurface at this address; ``owner`` keeps it, and is let go afterwards.

        Raises:
            DeviceError: it is no image that kernels can read.
        """
        with self._device:
            mapped = OnGpu(surface, self._calls())
        self._mapped[surface] = mapped, owner
        lease = self._loans.lend(surface)
        size = mapped.width, mapped.height
        return device_planes("nv12", size, mapped.planes, lease, self._device, self._stream), lease

    def settle(self) -> None:
        """Gives buffers back that the GPU is done with."""
        self._loans.settle()

    def close(self) -> None:
        """Waits for the GPU; what is lent still goes back when its lease ends."""
        self._loans.close()

    def _give_back(self, surface: int) -> None:
        mapped, _ = self._mapped.pop(surface)
        with self._device:
            mapped.close()
