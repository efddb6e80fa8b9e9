"""A Jetson's video memory mapped into CUDA: structs against the header, calls against a stand-in. No board was used."""

import ctypes
from typing import Any
from weakref import ref

import pytest

from edgert.errors import DeviceError
from edgert.memory import Counter
from edgert.memory.cuda import CudaDevice
from edgert.runtime.frame import Color
from edgert.stages.source import gst, nvmm, nvmm_mapping
from edgert.stages.source.nvmm import NvmmLoans
from edgert.stages.source.nvmm_mapping import (
    Access,
    CreateParams,
    CudaBuffer,
    EglFrame,
    MappedAddress,
    MappedSurface,
    PlaneParams,
    Surface,
    SurfaceParams,
    map_surface,
)
from tests.helpers.cuda_double import CudaDouble
from tests.helpers.errors import Exactly, raises
from tests.helpers.waiting import wait_until

RESOURCE, IMAGE = 0x7E50, 0x1A6E
LUMA, CHROMA = 0x10_0000, 0x20_0000


class Buffer:
    """An NvBufSurface as a camera gives it."""

    def __init__(
        self, width: int = 1280, height: int = 720, layout: int = 0, mem_type: int = 4, color_format: int = 0
    ) -> None:
        self.params = SurfaceParams(width=width, height=height, pitch=2048, layout=layout, buffer_desc=42)
        self.params.color_format = color_format
        self.params.plane_params.num_planes = 2
        self.params.plane_params.pitch[0] = self.params.plane_params.pitch[1] = 2048
        self.params.plane_params.offset[1] = CHROMA - LUMA
        self.batch = Surface(batch_size=1, num_filled=1, mem_type=mem_type, surface_list=ctypes.pointer(self.params))

    @property
    def address(self) -> int:
        return ctypes.addressof(self.batch)


class Calls(nvmm_mapping.JetsonCalls):
    """Stands in for libnvbufsurface and libcuda: notes the order, and fails where told to."""

    def __init__(self, buffer: Buffer, fails: str = "", frame_type: int = 1, cuda: CudaBuffer | None = None) -> None:
        self.buffer, self.fails, self.frame_type = buffer, fails, frame_type
        self.cuda, self.has_cuda_buffers = cuda, cuda is not None
        self.order: list[str] = []

    def _note(self, name: str) -> int:
        self.order.append(name)
        return 999 if name == self.fails else 0

    def map_cuda(self, surface: int) -> int:
        if self.cuda is not None and self.fails != "map_cuda":
            self.buffer.params.mapped_addr.cuda_ptr = ctypes.pointer(self.cuda)
        return self._note("map_cuda")

    def unmap_cuda(self, surface: int) -> int:
        return self._note("unmap_cuda")

    def is_on_device(self, address: int) -> bool:
        return address >= LUMA

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
    kinds = PlaneParams, MappedAddress, SurfaceParams, Surface, EglFrame, CreateParams
    assert [ctypes.sizeof(kind) for kind in kinds] == [232, 72, 384, 64, 64, 32]
    assert (CreateParams.color_format.offset, CreateParams.mem_type.offset) == (20, 28)
    params = SurfaceParams
    assert [field.offset for field in (params.buffer_desc, params.plane_params, params.mapped_addr)] == [24, 48, 280]
    assert (MappedAddress.egl_image.offset, Surface.surface_list.offset, PlaneParams.pitch.offset) == (32, 24, 36)
    assert (params.data_ptr.offset, MappedAddress.cuda_ptr.offset, CudaBuffer.words.offset) == (40, 48, 0)
    assert (EglFrame.width.offset, EglFrame.frame_type.offset) == (24, 48)


def test_calls_come_in_order_and_are_taken_back_in_reverse() -> None:
    buffer = Buffer()
    calls = Calls(buffer)
    mapped = MappedSurface(buffer.address, calls)
    assert mapped.planes == [(LUMA, 2048), (CHROMA, 2048)]
    assert (mapped.width, mapped.height) == (1280, 720)
    mapped.close()
    mapped.close()
    assert calls.order == [*FORWARD, *BACK]


