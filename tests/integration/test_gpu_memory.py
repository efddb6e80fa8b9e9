"""Memory of a GPU: blocks, pools and leases, shared with PyTorch, and nothing that stays behind."""

from collections.abc import Iterator

import numpy as np
import pytest

from edgert.config import InputConfig
from edgert.errors import DeviceError, StageError
from edgert.memory import Counter
from edgert.memory.cuda import CudaDevice, SharedLease, SharedPool, ViewPool, from_cuda_array, from_dlpack
from edgert.stages.gpu.gpu_preprocess import GpuPreprocessor
from edgert.stages.gpu.kernels import Kernels
from edgert.stages.gpu.upload import Uploader
from tests.helpers.frames import frame_of
from tests.helpers.gpu import gpu_or_skip, read, to_gpu, uploaded
from tests.helpers.gpu_target import target
from tests.helpers.gpu_written import fill

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def device() -> Iterator[CudaDevice]:
    gpu = gpu_or_skip()
    yield gpu
    gpu.synchronize()


def test_shared_with_torch_both_ways(device: CudaDevice) -> None:
    torch = pytest.importorskip("torch")
    counter = Counter()
    view = ViewPool(device, 1024, counter).take((1024,), device.stream())
    lease = view.lease
    floats = view.as_type("float32", (16, 16))
    tensor = torch.from_dlpack(floats)
    tensor.fill_(2.5)
    again = torch.as_tensor(floats, device="cuda")
    torch.cuda.synchronize()
    assert tensor.data_ptr() == again.data_ptr() == floats.address and float(again.sum()) == 640.0
    lease.release()
    assert lease.alive  # torch holds it
    del tensor
    assert not lease.alive
    with pytest.raises(StageError, match="used after its release"):
        _ = floats.address
    ours = torch.arange(12, device="cuda", dtype=torch.int32).reshape(3, 4)[:, 1:]
    for back in (from_dlpack(ours, counter), from_cuda_array(ours, counter)):
        assert (back.shape, back.strides, back.address) == ((3, 3), (16, 4), ours.data_ptr())
        back.lease.release()
    assert counter.read().copies == 0


def test_shared_with_cupy_both_ways(device: CudaDevice) -> None:
    cupy = pytest.importorskip("cupy")
    counter = Counter()
    pool = ViewPool(device, 1024, counter)
    view = pool.take((1024,), device.stream())
    lease = view.lease
    floats = view.as_type("float32", (16, 16))
    with device:
        array, same = cupy.from_dlpack(floats), cupy.asarray(floats)
        array.fill(2.5)
        assert array.data.ptr == same.data.ptr == floats.address and float(same.sum()) == 640.0
        lease.release()
        assert lease.alive  # CuPy holds it
        del array, same
        assert not lease.alive
        ours = cupy.arange(12, dtype=cupy.int32).reshape(3, 4)[:, 1:]
        for back in (from_dlpack(ours, counter), from_cuda_array(ours, counter)):
            assert (back.shape, back.strides, back.address) == ((3, 3), (16, 4), ours.data.ptr)
            back.lease.release()
    assert counter.read().copies == 0
    pool.close()


def test_blocks_of_both_kinds_and_pools(device: CudaDevice) -> None:
    before, stream = device.live_bytes, device.stream()
    for kind in ("mapped", "staged"):
        block = device.block(5000, kind)  # type: ignore[arg-type]
        assert block.address % 256 == 0 and not block.host.any()
        block.host[:] = np.arange(5000, dtype=np.uint32).astype(np.uint8)
        block.upload(stream)
        stream.synchronize()
        assert np.array_equal(read(device, block.address, 5000), block.host)
        with device:
            device.driver.memset_d8(block.address, 7, 5000)
        device.synchronize()
        block.download(stream)
        stream.synchronize()
        assert (block.host == 7).all()
        block.release()
    assert device.live_bytes == before


@pytest.mark.timing
def test_memory_comes_back_over_ten_thousand_leases(device: CudaDevice) -> None:
    counter, stream = device.counter, device.stream()
    pool, before = SharedPool(device, 2**20, 3), counter.read()
    free, _ = device.free_bytes()
    for _ in range(10_000):
        leased = pool.acquire()
        assert leased is not None
        memory, lease = leased
        assert isinstance(lease, SharedLease)
        lease.send(stream)
        lease.release()
        del memory, leased
    stream.synchronize()
    assert device.free_bytes()[0] == free and counter.read().allocations == before.allocations


def test_a_stream_goes_first_and_works_as_before(device: CudaDevice) -> None:
    stream, block = device.stream(), device.device_block(4096)
    stream.raise_priority()  # raises where the driver's answer is not the priority that was asked for
    with device:
        device.driver.memset_d8_async(block.address, 9, 4096, stream.raw)
    stream.synchronize()
    assert (read(device, block.address, 4096) == 9).all()
    block.release()


@pytest.mark.timing
def test_released_and_forgotten_memory_is_free_again(device: CudaDevice) -> None:
    size = 256 * 2**20
    free, _ = device.free_bytes()
    block = device.device_block(size)
    assert device.free_bytes()[0] <= free - size
    block.release()
    assert device.free_bytes()[0] == free
    frame = to_gpu(device, frame_of(16384, 4096, "rgb", pixels=(np.zeros((4096, 16384, 3), np.uint8),)))
    assert device.free_bytes()[0] < free
    leaked = device.leaked
    del frame
    assert device.free_bytes()[0] == free and device.leaked == leaked + 1


def test_more_than_the_gpu_has(device: CudaDevice) -> None:
    _, total = device.free_bytes()
    with pytest.raises(DeviceError, match="too little memory") as caught:
        device.device_block(2 * total)
    assert "were requested" in caught.value.why


@pytest.mark.slow
@pytest.mark.timing
def test_nothing_grows_over_a_hundred_thousand_frames(device: CudaDevice) -> None:
    kernels, counter, frame = Kernels(device), device.counter, frame_of(640, 360, "nv12")
    uploader, working, wanted = Uploader(device), device.stream(), target("nchw", "float16", 1, 320, 320)
    block = device.device_block(wanted.nbytes)
    into = GpuPreprocessor(InputConfig(), wanted, block.address, kernels)

    def run(frames: int) -> None:
        for _ in range(frames):
            sent = uploaded(uploader, frame)
            fill(into, [sent], working)
            sent.lease.release()
        working.synchronize()

    run(50)
    before = device.free_bytes()[0], counter.read().allocations, device.live_bytes
    run(100_000)
    assert (device.free_bytes()[0], counter.read().allocations, device.live_bytes) == before
    assert counter.read().escaped == 0
    uploader.close()
    block.release()
