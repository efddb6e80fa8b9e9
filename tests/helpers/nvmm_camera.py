"""A camera with a bounded pool of video memory in front of edgert's own source and inference, in a process of its own.

    LD_LIBRARY_PATH=<doubles> python -m tests.helpers.nvmm_camera '{"frames": 5000, "pool": 10}'

GStreamer and the calls into NVIDIA's libraries are real, the libraries and the GPU are doubles. Time is that of the
camera: a frame comes when one was taken, an engine is done when its tensors have their next turn, and a camera that
finds no free buffer within ``GRACE_S`` has lost a frame, which ends the run. Prints a JSON object: what was taken, how
often each call was made, and the error, if one came.
"""

import ctypes
import json
import logging
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from edgert.config.stages import SourceStage
from edgert.errors import DeviceError
from edgert.stages.gpu import infer_gpu
from edgert.stages.gpu.gpu_preprocess import hold
from edgert.stages.source import gst
from edgert.stages.source.kinds import source_for
from edgert.stages.source.nvmm_mapping import Surface, SurfaceParams
from tests.helpers import cuda_double
from tests.helpers.gpu_inference import Rig, Session
from tests.helpers.waiting import wait_until

ROWS, GRACE_S = 4, 2.0
LEAD = 2
"""Frames that the camera is ahead: what an appsink that drops old ones takes while nobody pulls."""
PITCH = 256
SOURCE = "gst:appsrc name=camera is-live=true format=time ! video/x-raw(memory:NVMM),format=NV12"
CAPS = "video/x-raw(memory:NVMM),format=NV12,width={},height={},framerate=30/1"


