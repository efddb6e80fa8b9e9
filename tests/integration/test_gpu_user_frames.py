"""Frames that a program brings to a GPU: tensors where they are, lent buffers, calls; and pipelines again and again."""

import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from edgert.assemble import Environment
from edgert.backend.ort import cuda, runtime
from edgert.errors import DeviceError, EdgertError, StageError
from edgert.graph import to_bytes
from edgert.memory.cuda import CudaDevice
from edgert.pipeline import Pipeline, pipeline_in
from tests.helpers import models
from tests.helpers.gpu import gpu_or_skip, room_bytes, rounds
from tests.helpers.gpu_pipeline import MODEL, TEXT, Engines
from tests.helpers.growth import growth
from tests.helpers.small_pipeline import small_pipeline

pytestmark = pytest.mark.gpu
FILE = """
schema: 1
name: called
engines: [{engine}]
models:
  net: {{onnx: net.onnx, task: {{embed: none}}, input: {{resize: stretch, color: rgb, std: 255}}, precision: fp32}}
stages:
  cam: {{source: api}}
  find: {{infer: net, from: cam}}
"""
WIDTH, HEIGHT = 640, 480
NAP = 200_000_000
"""Cycles of the GPU: about a tenth of a second."""
PIPELINES = 20 if rounds(2) == 1 else 1000


@pytest.fixture(scope="module")
def torch() -> Any:
    gpu_or_skip().close()
    return pytest.importorskip("torch")


@pytest.fixture
def pipeline(tmp_path: Path) -> Iterator[Pipeline]:
    """Whose record is the mean of red, green and blue, from 0 to 1."""
    if missing := cuda.why_not():
        pytest.skip(missing)
    with Pipeline(written(tmp_path)) as made:
        yield made


def written(folder: Path, engine: str = "onnxruntime-cuda", shape: models.Dims = models.IMAGE) -> Path:
    (folder / "net.onnx").write_bytes(to_bytes(models.means(shape)))
    file = folder / f"{engine}.yaml"
    file.write_text(FILE.format(engine=engine))
    return file


class Cai:
    def __init__(self, tensor: Any, stream: int | None, address: int | None = None) -> None:
        self._tensor = tensor
        data = tensor.data_ptr() if address is None else address, False
        shape, strides = tuple(tensor.shape), tuple(tensor.stride())
        described = {"shape": shape, "strides": strides, "typestr": "|u1", "data": data, "version": 3}
        self.__cuda_array_interface__ = {**described, "stream": stream}


def colored(torch: Any, color: tuple[int, int, int]) -> Any:
    return torch.tensor(color, dtype=torch.uint8, device="cuda").expand(HEIGHT, WIDTH, 3).contiguous()


def copied_bytes(pipeline: Pipeline) -> float:
    summary = pipeline.summary()
    return summary.memory.bytes_copied_per_frame * summary.frames_in


@pytest.mark.parametrize("protocol", ["dlpack", "array interface", "older interface"])
@pytest.mark.parametrize("way", ["submit", "call"])
def test_a_tensor_is_read_where_it_is_once_its_stream_is_through(
    torch: Any, pipeline: Pipeline, protocol: str, way: str
) -> None:
    assert pipeline._api_source(None)._device is not None
    stream = torch.cuda.Stream() if protocol != "older interface" else torch.cuda.current_stream()
    wanted = [(10, 20, 30), (200, 100, 50), (0, 255, 128)]
    tensors = [torch.zeros((HEIGHT, WIDTH, 3), dtype=torch.uint8, device="cuda") for _ in wanted]
    colors = [colored(torch, color) for color in wanted]
    if way == "call":
        pipeline(np.zeros((HEIGHT, WIDTH, 3), np.uint8))  # opens everything
    else:
        results = pipeline.results("find", timeout=20)
        pipeline.submit(tensors[0])
        next(results)
    torch.cuda.synchronize()
    copied = copied_bytes(pipeline)
    owners, found, waits = [], [], []
    for tensor, color in zip(tensors, colors, strict=True):
        with torch.cuda.stream(stream):
            torch.cuda._sleep(NAP)
            tensor.copy_(color)
            owner = Cai(tensor, stream.cuda_stream) if protocol == "array interface" else tensor
            if protocol == "older interface":
                owner = Cai(tensor, None)
                owner.__cuda_array_interface__["version"] = 2
            owners.append(weakref.ref(owner) if protocol != "dlpack" else None)
            if way == "call":
                found.append(pipeline(owner, format="bgr").outputs["find"].vector)
            else:
                pipeline.submit(owner)
                waits.append(stream.query())
        del owner
    found += [next(results).outputs["find"].vector for _ in waits]
    np.testing.assert_allclose(np.array(found)[:, ::-1] * 255, wanted, atol=0.51)
    assert not any(waits)  # when a submit returned, the stream was still at work
    assert copied_bytes(pipeline) - copied < 1000  # records
    if way == "call":
        pipeline(np.zeros((HEIGHT, WIDTH, 3), np.uint8))
    else:
        time.sleep(0.3)
        results.close()
        time.sleep(0.3)
    assert [ref() for ref in owners if ref is not None] == [None] * sum(ref is not None for ref in owners)


