import ctypes
import gc
import threading
from typing import Any

import numpy as np
import pytest

from edgert.errors import DeviceError, StageError
from edgert.memory.cuda import CudaDevice, Traits, gpu_context, holders, memory_kind, open_device
from edgert.memory.cuda.driver import cuda_error, is_lost, unusable_pycuda
from edgert.memory.cuda.gpu_context import describe_memory
from tests.helpers.cuda_double import CudaDouble
from tests.helpers.errors import raises
from tests.helpers.threads import in_threads


def opened(**how: Any) -> tuple[CudaDevice, CudaDouble]:
    gpu = CudaDouble(**how)
    return open_device(driver=gpu), gpu


@pytest.mark.parametrize(
    ("traits", "kind", "words"),
    [
        (Traits(False, True, (9, 0)), "staged", "discrete"),
        (Traits(True, True, (8, 7)), "mapped", "I/O coherent: no copies"),
        (Traits(True, True, (7, 2)), "mapped", "integrated"),
        (Traits(True, True, (6, 2)), "staged", "not I/O coherent"),
        (Traits(True, True, (5, 3)), "staged", "not I/O coherent"),
        (Traits(True, False, (8, 7)), "staged", "cannot map"),
    ],
)
def test_the_kind_of_memory_follows_from_the_gpu(traits: Traits, kind: str, words: str) -> None:
    assert memory_kind(traits) == kind and words in describe_memory(traits)


class TestContext:
    def test_is_left_as_it_was_found(self) -> None:
        device, gpu = opened()
        with device, device:
            assert len(gpu.stack) == 1
        assert not gpu.stack
        with pytest.raises(ZeroDivisionError), device:
            _ = 1 // 0
        assert not gpu.stack

    def test_is_pushed_and_popped_in_every_thread(self) -> None:
        device, gpu = opened()
        left, blocks = [], []

        def work() -> None:
            for _ in range(20):
                block = device.block(100)
                block.upload(device.stream())
                blocks.append(block)
            left.append(len(gpu.stack))

        in_threads(work)
        assert left == [0, 0, 0, 0] and len({block.address for block in blocks}) == 80
        for block in blocks:
            block.release()
        assert device.live_bytes == 0 and not gpu.allocations

    def test_what_one_takes_is_measured_by_another_that_is_gone_at_once(self) -> None:
        device, gpu = opened()
        assert device.context_bytes() == gpu.CONTEXT_BYTES
        assert not gpu.stack and not gpu.more_contexts
        gpu.broken["context"] = "cuCtxCreate failed: out of memory"
        with pytest.raises(DeviceError, match="opening a context: the GPU has too little memory"):
            device.context_bytes()

    def test_is_current_when_kernels_are_unloaded_by_whatever_thread(self) -> None:
        device, gpu = opened()
        held = [device.load(b"cubin").kernel("k"), device.load(b"cubin")]
        threading.Thread(target=held.clear).start()
        while held:
            pass
        gc.collect()
        assert gpu.unloaded == [True, True]

    def test_closed_is_closed(self) -> None:
        device, gpu = opened()
        device.close()
        assert gpu.detached and not device.is_open
        with pytest.raises(DeviceError, match="double was closed"):
            device.stream()
        with pytest.raises(DeviceError, match="double was closed"):
            device.synchronize()


