"""Test suites for all kinds. Packages that add kinds derive their tests from these suites, which edgert passes itself.

    from edgert.testing import SinkSuite

    class TestCsv(SinkSuite):
        name = "csv"
        keys = {"path": "boxes.csv"}

pytest collects the inherited tests; ``tmp_path`` is a fixture of pytest. This module does not import pytest.
"""

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from edgert.backend import Backend, Engine, EngineOptions
from edgert.clock import REAL
from edgert.config import SinkStage, TaskConfig, TrackStage
from edgert.config.model_section import TASKS
from edgert.errors import EdgertError, ModelError
from edgert.graph.model import smallest
from edgert.kinds import BACKENDS, DECODERS, SINKS, TRACKERS
from edgert.memory import ALIGN_BYTES, Counter, lend
from edgert.runtime import Detections, Frame, Result, records
from edgert.runtime.json_form import plain
from edgert.runtime.stage import Source, SourceStats, Stage
from edgert.stages.context import Context, make_stage
from edgert.stages.crop import Geometry
from edgert.stages.decode.decoder import CheckedDecoder
from edgert.stages.decode.guess import guess
from edgert.stages.decode.kinds import decoder_for
from edgert.stages.track import Tracker

_SIZE = (64, 48)
_CHANNELS = {"bgr": (3,), "rgb": (3,), "gray": (1,), "yuyv": (2,), "nv12": (1, 2), "i420": (1, 1, 1)}
_RECORDS: Mapping[str, Any] = {
    "detect": Detections,
    "classify": (records.Classification, records.Attributes),
    "segment": records.Segmentation,
    "keypoints": records.Keypoints,
    "embed": records.Embedding,
    "text": records.Text,
    "depth": records.DepthMap,
    "image": records.OutputImage,
    "anomaly": records.AnomalyMap,
}
_FRAMES = 12
_STOP_S = 0.5


def sample(index: int = 0, boxes: Sequence[Sequence[float]] = ((4, 4, 20, 20), (30, 10, 60, 40))) -> Result:
    """Return a result of a stage ``find``: a 64x48 BGR frame of noise with these boxes."""
    pixels = np.random.default_rng(index).integers(0, 256, (_SIZE[1], _SIZE[0], 3), np.uint8)
    lease = lend((pixels,), Counter())
    at_ns = 33_333_333 * index
    frame = Frame("camera", index, at_ns, at_ns, *_SIZE, "bgr", (pixels,), lease)
    return Result(frame, {"find": detections(boxes)})


def detections(boxes: Sequence[Sequence[float]]) -> Detections:
    """Return detections with these boxes x1, y1, x2, y2, all of class 0 and score 0.9."""
    rows = np.array(boxes, np.float32).reshape(-1, 4)
    return Detections(rows, np.full(len(rows), 0.9, np.float32), np.zeros(len(rows), np.int32), ("thing",))


class StageSuite(ABC):
    """Tests for every stage. Derived classes define :meth:`make`."""

    @abstractmethod
    def make(self, folder: Path) -> Stage:
        """Return a new stage that is not opened; it may write into ``folder``."""

    @contextmanager
    def opened(self, folder: Path) -> Iterator[Stage]:
        """Open a new stage for the block."""
        stage = self.make(folder)
        stage.open()
        yield stage
        stage.close()

    def test_it_is_a_stage(self, tmp_path: Path) -> None:
        """Check that it has all methods."""
        assert isinstance(self.make(tmp_path), Stage)

    def test_only_open_creates_files(self, tmp_path: Path) -> None:
        """Check that files, cameras and sockets are opened by open() only."""
        self.make(tmp_path)
        assert list(tmp_path.iterdir()) == []

    def test_frames_are_not_changed(self, tmp_path: Path) -> None:
        """Check that frames, which other stages see, stay unchanged, and that no foreign lease is released."""
        with self.opened(tmp_path) as stage:
            for index in range(3):
                result = sample(index)
                before = result.frame.planes[0].copy()
                found = stage.process(result)
                list(found) if found is not None and not isinstance(found, Result) else None
                assert (result.frame.planes[0] == before).all(), "pixels were written to"
                assert result.frame.lease.alive, "a lease was released that belongs to the runner"

    def test_frames_without_detections_are_accepted(self, tmp_path: Path) -> None:
        """Check frames without boxes, and without a record of boxes."""
        with self.opened(tmp_path) as stage:
            stage.process(sample(0, boxes=()))
            stage.process(Result(sample(1).frame, {}))

    def test_it_closes_unused(self, tmp_path: Path) -> None:
        """Check that it can be closed before the first frame."""
        with self.opened(tmp_path):
            pass


