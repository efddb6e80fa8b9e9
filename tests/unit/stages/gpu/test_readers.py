"""Which outputs are decoded on the GPU, and why others are not; where an image goes."""

from collections.abc import Sequence
from typing import Any, get_args

import numpy as np
import pytest

from edgert.backend.gpu import GpuTensor
from edgert.runtime import Embedding
from edgert.stages.decode.classify import Classify, Embed
from edgert.stages.decode.detection import Detector
from edgert.stages.decode.instances import YoloV8Seg
from edgert.stages.decode.maps import Heatmap, SegmentArgmax, SegmentThreshold
from edgert.stages.decode.shaped import YoloV8Obb
from edgert.stages.decode.yolo import YoloPose, YoloV8
from edgert.stages.gpu.gpu_preprocess import ValueType, plain_target
from edgert.stages.gpu.kernels import Kernels
from edgert.stages.gpu.readers import HostReader, reader_for
from tests.helpers.cuda_on_host import kernels_or_skip
from tests.helpers.gpu_readers import CELLS, GEOMETRY, NETWORK
from tests.helpers.gpu_target import TensorLayout, target


@pytest.fixture
def kernels() -> Kernels:
    return kernels_or_skip()


def tensors(kernels: Kernels, *shapes: tuple[int, ...]) -> Sequence[GpuTensor]:
    return [
        GpuTensor(f"out{index}", shape, "float32", kernels.device.block(4 * int(np.prod(shape))))
        for index, shape in enumerate(shapes)
    ]


@pytest.mark.parametrize(
    ("decoder", "shapes"),
    [
        (Detector(YoloV8()), [(2, 9, CELLS)]),
        (Detector(YoloV8Obb()), [(2, 9, CELLS)]),
        (Detector(YoloV8Seg()), [(2, 41, CELLS), (2, 32, 24, 40)]),
        (Detector(YoloV8Seg()), [(2, 32, 24, 40), (2, 41, CELLS)]),
        (YoloPose(), [(2, 56, CELLS)]),
        (Classify(), [(2, 1000)]),
        (SegmentArgmax(), [(2, 21, 96, 160)]),
        (SegmentThreshold(), [(2, 1, 96, 160)]),
        (Heatmap(), [(2, 17, 24, 40)]),
    ],
)
def test_these_are_decoded_on_the_gpu(kernels: Kernels, decoder: Any, shapes: list[tuple[int, ...]]) -> None:
    outputs = tensors(kernels, *shapes)
    reader, reason = reader_for(outputs, (True,) * len(shapes), decoder, NETWORK, kernels)
    assert not reason and not isinstance(reader, HostReader)
    stream = kernels.device.stream()
    reader.enqueue(1, stream)
    stream.synchronize()
    assert len(reader.copy_sizes(1)) == kernels.device.counter.read().copies
    record = reader.read([GEOMETRY])[0]
    assert type(record) is type(decoder([output.host[0] for output in outputs], GEOMETRY))
    reader.close()


@pytest.mark.parametrize(
    ("decoder", "shapes", "batched", "reason"),
    [
        (Embed(), [(2, 9)], (True,), "no kernels for this decoder"),
        (Detector(YoloV8()), [(2, 9, CELLS), (2, 4)], (True, True), "one output, not 2"),
        (Heatmap(), [(17, 24, 40)], (False,), "'out0' has no batch dimension"),
        (Classify(top=64), [(2, 1000)], (True,), "up to 32 classes"),
        (Detector(YoloV8Seg()), [(2, 400, 400), (2, 300, 24, 40)], (True, True), "up to 256 prototypes, not 300"),
        (Detector(YoloV8Seg()), [(2, 41, 84), (2, 3, 9000, 1)], (True, True), "whole pixels, not 1 × 9000"),
    ],
)
def test_others_are_decoded_on_the_host_and_it_is_known_why(
    kernels: Kernels, decoder: Any, shapes: list[tuple[int, ...]], batched: tuple[bool, ...], reason: str
) -> None:
    reader, why = reader_for(tensors(kernels, *shapes), batched, decoder, NETWORK, kernels)
    assert isinstance(reader, HostReader) and reason in why


def test_a_classifier_is_read_by_its_first_output(kernels: Kernels) -> None:
    reader, reason = reader_for(tensors(kernels, (2, 9), (2, 4)), (True, True), Classify(), NETWORK, kernels)
    assert not reason and not isinstance(reader, HostReader)
    host, _ = reader_for(tensors(kernels, (2, 9)), (True,), Embed(), NETWORK, kernels)
    assert isinstance(host.read([GEOMETRY])[0], Embedding)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("dtype", get_args(ValueType))
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_plain_tensors_have_the_strides_of_their_names(layout: TensorLayout, dtype: ValueType, channels: int) -> None:
    assert plain_target(layout, dtype, 2, 40, 24, channels) == target(layout, dtype, 2, 40, 24, channels)


@pytest.mark.parametrize(
    ("layout", "dtype", "group", "is_aligned"),
    [
        ("nchw", "float16", 1, True),
        ("nhwc", "float16", 1, False),
        ("dla_linear", "float16", 1, True),
        ("dla_hwc4", "int8", 4, False),
        ("chw16", "float16", 4, False),
        ("chw32", "int8", 4, False),
    ],
)
def test_how_much_is_stored_at_once(layout: TensorLayout, dtype: ValueType, group: int, is_aligned: bool) -> None:
    found = target(layout, dtype, 1, 40, 24)
    assert (found.group, found.aligned(4)) == (group, is_aligned)