def test_nv12_in_one_tensor_and_padded_rows(torch: Any, pipeline: Pipeline) -> None:
    nv12 = torch.full((HEIGHT * 3 // 2, WIDTH + 64), 128, dtype=torch.uint8, device="cuda")[:, :WIDTH]
    nv12[:HEIGHT] = 16 + 219 // 2
    wanted = (nv12[0, 0].item() - 16) / 219
    assert np.allclose(pipeline(nv12, format="nv12").outputs["find"].vector, wanted, atol=0.005)
    padded = colored(torch, (50, 60, 70)).repeat(1, 2, 1)[:, :WIDTH]
    assert np.allclose(pipeline(padded).outputs["find"].vector * 255, (70, 60, 50), atol=0.51)
    assert np.allclose(pipeline(padded, format="rgb").outputs["find"].vector * 255, (50, 60, 70), atol=0.51)


def test_what_cannot_be_read_is_named_and_changes_nothing(torch: Any, pipeline: Pipeline) -> None:
    image = colored(torch, (1, 2, 3))
    bad: list[tuple[Any, str]] = [
        (image.float(), "uint8, not float32"),
        (image.permute(1, 0, 2), "contiguous"),
        (image.permute(2, 0, 1).contiguous(), "has shape"),
        (Cai(image, 0), "the stream 0x0 of a tensor cannot be waited for"),
        (Cai(image, None, 4096), "there is no GPU memory at 0x1000"),
        (Cai(image, None, 0), "no GPU memory|was released"),
    ]
    for array, what in bad:
        with pytest.raises(EdgertError, match=what):
            pipeline(array)
    with pytest.raises(StageError, match="copy=True"):
        pipeline(image, copy=True)
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        recorded = Cai(image, torch.cuda.current_stream().cuda_stream)
        with pytest.raises(DeviceError, match="recording a CUDA graph"):
            pipeline(recorded)
    assert np.allclose(pipeline(image).outputs["find"].vector * 255, (3, 2, 1), atol=0.51)


class Elsewhere:
    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 1

    def __dlpack__(self, **options: Any) -> Any:
        raise AssertionError("it must not be asked for")


def test_another_gpu_and_no_gpu(torch: Any, pipeline: Pipeline, tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match="a tensor on GPU 1"):
        pipeline(Elsewhere())
    with Pipeline(written(tmp_path, "onnxruntime")) as other:
        with pytest.raises(StageError, match="cannot be submitted here") as caught:
            other(colored(torch, (1, 2, 3)))
        assert "copied to the host" in caught.value.why and "tensor.cpu()" in caught.value.fix


def test_who_reads_on_the_host_gets_a_copy_behind_the_same_stream(torch: Any, tmp_path: Path) -> None:
    if missing := cuda.why_not():
        pytest.skip(missing)
    (tmp_path / "pixels.py").write_text(
        "def seen(result):\n    return result.with_output('seen', result.frame.to_bgr())\n"
    )
    file = written(tmp_path)
    file.write_text(file.read_text() + "  seen: {python: 'pixels:seen', from: find}\n")
    stream, tensor = torch.cuda.Stream(), torch.zeros((HEIGHT, WIDTH, 3), dtype=torch.uint8, device="cuda")
    wanted = torch.randint(0, 256, tensor.shape, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    with Pipeline(file) as pipeline, torch.cuda.stream(stream):
        torch.cuda._sleep(NAP)
        tensor.copy_(wanted)
        seen = pipeline(tensor).outputs["seen"]
    assert np.array_equal(seen, wanted.cpu().numpy())


@pytest.mark.parametrize("form", ["bgr", "rgb", "nv12"])
def test_a_lent_buffer_goes_up_as_it_lies(pipeline: Pipeline, form: Any) -> None:
    pipeline(np.zeros((HEIGHT, WIDTH, 3), np.uint8))  # opens everything
    before = pipeline._assembly.counter.read()
    nbytes = 0
    for value in (40, 180):
        buffer = pipeline.buffer((WIDTH, HEIGHT), format=form)
        buffer.array[:] = 128
        buffer.array[:HEIGHT] = value
        nbytes = buffer.array.nbytes
        record = pipeline(buffer).outputs["find"].vector
        wanted = (value - 16) / 219 if form == "nv12" else value / 255
        assert np.allclose(record, wanted, atol=0.006)
    after = pipeline._assembly.counter.read()
    assert (after.copies - before.copies, after.bytes_copied - before.bytes_copied) == (4, 2 * (nbytes + 12))


def test_a_call_says_what_a_started_pipeline_says(pipeline: Pipeline, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    images = [random.integers(0, 256, (HEIGHT, WIDTH, 3), np.uint8) for _ in range(7)]
    called = [pipeline(image).outputs["find"].vector for image in images]
    together = [result.outputs["find"].vector for result in pipeline.call_batch(images)]
    np.testing.assert_array_equal(called, together)
    with Pipeline(written(tmp_path, "onnxruntime-cuda")) as other:
        results = other.results("find", timeout=20)
        for image, record in zip(images, called, strict=True):
            other.submit(image)
            np.testing.assert_array_equal(next(results).outputs["find"].vector, record)


def used(device: CudaDevice, pipeline: Pipeline, index: int) -> None:
    """Three frames, by a call or by threads, of arrays, buffers and tensors in turn."""
    kind = index % 4
    image = np.full((48, 64, 3), index % 256, np.uint8)
    if kind in (0, 1):
        for _ in range(2):
            pipeline(image)
        buffer = pipeline.buffer((64, 48))
        buffer.array[:] = 1
        assert pipeline(buffer).frame.index == 2
        return
    with pipeline.results("find", timeout=20) as results:
        for _ in range(2):
            pipeline.submit(image)
            next(results)
    pipeline.finish()


@dataclass(frozen=True)
class Grown:
    """Bytes by which memory grew: of the process, and in the last half of all steps; of the GPU."""

    whole: int
    last: int
    gpu: int


def grown(device: CudaDevice, name: str, step: Callable[[int], None], reclaim: int, count: int) -> Grown:
    """Over so many steps, which leave no file, thread or block."""
    room = list[int]()

    def watched(index: int) -> None:
        step(index)
        if index == 0:
            room.append(room_bytes(device))

    started = time.perf_counter()
    before, after, last = growth(watched, reclaim, count)
    found = Grown(
        after.rss_bytes - before.rss_bytes, last, room[1] - room_bytes(device)
    )  # the first: before it settled
    each_ms = (time.perf_counter() - started) * 1e3 / (reclaim + count)
    mib = [round(one / 2**20, 2) for one in (found.whole, found.last, found.gpu)]
    print(f"{count} {name}, {each_ms:.1f} ms each; MiB more, in the last half, of the GPU: {mib}")
    assert after.more_than(before) <= 0, (before, after)
    assert device.live_bytes == 0 and device.leaked == 0
    return found


def pipelines(device: CudaDevice, make: Callable[[], Pipeline]) -> Callable[[int], None]:
    def step(index: int) -> None:
        with make() as pipeline:
            used(device, pipeline, index)
        del pipeline

    return step


@pytest.mark.timing
def test_a_thousand_pipelines_leave_nothing_behind(tmp_path: Path) -> None:
    device = gpu_or_skip()
    text = TEXT.format(model=MODEL, stages="") + "  out: {sink: 'null', from: find}\n"
    path = small_pipeline(tmp_path, text, photos=0)
    environment = Environment(engines=cast("Any", Engines(device)))
    found = grown(device, "pipelines", pipelines(device, lambda: pipeline_in(environment, path)), 40, PIPELINES)
    assert found.whole < 8 * 2**20 and found.last < 2 * 2**20
    assert found.gpu <= 2**20


GRANULE = 2**21
"""In which the driver takes memory of a GPU, for itself too."""


@pytest.mark.timing
def test_a_hundred_pipelines_of_onnx_runtime_leave_nothing_behind(tmp_path: Path) -> None:
    """But what as many of ONNX Runtime's own sessions leave, each run once, in the same process."""
    if missing := cuda.why_not():
        pytest.skip(missing)
    device, path, count = gpu_or_skip(), written(tmp_path), PIPELINES // 10
    model, provider = models.means(models.IMAGE), {"device_id": "0", "arena_extend_strategy": "kSameAsRequested"}
    content, settings = to_bytes(model), runtime.session_settings(1)
    zeros = np.zeros(models.IMAGE, np.float32)

    def bare(index: int) -> None:
        session = cuda.open_on_gpu(content, settings, provider, model)
        session.run(None, {session.get_inputs()[0].name: zeros})

    theirs = grown(device, "sessions", bare, 20, count)
    ours = grown(device, "pipelines", pipelines(device, lambda: Pipeline(path)), 20, count)
    assert ours.last <= theirs.last + 2**20
    assert ours.whole <= theirs.whole + 2**21
    assert ours.gpu <= max(theirs.gpu, 0) + GRANULE
