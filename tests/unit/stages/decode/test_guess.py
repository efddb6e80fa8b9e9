"""The decoder guessed for outputs of known models; shapes are without the batch dimension."""

import pytest

from edgert.stages.decode.guess import guess, network_size, own_decoder
from edgert.stages.decode.needed import needed_outputs

NANODET = [(1600, 80), (400, 80), (100, 80), (1600, 32), (400, 32), (100, 32)]
MODELS = [
    # expected, output shapes, output names, input
    ("detect: yolox", [(3549, 85)], ["output"], (3, 416, 416)),
    ("detect: yolov5", [(25200, 85)], ["output0"], (3, 640, 640)),
    ("detect: yolov8", [(84, 8400)], ["output0"], (3, 640, 640)),
    ("detect: yolov8", [(5, 8400)], ["output0"], (3, 640, 640)),
    ("detect: yolov8", [(84, None)], ["output0"], (3, None, None)),
    ("detect: yolov10", [(300, 6)], ["output0"], (3, 640, 640)),
    ("detect: yolov10", [(1,), (100, 4), (100,), (100,)], ["n", "b", "s", "c"], (3, 640, 640)),
    ("detect: nanodet", NANODET, [], (3, 320, 320)),
    ("detect: nanodet", [(2125, 112)], ["output"], (3, 320, 320)),
    ("detect: ssd", [(4420, 2), (4420, 4)], ["scores", "boxes"], (3, 240, 320)),
    ("detect: detr", [(300, 80), (300, 4)], ["logits", "pred_boxes"], (3, 640, 640)),
    ("detect: detr", [(300, 84)], ["output0"], (3, 640, 640)),
    ("detect: fastestdet", [(85, 22, 22)], ["758"], (3, 352, 352)),
    ("classify: auto", [(1000, 1, 1)], ["softmaxout_1"], (3, 224, 224)),
    ("classify: auto", [(1000,)], ["output"], (3, 224, 224)),
    ("segment: argmax", [(257, 257, 21)], ["ResizeBilinear_3"], (257, 257, 3)),
    ("segment: argmax", [(19, 128, 256)], ["out"], (3, 1024, 2048)),
    ("segment: threshold", [(1, None, None)], ["sigmoid_0.tmp_0"], (3, None, None)),
    ("keypoints: yolo-pose", [(56, 8400)], ["output0"], (3, 640, 640)),
    ("keypoints: heatmap", [(17, 64, 48)], ["output"], (3, 256, 192)),
    ("embed: l2", [(256,)], ["Identity:0"], (256, 128, 3)),
    ("keypoints: landmarks", [(136,)], ["output"], (3, 112, 112)),
    ("keypoints: landmarks", [(196,)], ["415"], (3, 112, 112)),
    ("keypoints: landmarks", [(212,)], ["fc1"], (3, 192, 192)),
    ("classify: auto", [(136,)], ["output"], (3, 512, 512)),
    ("classify: auto", [(10,)], ["output"], (3, 48, 48)),
    ("classify: auto", [(196,)], ["output"], (3, 224, 224)),
    ("keypoints: landmarks", [(136,)], ["landmarks"], (3, 450, 450)),
    ("keypoints: landmarks", [(936,)], ["output"], (3, 192, 192)),
    ("keypoints: landmarks", [(98, 2)], ["landmark"], (3, 256, 256)),
    ("keypoints: landmarks", [(64, 28, 28), (196,)], ["features", "landmarks"], (3, 112, 112)),
    ("embed: l2", [(384,)], ["output"], (3, 224, 224)),
    ("embed: l2", [(96,)], ["features"], (3, 128, 64)),
    ("embed: l2", [(257, 96), (96,)], ["last_hidden_state", "pooler_output"], (3, 224, 224)),
    ("embed: l2", [(257, 384)], ["last_hidden_state"], (3, 224, 224)),
    ("keypoints: yolo-pose", [(300, 57)], ["output0"], (3, 320, 320)),
    (
        "detect: yolov10",
        [(100,), (100, 4), (100,), (100, 91), (100,), (), (1917, 4), (1917, 91)],
        [
            "detection_anchor_indices",
            "detection_boxes",
            "detection_classes",
            "detection_multiclass_scores",
            "detection_scores",
            "num_detections",
            "raw_detection_boxes",
            "raw_detection_scores",
        ],
        (320, 320, 3),
    ),
    ("detect: mask-rcnn", [(0, 4), (0,), (0,), (0, 1, 0, 0)], ["boxes", "labels", "scores", "masks"], (3, 320, 320)),
    (
        "keypoints: keypoint-rcnn",
        [(0, 4), (0,), (0,), (0, 17, 3), (0, 17)],
        ["boxes", "labels", "scores", "keypoints", "keypoints_scores"],
        (3, 320, 320),
    ),
    ("detect: yolov10", [(0,), (0, 4), (0,), (0,)], ["num_dets", "boxes", "scores", "labels"], (3, 640, 640)),
    (
        "detect: detr",
        [(100, 92), (100, 4), (100, 256), (625, 256)],
        ["logits", "pred_boxes", "last_hidden_state", "encoder_last_hidden_state"],
        (3, 800, 800),
    ),
    ("detect: yolov8", [(8400, 84)], ["output0"], (3, 640, 640)),
    ("detect: yolov8-raw", [(144, 80, 80), (144, 40, 40), (144, 20, 20)], ["a", "b", "c"], (3, 640, 640)),
    ("detect: yolov8-raw", [(80, 80, 144), (40, 40, 144), (20, 20, 144)], ["a", "b", "c"], (640, 640, 3)),
    ("detect: yolov8-raw", [(n, side, side) for side in (80, 40, 20) for n in (64, 80)], [], (3, 640, 640)),
    ("detect: nanodet", [(side**2, n) for n in (80, 32) for side in (52, 26, 13, 7)], [], (3, 416, 416)),
    ("detect: yolo-raw", [(255, 80, 80), (255, 40, 40), (255, 20, 20)], ["a", "b", "c"], (3, 640, 640)),
    ("detect: yolov4", [(10647, 1, 4), (10647, 80)], ["boxes", "confs"], (3, 416, 416)),
    ("detect: yolov5-seg", [(25200, 117), (32, 160, 160)], ["output0", "output1"], (3, 640, 640)),
    ("detect: yolov10", [(100, 5), (100,)], ["dets", "labels"], (3, 800, 1344)),
    ("detect: yolov10", [(0,), (0, 5)], ["labels", "dets"], (3, 640, 640)),
    ("detect: yolov10", [(1, 200, 7)], ["detection_out"], (3, 320, 544)),
    ("detect: mask-rcnn", [(100, 5), (100,), (100, 28, 28)], ["dets", "labels", "masks"], (3, 800, 1344)),
    ("detect: detr", [(300, 4), (300, 91)], ["dets", "labels"], (3, 384, 384)),
    ("detect: detr-seg", [(100, 4), (100, 91), (100, 108, 108)], ["dets", "labels", "masks"], (3, 432, 432)),
    ("detect: yolo-nas", [(8400, 4), (8400, 80)], ["graph2_bboxes", "graph2_scores"], (3, 640, 640)),
    ("detect: ppyoloe", [(8400, 4), (80, 8400)], [], (3, 640, 640)),
    ("detect: ppyoloe", [(300, 6), (1,)], [], (3, 640, 640)),
    ("detect: yolo-raw", [(3, 80, 80, 85), (3, 40, 40, 85), (3, 20, 20, 85)], ["a", "b", "c"], (3, 640, 640)),
    ("detect: detectnet", [(12, 34, 60), (3, 34, 60)], ["output_bbox/BiasAdd", "output_cov/Sigmoid"], (3, 544, 960)),
    ("detect: yolov8-seg", [(116, 8400), (32, 160, 160)], ["output0", "output1"], (3, 640, 640)),
    ("detect: yolov8-seg", [(300, 38), (32, 160, 160)], ["output0", "output1"], (3, 640, 640)),
    ("detect: yolov10", [(None, 4), (None,), (None,)], ["boxes", "labels", "scores"], (3, 320, 320)),
    ("image: unit", [(1, 672, 672)], ["output"], (1, 224, 224)),
    ("segment: threshold", [(1, 320, 320)] * 7, [str(n) for n in range(7)], (3, 320, 320)),
    ("segment: argmax", [(3, 320, 320), (3, 320, 320)], ["out", "aux"], (3, 320, 320)),
    # With outputs beside them that nothing needs.
    (
        "detect: yolov5",
        [(252, 7), (3, 8, 8, 7), (3, 4, 4, 7), (3, 2, 2, 7)],
        ["output", "345", "403", "461"],
        (3, 64, 64),
    ),
    ("detect: yolov5", [(3, 8, 8, 7), (3, 4, 4, 7), (3, 2, 2, 7), (252, 7)], [], (3, 64, 64)),
    ("detect: yolov5", [(252, 7), (21, 8, 8), (21, 4, 4), (21, 2, 2)], [], (3, 64, 64)),
    ("detect: yolov8", [(84, 8400), (144, 80, 80), (144, 40, 40), (144, 20, 20)], [], (3, 640, 640)),
    (
        "detect: yolov8-seg",
        [(116, 8400), (144, 80, 80), (144, 40, 40), (144, 20, 20), (32, 160, 160)],
        [],
        (3, 640, 640),
    ),
    ("segment: argmax", [(21, 320, 320), (21, 320, 320)], ["out", "aux"], (3, 320, 320)),
    ("classify: auto", [(1000,), (1000,)], ["logits", "aux_logits"], (3, 299, 299)),
]


