"""One run of a session as a pipeline does it: on a GPU from a recording, where it can be recorded."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from edgert.backend import Session
from edgert.backend.gpu import GpuSession
from edgert.errors import BuildError, DeviceError
from edgert.memory.cuda import Graph

Run = Callable[[], object]
log = logging.getLogger("edgert.tune")


def one_run(session: Session, batch: int) -> Run:
    """What runs a session once, from what its inputs hold in host memory to outputs in host memory; blocks.

    Args:
        batch: frames in it, where that is open.
    """
    if isinstance(session, GpuSession) and session.recordable:
        return _recorded(session, batch)
    return partial(session.run, batch)


def _recorded(session: GpuSession, rows: int) -> Run:
    session.run(rows)  # the first run of a size may allocate, which no recording can hold
    try:
        graph = session.device.capture(session.stream, partial(session.enqueue, rows))
    except (BuildError, DeviceError) as error:
        log.info("no CUDA graph: %s (%s)", error.what, error.why)
        return partial(session.run, rows)
    return partial(_replay, session, graph)


def _replay(session: GpuSession, graph: Graph) -> None:
    for tensor in session.inputs_on_gpu.values():
        tensor.block.upload(session.stream)
    graph()
    for tensor in session.outputs_on_gpu:
        tensor.block.download(session.stream)
    session.stream.synchronize()
