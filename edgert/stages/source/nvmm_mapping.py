"""A Jetson's video memory (NVMM) on the GPU: an NvBufSurface's planes as addresses that kernels read.

Elements such as ``nvarguscamerasrc`` and ``nvv4l2decoder`` give buffers whose mapped bytes are an ``NvBufSurface``. How
CUDA maps it depends on its memory type; no pixel is copied. Sources of structs and calls:

- ``nvbufsurface.h`` of JetPack 5 and 6, the same in DeepStream:
  https://docs.nvidia.com/metropolis/deepstream/5.0.1/sdk-api/Api/BufSurface/BufSurface.html
- ``CUeglFrame``, https://docs.nvidia.com/cuda/cuda-driver-api/structCUeglFrame__v1.html
- memory of a CUDA device on Thor, and ``NvBufSurfaceMapCudaBuffer``, which an Orin's library has and refuses ("API is
  not supported on this platform"): https://github.com/NVIDIA-ISAAC-ROS/isaac_ros_compression
- ``NvBufSurfaceCudaBuffer``:
  https://docs.nvidia.com/metropolis/deepstream/9.0/sdk-api/structNvBufSurfaceCudaBuffer.html; the header in
  isaac_ros_compression has it without ``basePtr``, so CUDA checks each word before it is used

The structs have only the fields that are read; tests compare their sizes and offsets with the headers. JetPack 6 and 7
use reserved words behind these fields; nothing before them moved. None of this has run on a board.
"""

import ctypes
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from edgert.errors import DeviceError, raised_as
from edgert.runtime.frame import Color

_MAX_PLANES, _PADDING = 4, 4
_CUDA_DEVICE, _SURFACE_ARRAY = 2, 4
_MEMORY = ("default", "CUDA pinned", "CUDA device", "CUDA unified", "surface array", "handle", "system")
"""``NvBufSurfaceMemType``."""
_PITCH_LAYOUT = 0  # NVBUF_LAYOUT_PITCH
_EGL_FRAME_PITCH = 1  # CU_EGL_FRAME_TYPE_PITCH
_MEMORY_TYPE, _DEVICE_MEMORY = 2, 2  # CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_MEMORYTYPE_DEVICE
_READ_WRITE, _READ_ONLY = 0, 1  # CU_GRAPHICS_MAP_RESOURCE_FLAGS_NONE and _READ_ONLY
_NV12, _DEFAULT = 6, 0  # NVBUF_COLOR_FORMAT_NV12; NVBUF_MEM_DEFAULT: what this board's elements use
_COLORS = {
    6: Color("bt601", False),
    7: Color("bt601", True),
    33: Color("bt709", False),
    34: Color("bt709", True),
    36: Color("bt709", False),
}
"""``NvBufSurfaceColorFormat``: NV12, NV12_ER (extended range), NV12_709, NV12_709_ER, NV12_2020 (the nearest)."""
_U32 = ctypes.c_uint32
_NOT_READ = "an image in NVMM memory cannot be read by kernels"
_NOT_USED = "an image in NVMM memory cannot be used by CUDA"
_FIX = "… ! nvvidconv bl-output=false ! video/x-raw(memory:NVMM),format=NV12"
_FIX_HOST = "copy frames to the host: … ! nvvidconv ! video/x-raw,format=NV12; GST_DEBUG=2 shows more"
_FIX_DISPLAY = "unset DISPLAY WAYLAND_DISPLAY before the start (ssh -X sets DISPLAY): EGL then needs no display"


class PlaneParams(ctypes.Structure):
    """``NvBufSurfacePlaneParams``."""

    _fields_ = (
        ("num_planes", _U32),
        *((name, _U32 * _MAX_PLANES) for name in ("width", "height", "pitch", "offset", "psize", "bytes_per_pix")),
        ("reserved", ctypes.c_void_p * (_PADDING * _MAX_PLANES)),
    )


class CudaBuffer(ctypes.Structure):
    """First words of ``NvBufSurfaceCudaBuffer``, in libraries that have ``NvBufSurfaceMapCudaBuffer``.

    By one header they are ``basePtr``, ``dataPtr``, ``extMem``; by another ``dataPtr``, ``extMem``. ``extMem`` is a
    handle of the host: a kernel that reads it destroys the context.
    """

    _fields_ = (("words", ctypes.c_void_p * 2),)