@pytest.mark.parametrize(("expected", "shapes", "names", "image"), MODELS)
def test_the_first_guess_is_right(
    expected: str, shapes: list[tuple[int | None, ...]], names: list[str], image: tuple[int | None, ...]
) -> None:
    found = guess(shapes, names, image, None)
    assert str(found[0]) == expected
    assert found[0].reason


@pytest.mark.parametrize(
    ("shapes", "names"),
    [
        ([(3, 80, 80, 85), (3, 40, 40, 85), (3, 20, 20, 85)], ["a", "b", "c"]),  # nothing was decoded of these
        ([(252, 7), (3, 8, 8, 7), (3, 4, 4, 7)], []),  # a map is missing
        ([(116, 8400), (32, 160, 160)], []),
        ([(7,), (5,)], ["color", "kind"]),
        ([(21, 320, 320)], ["aux"]),
        ([(300, 4), (300, 91), (300, 96, 96)], ["dets", "labels", "masks"]),
        ([(0, 7), (3, 0, 0, 7), (3, 0, 0, 7)], []),
    ],
)
def test_outputs_that_may_be_needed_are_not_left_out(shapes: list[tuple[int, ...]], names: list[str]) -> None:
    assert needed_outputs(shapes, names) is None


def test_two_heads_that_fit_equally_are_both_named() -> None:
    """196 numbers at 224 are 98 points, or the classes of Stanford Cars: none of the two is certain."""
    for shape, image in (((196,), (3, 224, 224)), ((10,), (3, 112, 112)), ((136,), (3, 512, 512))):
        first, second, *_ = guess([shape], ["output"], image, None)
        assert {str(first), str(second)} == {"classify: auto", "keypoints: landmarks"}
        assert first.weight == second.weight


