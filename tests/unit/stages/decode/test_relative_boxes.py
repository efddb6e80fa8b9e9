"""Boxes that are parts of the model's input, as exports by way of TFLite have them."""

from pathlib import Path
from typing import Any

import cv2
import numpy as np
import onnx
import pytest

from edgert.config import DetectTask, KeypointsTask, ModelConfig, load_pipeline
from edgert.stages.crop import Geometry
from edgert.stages.decode.detection import Detector
from edgert.stages.decode.kinds import decoder_for
from edgert.stages.decode.yolo import YoloPose, YoloV5, YoloV8
from edgert.stages.gpu.gpu_detections import GpuDetector, GpuPose
from edgert.wiring.check import check
from edgert.wiring.search import load_subject
from edgert.wiring.starter import starter
from edgert.wiring.trial import readings, refine_tasks
from tests.helpers.gpu_readers import why_not
from tests.helpers.models import constant, yolo_columns

NETWORK = (128, 64)
WHOLE = Geometry(2.0, 2.0, 0.0, 0.0, NETWORK, (0.0, 0.0, 256.0, 128.0))
CELLS = 16 * 8 + 8 * 4 + 4 * 2
PARTS = np.tile(np.array(NETWORK, np.float32), 2)
ROWS = np.array([[64, 32, 40, 20], [20, 40, 30, 10]], np.float32)
HEADS = {"yolov8": (0.9, 0), "yolov8-obb": (0.9, 0, 0.3), "yolov8-seg": (0.9, 0, 1), "yolov5": (0.9, 0.8, 0)}


def outputs(head: str, places: Any) -> list[Any]:
    numbers = np.hstack([places, np.tile(np.array(HEADS[head], np.float32), (len(places), 1))])
    table = np.zeros((numbers.shape[1], CELLS), np.float32)
    table[:, : len(numbers)] = numbers.T
    maps = [np.ones((1, 16, 32), np.float32)] if head == "yolov8-seg" else []
    return [table.T.copy() if head == "yolov5" else table, *maps]


@pytest.mark.parametrize("head", HEADS)
def test_parts_are_the_same_boxes_as_pixels(head: str) -> None:
    pixels: Any = decoder_for(DetectTask(detect=head), ())(outputs(head, ROWS), WHOLE)
    relative: Any = decoder_for(DetectTask(detect=head, options={"boxes": "relative"}), ())(
        outputs(head, ROWS / PARTS), WHOLE
    )
    assert len(pixels) == 2 and pixels.scores.tolist() == relative.scores.tolist()
    np.testing.assert_allclose(relative.boxes, pixels.boxes, rtol=1e-5)
    for one, other in ((relative.corners, pixels.corners), (relative.masks, pixels.masks)):
        assert (one is None) == (other is None)
    if pixels.corners is not None:
        np.testing.assert_allclose(relative.corners, pixels.corners, rtol=1e-5)
    for one, other in zip(relative.masks or (), pixels.masks or (), strict=True):
        assert (one.mask == other.mask).all()


@pytest.mark.parametrize("is_final", [False, True])
def test_bodies_and_their_points(is_final: bool) -> None:
    def found(scale: Any, **options: Any) -> Any:
        middle, half = ROWS[:, :2], ROWS[:, 2:] / 2
        places = np.hstack([middle - half, middle + half]) if is_final else ROWS
        rest = [[0.9, 0, 30, 20, 0.7], [0.8, 0, 60, 50, 0.6]]
        rows = np.hstack([places / np.tile(scale, 2), np.array(rest) / (1, 1, *scale, 1)]).astype(np.float32)
        table = rows if is_final else np.pad(np.delete(rows, 5, axis=1).T, ((0, 0), (0, CELLS - 2)))
        return decoder_for(KeypointsTask(keypoints="yolo-pose", options=options), ())([table], WHOLE)

    pixels, relative = found((1, 1)), found(NETWORK, boxes="relative")
    np.testing.assert_allclose(relative.boxes, pixels.boxes, rtol=1e-5)
    np.testing.assert_allclose(relative.points, pixels.points, rtol=1e-5)


def test_the_host_reads_them_where_a_gpu_would_read_pixels() -> None:
    for reader, decoder, shape in (
        (GpuDetector, Detector(YoloV8("relative")), (1, 6, CELLS)),
        (GpuDetector, Detector(YoloV5("relative")), (1, CELLS, 7)),
        (GpuPose, YoloPose(boxes="relative"), (1, 56, CELLS)),
    ):
        assert "not parts of it" in why_not(reader, decoder, shape, "float32", NETWORK)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    cv2.imwrite(str(tmp_path / "a.png"), np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8))
    return tmp_path


def described(folder: Path, decoder: str, *outputs: Any, options: str = "{}") -> Path:
    onnx.save(constant({f"o{n}": one for n, one in enumerate(outputs)}).proto, folder / "m.onnx")
    (folder / "p.yaml").write_text(
        f"models: {{m: {{onnx: m.onnx, task: {{detect: {decoder}, options: {options}}}, input: {{std: 255}}}}}}\n"
        "stages:\n  s: {source: 'images:a.png'}\n  i: {infer: m, from: s}\n  o: {sink: jsonl, from: i, path: o.jsonl}\n"
    )
    return folder / "p.yaml"


