"""Engines of ONNX Runtime on a GPU: how they use memory and streams, with doubles; what they compute, on a real one."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

from edgert.backend import Engine, EngineOptions, Tuning
from edgert.backend.gpu import GpuSession
from edgert.backend.ort import cpu, cuda, cuda_model, layout, runtime
from edgert.backend.ort import fused as fused_kernels
from edgert.backend.ort.cuda import OrtCudaBackend, OrtCudaEngine, too_little
from edgert.backend.ort.fused import Fused
from edgert.backend.ort.runtime import open_session, session_settings
from edgert.errors import BuildError, DeviceError, ModelError
from edgert.files import FileStore
from edgert.graph import Model, clean, read, to_bytes
from edgert.graph.batch_size import with_open_batch
from edgert.memory.cuda import CudaDevice
from edgert.memory.cuda.holders import Holder
from edgert.policy import run_sizes
from tests.helpers import models
from tests.helpers.cuda_double import CudaDouble
from tests.helpers.gpu import gpu_or_skip
from tests.helpers.ort_double import CudaLike
from tests.helpers.resnet import resnet50
from tests.helpers.waiting import wait_until

FOUR = {"default": {"x": (4, 3, 8, 8)}}


@pytest.fixture
def gpu() -> CudaDouble:
    return CudaDouble(memory_bytes=2**24)


def engine_on(gpu: CudaDouble, model: Model, profiles: Any = None, fused: Any = None) -> tuple[OrtCudaEngine, CudaLike]:
    session = CudaLike(open_session(to_bytes(model), session_settings(1), model))
    device = CudaDevice(gpu, 0)
    wanted = fused if fused is None or isinstance(fused, Fused) else Fused(fused)
    return OrtCudaEngine(session, profiles or {"default": {}}, "m.onnx", {}, device, device.stream(), wanted), session


def like(content: bytes, settings: Any, model: Model) -> CudaLike:
    return CudaLike(open_session(content, settings, model))


def noise(shape: tuple[int, ...], seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def exact(model: Model, **inputs: Any) -> list[Any]:
    return list(ReferenceEvaluator(model.proto).run(None, inputs))


def test_is_an_engine_with_tensors_on_the_gpu(gpu: CudaDouble) -> None:
    engine, _ = engine_on(gpu, models.conv())
    session = engine.session()
    assert isinstance(engine, Engine) and isinstance(session, GpuSession)
    assert [(t.name, t.shape, t.dtype) for t in engine.inputs] == [("x", (1, 3, 8, 8), "float32")]
    assert [t.name for t in session.outputs_on_gpu] == ["y", "mean"] and session.inputs_on_gpu["x"].shape == (
        1,
        3,
        8,
        8,
    )
    engine.close()
    assert engine.device.live_bytes == 0 and engine.device.leaked == 0
    engine.close()


def test_runs_from_host_to_host_and_counts_the_copies(gpu: CudaDouble) -> None:
    model = models.conv()
    engine, _ = engine_on(gpu, model)
    session, x = engine.session(), noise((1, 3, 8, 8))
    session.inputs["x"][...] = x
    before = engine.device.counter.read()
    for found, wanted in zip(session.run(), exact(model, x=x), strict=True):
        assert np.allclose(found, wanted, atol=1e-5)
    after = engine.device.counter.read()
    assert after.copies - before.copies == 3 and after.bytes_copied - before.bytes_copied == x.nbytes + 4 * (256 + 4)
    engine.close()


def test_what_is_enqueued_reads_and_writes_the_gpu_and_copies_nothing(gpu: CudaDouble) -> None:
    model = models.conv()
    engine, ort = engine_on(gpu, model)
    session, x = engine.session(), noise((1, 3, 8, 8), 1)
    source = engine.device.block(x.nbytes)
    with engine.device:
        gpu.memcpy_htod(session.inputs_on_gpu["x"].block.address, x)
    before, runs = engine.device.counter.read(), ort.runs
    session.enqueue()
    assert engine.device.counter.read() == before and ort.runs == runs + 1
    session.outputs_on_gpu[1].block.download(session.stream)
    assert np.allclose(session.outputs_on_gpu[1].host, exact(model, x=x)[1], atol=1e-5)
    source.release()
    engine.close()


def test_fewer_rows_than_there_are(gpu: CudaDouble) -> None:
    model = models.conv(("n", 3, 8, 8))
    engine, _ = engine_on(gpu, model, FOUR)
    assert engine.dynamic_batch and engine.batched == (True, True)
    session, x = engine.session(), noise((4, 3, 8, 8), 2)
    session.inputs["x"][...] = x
    y, mean = session.run(2)
    assert y.shape == (2, 4, 8, 8) and np.allclose(mean, exact(model, x=x[:2])[1], atol=1e-5)
    with pytest.raises(ModelError, match="cannot run 5 rows"):
        session.enqueue(5)
    engine.close()


def test_sessions_share_nothing_but_the_stream(gpu: CudaDouble) -> None:
    engine, _ = engine_on(gpu, models.conv())
    one, other = engine.session(), engine.session()
    assert one.stream is other.stream
    assert one.inputs_on_gpu["x"].block.address != other.inputs_on_gpu["x"].block.address
    assert not np.shares_memory(one.run()[0], other.run()[0])
    engine.close()


def test_outputs_of_unknown_size_are_refused() -> None:
    with pytest.raises(ModelError, match="size of output 'rows' depends on the data") as caught:
        cuda_model.check_sizes(models.keep_above(), {"default": {}})
    assert "backend: ort" in caught.value.fix and caught.value.where == "test.onnx"
    cuda_model.check_sizes(models.conv(("n", 3, 8, 8)), FOUR)


def test_onnx_runtime_without_cuda_names_what_to_install() -> None:
    if not cuda.why_not():
        pytest.skip("this ONNX Runtime has CUDA")
    with pytest.raises(DeviceError, match="no CUDA provider") as caught:
        OrtCudaBackend().compile(models.conv(), EngineOptions())
    assert "pip install onnxruntime-gpu" in caught.value.fix and "CPUExecutionProvider" in caught.value.why
    assert "no CUDA provider" in cuda.why_not()


def test_why_not_names_what_stands_in_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "check_provider", lambda: None)

    def no_driver() -> CudaDevice:
        raise DeviceError("there is no CUDA driver", why="libcuda.so.1: cannot open shared object file")

    monkeypatch.setattr(cuda, "open_device", no_driver)
    assert cuda.why_not() == "there is no CUDA driver: libcuda.so.1: cannot open shared object file"
    monkeypatch.setattr(cuda, "open_device", lambda: CudaDevice(CudaDouble(), 0))
    assert cuda.why_not() == ""


def test_a_provider_that_does_not_start_is_an_error(gpu: CudaDouble, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "check_provider", lambda: None)
    real = open_session
    monkeypatch.setattr(
        runtime, "open_session", lambda source, settings, model, providers: real(source, settings, model)
    )
    with pytest.raises(BuildError, match="could not start its CUDA provider") as caught:
        OrtCudaBackend(CudaDevice(gpu, 0)).compile(models.conv(), EngineOptions())
    assert "cuDNN" in caught.value.fix and caught.value.where == "test.onnx"


def test_too_little_memory_tells_plan_and_actual(gpu: CudaDouble, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "check_provider", lambda: None)

    def fails(*_: object) -> Any:
        raise BuildError("ONNX Runtime cannot run this model", why="CUDA failure 2: out of memory ; GPU=0")

    monkeypatch.setattr(runtime, "open_session", fails)
    other = Holder(4711, "trainer", 15 * 2**20)
    monkeypatch.setattr("edgert.memory.cuda.gpu_context.others_on", lambda bus_id: (other,))
    with pytest.raises(DeviceError, match="does not fit into the memory of the GPU") as caught:
        OrtCudaBackend(CudaDevice(gpu, 0)).compile(models.conv(), EngineOptions())
    assert caught.value.why.startswith("planned: weights 448 B and tensors") and "16.0 MiB" in caught.value.why
    assert caught.value.why.endswith("; other processes hold memory there: trainer (process 4711) 15.0 MiB")
    assert "precision: fp16" in caught.value.fix


def test_the_cleaned_model_is_cached_for_each_set_of_shapes(
    gpu: CudaDouble, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(cuda, "check_provider", lambda: None)
    monkeypatch.setattr(cuda, "open_on_gpu", lambda content, settings, options, model: like(content, settings, model))
    model, store, backend = models.conv(("n", 3, 8, 8)), FileStore(tmp_path), OrtCudaBackend(CudaDevice(gpu, 0))

    def compiled(shapes: Any) -> OrtCudaEngine:
        return backend.compile(model, EngineOptions(profiles={"default": shapes}, store=store))

    first = compiled(FOUR["default"])
    assert first.info["cached"] is compiled({"x": (1, 3, 8, 8)}).info["cached"] is False
    monkeypatch.setattr(cuda_model, "check_sizes", lambda *_: pytest.fail("what was cached had been checked"))
    again, x = compiled(FOUR["default"]), noise((4, 3, 8, 8), 6)
    assert again.info["cached"] is True and again.dynamic_batch
    session = again.session()
    session.inputs["x"][...] = x
    for rows in (4, 2):
        assert np.allclose(session.run(rows)[0], exact(model, x=x[:rows])[0], atol=1e-5)


OPEN = models.conv(("n", 3, 8, 8))


def refined(engine: OrtCudaEngine) -> None:
    engine.refine()
    assert engine.refinement is not None
    engine.refinement.wait(10)


def test_full_batches_are_run_by_a_session_of_their_own_once_it_is_made(gpu: CudaDouble) -> None:
    fused = CudaLike(open_session(to_bytes(OPEN), session_settings(1), OPEN))
    engine, plain = engine_on(gpu, OPEN, FOUR, lambda stream: fused)
    sessions, x = [engine.session() for _ in range(2)], noise((4, 3, 8, 8), 7)
    refined(engine)
    before = plain.runs, fused.runs
    for session in sessions:
        assert session.renewed == {4}
        session.inputs["x"][...] = x
        for rows in (4, 2, 4):
            assert np.allclose(session.run(rows)[0], exact(OPEN, x=x[:rows])[0], atol=1e-5)
    assert (plain.runs - before[0], fused.runs - before[1]) == (2, 4)
    engine.close()
    assert engine.device.live_bytes == 0 and engine.device.leaked == 0


@pytest.mark.parametrize(
    "error", [DeviceError("the GPU has too little memory", why="2 of 4 GiB"), BuildError("no plan")]
)
def test_without_memory_for_it_all_goes_on_and_a_warning_says_so(
    gpu: CudaDouble, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    def fails(stream: Any) -> Any:
        raise error

    engine, plain = engine_on(gpu, OPEN, FOUR, fails)
    session = engine.session()
    refined(engine)
    runs = plain.runs
    session.enqueue(4)
    assert not session.renewed and plain.runs == runs + 1
    (line,) = [one.getMessage() for one in caplog.records if one.name == "edgert.backend"]
    assert line.startswith(f"m.onnx: no fused kernels for full batches: {error}".splitlines()[0])
    engine.close()
    assert engine.device.live_bytes == 0


def test_why_a_run_cannot_be_recorded_is_not_told_to_whoever_runs_next(
    gpu: CudaDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, plain = engine_on(gpu, OPEN, FOUR)
    tries = list[int]()

    def fails(device: CudaDevice, stream: Any, enqueue: Any) -> None:
        tries.append(len(tries))
        plain.fails_once = RuntimeError("operation not permitted when stream is capturing")
        raise DeviceError("cuStreamEndCapture failed", why="a previous error during capture")

    monkeypatch.setattr(CudaDevice, "capture", fails)
    session = engine.session()
    assert layout.recorded(session) == (None, "a previous error during capture") and len(tries) == 2
    session.run()
    monkeypatch.setattr(CudaDevice, "capture", lambda *_: fails(*_) if len(tries) == 2 else print)
    assert layout.recorded(session) == (print, "") and len(tries) == 3
    engine.close()
    assert engine.device.live_bytes == 0


def test_a_first_run_that_fails_leaves_no_memory(gpu: CudaDouble) -> None:
    broken = CudaLike(open_session(to_bytes(OPEN), session_settings(1), OPEN))
    broken.broken = RuntimeError("CUDA failure 2: out of memory ; GPU=0")
    engine, _ = engine_on(gpu, OPEN, FOUR, lambda stream: broken)
    live = engine.device.live_bytes
    refined(engine)
    assert engine.device.live_bytes == live and engine.device.leaked == 0
    engine.close()


def test_tensors_are_freed_at_once_where_the_next_finds_no_room(
    gpu: CudaDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, _ = engine_on(gpu, OPEN, FOUR)
    live, made, real = engine.device.live_bytes, list[int](), CudaDevice.tensor_block

    def block(device: CudaDevice, nbytes: int, **given: Any) -> Any:
        if len(made) == most:
            raise DeviceError("allocating failed", why="the GPU has too little memory")
        made.append(nbytes)
        return real(device, nbytes, **given)

    monkeypatch.setattr(CudaDevice, "tensor_block", block)
    for most in range(3):  # the input, and two outputs
        made.clear()
        with pytest.raises(DeviceError) as caught:
            engine.session()
        assert len(made) == most and engine.device.live_bytes == live and engine.device.leaked == 0
        assert caught.tb is not None  # which holds the session
    most = 9
    engine.session()
    engine.close()
    assert engine.device.live_bytes == 0


def test_closing_does_not_wait_for_what_takes_long(gpu: CudaDouble, caplog: pytest.LogCaptureFixture) -> None:
    began = threading.Event()

    class Slow(CudaLike):
        def run(self, names: Any, feeds: Any, options: Any = None) -> Any:
            began.set()
            wait_until(lambda: options.terminate)
            raise RuntimeError("Exiting due to terminate flag being set to true.")

    slow = Slow(open_session(to_bytes(OPEN), session_settings(1), OPEN))
    engine, _ = engine_on(gpu, OPEN, FOUR, lambda stream: slow)
    engine.session()
    engine.refine()
    assert began.wait(10)
    engine.close()
    assert engine.device.live_bytes == 0 and not caplog.records


def test_a_single_row_is_a_full_batch_and_nothing_is_refined_unasked(gpu: CudaDouble) -> None:
    fused = CudaLike(open_session(to_bytes(models.conv()), session_settings(1), models.conv()))
    engine, _ = engine_on(gpu, models.conv(), None, lambda stream: fused)
    session = engine.session()
    refined(engine)
    assert session.renewed == {1}
    engine.close()
    engine, _ = engine_on(gpu, models.conv())
    engine.refine()
    assert engine.refinement is None
    engine.close()


class Paced(CudaLike):
    """Takes so many milliseconds for a run of some rows."""

    def __init__(self, ms: dict[int, float]) -> None:
        super().__init__(open_session(to_bytes(OPEN), session_settings(1), OPEN))
        self._ms, self.runs_of = ms, dict.fromkeys(ms, 0)

    def run_with_iobinding(self, binding: Any, options: Any) -> None:
        super().run_with_iobinding(binding, options)
        rows = binding.real.get_outputs()[0].shape()[0]
        self.runs_of[rows] = self.runs_of.get(rows, 0) + 1
        time.sleep(self._ms.get(rows, 0.0) / 1e3)


@dataclass
class Bench:
    """A backend whose sessions of either layout are paced.

    Attributes:
        opened: the layout of each session that was asked for, with what was opened.
        fails: layout → what opening it fails with.
    """

    backend: OrtCudaBackend
    ms: dict[str, dict[int, float]]
    opened: list[tuple[str, Paced]] = field(default_factory=list)
    fails: dict[str, Exception] = field(default_factory=dict)
    broken: Exception | None = None

    def open(self, content: bytes, settings: Any, options: Any, model: Model) -> Paced:
        one = layout.LAST if "prefer_nhwc" in options else layout.FIRST
        one += layout.SEARCHED if options["cudnn_conv_algo_search"] == "EXHAUSTIVE" else ""
        if one in self.fails:
            raise self.fails[one]
        self.opened.append((one, Paced(self.ms[one])))
        return self.opened[-1][1]

    def compile(self, store: FileStore | None, tuning: Tuning | None = None) -> OrtCudaEngine:
        self.opened.clear()
        return self.backend.compile(OPEN, EngineOptions(profiles=FOUR, store=store, tuning=tuning or Tuning()))


@pytest.fixture
def bench(gpu: CudaDouble, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """Channels last is the faster one for four rows, and the slower one for one."""
    ms = {layout.LAST: {1: 8.0, 4: 2.0}, layout.FIRST: {1: 2.0, 4: 8.0}}
    ms |= {one + layout.SEARCHED: {1: 20.0, 4: 20.0} for one in list(ms)}
    made = Bench(OrtCudaBackend(CudaDevice(gpu, 0)), ms)
    monkeypatch.setattr(cuda, "check_provider", lambda: None)
    monkeypatch.setattr(cuda, "open_on_gpu", made.open)
    monkeypatch.setattr(CudaDevice, "capture", lambda device, stream, enqueue: enqueue)
    monkeypatch.setattr(layout, "_WARM_S", 0.0)
    return made


def test_layouts_are_measured_once_and_every_size_has_the_faster_one(bench: Bench, tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    cold = bench.compile(store)
    searched = [one + layout.SEARCHED for one in (layout.FIRST, layout.LAST)]
    assert [one for one, _ in bench.opened] == [layout.LAST, layout.FIRST, *searched, layout.FIRST, layout.LAST]
    cold.close()
    assert cold.device.live_bytes == 0 and cold.device.leaked == 0
    warm = bench.compile(store)
    assert [one for one, _ in bench.opened] == [layout.FIRST, layout.LAST]
    (_, first), (_, last) = bench.opened
    assert str(warm.info["layout"]).startswith("channels last, ") and warm.info["layout"] == cold.info["layout"]
    session, x = warm.session(), noise((4, 3, 8, 8), 11)
    session.inputs["x"][...] = x
    for rows in (4, 2, 1, 4, 3):
        for found, wanted in zip(session.run(rows), exact(OPEN, x=x[:rows]), strict=True):
            assert found.shape == wanted.shape and np.allclose(found, wanted, atol=1e-5)
    assert not first.runs_of[4] and first.runs_of[1] and last.runs_of[4] and not last.runs_of[1]
    assert session.streams == [warm.stream, session.streams[1]] and session.streams[1] is not warm.stream
    warm.close()
    assert warm.device.live_bytes == 0 and warm.device.leaked == 0


def test_one_layout_that_is_as_fast_runs_all_sizes(bench: Bench, tmp_path: Path, caplog: Any) -> None:
    bench.ms |= {layout.LAST: {1: 1.0, 4: 1.0}, layout.FIRST: {1: 4.0, 4: 8.0}}
    with caplog.at_level("INFO", "edgert.backend"):
        engine = bench.compile(FileStore(tmp_path))
    searched = layout.LAST + layout.SEARCHED
    assert [one for one, _ in bench.opened] == [layout.LAST, layout.FIRST, searched, layout.LAST]
    assert engine.session().streams == [engine.stream]
    assert f"test.onnx: {engine.info['layout']}" in caplog.messages and "for 1 row" in str(engine.info["layout"])
    engine.close()


def test_what_is_damaged_in_the_cache_is_measured_again(bench: Bench, tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    bench.compile(store).close()
    keys = {path.name.split(".")[0] for path in tmp_path.iterdir()}
    (key,) = [key for key in keys if layout.from_json(store.get(key) or b"") is not None]
    store.put(key, b'{"channels last": {"1": "soon"}}')
    bench.compile(store).close()
    assert len(bench.opened) == 6 and layout.from_json(store.get(key) or b"") is not None


@pytest.mark.parametrize("lasting", [True, False])
def test_a_layout_that_cannot_be_had_is_left_out(bench: Bench, tmp_path: Path, lasting: bool) -> None:
    why = "cuDNN has no such kernel" if lasting else "Failed to allocate memory for requested buffer"
    bench.fails[layout.LAST] = BuildError("ONNX Runtime cannot run this model", why=why)
    store = FileStore(tmp_path)
    assert "channels last" not in str(bench.compile(store).info["layout"])
    bench.fails.clear()
    bench.compile(store).close()
    assert len(bench.opened) == (1 if lasting else 6)  # another time there may be room


def test_a_layout_whose_runs_cannot_be_recorded_is_left_out(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.ms[layout.LAST] = {1: 0.1, 4: 0.1}

    def recorded(device: CudaDevice, stream: Any, enqueue: Any) -> Any:
        if bench.opened[-1][0] == layout.LAST:
            raise DeviceError("cuStreamEndCapture failed", why="operation not permitted when stream is capturing")
        return enqueue

    monkeypatch.setattr(CudaDevice, "capture", recorded)
    engine = bench.compile(None)
    assert "channels last" not in str(engine.info["layout"])
    engine.close()


@pytest.mark.parametrize("gain, chosen", [(0.5, layout.LAST + layout.SEARCHED), (2.0, layout.LAST)])
def test_a_long_search_is_made_at_every_start_where_it_is_worth_it(
    bench: Bench, tmp_path: Path, gain: float, chosen: str
) -> None:
    bench.ms |= {layout.LAST: {1: 4.0, 4: 4.0}, layout.FIRST: {1: 20.0, 4: 20.0}}
    bench.ms[layout.LAST + layout.SEARCHED] = {1: 4.0 * gain, 4: 4.0 * gain}
    store = FileStore(tmp_path)
    for _ in range(2):
        engine = bench.compile(store)
        assert bench.opened[-1][0] == chosen and str(engine.info["layout"]).startswith(f"{chosen}, ")
        engine.close()
    assert len(bench.opened) == 1


def test_a_search_that_the_file_names_is_the_only_one(bench: Bench) -> None:
    bench.compile(None, Tuning(conv_search="exhaustive")).close()
    searched = {layout.LAST + layout.SEARCHED, layout.FIRST + layout.SEARCHED}
    assert {one for one, _ in bench.opened} == searched


def test_nothing_is_measured_where_channels_last_is_off(bench: Bench) -> None:
    engine = bench.compile(None, Tuning(channels_last=False))
    assert [one for one, _ in bench.opened] == [layout.FIRST] and "layout" not in engine.info
    engine.close()


@dataclass
class Options:
    """What the sessions of :class:`Bench` were opened with: whether kernels were fused."""

    fused: list[bool] = field(default_factory=list)


@pytest.fixture
def fusing(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Options:
    """Fused kernels take ``bench.ms["fused"]``."""
    found, plain = Options(), bench.open

    def opened(content: bytes, settings: Any, options: Any, model: Model) -> Paced:
        found.fused.append("fuse_conv_bias" in options)
        if not found.fused[-1]:
            return plain(content, settings, options, model)
        if "fused" in bench.fails:
            raise bench.fails["fused"]
        bench.opened.append(("fused", Paced(bench.ms["fused"])))
        bench.opened[-1][1].broken = bench.broken
        return bench.opened[-1][1]

    bench.ms |= {layout.LAST: {1: 1.0, 4: 4.0}, layout.FIRST: {1: 8.0, 4: 16.0}}
    monkeypatch.setattr(cuda, "open_on_gpu", opened)
    monkeypatch.setattr(fused_kernels, "AFTER_S", 0.0)
    return found


@pytest.mark.parametrize("ms, is_faster", [(1.0, True), (3.95, False), (9.0, False)])
def test_fused_kernels_are_taken_where_they_are_measured_to_be_faster_which_is_done_once(
    bench: Bench, fusing: Options, tmp_path: Path, caplog: Any, ms: float, is_faster: bool
) -> None:
    bench.ms["fused"] = {4: ms}
    store, x = FileStore(tmp_path), noise((4, 3, 8, 8), 13)
    for attempt in (0, 1):
        caplog.clear()
        engine = bench.compile(store)
        session, one, fusing.fused[:] = engine.session(), engine.session(), []
        with caplog.at_level("INFO", "edgert.backend"):
            refined(engine)
        assert (session.renewed == {4}) is (one.renewed == {4}) is is_faster
        assert fusing.fused == [True][: 1 if is_faster or not attempt else 0]  # not in vain another time
        assert str(engine.info["fused"]).startswith("" if is_faster else "no ") and "without" in str(
            engine.info["fused"]
        )
        assert any(message.startswith(f"test.onnx: {engine.info['fused']}") for message in caplog.messages)
        session.inputs["x"][...] = x
        fused_runs = bench.opened[-1][1].runs
        assert np.allclose(session.run(4)[0], exact(OPEN, x=x)[0], atol=1e-5)
        assert (bench.opened[-1][0] == "fused" and bench.opened[-1][1].runs > fused_runs) is is_faster
        del one
        engine.close()
        assert engine.device.live_bytes == 0 and engine.device.leaked == 0


def test_batches_that_are_not_full_are_planned_once_and_recorded_before_the_next(bench: Bench) -> None:
    engine = bench.compile(None, Tuning(fused="off"))
    session, ran, recording = engine.session(), list[int](), engine.device.recording
    paced = bench.opened[-2][1]
    real = paced.run_with_iobinding

    def noted(binding: Any, options: Any) -> None:
        ran.append(binding.real.get_outputs()[0].shape()[0])
        real(binding, options)

    def record(rows: int) -> None:
        other = threading.Thread(target=lambda: free.append(recording.acquire(blocking=False)))
        free = list[bool]()
        other.start()
        other.join()
        assert free == [False] and rows in session._enqueued  # nobody else records, and nothing is bound in between
        ran.append(-rows)

    paced.run_with_iobinding = noted  # type: ignore[method-assign]
    refinement = engine.refine((1, 2), record)
    assert refinement is not None and refinement is engine.refinement
    refinement.wait(10)
    assert ran == [1, 1, -1, 2, 2, -2] and not session.renewed
    engine.close()
    assert engine.device.live_bytes == 0 and engine.device.leaked == 0


@pytest.mark.parametrize("failures", [1, 2])
def test_a_batch_that_cannot_be_recorded_is_tried_once_more(
    bench: Bench, fusing: Options, failures: int, caplog: Any
) -> None:
    bench.ms["fused"] = {4: 0.1}
    engine, tries = bench.compile(None), list[int]()
    session = engine.session()

    def record(rows: int) -> None:
        tries.append(rows)
        if len(tries) <= failures:
            raise DeviceError("recording a CUDA graph failed", why="somebody freed memory")

    refinement = engine.refine((1, 2), record)
    assert refinement is not None
    refinement.wait(10)
    assert tries == ([1, 1, 2] if failures == 1 else [1, 1]) and session.renewed == {4}
    assert ("some batches are run as larger ones" in caplog.text) is (failures == 2)
    engine.close()
    assert engine.device.live_bytes == 0


def test_what_is_prepared_is_broken_off_when_the_engine_is_closed(bench: Bench, caplog: Any) -> None:
    engine, began = bench.compile(None, Tuning(fused="off")), threading.Event()

    def record(rows: int) -> None:
        began.set()
        wait_until(lambda: engine.refinement is not None and engine.refinement._options.terminate)

    engine.refine((1, 2), record)
    assert began.wait(10)
    engine.close()
    assert engine.device.live_bytes == 0 and not caplog.records


def test_what_ends_at_once_opens_no_session_for_fused_kernels(
    bench: Bench, fusing: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fused_kernels, "AFTER_S", 100.0)
    engine = bench.compile(None)
    engine.refine()
    engine.close()
    assert not any(fusing.fused) and "fused" not in engine.info


def test_fused_kernels_that_are_asked_for_are_not_measured(bench: Bench, fusing: Options, tmp_path: Path) -> None:
    bench.ms["fused"] = {4: 9.0}
    engine = bench.compile(FileStore(tmp_path), Tuning(fused="later"))
    session = engine.session()
    refined(engine)
    assert session.renewed == {4} and "without" not in str(engine.info["fused"])
    engine.close()


def test_what_is_damaged_of_fused_kernels_is_measured_again(bench: Bench, fusing: Options, tmp_path: Path) -> None:
    store, bench.ms["fused"] = FileStore(tmp_path), {4: 9.0}
    for _ in range(2):
        engine = bench.compile(store)
        refined(engine)
        engine.close()
        (key,) = {
            name
            for name in (path.name.split(".")[0] for path in tmp_path.iterdir())
            if (store.get(name) or b"").startswith(b"[")
        }
        assert fusing.fused[-1]
        store.put(key, b"[1, null]")


@pytest.mark.parametrize("why, tries", [("no plan", 1), ("not permitted when stream is capturing", 2)])
def test_fused_kernels_that_cannot_be_had_are_not_tried_again(
    bench: Bench, fusing: Options, tmp_path: Path, caplog: Any, why: str, tries: int
) -> None:
    bench.ms["fused"], store = {4: 1.0}, FileStore(tmp_path)
    for _ in range(2):
        engine = bench.compile(store)
        bench.broken = RuntimeError(why)
        engine.refine()
        assert engine.refinement is not None
        engine.refinement.wait(10)
        bench.broken = None
        engine.session().run(4)
        engine.close()
        assert engine.device.live_bytes == 0
    assert sum(fusing.fused) == tries == sum(one.levelname == "WARNING" for one in caplog.records)


@pytest.mark.parametrize("integrated", [True, False])
def test_nothing_is_compiled_without_room_for_the_weights_twice(
    bench: Bench, fusing: Options, gpu: CudaDouble, integrated: bool
) -> None:
    engine = bench.compile(None)
    if integrated:
        device = CudaDevice(CudaDouble(integrated=True), 0)
        engine.device.traits = device.traits
    else:
        engine.nbytes = gpu.memory_bytes
    fusing.fused.clear()
    refined(engine)
    why = "shares the processor's memory" if integrated else "they take about 16.0 MiB more, and "
    assert fusing.fused == [] and why in str(engine.info["fused"]) and str(engine.info["fused"]).startswith("no fused")
    engine.close()


def test_the_model_is_held_by_the_store_until_fused_kernels_are_compiled(
    bench: Bench, fusing: Options, tmp_path: Path, caplog: Any
) -> None:
    bench.ms["fused"], store = {4: 1.0}, FileStore(tmp_path)
    engine = bench.compile(store)
    for path in tmp_path.iterdir():
        path.unlink()
    refined(engine)
    assert [one.levelname for one in caplog.records] == ["WARNING"] and "no longer cached" in caplog.text
    engine.close()


def test_full_batches_of_their_own_layout_become_faster_too(bench: Bench, tmp_path: Path) -> None:
    engine = bench.compile(FileStore(tmp_path), Tuning(fused="later"))
    session, x = engine.session(), noise((4, 3, 8, 8), 12)
    last = bench.opened[-1][1]
    refined(engine)
    before, fused = last.runs, bench.opened[-1][1]
    later = engine.session()
    for one in (session, later):
        one.inputs["x"][...] = x
        assert np.allclose(one.run(4)[0], exact(OPEN, x=x)[0], atol=1e-5)
    assert session.renewed == {4} and not later.renewed
    assert last.runs == before and fused is not last and fused.runs
    engine.close()
    assert engine.device.live_bytes == 0 and engine.device.leaked == 0


def flattened() -> Model:
    """A convolution whose output is flattened as exporters write it for an open batch."""
    random = np.random.default_rng(0)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], "conv", pads=[1, 1, 1, 1]),
        helper.make_node("Shape", ["c"], ["sizes"], "sizes"),
        helper.make_node("Slice", ["sizes", "zero", "two"], ["first"], "first"),
        helper.make_node("Concat", ["first", "rest"], ["to"], "to", axis=0),
        helper.make_node("Reshape", ["c", "to"], ["y"], "flat"),
    ]
    weights = {"w": random.standard_normal((4, 3, 3, 3)).astype("f4")}
    sizes = {"zero": [0], "two": [2], "rest": [-1]}
    weights |= {name: np.array(value, np.int64) for name, value in sizes.items()}
    return models.make(nodes, {"x": (("n", 3, 8, 8), 1)}, {"y": (("n", 4, 64), 1)}, weights)


def test_an_open_batch_computes_no_sizes() -> None:
    """The host would have to wait for them, and no CUDA graph could hold the run."""
    model = flattened()
    made = cuda_model.without_sizes(model, FOUR["default"])
    assert {node.op_type for node in cpu.prepared(model, FOUR["default"]).proto.graph.node} >= {"Shape", "Reshape"}
    assert {node.op_type for node in made.proto.graph.node} == {"Conv", "Reshape"}
    x = noise((4, 3, 8, 8), 9)
    for rows in (4, 1, 3):
        assert np.allclose(exact(made, x=x[:rows])[0], exact(model, x=x[:rows])[0], atol=1e-6)


def test_a_model_that_would_say_something_else_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    model = flattened()
    monkeypatch.setattr(cuda_model, "with_open_batch", lambda _: models.conv(("n", 3, 8, 8)))
    made = cuda_model.without_sizes(model, FOUR["default"])
    assert any(node.op_type == "Shape" for node in made.proto.graph.node)


def test_what_fails_while_running_is_distinguished(gpu: CudaDouble) -> None:
    engine, ort = engine_on(gpu, models.conv())
    session = engine.session()
    ort.broken = RuntimeError("BFCArena: Failed to allocate memory for requested buffer of size 4096")
    with pytest.raises(DeviceError, match="too little memory") as caught:
        session.enqueue()
    assert "4096" in caught.value.why
    ort.broken = RuntimeError("CUDA failure 700: an illegal memory access was encountered ; GPU=0")
    with pytest.raises(DeviceError, match="running the model: the GPU is lost"):
        session.enqueue()
    ort.broken = RuntimeError("CUDNN failure 5000: CUDNN_STATUS_EXECUTION_FAILED")
    with pytest.raises(BuildError, match="failed while running"):
        session.run()
    engine.close()


def test_plans_with_the_shapes_of_a_profile(gpu: CudaDouble) -> None:
    model, device = models.conv(("n", 3, 8, 8)), CudaDevice(gpu, 0)
    assert too_little(model, FOUR["default"], device).why != too_little(model, {"x": (1, 3, 8, 8)}, device).why


@pytest.fixture
def real() -> Iterator[OrtCudaBackend]:
    device = gpu_or_skip()
    if missing := cuda.why_not():
        pytest.skip(missing)
    yield OrtCudaBackend(device)


@pytest.mark.gpu
class TestOnAGpu:
    def test_computes_the_same(self, real: OrtCudaBackend) -> None:
        model = models.conv(("n", 3, 8, 8))
        engine = real.compile(model, EngineOptions(profiles=FOUR))
        session, x = engine.session(), noise((4, 3, 8, 8), 3)
        session.inputs["x"][...] = x
        for rows in (4, 1, 3):
            for found, wanted in zip(session.run(rows), exact(model, x=x[:rows]), strict=True):
                assert found.shape == wanted.shape and np.allclose(found, wanted, atol=2e-2)
        engine.close()
        assert engine.device.live_bytes == 0

    def test_every_size_of_a_batch_computes_the_same_and_can_be_recorded(self, real: OrtCudaBackend) -> None:
        """The images of a batch, each as it is alone; from graphs that are launched in any order."""
        model = models.conv(("n", 3, 8, 8))
        engine = real.compile(model, EngineOptions(profiles={"default": {"x": (8, 3, 8, 8)}}))
        session, x = engine.session(), noise((8, 3, 8, 8), 5)
        session.inputs["x"][...] = x
        session.inputs_on_gpu["x"].block.upload(session.stream)
        graphs = {}
        for rows in (1, 2, 4, 8):
            session.enqueue(rows)
            session.stream.synchronize()
            graphs[rows] = session.device.capture(session.stream, partial(session.enqueue, rows))
        wanted, found = exact(model, x=x), session.outputs_on_gpu
        for rows in (8, 1, 4, 2, 8, 1):
            for tensor in found:
                tensor.host.fill(0)
                tensor.block.upload(session.stream)
            graphs[rows]()
            for tensor in found:
                tensor.block.download(session.stream)
            session.stream.synchronize()
            for tensor, right in zip(found, wanted, strict=True):
                assert np.allclose(tensor.host[:rows], right[:rows], atol=2e-2) and not tensor.host[rows:].any()
        graphs.clear()
        engine.close()

    def test_full_batches_compute_the_same_when_they_have_become_faster(self, real: OrtCudaBackend) -> None:
        model, x = models.conv(("n", 3, 8, 8)), noise((4, 3, 8, 8), 8)
        engine = real.compile(model, EngineOptions(profiles=FOUR, tuning=Tuning(fused="later")))
        session = engine.session()
        refined(engine)
        assert session.renewed == {4}
        graph = session.device.capture(session.stream, session.enqueue)
        session.inputs["x"][...] = x
        wanted = exact(model, x=x)
        for found, right in zip(session.run(), wanted, strict=True):
            assert np.allclose(found, right, atol=2e-2)
        for tensor in session.outputs_on_gpu:
            tensor.host.fill(0)
            tensor.block.upload(session.stream)
        graph()
        for tensor, right in zip(session.outputs_on_gpu, wanted, strict=True):
            tensor.block.download(session.stream)
            session.stream.synchronize()
            assert np.allclose(tensor.host, right, atol=2e-2)
        del graph
        engine.close()
        assert engine.device.live_bytes == 0

    @pytest.mark.gpu_alone
    def test_sizes_share_the_weights(self, real: OrtCudaBackend) -> None:
        """Eight rows of a network with few activations take less than once more its weights."""
        model, taken, device = with_open_batch(clean(resnet50(size_px=32))[0]), list[int](), real._device
        assert device is not None
        for rows in (1, 1, 8):  # the first pays for the libraries as well
            before = device.free_bytes()[0]
            in_one_layout = Tuning(channels_last=False)  # else full batches may have weights of their own
            profiles = {"default": {"x": (rows, 3, 32, 32)}}
            engine = real.compile(model, EngineOptions(profiles=profiles, tuning=in_one_layout))
            session = engine.session(None, "none")
            for size in run_sizes(rows, dynamic=True):
                session.enqueue(size)
            device.settle()
            taken.append(before - device.free_bytes()[0])
            engine.close()
            del session, engine
        weights = sum(array.nbytes for array in read(model).constants.values())
        assert taken[2] - taken[1] < 0.5 * weights

    def test_can_be_recorded_as_a_graph(self, real: OrtCudaBackend) -> None:
        model = models.conv()
        engine = real.compile(model, EngineOptions())
        session, x = engine.session(), noise((1, 3, 8, 8), 4)
        session.inputs["x"][...] = x
        session.run()
        graph = session.device.capture(session.stream, session.enqueue)
        session.inputs["x"][...] = -x
        session.inputs_on_gpu["x"].block.upload(session.stream)
        graph()
        session.outputs_on_gpu[0].block.download(session.stream)
        session.stream.synchronize()
        assert np.allclose(session.outputs_on_gpu[0].host, exact(model, x=-x)[0], atol=2e-2)
        del graph
        engine.close()