class TestBlocks:
    @pytest.mark.parametrize(("integrated", "copies"), [(True, 0), (False, 2)])
    def test_copies_are_counted_where_they_are_made(self, integrated: bool, copies: int) -> None:
        device, _ = opened(integrated=integrated)
        block, stream = device.block(1000), device.stream()
        assert not block.host.any() and block.host.shape == (1000,) and block.address % 256 == 0
        block.upload(stream)
        block.download(stream)
        counts = device.counter.read()
        assert (counts.copies, counts.bytes_copied, counts.allocations) == (copies, copies * 1000, 1)
        block.release()

    @pytest.mark.parametrize("integrated", [True, False])
    def test_what_the_host_writes_comes_back(self, integrated: bool) -> None:
        device, _ = opened(integrated=integrated)
        block, stream = device.block(64), device.stream()
        block.host[:] = np.arange(64)
        block.upload(stream)
        stream.synchronize()
        if not integrated:
            block.host[:] = 0
        block.download(stream)
        stream.synchronize()
        assert block.host.tolist() == list(range(64))
        block.release()

    def test_use_after_release_is_caught_and_a_second_release_does_nothing(self) -> None:
        device, gpu = opened()
        for block in (device.block(10), device.block(10, "mapped"), device.device_block(10)):
            block.release()
            block.release()
            with pytest.raises(StageError, match="used after its release"):
                _ = block.address
        assert not gpu.allocations
        with pytest.raises(StageError, match="used after its release"):
            device_block = device.block(10)
            device_block.release()
            _ = device_block.host

    @pytest.mark.parametrize("integrated", [False, True])
    def test_zeros_are_there_before_anybody_can_write(self, integrated: bool) -> None:
        device, gpu = opened(integrated=integrated)
        gpu.paused = True  # work waits until it is waited for: memset, too, returns before it is done
        blocks = device.block(100), device.device_block(100)
        assert all(not bytes((ctypes.c_uint8 * 100).from_address(block.address)).strip(b"\0") for block in blocks)
        assert not any(stream.work for stream in gpu.streams)
        for block in blocks:
            block.release()

    def test_memory_of_the_gpu_alone_has_no_host_side(self) -> None:
        device, _ = opened()
        block = device.device_block(10)
        with pytest.raises(DeviceError, match="cannot access this memory"):
            _ = block.host
        block.release()

    def test_a_forgotten_block_is_freed_and_counted(self) -> None:
        device, gpu = opened()
        block = device.block(100)
        del block
        gc.collect()
        assert (device.leaked, device.live_bytes, gpu.allocations) == (1, 0, [])

    def test_closing_tells_what_was_not_released(self) -> None:
        device, gpu = opened()
        blocks = [device.block(2**20), device.device_block(2**20)]
        with pytest.raises(StageError, match="2 blocks of GPU memory were not released") as caught:
            device.close()
        assert "2.0 MiB" in caught.value.why and gpu.detached and len(blocks) == 2

    def test_too_much_memory(self) -> None:
        device, _ = opened(memory_bytes=10 * 2**20)
        with raises(DeviceError, "too little memory", why="11.0 MiB were requested, 10.0 MiB are free"):
            device.device_block(11 * 2**20)
        assert device.live_bytes == 0 and device.counter.read().allocations == 0

    def test_too_little_memory_names_other_processes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        holder = holders.Holder(4711, "python", 3 * 2**30)
        asked: list[str] = []
        monkeypatch.setattr(gpu_context, "others_on", lambda bus_id: asked.append(bus_id) or (holder,))
        device, _ = opened(memory_bytes=2**20)
        with pytest.raises(DeviceError) as caught:
            device.block(2**21)
        others = "other processes hold memory there: python (process 4711) 3.0 GiB"
        assert caught.value.why == f"2.0 MiB were requested, 1.0 MiB are free; {others}"
        assert asked == ["0000:00:00.0"]

    def test_room_is_of_one_gpu(self, monkeypatch: pytest.MonkeyPatch) -> None:
        asked: list[str] = []
        monkeypatch.setattr(gpu_context, "others_on", lambda bus_id: asked.append(bus_id) or ())
        gpu = CudaDouble(memory_bytes=2**20, count=2)
        first, second = open_device(driver=gpu), open_device(1, driver=gpu)
        block = first.device_block(2**19)
        assert first.describe_free_memory() == "512.0 KiB of 1.0 MiB are free on double"
        assert second.describe_free_memory() == "1.0 MiB of 1.0 MiB are free on double (GPU 1)"
        assert asked == ["0000:00:00.0", "0000:01:00.0"]
        block.release()

    def test_no_bytes_are_no_block(self) -> None:
        with pytest.raises(DeviceError, match="a block of 0 bytes"):
            opened()[0].block(0)