class SinkSuite(StageSuite):
    """Tests for every sink.

    Attributes:
        name: name in a pipeline file.
        keys: keys of its section; relative paths are moved into a temporary folder.
    """

    name: ClassVar[str]
    keys: ClassVar[Mapping[str, Any]] = {}

    def section(self, folder: Path) -> SinkStage:
        """Return the section of a pipeline file."""
        keys = {key: folder / value if key in ("path", "spool") else value for key, value in self.keys.items()}
        return SinkStage.model_validate({"sink": self.name, "from": "find", **keys})

    def make(self, folder: Path) -> Stage:
        """Return the sink of the section."""
        sink: Stage = make_stage(self.section(folder), "out", Context(function=lambda result: None))
        return sink

    def test_its_section_is_the_one_that_is_registered(self, tmp_path: Path) -> None:
        """Check that its name is registered with all its properties."""
        kind = SINKS.get(self.name)
        assert type(self.section(tmp_path)) is kind and SINKS.missing(kind) == ""
        assert kind.takes_images or not kind.shows_images, "what shows images takes them"

    def test_it_passes_nothing_on(self, tmp_path: Path) -> None:
        """Check that a sink passes nothing on."""
        with self.opened(tmp_path) as sink:
            assert sink.process(sample()) is None


class DecoderSuite:
    """Tests for every decoder.

    Attributes:
        task, name: task and decoder in a pipeline file, such as ``detect`` and ``yolox``.
        shapes: shapes of its outputs, without the batch dimension.
        network: (width, height) of the input.
        keys: further keys of the section ``task:``.
    """

    task: ClassVar[str]
    name: ClassVar[str]
    shapes: ClassVar[Sequence[tuple[int, ...]]]
    network: ClassVar[tuple[int, int]] = (64, 64)
    keys: ClassVar[Mapping[str, Any]] = {}

    def outputs(self) -> list[npt.NDArray[np.float32]]:
        """Return random numbers from 0 to 1."""
        random = np.random.default_rng(0)
        return [random.uniform(0, 1, shape).astype(np.float32) for shape in self.shapes]

    def decoder(self) -> CheckedDecoder:
        """Return the decoder of the section."""
        task: TaskConfig = TASKS[self.task].model_validate({self.task: self.name, **self.keys})  # type: ignore[assignment]
        return decoder_for(task, ())

    def test_it_is_registered(self) -> None:
        """Check that it is registered with all that its task requires."""
        registry = DECODERS[self.task]
        assert registry.missing(registry.get(self.name)) == ""

    def test_it_is_proposed_for_its_outputs(self) -> None:
        """Check that `edgert new`, `check` and `inspect` propose it, a class of several names under its first."""
        registry = DECODERS[self.task]
        kind = registry.get(self.name)
        first = next(name for name in registry.names() if registry.get(name) is kind)
        width, height = self.network
        found = [str(one) for one in guess(self.shapes, (), (3, height, width), None)]
        assert f"{self.task}: {first}" in found, f"{kind.__name__}.fits() does not know {self.shapes}: {found}"

    def test_it_reads_them_as_the_record_of_its_task(self) -> None:
        """Check that it reads outputs anywhere in a frame, without keeping or changing them."""
        decoder, outputs = self.decoder(), self.outputs()
        decoder.check(tuple(self.shapes), self.network)
        before = [output.copy() for output in outputs]
        record: Any = decoder(outputs, Geometry(2, 2, 10, 20, self.network, (10, 20, 138, 148)))
        assert isinstance(record, _RECORDS[self.task])
        assert all((now == then).all() for now, then in zip(outputs, before, strict=True)), "outputs were written to"
        assert not kept_arrays(record, outputs), "the record keeps memory that the next frame overwrites"

    def test_it_refuses_outputs_that_are_not_its_own(self) -> None:
        """Check that it raises ModelError before the first frame."""
        try:
            self.decoder().check(((3, 5, 7, 9), (2, 2, 2, 2)), self.network)
        except ModelError:
            return
        raise AssertionError("check() accepts outputs of any shape")


