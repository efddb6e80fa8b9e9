"""A Jetson's video memory through real GStreamer and real calls, with doubles of NVIDIA's libraries written in C.

What a board's camera does is a pool with as many buffers as the written pipeline asks for. No board was used.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from edgert.stages.source.gst_pipelines import OUTPUT_BUFFERS
from tests.helpers import nvmm_camera
from tests.helpers.command import with_doubles

pytest.importorskip("gi", reason="PyGObject (gi) is not installed: sudo apt install python3-gi gir1.2-gstreamer-1.0")
pytestmark = pytest.mark.skipif(not shutil.which("gcc"), reason="there is no C compiler (gcc)")

DOUBLE = Path(nvmm_camera.__file__).with_name("nvmm_double.c")
EGL = "NvBufSurfaceMapEglImage", "cuGraphicsEGLRegisterImage", "cuGraphicsResourceGetMappedEglFrame"
EGL_BACK = "NvBufSurfaceUnMapEglImage", "cuGraphicsUnregisterResource"


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    plain = tmp_path_factory.mktemp("libraries")
    built: tuple[tuple[Path, str, list[str]], ...] = (
        (plain, "libnvbufsurface.so.1.0.0", ["-DSURFACE"]),
        (plain, "libcuda.so.1", []),
        (plain / "cuda", "libnvbufsurface.so.1.0.0", ["-DSURFACE", "-DCUDA_BUFFERS"]),
        (plain / "cuda", "libcuda.so.1", []),
        (plain / "data-first", "libnvbufsurface.so.1.0.0", ["-DSURFACE", "-DCUDA_BUFFERS", "-DDATA_FIRST"]),
        (plain / "data-first", "libcuda.so.1", []),
    )
    for folder, name, options in built:
        folder.mkdir(exist_ok=True)
        subprocess.run(["gcc", "-shared", "-fPIC", *options, "-o", folder / name, DOUBLE], check=True)
    return plain


def camera(
    libraries: Path, fails: str = "", display: str = "", program: str = "nvmm_camera", **settings: object
) -> tuple[dict[str, Any], str]:
    """What came of a run, and what was logged."""
    environment = {"NVMM_FAILS": fails, **({"DISPLAY": display} if display else {})}
    found, log = with_doubles(libraries, environment, program, json.dumps({"pool": OUTPUT_BUFFERS, **settings}))
    calls = found["calls"]
    assert found["ended"] and calls["cuGraphicsMapResources"] == calls["cuGraphicsUnmapResources"] == 0
    return found, log


def test_of_5000_frames_none_is_lost_and_each_buffer_is_mapped_once(libraries: Path) -> None:
    found, log = camera(libraries, frames=5000)
    assert (found["taken"], found["lost"], found["error"]) == (5000, 0, "")
    assert {found["calls"][name] for name in (*EGL, *EGL_BACK)} == {OUTPUT_BUFFERS}
    assert found["colors"] == ["bt709 full"]
    assert log.count("CUDA reads video memory in place") == 1


@pytest.mark.parametrize(
    "settings", [{"pool": 4}, {"waits_for_engine": True}], ids=["the element's own 4 buffers", "held by the engine"]
)
def test_with_fewer_buffers_or_longer_leases_frames_are_lost(libraries: Path, settings: dict[str, object]) -> None:
    found, _ = camera(libraries, frames=5000, **settings)
    assert found["lost"] and found["taken"] < 20 and not found["error"], found
    assert len({found["calls"][name] for name in (*EGL, *EGL_BACK)}) == 1, "everything is undone all the same"


@pytest.mark.parametrize("slow", [0, 20], ids=["a sink that keeps up", "a sink for one frame in twenty"])
def test_a_whole_pipeline_loses_none_of_5000_frames_however_slow_its_sink_is(libraries: Path, slow: int) -> None:
    found, _ = camera(libraries, program="nvmm_pipeline", frames=5000, slow=slow)
    assert (found["taken"], found["lost"], found["frames"]) == (5000, 0, {"cam": "on the GPU"})
    assert found["sunk"] + found["dropped"] == 5000 and (found["sunk"] >= 200 if slow else not found["dropped"])
    assert {found["calls"][name] for name in (*EGL, *EGL_BACK)} == {OUTPUT_BUFFERS}


def test_own_code_beside_the_model_sees_every_pixel_and_costs_no_frame_however_slow_it_is(libraries: Path) -> None:
    found, _ = camera(libraries, program="nvmm_pipeline", frames=2000, looks=True)
    assert (found["taken"], found["lost"]) == (2000, 0)
    assert found["looked"] == found["sunk"] >= 100 and "own code sees them at 'own'" in found["frames"]["cam"]
    assert {found["calls"][name] for name in (*EGL, *EGL_BACK)} == {OUTPUT_BUFFERS}


@pytest.mark.parametrize(
    "settings", [{"pool": 4}, {"waits_for_engine": True}], ids=["the element's own 4 buffers", "held by the engine"]
)
def test_a_whole_pipeline_with_fewer_buffers_or_longer_leases_loses_frames(
    libraries: Path, settings: dict[str, object]
) -> None:
    found, _ = camera(libraries, program="nvmm_pipeline", frames=5000, **settings)
    assert found["lost"] and found["taken"] < 500, found  # how many come before depends on when buffers come back
    assert len({found["calls"][name] for name in (*EGL, *EGL_BACK)}) == 1, "everything is undone all the same"


def test_a_whole_pipeline_with_leases_held_to_the_sink_loses_frames(libraries: Path) -> None:
    """Soon after the sink had as many as the camera has buffers; how many come meanwhile is what the sink waits for,
    as a batch passes as one, and those that are dropped give their buffers back."""
    found, _ = camera(libraries, program="nvmm_pipeline", frames=5000, waits_for_sink=True)
    assert found["lost"] and found["sunk"] < 20, found
    assert len({found["calls"][name] for name in (*EGL, *EGL_BACK)}) == 1, "everything is undone all the same"


def test_new_caps_undo_what_the_old_pool_had(libraries: Path) -> None:
    found, _ = camera(libraries, frames=200, sizes=((64, 48), (128, 96), (64, 48)))
    assert (found["taken"], found["lost"], found["error"]) == (600, 0, "")
    calls = found["calls"]
    # A frame of the old size that still waits when the new caps come is mapped once more, for itself.
    assert 3 * OUTPUT_BUFFERS <= calls[EGL[0]] <= 3 * OUTPUT_BUFFERS + 2 * nvmm_camera.LEAD
    assert {calls[name] for name in (*EGL, *EGL_BACK)} == {calls[EGL[0]]}


@pytest.mark.parametrize(
    ("folder", "fails", "memory", "way", "calls"),
    [
        ("", "", 2, "by device address", {"NvBufSurfaceMapEglImage": 0}),
        ("cuda", "", 2, "by device address", {"NvBufSurfaceMapCudaBuffer": 0, "NvBufSurfaceMapEglImage": 0}),
        (
            "cuda",
            "",
            4,
            "by CUDA buffer",
            {
                "NvBufSurfaceMapCudaBuffer": OUTPUT_BUFFERS,
                "NvBufSurfaceUnMapCudaBuffer": OUTPUT_BUFFERS,
                "NvBufSurfaceMapEglImage": 0,
            },
        ),
        (
            "cuda",
            "cuPointerGetAttribute:0",
            4,
            "by EGL image (its CUDA buffer holds no address of the device)",
            {
                "NvBufSurfaceMapCudaBuffer": 1,
                "NvBufSurfaceUnMapCudaBuffer": 1,
                "NvBufSurfaceMapEglImage": OUTPUT_BUFFERS,
            },
        ),
        ("data-first", "", 4, "by CUDA buffer", {"NvBufSurfaceMapCudaBuffer": OUTPUT_BUFFERS}),
        (
            "cuda",
            "NvBufSurfaceMapCudaBuffer:0",
            4,
            "by EGL image (NvBufSurfaceMapCudaBuffer returned -1)",
            {"NvBufSurfaceMapCudaBuffer": 1, **dict.fromkeys((*EGL, *EGL_BACK), OUTPUT_BUFFERS)},
        ),
    ],
    ids=[
        "CUDA device",
        "CUDA device, JetPack 7",
        "CUDA buffer",
        "CUDA buffer without an address",
        "CUDA buffer, data first",
        "CUDA buffer refused",
    ],
)
def test_the_way_is_chosen_once_and_said(
    libraries: Path, folder: str, fails: str, memory: int, way: str, calls: dict[str, int]
) -> None:
    found, log = camera(libraries / folder, fails, frames=100, memory=memory)
    assert (found["taken"], found["lost"], found["error"]) == (100, 0, "")
    assert f"cam: CUDA reads video memory in place, {way}\n" in log
    assert {name: found["calls"][name] for name in calls} == calls


@pytest.mark.parametrize(
    ("fails", "memory", "display", "texts", "undone"),
    [
        ("NvBufSurfaceMapEglImage:3", 4, "", ["NvBufSurfaceMapEglImage returned -1", "GST_DEBUG=2"], (2, 2)),
        ("NvBufSurfaceMapEglImage:0", 4, "localhost:10.0", ["with DISPLAY=localhost:10.0", "unset DISPLAY"], (0, 0)),
        ("cuGraphicsEGLRegisterImage:2", 4, "localhost:10.0", ["cuGraphicsEGLRegisterImage returned 999"], (2, 1)),
        ("cuGraphicsResourceGetMappedEglFrame:1", 4, "", ["GetMappedEglFrame returned 400"], (1, 1)),
        ("", 5, "", ["its memory type is 5 (handle)"], (0, 0)),
    ],
    ids=["EGL", "EGL with a display", "registering", "no frame", "unknown memory"],
)
def test_what_fails_is_named_and_everything_before_it_is_undone(
    libraries: Path, fails: str, memory: int, display: str, texts: list[str], undone: tuple[int, int]
) -> None:
    found, _ = camera(libraries, fails, display, frames=100, memory=memory)
    assert all(text in found["error"] for text in texts), found["error"]
    assert tuple(found["calls"][name] for name in EGL_BACK) == undone


def test_what_cannot_be_undone_is_a_warning_and_the_rest_is_undone(libraries: Path) -> None:
    found, log = camera(libraries, "cuGraphicsUnregisterResource:1", frames=100)
    assert (found["taken"], found["lost"], found["error"]) == (100, 0, "")
    assert log.count("cam: an image in NVMM memory cannot be unmapped") == 1
    assert found["calls"]["cuGraphicsUnregisterResource"] == OUTPUT_BUFFERS
