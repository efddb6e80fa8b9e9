"""Buffers that a program is lent, and tensors that it has on a GPU."""

import gc
import logging
import threading
import weakref
from typing import Any

import numpy as np
import pytest

from edgert.config.stages import SourceStage
from edgert.errors import DeviceError, StageError
from edgert.memory import TYPICAL_BUFFERS, Counter
from edgert.memory.cuda import CudaDevice, SharedLease
from edgert.runtime import Frame
from edgert.stages.context import Context
from edgert.stages.gpu.upload import is_shared
from edgert.stages.source.api import ApiSource
from edgert.stages.source.user_memory import Buffer, Buffers, most_in_use
from tests.helpers.cuda_double import CudaDouble
from tests.helpers.errors import Exactly, raises
from tests.helpers.foreign_gpu import CaiArray, Driver, Tensor
from tests.helpers.gpu import on_gpu
from tests.helpers.gpu_inference import bytes_at
from tests.helpers.virtual_clock import VirtualClock

SHAPE = (4, 6, 3)


class Rig:
    """A source whose frames a model on a GPU reads."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, integrated: bool = False, **options: object) -> None:
        self.gpu = CudaDouble(integrated, (8, 7) if integrated else (9, 0))
        self.device, self.driver = CudaDevice(self.gpu, 0, Counter()), Driver(self.gpu)
        monkeypatch.setattr("edgert.memory.cuda.driver.load_driver", lambda: self.driver)
        config = SourceStage.model_validate({"source": "api", **options})
        self.source = ApiSource("cam", config, Context(counter=self.device.counter, clock=VirtualClock(1000)))
        self.source.read_by(self.device)
        self.source.share(self.device)
        self.frames = self.source.frames(threading.Event())

    def tensor(self, shape: tuple[int, ...] = SHAPE, value: int = 7, **options: Any) -> Tensor:
        return Tensor(self.device, np.full(shape, value, np.uint8), self.driver, **options)

    def through(self, array: Any, **options: Any) -> Frame:
        self.source.submit(array, **options)
        return next(self.frames)


class TestTensors:
    def test_a_frame_is_the_tensor_where_it_lies_and_nobody_waits(self, monkeypatch: pytest.MonkeyPatch) -> None:
        rig, done = Rig(monkeypatch), list[int]()
        tensor = rig.tensor()
        rig.driver.pending[1].append(lambda: done.append(1))
        rig.gpu.paused = True
        before = rig.device.counter.read()
        frame = rig.through(tensor)
        plane: Any = frame.planes[0]
        assert frame.is_on_gpu and plane.address == tensor.block.address and not done
        assert (frame.width, frame.height, frame.format) == (6, 4, "bgr")
        assert rig.device.counter.read() == before
        rig.gpu.paused = False
        plane.stream.synchronize()
        assert done

    def test_the_owner_lives_until_the_gpu_has_read_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        rig = Rig(monkeypatch)
        tensor, reader = rig.tensor(), rig.device.stream()
        frame = rig.through(tensor)
        rig.gpu.paused = True
        with rig.device:
            reader.raw.put(lambda: None)
        frame.lease.after(reader)  # type: ignore[attr-defined]
        frame.lease.release()
        rig.source.reclaim()
        assert not tensor.given_back
        rig.gpu.paused = False
        rig.gpu.run_all()
        rig.source.reclaim()
        assert tensor.given_back

    def test_over_many_frames_no_stream_is_made(self, monkeypatch: pytest.MonkeyPatch) -> None:
        rig = Rig(monkeypatch)
        tensors, made = [rig.tensor(value=value) for value in range(3)], []
        for index in range(50):
            rig.through(tensors[index % 3]).lease.release()
            made.append(len(rig.gpu.streams))
        assert made[1] == made[-1]
        rig.source.reclaim()
        assert all(tensor.given_back for tensor in tensors)

    def test_frames_under_way_wait_for_their_own_tensor_alone(self, monkeypatch: pytest.MonkeyPatch) -> None:
        rig, done = Rig(monkeypatch), list[int]()
        rig.gpu.paused = True
        frames = []
        for number in range(2):
            tensor = rig.tensor(stream=0x50 + number)
            rig.driver.pending[0x50 + number].append(lambda number=number: done.append(number))
            frames.append(rig.through(tensor))
        first: Any = frames[0].planes[0]
        first.stream.synchronize()
        assert done == [0]

    def test_nv12_in_one_tensor_and_in_two(self, monkeypatch: pytest.MonkeyPatch) -> None:
        rig = Rig(monkeypatch)
        whole = rig.tensor((6, 8))
        luma, chroma = (plane for plane in rig.through(whole, format="nv12").planes)
        assert (luma.shape, luma.strides) == ((4, 8), (8, 1))
        assert (chroma.shape, chroma.strides) == ((2, 4, 2), (8, 2, 1))
        assert chroma.address == whole.block.address + 4 * 8  # type: ignore[attr-defined]
        parts = [rig.tensor((4, 8)), rig.tensor((2, 4, 2))]
        frame = rig.through(parts, format="nv12")
        assert [plane.address for plane in frame.planes] == [part.block.address for part in parts]  # type: ignore[attr-defined]
        frame.lease.release()
        rig.source.reclaim()
        assert all(part.given_back for part in parts)

    @pytest.mark.parametrize(
        ("array", "what"),
        [
            (np.zeros((4, 6, 3), np.float32), "uint8, not float32"),
            (np.zeros((3, 4, 6), np.uint8), "has shape (3, 4, 6)"),
            (np.zeros((6, 4, 3), np.uint8).transpose(1, 0, 2), "are not contiguous"),
        ],
    )
    def test_what_the_kernel_cannot_read_is_named_and_given_back(
        self, monkeypatch: pytest.MonkeyPatch, array: Any, what: str
    ) -> None:
        rig = Rig(monkeypatch)
        tensor = Tensor(rig.device, array, rig.driver)
        with raises(StageError, what=what, where=Exactly("stages.cam")):
            rig.source.submit(tensor)
        rig.source.reclaim()
        assert tensor.given_back

    def test_errors_have_the_place_and_the_next_frame_is_none_the_worse(self, monkeypatch: pytest.MonkeyPatch) -> None:
        rig = Rig(monkeypatch)
        with raises(DeviceError, "a tensor on GPU 1", where=Exactly("stages.cam")):
            rig.source.submit(rig.tensor(ordinal=1))
        with pytest.raises(DeviceError, match="0x66"):
            rig.source.submit(CaiArray(rig.tensor(), stream=0x66))
        with raises(StageError, "copy=True", fix="clone"):
            rig.source.submit(rig.tensor(), copy=True)
        assert rig.through(rig.tensor()).is_on_gpu

    def test_without_a_model_on_a_gpu_it_would_have_to_be_copied(self, monkeypatch: pytest.MonkeyPatch) -> None:
        tensor = Rig(monkeypatch).tensor()
        source = ApiSource("cam", SourceStage(source="api"), Context(clock=VirtualClock(0)))
        with pytest.raises(StageError, match="Tensor on a GPU cannot be submitted here") as caught:
            source.submit(tensor)
        assert "copied to the host" in caught.value.why and "tensor.cpu()" in caught.value.fix and not tensor.asked

    def test_the_end_gives_everything_back(self, monkeypatch: pytest.MonkeyPatch) -> None:
        rig = Rig(monkeypatch)
        tensors = [rig.tensor() for _ in range(3)]
        taken = rig.through(tensors[0])
        for tensor in tensors[1:]:
            rig.source.submit(tensor)
        rig.source.close()
        assert [tensor.given_back for tensor in tensors] == [False, True, True]
        taken.lease.release()
        assert tensors[0].given_back


def plain_source(**options: object) -> ApiSource:
    config = SourceStage.model_validate({"source": "api", **options})
    return ApiSource("cam", config, Context(clock=VirtualClock(1000)))


class TestBuffers:
    @pytest.mark.parametrize(
        ("size", "form", "shape"),
        [
            ((6, 4), "bgr", (4, 6, 3)),
            ((4, 6, 3), "rgb", (4, 6, 3)),
            ((8, 4), "nv12", (6, 8)),
            ((6, 4), "gray", (4, 6)),
            ((6, 4), "yuyv", (4, 6, 2)),
        ],
    )
    @pytest.mark.parametrize("on_gpu", [True, False])
    def test_is_filled_submitted_and_never_copied_by_the_host(
        self, monkeypatch: pytest.MonkeyPatch, size: Any, form: Any, shape: tuple[int, ...], on_gpu: bool
    ) -> None:
        rig = Rig(monkeypatch)
        source = rig.source if on_gpu else plain_source()
        buffer = source.buffer(size, format=form)
        assert buffer.shape == shape == buffer.array.shape and buffer.array.flags.c_contiguous
        assert buffer.array.ctypes.data % 64 == 0 and buffer.format == form
        buffer.array[:] = 9
        address = buffer.array.ctypes.data
        source.submit(buffer)
        frame = next(rig.frames if on_gpu else source.frames(threading.Event()))
        assert frame.format == form and frame.planes[0].ctypes.data == address
        assert all((plane == 9).all() for plane in frame.planes)
        assert is_shared(frame, rig.device) is on_gpu and rig.device.counter.read().copies == 0

    def test_who_brings_ordinary_memory_is_advised_once(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        rig = Rig(monkeypatch)
        rig.source.share(rig.device)
        with caplog.at_level(logging.INFO, "edgert"):
            rig.source.images(rig.source.buffer((6, 4)))[0].lease.release()
            assert not caplog.messages
            for _ in range(2):
                rig.source.images(np.zeros((4, 6, 3), np.uint8))[0].lease.release()
            plain_source().images(np.zeros((4, 6, 3), np.uint8))[0].lease.release()
        (message,) = caplog.messages
        assert "pipeline.buffer((width, height)) gives such memory" in message

    def test_the_gpu_reads_what_was_written(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for integrated in (False, True):
            rig = Rig(monkeypatch, integrated=integrated)
            buffer = rig.source.buffer((8, 4), format="nv12")
            buffer.array[:] = np.arange(48).reshape(6, 8)
            frame = on_gpu(rig.through(buffer), rig.device.stream())
            luma: Any = frame.planes[0]
            assert list(bytes_at(luma.address, 48)) == list(range(48))
            assert rig.device.counter.read().copies == (0 if integrated else 1)

    def test_where_the_processor_reads_past_its_caches_it_is_ordinary_memory(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        rig = Rig(monkeypatch)
        rig.gpu.integrated, rig.gpu.compute = True, (6, 2)
        device = CudaDevice(rig.gpu, 0, Counter())
        source = plain_source()
        source.read_by(device)
        source.buffer((6, 4))
        assert device.live_bytes == 0

    def test_goes_back_with_the_frame_and_is_lent_again(self) -> None:
        source, seen = plain_source(), set[int]()
        frames = source.frames(threading.Event())
        for _ in range(20):
            buffer = source.buffer((6, 4))
            seen.add(buffer.array.ctypes.data)
            source.submit(buffer)
            next(frames).lease.release()
        assert len(seen) <= 3 and source._counter.read().escaped == 0

    def test_goes_back_when_it_is_dropped_released_or_left(self) -> None:
        buffers, seen = Buffers(None, Counter()), set[int]()
        gc.disable()
        try:
            for way in range(30):
                buffer = buffers.lend(SHAPE, "bgr", 0, "")
                seen.add(buffer.array.ctypes.data)
                if way % 3 == 0:
                    buffer.release()
                    buffer.release()
                elif way % 3 == 1:
                    with buffer:
                        buffer.array[:] = 1
                del buffer
        finally:
            gc.enable()
        assert len(seen) == 1

    def test_with_leaves_what_was_submitted_alone(self) -> None:
        source = plain_source()
        with source.buffer((6, 4)) as buffer:
            source.submit(buffer)
        frame = next(source.frames(threading.Event()))
        assert frame.lease.alive

    def test_no_more_than_stated_are_lent(self) -> None:
        source = plain_source()
        held = [source.buffer((6, 4)) for _ in range(TYPICAL_BUFFERS)]
        with raises(StageError, "no buffer came back within", why=f"{TYPICAL_BUFFERS} of this size are in use"):
            source.buffer((6, 4), timeout_s=0.01)
        waiting = threading.Timer(0.02, held.pop().release)
        waiting.start()
        source.buffer((6, 4), timeout_s=10)
        waiting.join()

    def test_an_array_that_is_kept_keeps_its_memory(self) -> None:
        source = plain_source()
        buffer = source.buffer((6, 4))
        kept = buffer.array
        kept[:] = 3
        source.submit(buffer)
        frames = source.frames(threading.Event())
        next(frames).lease.release()
        others = [source.buffer((6, 4)) for _ in range(TYPICAL_BUFFERS - 1)]
        for other in others:
            other.array[:] = 5
        assert (kept == 3).all()
        with pytest.raises(StageError, match="no buffer"):
            source.buffer((6, 4), timeout_s=0)

    def test_memory_is_kept_of_few_sizes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        rig = Rig(monkeypatch)
        sizes = []
        for width in (8, 16, 24, 32, 40, 48, 8):
            rig.source.buffer((width, 4)).release()
            sizes.append(rig.device.live_bytes)
        assert sizes[-1] < sum(4 * 4 * 3 * width for width in (8, 16, 24, 32, 40, 48))
        rig.source.close()
        assert rig.device.live_bytes == 0 and rig.device.leaked == 0

    def test_what_was_submitted_or_released_is_not_its_holders_any_more(self) -> None:
        source = plain_source(queue=2)
        buffer = source.buffer((6, 4))
        source.submit(buffer)
        for use in (lambda: buffer.array, lambda: source.submit(buffer)):
            with raises(StageError, "after its end", why="it was submitted", fix="pipeline.buffer"):
                use()
        other = source.buffer((6, 4))
        other.release()
        with raises(StageError, why=Exactly("it was released")):
            source.submit(other)

    def test_a_buffer_that_found_no_room_is_still_its_holders(self) -> None:
        source = plain_source(queue=1)
        source.submit(np.zeros(SHAPE, np.uint8))
        buffer = source.buffer((6, 4))
        with pytest.raises(StageError, match="no room"):
            source.submit(buffer, timeout_s=0)
        buffer.array[:] = 2
        frames = source.frames(threading.Event())
        next(frames)
        source.submit(buffer)
        assert (next(frames).planes[0] == 2).all()

    def test_a_copy_of_a_buffer_leaves_it_with_its_holder(self) -> None:
        source = plain_source()
        buffer = source.buffer((6, 4))
        buffer.array[:] = 2
        source.submit(buffer, copy=True)
        buffer.array[:] = 3
        assert (next(source.frames(threading.Event())).planes[0] == 2).all()

    @pytest.mark.parametrize(
        ("size", "form"),
        [((6, 4), "i420"), ((7, 4), "nv12"), ((8, 5), "nv12"), ((4, 6, 4), "bgr"), ((0, 4), "bgr"), ((4,), "gray")],
    )
    def test_shapes_that_there_are_not(self, size: Any, form: Any) -> None:
        with raises(StageError, "there is no buffer of shape", where=Exactly("stages.cam"), fix=True):
            plain_source().buffer(size, format=form)

    def test_another_format_than_it_was_lent_for(self) -> None:
        source = plain_source()
        with pytest.raises(StageError, match="a buffer of rgb pixels, submitted as bgr"):
            source.submit(source.buffer((6, 4), format="rgb"), format="bgr")

    def test_after_the_end_none_is_lent(self) -> None:
        source = plain_source()
        source.close()
        with pytest.raises(StageError, match="no more buffers are available"):
            source.buffer((6, 4))

    def test_memory_goes_when_the_last_buffer_does(self) -> None:
        buffers = Buffers(None, Counter())
        buffer = buffers.lend(SHAPE, "bgr", None, "")
        memory = weakref.ref(buffer.array.base)
        buffers.close()
        buffer.array[:] = 1
        assert memory() is not None and isinstance(buffer, Buffer)
        del buffer
        assert memory() is None


def numbered() -> Any:
    """Three images, each full of its number."""
    return np.arange(3, dtype=np.uint8).reshape(3, 1, 1, 1) + np.zeros((4, 8, 3), np.uint8)


def three(source: ApiSource) -> list[Frame]:
    frames = source.frames(threading.Event())
    return [next(frames) for _ in range(3)]


class TestBatches:
    @pytest.mark.parametrize("is_lent", [True, False])
    def test_it_goes_up_by_one_copy(self, monkeypatch: pytest.MonkeyPatch, is_lent: bool) -> None:
        rig = Rig(monkeypatch, queue=16)
        source, device = rig.source, rig.device
        array: Any = numbered()
        if is_lent:
            buffer = source.buffer((8, 4), batch=3)
            buffer.array[:] = array
            array = buffer
        source.submit(array)
        frames, stream = three(source), device.stream()
        assert device.counter.read().copies == (0 if is_lent else 1)  # to pinned memory
        for row, frame in enumerate(frames):
            lease = frame.lease
            assert isinstance(lease, SharedLease) and lease is frames[0].lease
            lease.send(stream)
            assert set(bytes_at(lease.addresses_of(frame.planes)[0], 96)) == {row}
        assert device.counter.read().copies == (1 if is_lent else 2)

    def test_without_such_memory_left_it_stays_where_it_is(self, monkeypatch: pytest.MonkeyPatch) -> None:
        source = Rig(monkeypatch, queue=16).source
        held = [source.buffer((8, 4), batch=3) for _ in range(most_in_use(3))]
        source.submit(numbered())
        assert [int(frame.planes[0][0, 0, 0]) for frame in three(source)] == [0, 1, 2] and held

    def test_a_tensor_is_read_where_it_lies(self, monkeypatch: pytest.MonkeyPatch) -> None:
        rig = Rig(monkeypatch, queue=16)
        source, device = rig.source, rig.device
        tensor = Tensor(device, numbered(), rig.driver)
        assert source.submit(tensor) == 0
        frames = three(source)
        addresses = [frame.planes[0].address for frame in frames]  # type: ignore[attr-defined]
        assert addresses == [tensor.block.address + row * 96 for row in range(3)]
        assert device.counter.read().copies == 0
        for frame in frames:
            frame.lease.release()
        assert not frames[0].lease.alive
