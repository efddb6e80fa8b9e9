"""How long a round is, who is left out of it, and one run as a pipeline does it."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType

import numpy as np
import pytest

from edgert.backend.base import Array
from edgert.backend.ort.cuda import OrtCudaEngine
from edgert.backend.ort.runtime import open_session, session_settings
from edgert.config import EmbedTask, ModelConfig
from edgert.errors import BuildError, DeviceError
from edgert.graph import to_bytes
from edgert.memory.cuda import CudaDevice
from edgert.quantization.throughput import ROUNDS
from edgert.tuner import rounds as module
from edgert.tuner.candidates import Tactic
from edgert.tuner.rounds import ROUND_S, Round, RoundSetup, frames_per_run, run_count, run_round, single_run
from tests.helpers import models
from tests.helpers.cuda_double import CudaDouble
from tests.helpers.ort_double import CudaLike

FIRST, OTHER, SLOW, BROKEN = (Tactic("ort", "float", 1, threads) for threads in (1, 2, 3, 4))
MS = {FIRST: 4.0, OTHER: 2.0, SLOW: 40.0}


class Invented:
    """A contestant whose times are known."""

    runs: list[tuple[Tactic, int]]

    def __init__(self, tactic: Tactic, *given: object) -> None:
        if tactic == BROKEN:
            raise BuildError("it broke", why="of old age")
        self.tactic = tactic

    def __enter__(self) -> Invented:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

    def outputs(self) -> dict[str, object]:
        return {}

    def frame_ms(self, frames: int) -> float:
        self.runs.append((self.tactic, frames))
        return MS[self.tactic]


@pytest.fixture
def setup(monkeypatch: pytest.MonkeyPatch) -> RoundSetup:
    Invented.runs = []
    monkeypatch.setattr(module, "Candidate", Invented)
    config = ModelConfig(onnx=Path("m.onnx"), task=EmbedTask(embed="none"))
    models = {"float": None}
    return RoundSetup(config, models, {}, lambda form, outputs: "", 2, threading.Event(), lambda done: None)  # type: ignore[arg-type]


def test_who_is_hopeless_gets_two_turns_and_no_more(setup: RoundSetup) -> None:
    found = run_round(setup, [FIRST, OTHER, SLOW, BROKEN], 7)
    assert found.refused == {SLOW: "given up: 10.0 × the time", BROKEN: "refused: of old age"}
    assert {one: len(times) for one, times in found.times.items()} == {FIRST: 7, OTHER: 7}
    assert found.gain(OTHER) == 2.0
    assert [one for one, _ in Invented.runs].count(SLOW) == 2
    assert {frames for _, frames in Invented.runs} == {2, 4}  # two streams; a turn of the first takes 10 ms at least


def test_where_the_first_may_not_win_the_slow_are_run_as_well(setup: RoundSetup) -> None:
    assert isinstance(found := run_round(setup, [FIRST, SLOW], 7, 1e9), Round) and not found.refused


def test_frames_of_a_turn() -> None:
    assert frames_per_run(4.0, 1) == 3 and frames_per_run(4.0, 4) == 4 and frames_per_run(40.0, 2) == 2
    assert frames_per_run(0.0, 1) == 256


def test_turns_end_with_the_time_but_for_those_it_takes_to_tell() -> None:
    assert run_count(45, 100.0) == 45
    assert run_count(120, ROUND_S * 1e3 / 60) == 60
    assert run_count(120, ROUND_S * 1e3) == ROUNDS
    assert run_count(7, ROUND_S * 1e3) == 3 and run_count(2, ROUND_S * 1e3) == 2


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