class MappedAddress(ctypes.Structure):
    """``NvBufSurfaceMappedAddr``."""

    _fields_ = (
        ("addr", ctypes.c_void_p * _MAX_PLANES),
        ("egl_image", ctypes.c_void_p),
        ("nvmm_ptr", ctypes.c_void_p),  # reserved where there are no CUDA buffers
        ("cuda_ptr", ctypes.POINTER(CudaBuffer)),
        ("reserved", ctypes.c_void_p * (_PADDING - 2)),
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
    """``NvBufSurface``: a batch of images; here a batch of one."""

    _fields_ = (
        ("gpu_id", _U32),
        ("batch_size", _U32),
        ("num_filled", _U32),
        ("is_contiguous", ctypes.c_bool),
        ("mem_type", ctypes.c_int),
        ("surface_list", ctypes.POINTER(SurfaceParams)),
        ("reserved", ctypes.c_void_p * _PADDING),
    )


class CreateParams(ctypes.Structure):
    """``NvBufSurfaceCreateParams``."""

    _fields_ = (
        *((name, _U32) for name in ("gpu_id", "width", "height", "size")),
        ("is_contiguous", ctypes.c_bool),
        *((name, ctypes.c_int) for name in ("color_format", "layout", "mem_type")),
    )


class EglFrame(ctypes.Structure):
    """``CUeglFrame``; its union of arrays and pitched pointers is read as pointers."""

    _fields_ = (
        ("planes", ctypes.c_void_p * 3),
        *((name, _U32) for name in ("width", "height", "depth", "pitch", "plane_count", "num_channels")),
        *((name, ctypes.c_int) for name in ("frame_type", "egl_color_format", "cu_format")),
    )


class JetsonCalls:
    """C functions of libnvbufsurface and libcuda, with pointers as integers; each returns 0 for success.

    The CUDA context must be current. Raises DeviceError without the libraries.
    """

    has_cuda_buffers = False

    def __init__(self) -> None:
        fix = "NVMM is a Jetson's: elsewhere end the pipeline with … ! videoconvert"
        with raised_as(DeviceError, "there is no NVMM memory here", fix=fix):
            self._surface = ctypes.CDLL("libnvbufsurface.so.1.0.0")
            self._cuda = ctypes.CDLL("libcuda.so.1")
        names = "NvBufSurfaceMapCudaBuffer", "NvBufSurfaceUnMapCudaBuffer"
        self.has_cuda_buffers = all(hasattr(self._surface, name) for name in names)

    def create(self, width: int, height: int) -> int:
        """Return the address of a new NvBufSurface of one pitch-linear NV12 image. Raises DeviceError."""
        surface = ctypes.c_void_p()
        wanted = CreateParams(width=width, height=height, color_format=_NV12, layout=_PITCH_LAYOUT, mem_type=_DEFAULT)
        code = int(self._surface.NvBufSurfaceCreate(ctypes.byref(surface), 1, ctypes.byref(wanted)))
        if code or not surface.value:
            raise DeviceError("there is no more NVMM memory", why=f"NvBufSurfaceCreate returned {code}")
        Surface.from_address(surface.value).num_filled = 1
        return surface.value

    def destroy(self, surface: int) -> int:
        return int(self._surface.NvBufSurfaceDestroy(ctypes.c_void_p(surface)))

    def map_cuda(self, surface: int) -> int:
        # 0 is the index of the image, here and below. Its address is then in the struct.
        return int(self._surface.NvBufSurfaceMapCudaBuffer(ctypes.c_void_p(surface), 0))

    def unmap_cuda(self, surface: int) -> int:
        return int(self._surface.NvBufSurfaceUnMapCudaBuffer(ctypes.c_void_p(surface), 0))

    def is_on_device(self, address: int) -> bool:
        """Return whether the address is device memory, by CUDA."""
        kind = ctypes.c_uint()
        code = self._cuda.cuPointerGetAttribute(ctypes.byref(kind), _MEMORY_TYPE, ctypes.c_uint64(address))
        return not code and kind.value == _DEVICE_MEMORY

    def map_egl(self, surface: int) -> int:
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


Way = Literal["device address", "CUDA buffer", "EGL image"]


@dataclass(frozen=True, slots=True)
class Access:
    """Way in which CUDA reaches the images of a stream, and why no faster way works."""

    way: Way
    why: str = ""


class MappedSurface:
    """An NvBufSurface mapped for CUDA until :meth:`close`, which must come after the GPU's work with it.

    Args:
        surface: address of the NvBufSurface; valid as long as its buffer.
        writes: whether kernels also write it.

    Attributes:
        planes: (address, bytes per row) of each plane of the first image.
        width, height: pixels.
        color: matrix and range of the first image; None where its format does not declare them.

    Raises DeviceError: the memory is not pitch-linear, or a call fails; the steps before it are undone.
    """

    def __init__(self, surface: int, calls: JetsonCalls, way: Way = "EGL image", writes: bool = False) -> None:
        self._surface, self._calls, self._flags = surface, calls, _READ_WRITE if writes else _READ_ONLY
        self._undo: list[tuple[str, int]] = []
        params: SurfaceParams = Surface.from_address(surface).surface_list[0]
        if params.layout != _PITCH_LAYOUT:
            raise DeviceError(_NOT_READ, why="its layout is block linear", fix=_FIX)
        self.width, self.height = int(params.width), int(params.height)
        self.color = _COLORS.get(params.color_format)
        try:
            self.planes = self._egl_planes(params) if way == "EGL image" else self._linear_planes(params, way)
        except DeviceError:
            self.close()
            raise

    def close(self) -> None:
        """Undo every step in reverse order; raise DeviceError at the end if one failed. May be called twice."""
        failed = ""
        while self._undo:
            name, handle = self._undo.pop()
            if code := getattr(self._calls, name)(handle):
                failed = f"{name} returned {code}"
        if failed:
            raise DeviceError("an image in NVMM memory cannot be unmapped", why=failed)

    def _linear_planes(self, params: SurfaceParams, way: Way) -> Sequence[tuple[int, int]]:
        """Return address and pitch of each plane of contiguous memory."""
        address = int(params.data_ptr or 0)
        if way == "CUDA buffer":
            _checked(self._calls.map_cuda(self._surface), "NvBufSurfaceMapCudaBuffer")
            self._undo.append(("unmap_cuda", self._surface))
            mapped = params.mapped_addr.cuda_ptr
            words = [int(word or 0) for word in reversed(mapped[0].words)] if mapped else []
            address = next((word for word in words if word and self._calls.is_on_device(word)), 0)
            if any(words) and not address:
                raise DeviceError(_NOT_READ, why=f"its {way} holds no address of the device", fix=_FIX_HOST)
        if not address:
            raise DeviceError(_NOT_READ, why=f"its {way} is null", fix=_FIX_HOST)
        planes = params.plane_params
        return [(address + int(planes.offset[n]), int(planes.pitch[n])) for n in range(planes.num_planes)]

    def _egl_planes(self, params: SurfaceParams) -> Sequence[tuple[int, int]]:
        if code := self._calls.map_egl(self._surface):
            displays = [f"{name}={os.environ[name]}" for name in ("DISPLAY", "WAYLAND_DISPLAY") if name in os.environ]
            why = f"NvBufSurfaceMapEglImage returned {code}" + (f" with {' and '.join(displays)}" if displays else "")
            raise DeviceError(_NOT_USED, why=why, fix=_FIX_DISPLAY if displays else _FIX_HOST)
        self._undo.append(("unmap_egl", self._surface))
        resource = ctypes.c_void_p()
        image = int(params.mapped_addr.egl_image or 0)
        _checked(self._calls.register(resource, image, self._flags), "cuGraphicsEGLRegisterImage")
        self._undo.append(("unregister", int(resource.value or 0)))
        frame = EglFrame()
        _checked(self._calls.frame(frame, int(resource.value or 0)), "cuGraphicsResourceGetMappedEglFrame")
        if frame.frame_type != _EGL_FRAME_PITCH:
            raise DeviceError(_NOT_READ, why="CUDA sees it as arrays", fix=_FIX)
        return [(int(frame.planes[n] or 0), int(params.plane_params.pitch[n])) for n in range(frame.plane_count)]


def _checked(code: int, name: str) -> None:
    if code:
        raise DeviceError(_NOT_USED, why=f"{name} returned {code}", fix=_FIX_HOST)


def map_surface(
    surface: int, calls: JetsonCalls, known: Access | None = None, writes: bool = False
) -> tuple[MappedSurface, Access]:
    """Map an NvBufSurface by the fastest way that its memory allows, and return which way that was.

    ``known`` is the way of the stream's earlier images, so that a way which the library refuses is tried only once.

    Raises DeviceError: kernels cannot read its memory, or every way fails.
    """
    batch = Surface.from_address(surface)
    if not batch.surface_list or batch.mem_type not in (0, _CUDA_DEVICE, _SURFACE_ARRAY):
        kind = f" ({_MEMORY[batch.mem_type]})" if 0 <= batch.mem_type < len(_MEMORY) else ""
        why = f"its memory type is {batch.mem_type}{kind}, with {batch.num_filled} images"
        raise DeviceError("a buffer is no image in NVMM memory", why=why, fix=_FIX)
    if batch.mem_type == _CUDA_DEVICE:
        return MappedSurface(surface, calls, "device address", writes), Access("device address")
    if known is not None and known.way != "device address":
        return MappedSurface(surface, calls, known.way, writes), known
    refused = "this libnvbufsurface has no NvBufSurfaceMapCudaBuffer"
    if calls.has_cuda_buffers:
        try:
            return MappedSurface(surface, calls, "CUDA buffer", writes), Access("CUDA buffer")
        except DeviceError as error:
            refused = error.why
    try:
        return MappedSurface(surface, calls, "EGL image", writes), Access("EGL image", refused)
    except DeviceError as error:
        if calls.has_cuda_buffers:
            error.why += f"; before that, {refused}"
        raise