@pytest.mark.parametrize(
    ("shapes", "image"),
    [
        ([(125, 13, 13)], (3, 416, 416)),  # Tiny YOLOv2, with a stride of 32
        ([(84, 8400), (84, 8400)], (3, 640, 640)),  # YOLOv9 with its auxiliary head
        ([(80, 128, 128), (2, 128, 128), (2, 128, 128)], (3, 512, 512)),  # CenterNet
        ([(896, 16), (896, 1)], (3, 128, 128)),  # BlazeFace
        ([(65, 16, 16), (256, 16, 16)], (1, 128, 128)),  # SuperPoint
    ],
)
def test_unknown_heads_are_not_taken_for_others(shapes: list[tuple[int, ...]], image: tuple[int, ...]) -> None:
    assert guess(shapes, [], image, None) == []


def test_numbers_of_classes_and_rows_with_their_batch_are_not_taken_for_others() -> None:
    assert guess([(24,), (24,)], [], (3, 48, 96), None, dtypes=["int32", "float32"]) == []  # LPRNet of TAO
    assert guess([(1, 100, 7)], [], (512, 512, 3), None, is_batched=False) == []  # EfficientDet by AutoML


def test_labels_decide_between_rows_with_and_without_objectness_and_features_are_no_certain_detector() -> None:
    found = guess([(256, 80, 80), (256, 40, 40), (256, 20, 20)], ["p3", "p4", "p5"], (3, 640, 640), None)
    assert [(str(one), one.weight) for one in found] == [("detect: yolov8-raw", 1)]
    assert str(guess([(8400, 7)], ["output"], (3, 640, 640), 3)[0]) == "detect: yolov8"
    assert str(guess([(8400, 7)], ["output"], (3, 640, 640), 2)[0]) == "detect: yolox"


