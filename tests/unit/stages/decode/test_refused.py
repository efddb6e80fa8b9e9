"""Outputs that a decoder does not know, and labels of another number, are refused before the first frame."""

import pytest

from edgert.config.pipeline_file import parse_task
from edgert.errors import ConfigError, ModelError
from edgert.stages.decode.kinds import decoder_for

Shapes = list[tuple[int, ...]]
FACES: list[Shapes] = [
    [(525, 85)], [(1050, 1), (1050, 4)], [(5, 4), (5, 2), (5, 10)], [(3, 5, 7)], [(7, 1), (3, 4), (1, 10)], [],
]  # fmt: skip
BODIES: list[Shapes] = [
    [(525, 85), (4, 4)], [(17, 3, 5)], [(7,)], [], [(18, 8, 8), (40, 8, 8)], [(17, 384), (18, 512)],
]  # fmt: skip
OTHERS: list[tuple[str, tuple[int, int], list[Shapes]]] = [
    *((f"detect {name}", (160, 160), FACES) for name in ("scrfd", "retinaface", "yunet", "yolov5-face")),
    *(
        (f"keypoints {name}", (192, 256), BODIES)
        for name in ("simcc", "movenet", "landmarks", "yolov7-pose", "trt-pose")
    ),
    (
        "detect yolo-raw",
        (640, 640),
        [
            [(3, 80, 80, 85), (3, 40, 40, 85)],
            [(3, 80, 80, 85)] * 3,
            [(3, 80, 80, 85), (3, 40, 40, 84), (3, 20, 20, 85)],
            [(85, 8400)],
        ],
    ),
    ("detect detectnet", (960, 544), [[(3, 34, 60), (9, 34, 60)], [(3, 34, 60), (12, 34, 61)], [(3, 34, 60)]]),
    (
        "detect detr-seg",
        (160, 96),
        [[(20, 4), (20, 5)], [(20, 4), (20, 5), (21, 24, 40)], [(20, 4), (19, 5), (20, 24, 40)]],
    ),
    ("detect yolov8-seg", (160, 96), [[(300, 6), (32, 24, 40), (1, 1)], [(38, 84)], [(36, 84), (32, 24, 40)]]),
    ("detect yolov8-obb", (160, 96), [[(5, 84)]]),
    ("detect mask-rcnn", (200, 120), [[(5, 4), (5,), (5,)]]),
    ("detect yolo-nas", (640, 640), [[(8400, 4), (8300, 80)]]),
    ("detect ppyoloe", (640, 640), [[(8400, 4), (80, 8401)]]),
    ("detect db", (320, 320), [[(2, 80, 80)], [(80,)], []]),
    ("keypoints keypoint-rcnn", (200, 120), [[(5, 4), (5,), (5,), (5, 17, 3)]]),
    ("keypoints yolo-pose", (640, 640), [[(84, 8400), (32, 160, 160)], [(9, 8400)]]),
    ("keypoints heatmap", (640, 640), [[(56, 8400)]]),
    ("segment argmax", (416, 416), [[(3549, 85, 1, 1)]]),
    ("segment threshold", (64, 64), [[(21, 64, 64)]]),
    ("classify auto", (224, 224), [[(21, 28, 28)]]),
    ("classify multilabel", (8, 8), [[(5, 6)]]),
    ("embed l2", (192, 256), [[(17, 64, 48)]]),
    ("text ctc", (320, 320), [[(40, 97), (2,)], [(1, 80, 80)]]),
    ("depth metric", (64, 48), [[(1, 24, 99)], [(3, 48, 64)], [(1, 48, 64), (1,)]]),
    ("image unit", (64, 48), [[(5, 48, 64)], [(3, 48, 64), (3, 48, 64)]]),
    ("anomaly map", (64, 48), [[(1,)], [(1, 48, 64), (7,)]]),
]


@pytest.mark.parametrize(("task", "network", "heads"), OTHERS, ids=[task for task, *_ in OTHERS])
def test_outputs_of_another_head(task: str, network: tuple[int, int], heads: list[Shapes]) -> None:
    decoder = decoder_for(parse_task(task), ())
    for shapes in heads:
        with pytest.raises(ModelError, match=f"'{task.replace(' ', ': ')}' cannot read the model's outputs") as caught:
            decoder.check(shapes, network)
        assert "got " + (", ".join(map(str, map(list, shapes))) or "no output") in caught.value.why


@pytest.mark.parametrize(("task", "shapes"), [("classify auto", (21, 28, 28)), ("segment threshold", (21, 64, 64))])
def test_the_head_that_fits_is_named(task: str, shapes: tuple[int, ...]) -> None:
    with pytest.raises(ModelError) as caught:
        decoder_for(parse_task(task), ()).check([shapes], (64, 64))
    assert "segment: argmax" in caught.value.fix


@pytest.mark.parametrize(
    ("task", "labels", "shapes", "classes"),
    [
        ("detect yolov8-seg", 1, [(9, 84), (3, 24, 40)], 2),
        ("classify auto", 1000, [(1001,)], 1001),
        ("classify multilabel", 2, [(5,)], 5),
        ("segment argmax", 2, [(64, 64, 21)], 21),
        ("keypoints yolo-pose", 1, [(56, 84)], 17),
        ("keypoints simcc", 2, [(17, 128), (17, 128)], 17),
        ("keypoints movenet", 2, [(1, 17, 3)], 17),
        ("keypoints landmarks", 2, [(34,)], 17),
        ("keypoints yolov7-pose", 2, [(3 * 84, 57)], 17),
        ("keypoints trt-pose", 2, [(18, 8, 8), (42, 8, 8)], 18),
        ("keypoints keypoint-rcnn", 1, [(5, 4), (5,), (5,), (5, 17, 3), (5, 17)], 17),
    ],
)
def test_labels_of_another_number(task: str, labels: int, shapes: Shapes, classes: int) -> None:
    with pytest.raises(ConfigError, match=f"{labels} labels for {classes} classes"):
        decoder_for(parse_task(task), ("x",) * labels).check(shapes, (64, 64))
