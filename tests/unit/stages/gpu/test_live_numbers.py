"""Thresholds and counts of a decoder that change between two batches, while its work stays recorded on the GPU."""

from typing import Any, cast

import numpy as np
import pytest

from edgert.backend.gpu import GpuTensor
from edgert.errors import DeviceError
from edgert.stages.crop import Geometry
from edgert.stages.decode.classify import Classify
from edgert.stages.decode.decoded import Detr
from edgert.stages.decode.detection import Detector
from edgert.stages.decode.instances import YoloV8Seg
from edgert.stages.decode.kinds import SubsetDecoder
from edgert.stages.decode.maps import Heatmap, SegmentThreshold
from edgert.stages.decode.shaped import YoloV8Obb
from edgert.stages.decode.yolo import YoloPose, YoloV5, YoloV8, YoloX
from edgert.stages.gpu.gpu_detections import GpuDetector, GpuInstances, GpuOriented, GpuPose
from edgert.stages.gpu.gpu_rows import GpuRows
from edgert.stages.gpu.gpu_scores import GpuClasses, GpuMask, GpuPeaks
from edgert.stages.gpu.infer_gpu import SLOTS
from edgert.stages.gpu.kernels import Kernels
from edgert.stages.gpu.readers import HostReader, reader_for
from tests.helpers.cuda_on_host import kernels_or_skip
from tests.helpers.gpu_inference import RecordedGraph, Rig, nv12, record
from tests.helpers.gpu_readers import CELLS, NETWORK, like_the_host


def boxes(classes: int, extras: int = 0, *, objectness: bool = False) -> Any:
    """(2, numbers, CELLS) of a yolov8; or (2, CELLS, numbers) of a yolov5: many overlaps, scores of all sizes."""
    random = np.random.default_rng(classes + extras)
    table = random.uniform(0, 1, (2, 4 + objectness + classes + extras, CELLS)).astype(np.float32)
    table[:, :2] *= np.array(NETWORK)[:, None]
    table[:, 2:4] = table[:, 2:4] * 60 + 4
    return table.transpose(0, 2, 1).copy() if objectness else table


DETR = np.random.default_rng(1).normal(0, 3, (2, 300, 12)).astype(np.float32), np.full((2, 300, 4), 0.5, np.float32)
MASKS = boxes(5, 3), np.random.default_rng(2).integers(-8, 9, (2, 3, 24, 40)).astype(np.float32)
WHOLE = Geometry(2.0, 2.0, 0.0, 0.0, (96, 64), (0.0, 0.0, 192.0, 128.0))
LOGITS = np.random.default_rng(3).standard_normal((2, 5000)).astype(np.float32)
SCORES = np.random.default_rng(4).uniform(0, 1, (2, 1, 64, 96)).astype(np.float32)


@pytest.mark.parametrize(
    ("reader", "before", "after", "values"),
    [
        (GpuDetector, Detector(YoloV8(), 0.6, 0.45, 50), Detector(YoloV8(), 0.3, 0.7, 50), boxes(3)),
        (GpuDetector, Detector(YoloV8(), 0.2, 0.45, 50), Detector(YoloV8(), 0.9, 0.2, 7), boxes(3)),
        (GpuDetector, Detector(YoloV5(), 0.6), Detector(YoloV5(), 0.25, 0.6, 11), boxes(3, objectness=True)),
        (GpuPose, YoloPose(0.8, 0.45, 20), YoloPose(0.5, 0.7, 12), boxes(1, 51)),
        (GpuOriented, Detector(YoloV8Obb(), 0.9), Detector(YoloV8Obb(), 0.6, 0.3, 13), boxes(3, 1)),
        (GpuInstances, Detector(YoloV8Seg(), 0.9, 0.45, 40), Detector(YoloV8Seg(), 0.7, 0.45, 9), MASKS),
        (GpuRows, Detector(Detr(activation="softmax"), 0.9), Detector(Detr(activation="softmax"), 0.4, 0.5, 9), DETR),
        (GpuClasses, Classify("logits", 1), Classify("logits", 17), LOGITS),
        (GpuClasses, Classify("logits", 32), Classify("logits", 2), LOGITS),
    ],
)
def test_live_numbers_hold_from_the_next_run_on(
    kernels: Kernels, reader: type, before: Any, after: Any, values: Any
) -> None:
    tolerance = {"scores": 2e-6} if reader is GpuClasses else {}
    found = like_the_host(kernels, reader, after, values, before=before, **tolerance)
    assert len(found[0].scores)


