"""The kernel on a GPU, number for number as on the processor, where its tests hold it to the CPU path."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from edgert.config import InputConfig
from edgert.errors import StageError
from edgert.memory.cuda import CudaDevice
from edgert.runtime import Color, Frame
from edgert.stages.gpu.gpu_preprocess import GpuPreprocessor, Target
from edgert.stages.gpu.kernels import Kernels
from edgert.stages.gpu.upload import Uploader
from tests.helpers.cuda_on_host import kernels_or_skip
from tests.helpers.frames import frame_of
from tests.helpers.gpu import gpu_or_skip, read, rounds, to_gpu, uploaded
from tests.helpers.gpu_target import target
from tests.helpers.gpu_written import POISON, fill, written

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def device() -> Iterator[CudaDevice]:
    gpu = gpu_or_skip()
    yield gpu
    gpu.synchronize()


@pytest.fixture(scope="module")
def kernels(device: CudaDevice) -> Kernels:
    return Kernels(device)


def check(kernels: Kernels, frames: list[Frame], config: InputConfig, wanted: Target, **how: Any) -> None:
    """Every byte of the target: those that the kernel must write, and those that it must leave."""
    found, exact = (written(one, frames, config, wanted, **how) for one in (kernels, kernels_or_skip()))
    assert np.array_equal(found, exact), describe(found, exact, wanted)


def describe(found: Any, exact: Any, wanted: Target) -> str:
    rows = np.flatnonzero(found.view(wanted.dtype) != exact.view(wanted.dtype))
    values = [(found.view(wanted.dtype)[row], exact.view(wanted.dtype)[row]) for row in rows[:5]]
    return f"{len(rows)} of {found.nbytes} differ, first at {rows[:5].tolist()}: {values}"


FORMATS = ("i420", "nv12", "yuyv", "bgr", "rgb", "gray")
METHODS = ("linear", "nearest", "area", "cubic")


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("order", ["rgb", "bgr", "gray"])
@pytest.mark.parametrize("how", METHODS)
def test_every_format_and_color_by_every_method(kernels: Kernels, form: Any, order: Any, how: Any) -> None:
    color = Color("bt709" if order == "bgr" else "bt601", order == "gray")
    channels = 1 if order == "gray" else 3
    for index, (size, network) in enumerate((((122, 61), (64, 64)), ((40, 90), (52, 33)), ((64, 48), (64, 48)))):
        frame = frame_of(*size, form, color=color, index=index, padding=index * 3)
        config = InputConfig(color=order, interpolation=how, mean=(3.0,), std=(57.0,))
        check(kernels, [frame], config, target("nchw", "float32", 1, *network, channels))


@pytest.mark.parametrize("form", ["rgba", "bgra"])
@pytest.mark.parametrize("how", METHODS)
def test_four_bytes_per_pixel(kernels: Kernels, form: Any, how: Any) -> None:
    pixels = np.random.default_rng(1).integers(0, 256, (37, 51, 4), np.uint8)
    config = InputConfig(interpolation=how)
    check(kernels, [frame_of(51, 37, form, pixels=(pixels,))], config, target("nchw", "float16", 1, 32, 32))


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("how", METHODS)
def test_images_one_or_two_pixels_wide(kernels: Kernels, form: Any, how: Any) -> None:
    for width in (1, 2, 3) if form != "yuyv" else (2, 4):
        frame = frame_of(width, 9, form)
        check(kernels, [frame], InputConfig(interpolation=how, resize="stretch"), target("nchw", "float16", 1, 16, 16))


LAYOUTS = (
    ("nchw", "float32"), ("nchw", "float16"), ("nchw", "int8"), ("nchw", "uint8"), ("nhwc", "float32"),
    ("nhwc", "int8"), ("dla_linear", "float16"), ("dla_linear", "int8"), ("dla_hwc4", "float16"),
    ("dla_hwc4", "int8"), ("chw16", "float16"), ("chw32", "int8"),
)  # fmt: skip


@pytest.mark.parametrize(("layout", "dtype"), LAYOUTS)
@pytest.mark.parametrize("network", [(64, 40), (33, 29)])
def test_every_layout_and_type(kernels: Kernels, layout: Any, dtype: Any, network: tuple[int, int]) -> None:
    frames = [frame_of(100 - row, 75 + row, "nv12", index=row) for row in range(3)]
    config = InputConfig(mean=(123.7, 116.3, 103.5), std=(58.4, 57.1, 57.4))
    if dtype in ("int8", "uint8"):
        config = InputConfig(mean=(128,) if dtype == "int8" else (0,), std=(0.7,))
    check(kernels, frames, config, target(layout, dtype, 3, *network))


@pytest.mark.parametrize("step", [1, 2, 4, 8])
@pytest.mark.parametrize("rows", [1, 2, 4])
def test_any_share_of_work_per_thread(kernels: Kernels, step: int, rows: int) -> None:
    for width in (48, 50):
        frame = frame_of(97, 61, "nv12")
        check(kernels, [frame], InputConfig(), target("nchw", "float16", 1, width, 45), share=(step, rows))


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("how", METHODS)
def test_random_crops_strides_and_sizes(kernels: Kernels, form: Any, how: Any) -> None:
    random = np.random.default_rng(7)
    for _ in range(rounds(12)):
        width, height = int(random.integers(8, 300)), int(random.integers(8, 200))
        width &= ~1 if form == "yuyv" else ~0
        frame = frame_of(width, height, form, padding=int(random.integers(0, 9)), index=int(random.integers(99)))
        crops = [frame]
        for _ in range(5):
            x, y = int(random.integers(-5, width - 2)), int(random.integers(-5, height - 2))
            crops.append(
                frame.crop(x, y, x + int(random.integers(7, width + 9)), y + int(random.integers(7, height + 9)))
            )
        network = int(random.integers(4, 120)), int(random.integers(4, 120))
        resize: Any = random.choice(["letterbox", "stretch", "center_crop"])
        config = InputConfig(resize=resize, interpolation=how, pad=int(random.integers(256)))
        check(kernels, crops, config, target("nchw", "float16", len(crops), *network))


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("how", ["area", "cubic"])
def test_whole_numbers_of_pixels_to_one(kernels: Kernels, form: Any, how: Any) -> None:
    for across, down in ((1, 1), (2, 2), (3, 2), (4, 8)):
        frame = frame_of(26 * across, 15 * down, form)
        config = InputConfig(interpolation=how, resize="stretch")
        check(kernels, [frame], config, target("nchw", "float32", 1, 26, 15))


def test_many_crops_of_one_frame_and_formats_mixed(kernels: Kernels) -> None:
    frame, other = frame_of(320, 240, "nv12"), frame_of(90, 70, "bgr")
    crops = [frame.crop(5 * n, 3 * n, 5 * n + 60, 3 * n + 80) for n in range(40)]
    check(kernels, [*crops[:20], other, *crops[20:]], InputConfig(), target("nchw", "float16", 41, 32, 32))


def test_a_large_frame(kernels: Kernels) -> None:
    for resize in ("letterbox", "stretch"):
        frames = [frame_of(1920, 1080, "nv12", index=row) for row in range(2)]
        check(kernels, frames, InputConfig(resize=resize), target("nchw", "float16", 2, 640, 640))  # type: ignore[arg-type]


def test_an_uploaded_frame_is_read_after_its_upload(kernels: Kernels) -> None:
    device, working = kernels.device, kernels.device.stream()
    uploader, wanted = Uploader(device, 2), target("nchw", "float16", 1, 96, 96)
    block = device.device_block(wanted.nbytes)
    into = GpuPreprocessor(InputConfig(), wanted, block.address, kernels)
    for index in range(rounds(12)):
        form: Any = ("nv12", "i420", "bgr")[index % 3]
        frame = frame_of(161, 91, form, index=index)
        sent = uploaded(uploader, frame)
        fill(into, [sent], working)
        sent.lease.release()
        working.synchronize()
        exact = written(kernels_or_skip(), [frame], InputConfig(), wanted)
        assert np.array_equal(read(device, block.address, wanted.nbytes), exact)
        with pytest.raises(StageError, match="used after its release"):
            fill(into, [sent], working)
    uploader.close()
    block.release()


def test_recorded_in_a_graph(kernels: Kernels) -> None:
    device, stream, wanted = kernels.device, kernels.device.stream(), target("nchw", "float16", 2, 64, 64)
    block = device.device_block(wanted.nbytes)
    frames = [frame_of(130, 90, "nv12", index=row) for row in range(2)]
    on_gpu = [to_gpu(device, frame) for frame in frames]
    into = GpuPreprocessor(InputConfig(), wanted, block.address, kernels)
    fill(into, on_gpu, stream)
    stream.synchronize()
    first = read(device, block.address, wanted.nbytes)
    launch = device.capture(stream, lambda: fill(into, on_gpu, stream))
    with device:
        device.driver.memset_d8(block.address, POISON, wanted.nbytes)
    device.synchronize()
    launch()
    stream.synchronize()
    assert np.array_equal(read(device, block.address, wanted.nbytes), first)
    block.release()