V8 = yolo_columns((0.5, 0.5, 0.3, 0.3, 0.9, 0), (0.25, 0.25, 0.2, 0.2, 0, 0.8))
V5 = np.pad(np.array([[0.5, 0.5, 0.3, 0.3, 1, 0.9, 0, 0]], np.float32), ((0, 251), (0, 0)))[None]
V5_HEADS = [np.zeros((1, 3, side, side, 8)) for side in (8, 4, 2)]


@pytest.mark.parametrize(("decoder", "ends"), [("yolov8", [V8]), ("yolov5", [V5]), ("yolov5", [V5, *V5_HEADS])])
def test_check_and_new_find_out(decoder: str, ends: list[Any], folder: Path) -> None:
    path = described(folder, decoder, *ends)
    report = check(path, [folder / "a.png"])
    assert report.verdict == "wrong" and [one.better for one in report.findings] == ["options: {boxes: relative}"]
    made = starter(folder / "m.onnx", directory=folder)
    assert "boxes are fractions of the input" in " ".join(made.notes)
    made.write(folder / "new.yaml", force=False)
    task = load_pipeline(folder / "new.yaml").config.models["net"].task
    assert isinstance(task, DetectTask) and (task.detect, task.options) == (decoder, {"boxes": "relative"})
    assert not check(described(folder, decoder, *ends, options="{boxes: relative}"), [folder / "a.png"]).findings


@pytest.mark.parametrize(
    ("ends", "task"),
    [
        ({"output": np.tile(np.array([32, 32, 20, 20, 1, 0.9, 0], np.float32), (1, 84, 1))}, {"detect": "yolov5"}),
        ({"output": np.tile(np.array([0.4, 0.5, 1, 1, 1, 0.9, 0], np.float32), (1, 84, 1))}, {"detect": "yolox"}),
        (
            {"logits": np.tile(np.array([-5, -6, 4], np.float32), (1, 100, 1)), "pred_boxes": np.zeros((1, 100, 4))},
            {"detect": "detr", "options": {"activation": "softmax"}},
        ),
        (
            {"logits": np.tile(np.array([-5, -6, -4], np.float32), (1, 300, 1)), "pred_boxes": np.zeros((1, 300, 4))},
            {"detect": "detr"},
        ),
        (
            {f"StatefulPartitionedCall:{n}": np.ones((1, 25, 4) if n == 3 else (1, 25)[: n + 1]) for n in range(4)},
            {"detect": "yolov10", "options": {"boxes": "relative", "order": "yxyx"}},
        ),
    ],
)
def test_an_empty_image_and_names_show_what_shapes_do_not(ends: dict[str, Any], task: Any, folder: Path) -> None:
    onnx.save(constant(ends).proto, folder / "m.onnx")
    starter(folder / "m.onnx", directory=folder).write(folder / "new.yaml", force=False)
    found = load_pipeline(folder / "new.yaml").config.models["net"].task
    assert isinstance(found, DetectTask)
    assert {"options": {}, **task} == {"detect": found.detect, "options": found.options}


def test_a_decoder_that_would_swap_corners_is_not_tried(folder: Path) -> None:
    rows = np.tile(np.array([50, 32, 20, 20, 0.9, 0], np.float32), (1, 84, 1))
    onnx.save(constant({"o": rows}).proto, folder / "m.onnx")
    config = ModelConfig(onnx=folder / "m.onnx", task=DetectTask(detect="yolov8"))
    found = load_subject(config, (), "m")
    tasks = readings(config.task, found.engine, (), found.network)
    refined, _ = refine_tasks(tasks, found.engine, found.session, found.network)
    names = [[one.detect for one in some if isinstance(one, DetectTask)] for some in (tasks, refined)]
    assert "ppyoloe" in names[0] and "ppyoloe" not in names[1] and names[1][0] == "yolov8"
    assert names[1].count("yolov5") == 1  # decoded boxes of a yolox are read so, too


@pytest.mark.parametrize(
    ("numbers", "verb"), [((-4, 3, 1), "segment"), ((0.2, 0.1, 0.7), "segment"), ((0.1, 0.1, 0.2), "image")]
)
def test_three_channels_are_an_image_or_classes(numbers: Any, verb: str, folder: Path) -> None:
    maps = np.broadcast_to(np.array(numbers, np.float32)[:, None, None], (3, 64, 64))
    beside = {"hidden_state": np.zeros((1, 4, 4), np.float32), "output": maps.transpose(1, 2, 0)[None]}
    for ends in ({"output": maps[None]}, beside):
        onnx.save(constant(ends).proto, folder / "m.onnx")
        assert f"task: {{{verb}: " in starter(folder / "m.onnx", directory=folder).text
    onnx.save(constant({"output": np.zeros((1, 160, 128))}, (1, 3, 80, 64)).proto, folder / "m.onnx")
    assert "task: {image: " in starter(folder / "m.onnx", directory=folder).text  # larger, and without channels


def test_pixels_stay_pixels(folder: Path) -> None:
    boxes = V8 * np.array([64, 64, 64, 64, 1, 1], np.float32)[:, None]
    assert not check(described(folder, "yolov8", boxes), [folder / "a.png"]).findings
    assert "boxes: relative" not in starter(folder / "m.onnx", directory=folder).text