class TestErrors:
    def test_no_such_gpu(self) -> None:
        with pytest.raises(DeviceError, match="there is no GPU 1"):
            open_device(1, driver=CudaDouble())

    def test_a_driver_older_than_the_toolkit(self) -> None:
        with raises(DeviceError, r"runs CUDA 12\.4 at most", why="CUDA 13.0", fix="update"):
            open_device(driver=CudaDouble(driver_version=12040))

    def test_a_driver_without_gpus(self) -> None:
        gpu = CudaDouble()
        gpu.broken["init"] = "cuInit failed: no CUDA-capable device is detected"
        with pytest.raises(DeviceError, match="there is no NVIDIA GPU"):
            open_device(driver=gpu)

    @pytest.mark.parametrize(
        ("message", "what"),
        [
            ("libcuda.so.1: cannot open shared object file", "there is no CUDA driver"),
            ("_driver.so: undefined symbol: cuGraphX", "too old"),
            ("numpy.core.multiarray failed to import", "PyCUDA does not work here"),
        ],
    )
    def test_why_pycuda_cannot_be_imported(self, message: str, what: str) -> None:
        error = unusable_pycuda(message)
        assert what in error.what and error.why == message and error.fix

    def test_no_pycuda(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(__import__("sys").modules, "pycuda", None)
        with raises(DeviceError, "PyCUDA is not installed", fix="pip install pycuda"):
            open_device()

    def test_a_lost_device(self) -> None:
        device, gpu = opened()
        event, stream = device.event(), device.stream()
        gpu.broken["event"] = "cuEventQuery failed: an illegal memory access was encountered"
        for ask in (event.record(stream).passed, event.synchronize):
            with raises(DeviceError, "the GPU is lost to this process", fix="compute-sanitizer"):
                ask()

    @pytest.mark.parametrize(
        ("message", "answer"),
        [
            ("cuEventQuery failed: misaligned address", True),
            ("cuEventQuery failed: an illegal instruction was encountered", True),
            ("cuEventQuery failed: the launch timed out and was terminated", True),
            ("cuCtxSynchronize failed: unknown error", True),
            ("cuMemAlloc failed: out of memory", False),
            ("cuLaunchKernel failed: invalid argument", False),
        ],
    )
    def test_which_errors_leave_nothing_to_go_on_with(self, message: str, answer: bool) -> None:
        assert is_lost(message) is answer

    def test_any_other_error_keeps_its_message(self) -> None:
        assert str(cuda_error(RuntimeError("odd"), "launching x")) == "launching x failed\n  why:   odd"

    def test_kernels(self) -> None:
        device, gpu = opened()
        module, stream = device.load(b"cubin"), device.stream()
        module.kernel("fill").launch(b"12345678", (1, 2, 3), (32, 8, 1), stream)
        assert gpu.launches == [("fill", (1, 2, 3), (32, 8, 1), stream.handle, b"12345678")]
        with pytest.raises(DeviceError, match="there is no kernel 'missing'"):
            module.kernel("missing")
        gpu.broken["launch"] = "cuLaunchKernel failed: invalid argument"
        with pytest.raises(DeviceError, match="launching fill failed"):
            module.kernel("fill").launch(b"12345678", (1, 2, 3), (32, 8, 1), stream)
        gpu.broken["module"] = "cuModuleLoadDataEx failed: no kernel image is available"
        with pytest.raises(DeviceError, match="loading kernels failed"):
            device.load(b"cubin")


class TestTensors:
    """Memory of an engine's tensors: the GPU's own where no host touches them, on integrated GPUs, too."""

    @pytest.mark.parametrize(
        ("kind", "for_host", "asked", "found"),
        [
            ("mapped", True, None, "mapped"),
            ("mapped", False, None, "staged"),
            ("mapped", False, "mapped", "mapped"),
            ("mapped", True, "staged", "staged"),
            ("staged", True, None, "staged"),
            ("staged", False, None, "staged"),
        ],
    )
    def test_the_table(self, kind: Any, for_host: bool, asked: Any, found: str) -> None:
        assert gpu_context.tensor_kind(kind, for_host, asked) == found

    @pytest.mark.parametrize("integrated", [True, False])
    def test_the_hosts_side_is_made_when_it_is_asked_for(self, integrated: bool) -> None:
        device, gpu = opened(integrated=integrated)
        block, stream = device.tensor_block(64, for_host=False), device.stream()
        assert block.is_staged and len(gpu.allocations) == 1
        with device:
            gpu.memcpy_htod(block.address, np.arange(64, dtype=np.uint8))
        assert not block.host.any() and len(gpu.allocations) == 2
        block.download(stream)
        stream.synchronize()
        assert block.host.tolist() == list(range(64)) and len(gpu.allocations) == 2
        block.release()
        assert not gpu.allocations and device.live_bytes == 0

    def test_one_that_nobody_asked_for_is_released_too(self) -> None:
        device, gpu = opened(integrated=True)
        device.tensor_block(64, for_host=False).release()
        assert not gpu.allocations

    def test_any_other_value_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(gpu_context.TENSORS, "pinned")
        with pytest.raises(DeviceError, match="EDGERT_GPU_TENSORS names no kind of memory") as caught:
            opened(integrated=True)
        assert caught.value.why == "it is 'pinned', not mapped or device"


def test_a_driver_that_does_not_name_the_gpu_hides_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = CudaDouble()

    def is_full(device: object) -> None:
        raise gpu.Error("cuDevicePrimaryCtxRetain failed: out of memory")

    def refuse(device: object) -> str:
        raise gpu.Error("cuDeviceGetPCIBusId failed: unknown error")

    monkeypatch.setattr(gpu.Device, "retain_primary_context", is_full)
    monkeypatch.setattr(gpu.Device, "pci_bus_id", refuse)
    with pytest.raises(DeviceError, match="opening GPU 0: the GPU has too little memory") as caught:
        open_device(0, driver=gpu)
    assert caught.value.why == "a CUDA context takes 500 MiB, an unknown amount is free"