@pytest.mark.parametrize(("dtype", "first"), [("int64", "argmax"), ("uint8", "argmax"), ("float32", "threshold")])
def test_whole_numbers_over_the_image_are_classes(dtype: str, first: str) -> None:
    for shape in ((64, 64), (1, 64, 64), (64, 64, 1)):
        assert str(guess([shape], ["output"], (3, 64, 64), None, dtypes=[dtype])[0]) == f"segment: {first}"


def test_rows_of_seven_are_those_of_yolov7_only_where_they_have_no_batch() -> None:
    found = guess([(5, 7)], ["output"], (3, 64, 64), None, is_batched=False)
    assert str(found[0]) == "detect: yolov10" and found[0].weight >= 3
    assert all(str(one) != "detect: yolov10" for one in guess([(5, 7)], ["output"], (3, 64, 64), None))


@pytest.mark.parametrize(("shape", "side"), [((20, 21504), 1024), ((300, 7), 1024)])
def test_oriented_boxes_are_among_the_guesses(shape: tuple[int, ...], side: int) -> None:
    assert "detect: yolov8-obb" in map(str, guess([shape], ["obb"], (3, side, side), 15))


def test_guesses_fall_in_weight() -> None:
    weights = [one.weight for one in guess([(3549, 85)], [], (3, 416, 416), None)]
    assert len(weights) > 1 and weights == sorted(weights, reverse=True)


def test_labels_decide_between_two_readings() -> None:
    """56 rows are a body's 17 points, or 52 classes."""
    assert str(guess([(56, 8400)], [], (3, 640, 640), None)[0]) == "keypoints: yolo-pose"
    by_labels = guess([(29, 8400)], [], (3, 640, 640), 25)
    assert str(by_labels[0]) == "detect: yolov8" and by_labels[0].classes == 25


def test_labels_make_a_vector_a_classifier() -> None:
    assert str(guess([(256,)], [], (3, 224, 224), None)[0]) == "embed: l2"
    assert str(guess([(256,)], ["prob"], (3, 224, 224), 256)[0]) == "classify: auto"


def test_outputs_that_nothing_reads_give_no_guess() -> None:
    assert guess([(2, 3, 4, 5)], ["x"], (3, 64, 64), None) == []
    assert guess([], [], (3, 64, 64), None) == []


def test_the_network_s_size_is_read_from_either_layout() -> None:
    assert network_size((3, 240, 320)) == (320, 240)
    assert network_size((240, 320, 3)) == (320, 240)
    assert network_size((3, None, None)) is None
    assert network_size((10,)) is None


@pytest.mark.parametrize(
    ("shapes", "side", "nearest"),
    [
        ([(3549, 85)], 640, "'detect: yolox' (of a 416x416 input)"),
        ([(84, 8400, 1)], 640, "'detect: yolov8' (without dimensions of 1)"),
        ([(25200, 85), (3, 80, 80, 85)], 640, "'detect: yolov5' (without output 2)"),
    ],
)
def test_heads_that_nothing_reads_name_the_nearest_families(
    shapes: list[tuple[int, ...]], side: int, nearest: str
) -> None:
    message = own_decoder(shapes, (side, side))
    assert message.startswith(f"nearest: {nearest}") and "edgert new, which writes a template" in message


def test_heads_that_are_near_to_nothing_name_no_family() -> None:
    message = own_decoder([(2, 3, 5, 7)], (64, 64))
    assert "nearest" not in message and "edgert new, which writes a template" in message