def test_a_live_threshold_of_masks_holds_from_the_next_run_on(kernels: Kernels) -> None:
    found = like_the_host(kernels, GpuMask, SegmentThreshold(0.9), SCORES, WHOLE, before=SegmentThreshold(0.5))
    assert 0 < found[0].mask.mean() < 0.2
    like_the_host(kernels, GpuMask, SegmentThreshold(0.3), SCORES.astype(np.float16), WHOLE, before=SegmentThreshold())


def test_what_takes_more_memory_than_there_is_does_not_fit() -> None:
    device = kernels_or_skip().device
    for decoder, more, shape in (
        (Detector(YoloX(), limit=50), Detector(YoloX(), limit=51), (2, CELLS, 8)),
        (Classify(top=3), Classify(top=33), (2, 1000)),
    ):
        output = GpuTensor("out", shape, "float32", device.block(4 * int(np.prod(shape))))
        reader, _ = reader_for([output], (True,), decoder, NETWORK, kernels_or_skip())
        assert reader.accepts(decoder) and not reader.accepts(more)
        reader.close()


def doubled(outputs: Any, geometry: Geometry) -> Any:
    value, way = record(outputs, geometry)
    return 1000 * value, way


def test_a_live_number_is_changed_between_two_batches_and_nothing_is_recorded_again(
    graphs: list[RecordedGraph],
) -> None:
    rig = Rig(rows=2)
    rig.inference.warm_up()
    count = len(graphs)
    before = rig.inference.submit_batch([rig.inference.fill(nv12())])  # under way while it changes
    rig.inference.switch_decoder(SubsetDecoder(cast("Any", doubled), (0,)))
    after = [rig.inference.submit_batch([rig.inference.fill(nv12())]) for _ in range(SLOTS)]
    assert before.records()[0][0] < 1000 <= min(one.records()[0][0] for one in after)  # type: ignore[index]
    assert len(graphs) == count
    rig.close()
    assert rig.device.live_bytes == 0


class Small(HostReader):
    """A reader that does not fit every decoder."""

    def accepts(self, decoder: Any) -> bool:
        return False


def test_more_room_is_made_between_two_batches_and_each_size_is_recorded_once_more(
    graphs: list[RecordedGraph], monkeypatch: pytest.MonkeyPatch
) -> None:
    rig, closed = Rig(rows=2), list[Any]()
    monkeypatch.setattr(Small, "close", lambda self: closed.append(self))
    for slot in rig.inference._slots:
        outputs = slot.session.outputs_on_gpu
        slot._reader = Small(outputs, (True,), record)
        slot._reader_for = lambda decoder, outputs=outputs: (HostReader(outputs, (True,), decoder), "")
    rig.inference.warm_up()
    count, old = len(graphs), [slot._reader for slot in rig.inference._slots]
    before = rig.inference.submit_batch([rig.inference.fill(nv12())])
    rig.inference.switch_decoder(doubled)
    for turn in range(2):
        for _ in range(SLOTS):
            batch = rig.inference.submit_batch([rig.inference.fill(nv12())])
            assert batch.records()[0][0] >= 1000  # type: ignore[index]
        assert len(graphs) == count + 2 * SLOTS, turn  # an engine's and a decoder's of each slot, of the size in use
    assert before.records()[0][0] < 1000 and closed == old  # type: ignore[index]
    rig.close()
    assert rig.device.live_bytes == 0


def test_where_there_is_no_memory_for_more_room_nothing_changes() -> None:
    rig, closed = Rig(), list[Any]()
    refused = DeviceError("out of GPU memory")

    def another(number: int, decoder: Any) -> Any:
        if number:
            raise refused
        made = Small([], (), decoder)
        made.close = lambda: closed.append(made)  # type: ignore[method-assign]
        return made, ""

    for number, slot in enumerate(rig.inference._slots):
        slot._reader = Small(slot.session.outputs_on_gpu, (True,), record)
        slot._reader_for = lambda decoder, number=number: another(number, decoder)
    with pytest.raises(DeviceError, match="out of GPU memory"):
        rig.inference.switch_decoder(doubled)
    assert len(closed) == 1
    assert rig.inference.run(rig.inference.fill(nv12()))[0][0] < 1000  # type: ignore[index]
    rig.close()


def test_peaks_take_another_decoder_without_numbers_of_their_own(kernels: Kernels) -> None:
    values = np.random.default_rng(5).uniform(0, 1, (2, 17, 24, 40)).astype(np.float32)
    like_the_host(kernels, GpuPeaks, Heatmap(), values, WHOLE, before=Heatmap())
