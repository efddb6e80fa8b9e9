"""A Jetson's video memory mapped into CUDA: structs against the header, calls against a stand-in. No board was used."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from edgert.errors import DeviceError
from edgert.memory import Counter
from edgert.memory.cuda import CudaDevice
from edgert.stages.source import gst, nvmm
from edgert.stages.source.nvmm import EglFrame, MappedAddress, NvmmLoans, OnGpu, PlaneParams, Surface, SurfaceParams
from tests.helpers.cuda_double import CudaDouble

RESOURCE, IMAGE = 0x7E50, 0x1A6E
LUMA, CHROMA = 0x10_0000, 0x20_0000


class Buffer:
    """An NvBufSurface as a camera gives it."""

    def __init__(self, width: int = 1280, height: int = 720, layout: int = 0, mem_type: int = 4) -> None:
        self.params = SurfaceParams(width=width, height=height, pitch=2048, layout=layout, buffer_desc=42)
        self.params.plane_params.num_planes = 2
        self.params.plane_params.pitch[0] = self.params.plane_params.pitch[1] = 2048
        self.batch = Surface(batch_size=1, num_filled=1, mem_type=mem_type, surface_list=ctypes.pointer(self.params))

    @property
    def address(self) -> int:
        return ctypes.addressof(self.batch)


class Calls(nvmm.JetsonCalls):
    """Stands in for libnvbufsurface and libcuda: notes the order, and fails where told to."""

    def __init__(self, buffer: Buffer, fails: str = "", frame_type: int = 1) -> None:
        self.buffer, self.fails, self.frame_type = buffer, fails, frame_type
        self.order: list[str] = []

    def _note(self, name: str) -> int:
        self.order.append(name)
        return 999 if name == self.fails else 0

    def map_egl(self, surface: int) -> int:
        assert surface == self.buffer.address
        self.buffer.params.mapped_addr.egl_image = IMAGE
        return self._note("map_egl")

    def unmap_egl(self, surface: int) -> int:
        assert surface == self.buffer.address
        return self._note("unmap_egl")

    def register(self, resource: ctypes.c_void_p, image: int, flags: int) -> int:
        assert (image, flags) == (IMAGE, 1)
        resource.value = RESOURCE
        return self._note("register")

    def frame(self, frame: EglFrame, resource: int) -> int:
        assert resource == RESOURCE
        frame.planes[0], frame.planes[1] = LUMA, CHROMA
        frame.plane_count, frame.frame_type = 2, self.frame_type
        return self._note("frame")

    def unregister(self, resource: int) -> int:
        assert resource == RESOURCE
        return self._note("unregister")


FORWARD, BACK = ["map_egl", "register", "frame"], ["unregister", "unmap_egl"]


def test_structs_have_the_sizes_and_offsets_of_the_headers() -> None:
    """As a C compiler lays nvbufsurface.h and cudaEGL.h out on a 64-bit machine."""
    sizes = [ctypes.sizeof(kind) for kind in (PlaneParams, MappedAddress, SurfaceParams, Surface, EglFrame)]
    assert sizes == [232, 72, 384, 64, 64]
    params = SurfaceParams
    assert [field.offset for field in (params.buffer_desc, params.plane_params, params.mapped_addr)] == [24, 48, 280]
    assert (MappedAddress.egl_image.offset, Surface.surface_list.offset, PlaneParams.pitch.offset) == (32, 24, 36)
    assert (EglFrame.width.offset, EglFrame.frame_type.offset) == (24, 48)


def test_calls_come_in_order_and_are_taken_back_in_reverse() -> None:
    buffer = Buffer()
    calls = Calls(buffer)
    on_gpu = OnGpu(buffer.address, calls)
    assert on_gpu.planes == [(LUMA, 2048), (CHROMA, 2048)]
    assert (on_gpu.width, on_gpu.height) == (1280, 720)
    on_gpu.close()
    on_gpu.close()
    assert calls.order == [*FORWARD, *BACK]


@pytest.mark.parametrize(
    ("fails", "order", "name"),
    [
        ("map_egl", ["map_egl"], "NvBufSurfaceMapEglImage returned 999"),
        ("register", ["map_egl", "register", "unmap_egl"], "cuGraphicsEGLRegisterImage returned 999"),
        ("frame", [*FORWARD, *BACK], "cuGraphicsResourceGetMappedEglFrame returned 999"),
    ],
)
def test_a_call_that_fails_is_named_and_what_was_done_is_undone(fails: str, order: list[str], name: str) -> None:
    buffer = Buffer()
    calls = Calls(buffer, fails)
    with pytest.raises(DeviceError) as caught:
        OnGpu(buffer.address, calls)
    assert caught.value.why == name and calls.order == order


@pytest.mark.parametrize(
    ("options", "frame_type", "why"),
    [
        ({"layout": 1}, 1, "its layout is block linear"),
        ({"mem_type": 2}, 1, "its memory type is 2, with 1 images"),
        ({}, 0, "CUDA sees it as arrays"),
    ],
)
def test_what_kernels_cannot_read_is_refused_with_the_way_out(
    options: dict[str, int], frame_type: int, why: str
) -> None:
    buffer = Buffer(**options)
    calls = Calls(buffer, frame_type=frame_type)
    with pytest.raises(DeviceError) as caught:
        OnGpu(buffer.address, calls)
    assert caught.value.why == why and "nvvidconv bl-output=false" in (caught.value.fix or "")
    assert calls.order in ([], [*FORWARD, *BACK])


def test_without_the_libraries_it_is_said_whose_memory_this_is() -> None:
    with pytest.raises(DeviceError) as caught:
        nvmm.JetsonCalls()
    assert caught.value.what == "there is no NVMM memory here" and "videoconvert" in (caught.value.fix or "")


def test_a_buffer_is_kept_until_the_gpu_has_read_it() -> None:
    gpu = CudaDouble(integrated=True)
    device = CudaDevice(gpu, 0, Counter())
    buffer, owners = Buffer(), [object()]
    calls = Calls(buffer)
    loans = NvmmLoans(device, Counter(), lambda: calls)
    (luma, chroma), lease = loans.take(buffer.address, owners)
    assert [(plane.shape, plane.strides) for plane in (luma, chroma)] == [
        ((720, 1280), (2048, 1)),
        ((360, 640, 2), (2048, 2, 1)),
    ]
    gpu.paused = True
    lease.after(device.stream())
    lease.release()
    loans.settle()
    assert calls.order == FORWARD
    gpu.run_all()
    loans.settle()
    assert calls.order == [*FORWARD, *BACK]
    _, again = loans.take(buffer.address, owners)
    loans.close()
    assert calls.order[-3:] == FORWARD
    again.release()
    assert calls.order[-2:] == BACK


PIPELINE = "nvarguscamerasrc ! nvvidconv bl-output=false ! video/x-raw(memory:NVMM),format=NV12"


def test_a_pipelines_video_memory_is_taken_as_it_is_or_brought_to_the_host() -> None:
    there = gst.with_appsink(PIPELINE, drop=True, sync=False, nvmm=True)
    assert there.endswith('appsink name=edgert max-buffers=2 drop=true sync=false caps="video/x-raw(memory:NVMM),'
                          'format=(string)NV12"')  # fmt: skip
    here = gst.with_appsink(PIPELINE, drop=True, sync=False)
    assert "format=NV12 ! nvvidconv ! appsink" in here and "memory:NVMM)" not in here.partition("appsink")[2]


@pytest.mark.parametrize(
    ("pipeline", "integrated", "why"),
    [
        (PIPELINE, True, ""),
        (PIPELINE, False, "memory of the host"),
        ("nvarguscamerasrc ! nvvidconv ! video/x-raw,format=NV12", True, "does not end in"),
        (f"{PIPELINE} ! appsink name=edgert", True, "its own appsink"),
    ],
)
def test_which_pipelines_stay_on_the_gpu(pipeline: str, integrated: bool, why: str) -> None:
    device: Any = CudaDevice(CudaDouble(integrated=integrated), 0, Counter())
    reason = gst.why_not_on(pipeline, device)
    assert why in reason and bool(why) == bool(reason)
