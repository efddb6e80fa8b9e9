"""The camera of ``nvmm_camera`` in front of a whole pipeline: its model on the GPU, and a sink that is far too slow.

    LD_LIBRARY_PATH=<doubles> python -m tests.helpers.nvmm_pipeline '{"frames": 5000, "pool": 10}'

The camera's next frame comes when edgert's source has given one out, and the sink takes the next result when so many
more frames came: what it is too slow for must be dropped by edgert's queues, where it is counted, and never for want of
a buffer. Prints a JSON object, as ``nvmm_camera`` does.
"""

import json
import logging
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np

from edgert.assemble import Environment, gpu_models
from edgert.memory import Counter
from edgert.memory.cuda import Block, CudaDevice
from edgert.pipeline import pipeline_in
from edgert.runtime import Frame, Result, graph
from edgert.stages.sink.results import NullSink
from tests.helpers import nvmm_camera
from tests.helpers.cuda_double import CudaDouble
from tests.helpers.gpu_inference import no_kernels
from tests.helpers.gpu_pipeline import MODEL, Engines, GpuEngine
from tests.helpers.small_pipeline import small_pipeline
from tests.helpers.waiting import wait_until

TEXT = """
name: board
models: {{parts: {model}}}
stages:
  cam: {{source: "{source}", timeout: 3s, reconnect: false}}
  find: {{infer: parts, from: cam, drop: {drop}{batch}}}
{own}  out: {{sink: "null", from: {last}}}
"""
SEEN = list[bool]()


def look(result: Result) -> Result:
    SEEN.append(all(isinstance(plane, np.ndarray) and not plane.any() for plane in result.frame.planes))
    return result


def run(
    frames: int,
    pool: int,
    memory: int = 4,
    waits_for_engine: bool = False,
    waits_for_sink: bool = False,
    slow: int = 20,
    looks: bool = False,
) -> dict[str, Any]:
    """``frames`` frames, or as many as come until one is lost.

    Args:
        waits_for_engine, waits_for_sink: leases last until the engine has run, or to the end of the pipeline.
        slow: frames that come while the sink is at one result; 0: none, and every frame goes through the model.
        looks: whether code of one's own, before the sink and as slow, looks at the frames on the host.
    """
    made, gpu = nvmm_camera.pipelines(), CudaDouble(integrated=True)
    device = CudaDevice(gpu, 0, Counter())
    vars(gpu_models)["Kernels"] = no_kernels
    if waits_for_sink:
        vars(graph)["release_pixels"] = lambda tasks: None
    with tempfile.TemporaryDirectory() as folder:
        drop = "oldest" if slow else "never"
        batch = "" if looks else f", batch: {{max: {nvmm_camera.ROWS}, wait: 60s}}"
        own = "  own: {python: tests.helpers.nvmm_pipeline:look, from: find}\n" if looks else ""
        last = "own" if looks else "find"
        text = TEXT.format(model=MODEL, source=nvmm_camera.SOURCE, drop=drop, batch=batch, own=own, last=last)
        path = small_pipeline(Path(folder), text, ("n", 3, 16, 16), photos=0)
        pipeline = pipeline_in(Environment(engines=Engines(device)), path)
    source: Any = pipeline._assembly.task("cam").stage
    engine = cast("GpuEngine", pipeline._assembly.engines["parts"])
    nvmm_camera.watched(engine.sessions, waits_for_engine)
    gpu.paused = True
    blocks = list[Block]()

    def allocate(nbytes: int) -> int:
        blocks.append(device.device_block(nbytes))
        return blocks[-1].address

    starter, cameras = nvmm_camera.started(made, pool, memory, 64, 48, allocate)
    came, taken, sunk = threading.Condition(), 0, 0
    gaps, has_ended, give = 0, False, source.frames

    def given(stop: threading.Event) -> Iterator[Frame]:
        nonlocal taken, gaps, has_ended
        wait_until(lambda: pipeline._assembly.task("find").meter.status.was_opened)  # the first frames would be dropped
        for frame in give(stop):
            starter.join()
            gaps, taken = frame.index - taken, taken + 1
            yield frame
            del frame
            with came:
                came.notify_all()
            if taken == frames or (cameras[0].pushed < frames and not cameras[0].push()):
                break
        with came:
            has_ended = True
            came.notify_all()

    def take(self: NullSink, result: Result) -> None:
        nonlocal sunk
        sunk, until = sunk + 1, taken + slow
        with came:
            came.wait_for(lambda: taken >= until or has_ended)

    source.frames, NullSink.process = given, take  # type: ignore[method-assign]
    with pipeline:
        summary = pipeline.run()
        gpu.paused = False
    reader = source._reader
    reader.join(10)
    return {
        "taken": taken,
        "lost": cameras[0].lost + gaps,
        "dropped": summary.dropped,
        "sunk": sunk,
        "looked": sum(SEEN),
        "ended": not reader.is_alive(),
        "frames": summary.notes.frames,
        "calls": {**nvmm_camera.counts("libnvbufsurface.so.1.0.0"), **nvmm_camera.counts("libcuda.so.1")},
    }


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(name)s: %(message)s")
    from tests.helpers import nvmm_pipeline  # the module that the pipeline's own code comes from

    print(json.dumps(nvmm_pipeline.run(**json.loads(sys.argv[1]))))