class OwnDecoderSuite:
    """Tests for a user's decoding function or object, named with ``task: {python: ...}``.

    Attributes:
        decode: function or object; in a class body, a function needs ``staticmethod``.
        shapes: shapes of the outputs, without the batch dimension; 0 for a dynamic size.
        network: (width, height) of the input.
    """

    decode: ClassVar[Callable[..., Any]]
    shapes: ClassVar[Sequence[tuple[int, ...]]]
    network: ClassVar[tuple[int, int]] = (64, 64)

    def test_it_reads_any_numbers_as_a_record(self) -> None:
        """Check zero, random and special numbers, anywhere in a frame, without keeping or changing them."""
        shapes = [tuple(size or 8 for size in shape) for shape in self.shapes]
        random, geometry = np.random.default_rng(0), Geometry(2, 2, 10, 20, self.network, (10, 20, 138, 148))
        ways: tuple[Callable[[Any], Any], ...] = (
            np.zeros,
            lambda shape: random.uniform(0, 1, shape),
            lambda shape: random.normal(0, 9, shape),
        )
        for numbers in ways:
            outputs = [numbers(shape).astype(np.float32) for shape in shapes]
            before = [output.copy() for output in outputs]
            record = type(self).decode(outputs, geometry)
            plain(record)  # raises a StageError for what has no form in JSON
            assert all((now == then).all() for now, then in zip(outputs, before, strict=True)), "it wrote to outputs"
            assert not kept_arrays(record, outputs), "the record keeps memory that the next frame overwrites"


def kept_arrays(record: Any, outputs: Sequence[npt.NDArray[Any]]) -> list[npt.NDArray[Any]]:
    """Return arrays of a record that are memory of a model's outputs."""
    names = [one.name for one in fields(record)] if is_dataclass(record) else []
    arrays = [value for name in names if isinstance(value := getattr(record, name), np.ndarray)]
    return [array for array in arrays for output in outputs if np.shares_memory(array, output)]


class TrackerSuite:
    """Tests for every tracker.

    Attributes:
        name: name in a pipeline file.
        keys: keys of its section.
    """

    name: ClassVar[str]
    keys: ClassVar[Mapping[str, Any]] = {}

    def tracker(self) -> Tracker:
        """Return a tracker of one stream."""
        section = TrackStage.model_validate({"track": self.name, "from": "find", **self.keys})
        assert type(section) is TRACKERS.get(self.name) and TRACKERS.missing(type(section)) == ""
        tracker: Tracker = make_stage(section, "track", Context(rate_hz=30.0))
        return tracker

    def follow(self, tracker: Tracker, x: float) -> list[int]:
        """Return the numbers of an object at ``x`` and one at rest."""
        found = detections(((x, 10, x + 40, 50), (300, 300, 350, 350)))
        ids = tracker.update(found.boxes, found.scores, found.classes)
        assert ids.shape == (2,) and ids.dtype == np.int64
        return [int(one) for one in ids]

    def test_objects_keep_their_numbers(self) -> None:
        """Check that numbers from 1 are kept by moving objects and objects at rest."""
        tracker = self.tracker()
        ids = [self.follow(tracker, 10 + step) for step in range(10)]
        assert ids[-1] == ids[5] and len(set(ids[-1])) == 2 and min(ids[-1]) >= 1

    def test_streams_share_nothing(self) -> None:
        """Check that a second tracker is independent of the first."""
        one, other = self.tracker(), self.tracker()
        first = [self.follow(one, 10) for _ in range(5)]
        assert [self.follow(other, 10) for _ in range(5)] == first

    def test_frames_without_boxes_are_accepted(self) -> None:
        """Check frames without boxes, first or in between."""
        tracker, none = self.tracker(), detections(())
        for _ in range(2):
            assert tracker.update(none.boxes, none.scores, none.classes).shape == (0,)
            self.follow(tracker, 10)

    def test_detections_are_not_changed(self) -> None:
        """Check that detections, which other stages get, stay unchanged."""
        tracker, found = self.tracker(), detections(((1, 1, 9, 9),))
        for array in (found.boxes, found.scores, found.classes):
            array.flags.writeable = False
        for _ in range(3):
            tracker.update(found.boxes, found.scores, found.classes)


