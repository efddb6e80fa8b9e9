"""One run as a pipeline does it, on a processor and on a GPU that is played."""

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
import pytest

from edgert.backend.base import Array
from edgert.backend.ort.cuda import OrtCudaEngine
from edgert.backend.ort.runtime import open_session, session_settings
from edgert.errors import DeviceError
from edgert.graph import to_bytes
from edgert.memory.cuda import CudaDevice
from edgert.tuner.rounds import single_run
from tests.helpers import models
from tests.helpers.cuda_double import CudaDouble
from tests.helpers.ort_double import CudaLike


class Counted:
    """A session on a processor."""

    def __init__(self) -> None:
        self.inputs: Mapping[str, Array] = {}
        self.rows: list[int | None] = []

    def run(self, rows: int | None = None) -> Sequence[Array]:
        self.rows.append(rows)
        return []


def on_gpu() -> tuple[OrtCudaEngine, CudaLike]:
    model = models.conv()
    session = CudaLike(open_session(to_bytes(model), session_settings(1), model))
    device = CudaDevice(CudaDouble(memory_bytes=2**24), 0)
    return OrtCudaEngine(session, {"default": {}}, "m.onnx", {}, device, device.stream()), session


def test_as_many_rows_as_the_batch() -> None:
    session = Counted()
    single_run(session, 4)()
    assert session.rows == [4]


def test_a_recording_is_replayed_between_host_and_host(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, ort = on_gpu()
    session = engine.session()
    captured: list[partial[None]] = []

    def capture(stream: object, work: partial[None]) -> partial[None]:
        captured.append(work)
        return work

    monkeypatch.setattr(session.device, "capture", capture)
    session.inputs["x"].fill(1.0)
    run = single_run(session, 1)
    before, copies = ort.runs, session.device.counter.read().copies
    run()
    assert len(captured) == 1 and ort.runs == before + 1
    assert session.device.counter.read().copies - copies == 3  # one input up, two outputs down
    session.inputs["x"].fill(2.0)
    first = session.outputs_on_gpu[0].host.copy()
    run()
    assert not np.array_equal(session.outputs_on_gpu[0].host, first)
    engine.close()


def test_what_cannot_be_recorded_is_run_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, ort = on_gpu()
    session = engine.session()

    def refused(stream: object, work: object) -> None:
        raise DeviceError("this work cannot be recorded", why="it waits")

    monkeypatch.setattr(session.device, "capture", refused)
    run, before = single_run(session, 1), ort.runs
    run()
    assert ort.runs > before
    engine.close()