class Camera:
    """Pushes buffers of a pool into an appsrc; ``allocate`` gives addresses where somebody reads the pixels."""

    def __init__(self, source: Any, pool: int, memory: int, allocate: Callable[[int], int] | None = None) -> None:
        self.gst, _ = gst.gstreamer()
        self.source, self.count, self.memory, self.allocate = source, pool, memory, allocate
        self.pushed, self.lost, self.surfaces = 0, 0, list[SurfaceParams]()
        self.pool: Any = None
        self.first = threading.Event()
        source.get_static_pad("src").add_probe(self.gst.PadProbeType.BUFFER, self._passed)

    def _passed(self, *_: Any) -> Any:
        """Drops the first buffer, which a source marks as one, in a copy while others hold it, too: such a buffer would
        come back to its pool with memory that somebody else still has, and would be thrown away."""
        if self.first.is_set():
            return self.gst.PadProbeReturn.OK
        self.first.set()
        return self.gst.PadProbeReturn.DROP

    def open(self, width: int, height: int) -> None:
        """Another size from now on: new caps first, then a new pool, and the old one is given up, as elements do it."""
        self.source.set_property("caps", self.gst.Caps.from_string(CAPS.format(width, height)))
        old, self.pool = self.pool, self.gst.BufferPool.new()
        settings, nbytes = self.pool.get_config(), ctypes.sizeof(Surface)
        self.gst.BufferPool.config_set_params(settings, None, nbytes, self.count, self.count)
        self.pool.set_config(settings)
        self.pool.set_active(True)
        buffers = [self.pool.acquire_buffer(None)[1] for _ in range(self.count)]
        for buffer in buffers:
            params = SurfaceParams(width=width, height=height, pitch=PITCH, color_format=34)
            address = self.allocate(PITCH * height * 3 // 2) if self.allocate else 0x1000 * (1 + len(self.surfaces))
            params.buffer_desc = params.data_ptr = address
            params.plane_params.num_planes = 2
            params.plane_params.pitch[0] = params.plane_params.pitch[1] = PITCH
            params.plane_params.offset[1] = PITCH * height
            self.surfaces.append(params)
            batch = Surface(batch_size=1, num_filled=1, mem_type=self.memory, surface_list=ctypes.pointer(params))
            buffer.fill(0, bytes(batch))
        del buffers, buffer
        if old is not None:
            old.set_active(False)

    def push(self) -> bool:
        asked, until = self.gst.BufferPoolAcquireParams(), time.monotonic() + GRACE_S
        asked.flags = self.gst.BufferPoolAcquireFlags.DONTWAIT
        while True:
            flow, buffer = self.pool.acquire_buffer(asked)
            if flow == self.gst.FlowReturn.OK:
                break
            if time.monotonic() > until:
                self.lost += 1
                return False
            time.sleep(0.001)
        buffer.offset, buffer.pts = self.pushed, self.pushed * 33_333_333
        self.source.emit("push-buffer", buffer)
        self.pushed += 1
        return True


def pipelines() -> list[Any]:
    """The appsrc of every GStreamer pipeline that edgert makes from now on."""
    made = list[Any]()

    class Watched(gst.Pipeline):
        def __init__(self, *arguments: Any, **settings: Any) -> None:
            super().__init__(*arguments, **settings)
            made.append(self._pipeline.get_by_name("camera"))

    gst.Pipeline = Watched  # type: ignore[assignment,misc]
    return made


def started(
    made: list[Any], pool: int, memory: int, width: int, height: int, allocate: Callable[[int], int] | None = None
) -> tuple[threading.Thread, list[Camera]]:
    """What starts the camera of the first pipeline and brings it ahead; and where that camera will be."""
    cameras = list[Camera]()

    def start() -> None:
        wait_until(lambda: made)
        cameras.append(Camera(made[0], pool, memory, allocate))
        cameras[0].open(width, height)
        made[0].emit("push-buffer", cameras[0].gst.Buffer.new_allocate(None, 1, None))
        cameras[0].first.wait()
        all(cameras[0].push() for _ in range(LEAD))

    starter = threading.Thread(target=start, daemon=True)  # else a source that died is waited for
    starter.start()
    return starter, cameras


def watched(sessions: Sequence[Session], waits_for_engine: bool) -> None:
    """Has the GPU do what is in front of an engine at once, and an engine's run only when somebody waits for it."""
    for session in sessions:

        def enqueue(rows: int | None = None, session: Any = session, run: Any = session.enqueue) -> None:
            session.stream.raw.run()
            run(rows)

        session.enqueue = enqueue  # type: ignore[method-assign]
    synchronize = cuda_double._Event.synchronize

    def patient(self: Any) -> None:
        while threading.current_thread().name.endswith("-nvmm") and not self._passed:
            time.sleep(0.001)  # a real GPU is not made to work by somebody who waits
        synchronize(self)

    cuda_double._Event.synchronize = patient  # type: ignore[method-assign]
    if waits_for_engine:
        early = infer_gpu.InferenceSlot.enqueue

        def late(self: Any, frames: Any, *options: Any) -> None:
            early(self, frames, *options)
            hold(frames, self.session.stream)

        infer_gpu.InferenceSlot.enqueue = late  # type: ignore[assignment, method-assign]


def run(
    frames: int,
    pool: int,
    memory: int = 4,
    waits_for_engine: bool = False,
    sizes: tuple[tuple[int, int], ...] = ((64, 48),),
) -> dict[str, Any]:
    made = pipelines()
    gpu = cuda_double.CudaDouble(integrated=True)
    rig = Rig(rows=ROWS, gpu=gpu, beside=False)
    rig.inference.warm_up()
    watched(rig.sessions, waits_for_engine)
    gpu.paused = True
    config = SourceStage.model_validate({"source": SOURCE, "timeout": "5s", "reconnect": False})
    source: Any = source_for("cam", config)
    assert source.on_gpu(rig.device) == ""
    stop = threading.Event()
    starter, cameras = started(made, pool, memory, *sizes[0])
    total, taken, gaps, error, colors = frames * len(sizes), 0, 0, "", set[str]()
    geometries = list[Any]()
    try:
        for frame in source.frames(stop):
            starter.join()
            gaps += frame.index - taken - gaps
            taken += 1
            colors.add(f"{frame.color.matrix} {'full' if frame.color.full_range else 'limited'}")
            geometries.append(rig.inference.fill(frame, len(geometries)))
            frame.lease.release()
            del frame
            if len(geometries) == ROWS:
                with rig.device:
                    rig.sessions[rig.inference._turn].stream.raw.run()
                rig.inference.submit_batch(geometries)
                geometries.clear()
            camera = cameras[0]
            if taken == total:
                break
            if camera.pushed < total:
                if camera.pushed % frames == 0:
                    camera.open(*sizes[camera.pushed // frames])
                if not camera.push():
                    break
    except DeviceError as failed:
        error = str(failed)
    starter.join()
    stop.set()
    with rig.device:
        gpu.run_all()
    gpu.paused = False
    rig.close()
    reader = source._reader
    source.close()
    reader.join(10)
    return {
        "taken": taken,
        "lost": cameras[0].lost + gaps,
        "error": error,
        "colors": sorted(colors),
        "ended": not reader.is_alive(),
        "calls": {**counts("libnvbufsurface.so.1.0.0"), **counts("libcuda.so.1")},
    }


def counts(library: str) -> dict[str, int]:
    names = (
        *(f"NvBufSurface{name}" for name in ("MapEglImage", "UnMapEglImage", "MapCudaBuffer", "UnMapCudaBuffer")),
        *(f"cuGraphics{name}" for name in ("EGLRegisterImage", "UnregisterResource", "ResourceGetMappedEglFrame")),
        *(f"cuGraphics{name}" for name in ("MapResources", "UnmapResources")),
    )
    opened = ctypes.CDLL(library)
    found = {}
    for name in names:
        try:
            found[name] = ctypes.c_int.in_dll(opened, f"count_{name}").value
        except ValueError:
            continue
    return found


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(name)s: %(message)s")
    print(json.dumps(run(**json.loads(sys.argv[1]))))