@pytest.mark.parametrize(
    ("fails", "order", "name"),
    [
        ("map_egl", ["map_egl"], "NvBufSurfaceMapEglImage returned 999"),
        ("register", ["map_egl", "register", "unmap_egl"], "cuGraphicsEGLRegisterImage returned 999"),
        ("frame", [*FORWARD, *BACK], "cuGraphicsResourceGetMappedEglFrame returned 999"),
    ],
)
def test_a_call_that_fails_is_named_and_what_was_done_is_undone(
    fails: str, order: list[str], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(variable, raising=False)
    buffer = Buffer()
    calls = Calls(buffer, fails)
    with pytest.raises(DeviceError) as caught:
        MappedSurface(buffer.address, calls)
    assert caught.value.why == name and calls.order == order
    assert "unset" not in caught.value.fix and "bl-output" not in caught.value.fix


def test_a_display_is_named_where_egl_fails_with_one_and_nowhere_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISPLAY", "localhost:10.0")
    monkeypatch.setenv("WAYLAND_DISPLAY", "wayland-0")
    buffer = Buffer()
    with pytest.raises(DeviceError) as caught:
        MappedSurface(buffer.address, Calls(buffer, "map_egl"))
    assert "returned 999 with DISPLAY=localhost:10.0 and WAYLAND_DISPLAY=wayland-0" in caught.value.why
    assert "unset DISPLAY WAYLAND_DISPLAY" in caught.value.fix and "ssh -X" in caught.value.fix
    with pytest.raises(DeviceError) as caught:
        MappedSurface(buffer.address, Calls(buffer, "register"))
    assert caught.value.why == "cuGraphicsEGLRegisterImage returned 999" and "unset" not in caught.value.fix


def test_every_step_is_undone_also_behind_one_that_fails() -> None:
    buffer = Buffer()
    calls = Calls(buffer)
    image = MappedSurface(buffer.address, calls)
    calls.fails = "unregister"
    with pytest.raises(DeviceError) as caught:
        image.close()
    assert caught.value.why == "unregister returned 999" and calls.order == [*FORWARD, *BACK]


NO_CUDA = "this libnvbufsurface has no NvBufSurfaceMapCudaBuffer"
REFUSED = "NvBufSurfaceMapCudaBuffer returned 999"
BOTH_NULL = "its CUDA buffer is null"
NO_ADDRESS = "its CUDA buffer holds no address of the device"
HANDLE = 0xE47


def buffer_of(*words: int | None) -> CudaBuffer:
    """An NvBufSurfaceCudaBuffer, as far as it is read."""
    return CudaBuffer((ctypes.c_void_p * 2)(*words))


@pytest.mark.parametrize(
    ("mem_type", "cuda", "fails", "access", "order"),
    [
        (2, None, "", Access("device address"), []),
        (4, buffer_of(LUMA - 64, LUMA), "", Access("CUDA buffer"), ["map_cuda"]),
        (4, buffer_of(LUMA, HANDLE), "", Access("CUDA buffer"), ["map_cuda"]),
        (4, buffer_of(HANDLE, HANDLE), "", Access("EGL image", NO_ADDRESS), ["map_cuda", "unmap_cuda", *FORWARD]),
        (4, None, "", Access("EGL image", NO_CUDA), FORWARD),
        (4, buffer_of(1, LUMA), "map_cuda", Access("EGL image", REFUSED), ["map_cuda", *FORWARD]),
        (4, buffer_of(None, None), "", Access("EGL image", BOTH_NULL), ["map_cuda", "unmap_cuda", *FORWARD]),
    ],
    ids=[
        "Thor's decoder",
        "Thor's camera",
        "data first",
        "two handles",
        "JetPack 6",
        "Orin with JetPack 7",
        "no address",
    ],
)
def test_the_way_to_the_pixels_is_that_of_the_memory_and_of_the_library(
    mem_type: int, cuda: CudaBuffer | None, fails: str, access: Access, order: list[str]
) -> None:
    buffer = Buffer(mem_type=mem_type)
    buffer.params.data_ptr = LUMA
    calls = Calls(buffer, fails, cuda=cuda)
    image, found = map_surface(buffer.address, calls)
    assert image.planes == [(LUMA, 2048), (CHROMA, 2048)]
    assert (found, calls.order) == (access, order)
    image.close()
    again, same = map_surface(buffer.address, calls, found)
    again.close()
    assert same == found and calls.order.count("map_cuda") == order.count("map_cuda") + (access.way == "CUDA buffer")


def test_where_every_way_fails_both_causes_are_told() -> None:
    buffer = Buffer()
    calls = Calls(buffer, "register", cuda=buffer_of(None, None))
    with raises(DeviceError, why=Exactly(f"cuGraphicsEGLRegisterImage returned 999; before that, {BOTH_NULL}")):
        map_surface(buffer.address, calls)


@pytest.mark.parametrize(
    ("color_format", "color"),
    [
        (6, Color("bt601", False)),
        (7, Color("bt601", True)),
        (33, Color("bt709", False)),
        (34, Color("bt709", True)),
        (0, None),
    ],
)
def test_colors_are_those_of_the_buffer(color_format: int, color: Color | None) -> None:
    buffer = Buffer(color_format=color_format)
    assert MappedSurface(buffer.address, Calls(buffer)).color == color


@pytest.mark.parametrize(
    ("options", "frame_type", "why"),
    [
        ({"layout": 1}, 1, "its layout is block linear"),
        ({"mem_type": 2}, 1, "its device address is null"),
        ({"mem_type": 5}, 1, "its memory type is 5 (handle), with 1 images"),
        ({"mem_type": 9}, 1, "its memory type is 9, with 1 images"),
        ({}, 0, "CUDA sees it as arrays"),
    ],
)
def test_what_kernels_cannot_read_is_refused_with_the_way_out(
    options: dict[str, int], frame_type: int, why: str
) -> None:
    buffer = Buffer(**options)
    calls = Calls(buffer, frame_type=frame_type)
    with raises(DeviceError, why=Exactly(why), fix="nvvidconv"):
        map_surface(buffer.address, calls)
    assert calls.order in ([], [*FORWARD, *BACK])


def test_without_the_libraries_it_is_said_whose_memory_this_is() -> None:
    with raises(DeviceError, what=Exactly("there is no NVMM memory here"), fix="videoconvert"):
        nvmm_mapping.JetsonCalls()


class Rig:
    """Loans of one buffer on a GPU that is this process's memory."""

    def __init__(self) -> None:
        self.gpu = CudaDouble(integrated=True)
        self.device = CudaDevice(self.gpu, 0, Counter())
        self.buffer = Buffer(color_format=34)
        self.calls = Calls(self.buffer)
        self.loans = NvmmLoans(self.device, Counter(), "cam", lambda: self.calls)

    def take(self, owner: object, keep: bool = True) -> Any:
        return self.loans.take(self.buffer.address, owner, keep)


class Owner:
    """A GstBuffer."""


def test_a_buffer_is_mapped_once_and_kept_until_the_gpu_has_read_it(caplog: pytest.LogCaptureFixture) -> None:
    rig, owner = Rig(), Owner()
    there = ref(owner)
    with caplog.at_level("INFO", nvmm.log.name):
        (luma, chroma), lease, color = rig.take(owner)
    del owner
    assert [(plane.shape, plane.strides) for plane in (luma, chroma)] == [
        ((720, 1280), (2048, 1)),
        ((360, 640, 2), (2048, 2, 1)),
    ]
    assert color == Color("bt709", True)
    rig.gpu.paused = True
    lease.after(rig.device.stream())
    lease.release()
    rig.loans.reclaim()
    assert there() is not None
    rig.gpu.run_all()
    rig.loans.reclaim()
    assert there() is None and rig.calls.order == FORWARD
    with caplog.at_level("INFO", nvmm.log.name):
        _, again, _ = rig.take(Owner())
    rig.loans.close()
    assert rig.calls.order == FORWARD  # it is lent still
    again.release()
    assert rig.calls.order == [*FORWARD, *BACK]
    assert [record.getMessage() for record in caplog.records] == [
        f"cam: CUDA reads video memory in place, by EGL image ({NO_CUDA})"
    ]


def test_a_buffer_that_is_given_out_twice_stays_mapped_for_both() -> None:
    rig = Rig()
    (_, first, _), (_, second, _) = rig.take(Owner()), rig.take(Owner())
    rig.loans.forget()
    first.release()
    rig.loans.reclaim()
    assert rig.calls.order == FORWARD
    second.release()
    rig.loans.reclaim()
    assert rig.calls.order == [*FORWARD, *BACK]


def test_a_buffer_of_a_pool_that_has_gone_is_undone_before_it_goes() -> None:
    rig = Rig()
    _, lease, _ = rig.take(Owner(), keep=False)
    lease.release()
    rig.loans.reclaim()
    assert rig.calls.order == [*FORWARD, *BACK]


def test_a_mapping_that_is_not_let_go_is_a_warning_and_the_rest_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    _, lease, _ = rig.take(Owner())
    lease.release()
    rig.calls.fails = "unmap_egl"
    rig.loans.close()
    assert rig.calls.order == [*FORWARD, *BACK] and "cam: an image in NVMM memory cannot be unmapped" in caplog.text


def test_buffers_go_back_while_nobody_asks_and_a_failure_reaches_the_reader() -> None:
    rig, owner = Rig(), Owner()
    there = ref(owner)
    _, lease, _ = rig.take(owner)
    del owner
    rig.loans.start()
    lease.after(rig.device.stream())
    lease.release()
    wait_until(lambda: there() is None)
    rig.loans.check()
    _, lease, _ = rig.take(Owner())
    rig.gpu.broken["event"] = "an illegal memory access was encountered"
    lease.after(rig.device.stream())
    lease.release()
    wait_until(lambda: rig.loans._failure is not None)
    with pytest.raises(DeviceError, match="GPU is lost"):
        rig.loans.check()


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
        (PIPELINE, False, "in host memory"),
        ("nvarguscamerasrc ! nvvidconv ! video/x-raw,format=NV12", True, "does not end in"),
        (f"{PIPELINE} ! appsink name=edgert", True, "its own appsink"),
    ],
)
def test_which_pipelines_stay_on_the_gpu(pipeline: str, integrated: bool, why: str) -> None:
    device: Any = CudaDevice(CudaDouble(integrated=integrated), 0, Counter())
    reason = gst.why_not_on(pipeline, device)
    assert why in reason and bool(why) == bool(reason)