class BackendSuite:
    """Tests for every backend.

    Attributes:
        name: name in a pipeline file.
        exact: whether it really computes the model.
    """

    name: ClassVar[str]
    exact: ClassVar[bool] = True

    def backend(self) -> Backend:
        """Return the backend; override to skip where its library is not installed."""
        kind = BACKENDS.get(self.name)
        assert BACKENDS.missing(kind) == ""
        made: Backend = kind()
        return made

    def engine(self) -> Engine:
        """Return an engine of a 1x1 convolution that adds up three channels of 8x8."""
        return self.backend().compile(smallest(), EngineOptions(threads=1))

    def test_an_engine_knows_its_tensors(self) -> None:
        """Check names, static shapes, types, and the backend's name."""
        engine = self.engine()
        assert isinstance(engine, Engine) and engine.profiles == ("default",)
        assert [(one.name, one.shape, one.dtype) for one in engine.inputs] == [("x", (1, 3, 8, 8), "float32")]
        assert [(one.name, one.shape, one.dtype) for one in engine.outputs] == [("y", (1, 1, 8, 8), "float32")]
        assert "backend" in engine.info
        engine.close()

    def test_it_computes_the_model(self) -> None:
        """Check results in tensors that are bound once and do not move."""
        engine = self.engine()
        session = engine.session()
        bound = session.inputs["x"]
        assert bound.ctypes.data % ALIGN_BYTES == 0, "inputs are aligned for vector instructions"
        for seed in range(3):
            bound[...] = np.random.default_rng(seed).integers(0, 9, bound.shape)
            (found,) = session.run()
            assert session.inputs["x"] is bound and found.shape == (1, 1, 8, 8)
            assert not self.exact or np.array_equal(found, bound.sum(axis=1, keepdims=True))
        engine.close()

    def test_sessions_share_nothing(self) -> None:
        """Check that sessions have separate inputs."""
        engine = self.engine()
        one, other = engine.session(), engine.session()
        assert not np.shares_memory(one.inputs["x"], other.inputs["x"])
        engine.close()

    def test_an_unknown_profile_is_refused(self) -> None:
        """Check that it raises an EdgertError."""
        engine = self.engine()
        try:
            engine.session("nowhere")
        except EdgertError:
            return
        finally:
            engine.close()
        raise AssertionError("a session of a profile that does not exist")


class SourceSuite:
    """Tests for every source.

    Derived classes define a pytest fixture ``source``: a source named ``cam`` that is not started and has at least 12
    frames.

    Attributes:
        live: whether the source is live.
    """

    live: ClassVar[bool]

    def test_frames_come_in_order_with_leases(self, source: Source) -> None:
        """Check that frames come in order, with one size, each with a lease of its own."""
        assert isinstance(source, Source) and source.live is self.live
        stop, last = threading.Event(), (-1, -1, 0)
        stream = source.frames(stop)
        for _ in range(_FRAMES):
            frame = next(stream)
            assert frame.stream == "cam" and frame.lease.alive
            assert frame.index > last[0] and frame.media_ns >= last[1]
            assert last[2] <= frame.timestamp_ns <= REAL.now_ns()
            for number, (plane, depth) in enumerate(zip(frame.planes, _CHANNELS[frame.format], strict=True)):
                half = 2 if number else 1
                wanted = (-(-frame.height // half), -(-frame.width // half))
                assert plane.shape == (wanted if depth == 1 else (*wanted, depth)) and plane.dtype == np.uint8
                assert plane.strides[1:] == ((1,) if depth == 1 else (depth, 1)), "pixels of a row lie side by side"
            last = (frame.index, frame.media_ns, frame.timestamp_ns)
            frame.lease.release()
            assert not frame.lease.alive
        stats = source.stats()
        assert stats.skipped == stats.reconnects == stats.lost == 0 and stats.up is not False
        _finish(stream, stop)

    def test_stop_ends_it_within_half_a_second(self, source: Source) -> None:
        """Check a stop while it waits for a frame."""
        stop, taken = threading.Event(), threading.Event()

        def take() -> None:
            for frame in source.frames(stop):
                frame.lease.release()
                taken.set()
            source.close()

        taker = threading.Thread(target=take)
        taker.start()
        assert taken.wait(10), "no frame came"
        time.sleep(0.1)
        began_s = time.monotonic()
        stop.set()
        taker.join(5)
        assert not taker.is_alive() and time.monotonic() - began_s <= _STOP_S

    def test_a_frame_that_is_held_keeps_its_pixels(self, source: Source) -> None:
        """Check that later frames do not change a held one."""
        stop = threading.Event()
        stream = source.frames(stop)
        held = next(stream)
        before = [plane.copy() for plane in held.planes]
        for _ in range(_FRAMES - 1):
            next(stream).lease.release()
        assert all((now == then).all() for now, then in zip(held.planes, before, strict=True))
        held.lease.release()
        _finish(stream, stop)

    def test_closing_twice_and_closing_unused_do_no_harm(self, source: Source) -> None:
        """Check that it can be closed at any time."""
        source.close()
        source.close()
        assert source.stats() == SourceStats()


def _finish(stream: Iterator[Frame], stop: threading.Event) -> None:
    stop.set()
    for frame in stream:
        frame.lease.release()
