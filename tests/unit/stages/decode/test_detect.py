"""Known boxes, written in the layout a family publishes, come back as they were."""

from random import Random

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from edgert.errors import ConfigError, ModelError
from edgert.stages.decode.decoded import Decoded, Detr, PpYoloe, Ssd
from edgert.stages.decode.decoder import all_cells, grid_of
from edgert.stages.decode.detection import Detector, Head
from edgert.stages.decode.nanodet import FastestDet, NanoDet, YoloV8Raw
from edgert.stages.decode.yolo import YoloNas, YoloV5, YoloV8, YoloX
from tests.helpers.errors import raises
from tests.helpers.known_boxes import KnownBoxes, assert_same, identity, known_boxes

NETWORKS = st.sampled_from([(416, 416), (320, 256), (640, 384)])
seeds = given(seed=st.integers(0, 2**32 - 1), network=NETWORKS)
quick = settings(max_examples=25, deadline=None)


def some_cells(known: KnownBoxes, count: int) -> np.ndarray:
    return np.random.default_rng(7).choice(count, len(known.scores), replace=False)


def spread(known: KnownBoxes, classes: int, peak: np.ndarray) -> np.ndarray:
    """(N, classes) with ``peak`` at each box's class and little elsewhere."""
    table = np.full((len(peak), classes), 0.01, np.float32)
    table[np.arange(len(peak)), known.classes] = peak
    return table


def sigmoid_inverse(values: np.ndarray) -> np.ndarray:
    return np.log(values / (1 - values))


def yolox_output(known: KnownBoxes, classes: int) -> np.ndarray:
    """Inverse of yolo_head.py, decode_outputs; noise below every threshold elsewhere."""
    grid = grid_of(known.geometry.network, (8, 16, 32))
    output = np.random.default_rng(0).uniform(0, 0.2, (len(grid.x), 5 + classes)).astype(np.float32)
    rows = some_cells(known, len(output))
    stride = grid.stride[rows, None]
    output[rows, :2] = known.centers / stride - np.stack([grid.x[rows], grid.y[rows]], axis=1)
    output[rows, 2:4] = np.log(known.sizes / stride)
    output[rows, 4] = 0.98
    output[rows, 5:] = spread(known, classes, known.scores / 0.98)
    return output


@quick
@seeds
def test_yolox(seed: int, network: tuple[int, int]) -> None:
    known = known_boxes(seed, network, 80)
    assert_same(Detector(YoloX())([yolox_output(known, 80)], known.geometry), known)


@quick
@seeds
def test_yolov5(seed: int, network: tuple[int, int]) -> None:
    known = known_boxes(seed, network, 7)
    output = np.zeros((3 * all_cells(network, (8, 16, 32)), 12), np.float32)
    rows = some_cells(known, len(output))
    output[rows] = np.hstack(
        [known.centers, known.sizes, np.full((len(rows), 1), 0.97), spread(known, 7, known.scores / 0.97)]
    )
    assert_same(Detector(YoloV5())([output], known.geometry), known)


@quick
@given(seed=st.integers(0, 2**32 - 1), network=NETWORKS, turned=st.booleans(), classes=st.sampled_from([1, 2, 80]))
def test_yolov8(seed: int, network: tuple[int, int], turned: bool, classes: int) -> None:
    known = known_boxes(seed, network, classes)
    output = np.zeros((all_cells(network, (8, 16, 32)), 4 + classes), np.float32)
    output[some_cells(known, len(output))] = np.hstack(
        [known.centers, known.sizes, spread(known, classes, known.scores)]
    )
    output = output if turned else np.ascontiguousarray(output.T)
    assert_same(Detector(YoloV8())([output], known.geometry), known)


def final_table(known: KnownBoxes, rows: int = 300) -> np.ndarray:
    table = np.zeros((rows, 6), np.float32)
    count = len(known.scores)
    table[:count] = np.hstack([known.corners, known.scores[:, None], known.classes[:, None]])
    return table


@pytest.mark.parametrize("head", [Decoded(), YoloV8()])
def test_end_to_end_rows_of_six(head: Head) -> None:
    known = known_boxes(11, (640, 640), 80)
    assert_same(Detector(head)([final_table(known)], known.geometry), known)


def test_boxes_of_one_object_in_an_end_to_end_output_are_not_suppressed() -> None:
    table = np.array([[10, 10, 50, 50, 0.9, 1], [10, 10, 50, 51, 0.8, 1]], np.float32)
    assert len(Detector(Decoded())([table], identity((64, 64)))) == 2


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0), (1, 3, 0, 2)])
def test_final_boxes_scores_and_classes_in_any_order(order: tuple[int, ...]) -> None:
    """As TensorRT's EfficientNMS writes them: beyond the count lies rubbish."""
    known = known_boxes(5, (640, 640), 80)
    table = final_table(known, 100)
    table[len(known.scores) :, 4] = 0.99
    outputs = [np.array([len(known.scores)], np.int32), table[:, :4], table[:, 4], table[:, 5].astype(np.int32)]
    found = Detector(Decoded())([outputs[index] for index in order], known.geometry)
    assert_same(found, known)


def distances(
    known: KnownBoxes, rows: np.ndarray, center: float, strides: tuple[int, ...], bins: int, back: float | None = None
) -> np.ndarray:
    """(N, 4 * bins) whose softmax has its mean at each side's distance; all of it in the two nearest bins.

    A cell's center is at (index + center) * stride - back.
    """
    back = center if back is None else back
    grid = grid_of(known.geometry.network, strides)
    stride = grid.stride[rows, None]
    middle = (np.stack([grid.x[rows], grid.y[rows]], axis=1) + center) * stride - back
    exact = np.hstack([middle - known.corners[:, :2], known.corners[:, 2:] - middle]) / stride
    assert exact.min() >= 0 and exact.max() < bins - 1
    low = np.floor(exact).astype(int)
    power = np.full((*exact.shape, bins), 1e-9)
    np.put_along_axis(power, low[..., None], (1 - (exact - low))[..., None] + 1e-9, axis=2)
    np.put_along_axis(power, low[..., None] + 1, (exact - low)[..., None] + 1e-9, axis=2)
    return np.log(power).reshape(len(rows), -1).astype(np.float32)


def center_cells(known: KnownBoxes, center: float) -> np.ndarray:
    """Rows of the stride 16 level, which follows that of stride 8: the cells nearest to the boxes' centers."""
    network = known.geometry.network
    column, row = np.round(known.centers / 16 - center).astype(int).T
    return all_cells(network, (8,)) + row * (network[0] // 16) + column


@quick
@given(seed=st.integers(0, 2**32 - 1), network=NETWORKS, levels=st.sampled_from([3, 4]), order=st.randoms())
def test_nanodet_and_picodet(seed: int, network: tuple[int, int], levels: int, order: Random) -> None:
    """PicoDet has four levels, whose centers are the middles of cells; outputs come in any order."""
    known, strides = known_boxes(seed, network, 80), (8, 16, 32, 64)[:levels]
    counts = [all_cells(network, (stride,)) for stride in strides]
    rows = center_cells(known, 0.5)
    scores = np.full((sum(counts), 80), 0.01, np.float32)
    sides = np.zeros((sum(counts), 32), np.float32)
    scores[rows] = spread(known, 80, known.scores)
    sides[rows] = distances(known, rows, 0.5, strides, 8, back=None if levels == 3 else 0)
    cuts = np.cumsum(counts)[:-1]
    outputs = [*np.split(scores, cuts), *np.split(sides, cuts)]
    order.shuffle(outputs)
    assert_same(Detector(NanoDet())(outputs, known.geometry), known)


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("is_last", [False, True])
@pytest.mark.parametrize("activation", ["none", "sigmoid"])
@quick
@seeds
def test_yolov8_without_its_decoding(
    seed: int, network: tuple[int, int], parts: int, is_last: bool, activation: str
) -> None:
    """A map for each level, of sides and then classes; or two, whose scores may be behind their sigmoid."""
    known = known_boxes(seed, network, 80)
    sizes = [(network[1] // stride, network[0] // stride) for stride in (8, 16, 32)]
    rows, table = center_cells(known, 0.5), np.full((all_cells(network, (8, 16, 32)), 144), 0.01, np.float32)
    table[rows] = np.hstack([distances(known, rows, 0.5, (8, 16, 32), 16, back=0), spread(known, 80, known.scores)])
    if activation == "sigmoid":
        table[:, 64:] = sigmoid_inverse(table[:, 64:])
    cuts = np.cumsum([height * width for height, width in sizes])[:-1]
    maps = [part.reshape(*size, 144) for part, size in zip(np.split(table, cuts), sizes, strict=True)]
    split = [part for one in maps for part in (np.split(one, [64], axis=2) if parts == 2 else [one])]
    outputs = [np.ascontiguousarray(one if is_last else one.transpose(2, 0, 1)) for one in split]
    for head in (YoloV8Raw(), YoloV8Raw(activation=activation)):
        assert_same(Detector(head)(outputs, known.geometry), known)


@quick
@seeds
def test_nanodet_plus(seed: int, network: tuple[int, int]) -> None:
    known = known_boxes(seed, network, 80)
    strides = (8, 16, 32, 64)
    rows = center_cells(known, 0)
    output = np.full((all_cells(network, strides), 112), 0.01, np.float32)
    output[rows] = np.hstack([spread(known, 80, known.scores), distances(known, rows, 0, strides, 8)])
    assert_same(Detector(NanoDet())([output], known.geometry), known)


def decoded(known: KnownBoxes, count: int) -> tuple[np.ndarray, np.ndarray]:
    """(count, 4) corners in pixels, and (count, 20) scores."""
    rows = some_cells(known, count)
    scores, boxes = np.full((count, 20), 0.01, np.float32), np.zeros((count, 4), np.float32)
    scores[rows], boxes[rows] = spread(known, 20, known.scores), known.corners
    return boxes, scores


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("background", ["first", "none"])
def test_ssd(background: str, swapped: bool) -> None:
    known = known_boxes(21, (320, 240), 20)
    boxes, scores = decoded(known, 4420)
    boxes /= np.float32([320, 240, 320, 240])
    if background == "first":
        scores = np.hstack([np.full((4420, 1), 0.99, np.float32), scores])
    outputs = [boxes, scores] if swapped else [scores, boxes]
    assert_same(Detector(Ssd(background=background))(outputs, known.geometry), known)


@quick
@given(seed=st.integers(0, 2**32 - 1))
def test_fastestdet(seed: int) -> None:
    """Inverse of the formulas; a cell holds centers within one cell of its own."""
    known = known_boxes(seed, (352, 352), 80)
    output = np.full((85, 22, 22), 0.01, np.float32)
    column, row = (known.centers // 16).astype(int).T
    place = known.centers / 16 - np.stack([column, row], axis=1)
    output[0, row, column] = 0.98
    output[1:3, row, column] = np.arctanh(np.clip(place, 0, 0.9999)).T
    output[3:5, row, column] = sigmoid_inverse(known.sizes / 352).T
    output[5:, row, column] = spread(known, 80, (known.scores / 0.98**0.6) ** 2.5).T
    assert_same(Detector(FastestDet())([output], known.geometry), known, pixels=0.1)


def queries(known: KnownBoxes) -> tuple[np.ndarray, np.ndarray]:
    """Relative boxes of 100 queries and which of them are taken."""
    rows = some_cells(known, 100)
    boxes = np.full((100, 4), 0.5, np.float32)
    boxes[rows] = np.hstack([known.centers, known.sizes]) / np.tile(known.geometry.network, 2)
    return boxes, rows


@quick
@seeds
def test_detr_with_sigmoid(seed: int, network: tuple[int, int]) -> None:
    known = known_boxes(seed, network, 80)
    boxes, rows = queries(known)
    logits = np.full((100, 80), -6, np.float32)
    logits[rows, known.classes] = sigmoid_inverse(known.scores)
    assert_same(Detector(Detr())([logits, boxes], known.geometry), known)
    assert_same(Detector(Detr(activation="sigmoid"))([boxes, logits], known.geometry), known)


@quick
@seeds
def test_detr_with_softmax_and_no_object(seed: int, network: tuple[int, int]) -> None:
    known = known_boxes(seed, network, 80)
    boxes, rows = queries(known)
    scores = np.full((100, 81), 1e-6)
    scores[:, 80] = 1
    scores[rows, 80] = 1 - known.scores
    scores[rows, known.classes] = known.scores
    logits = np.log(scores).astype(np.float32) + 3
    assert_same(Detector(Detr(activation="softmax"))([logits, boxes], known.geometry), known)
    assert_same(Detector(Detr(label_count=80))([logits, boxes], known.geometry), known)


def test_detr_in_one_output_with_scores() -> None:
    known = known_boxes(4, (640, 640), 80)
    boxes, rows = queries(known)
    scores = np.zeros((100, 80), np.float32)
    scores[rows, known.classes] = known.scores
    assert_same(Detector(Detr())([np.hstack([boxes, scores])], known.geometry), known)


def test_detr_with_labels_boxes_and_scores() -> None:
    known = known_boxes(4, (640, 640), 80)
    outputs = [known.classes.astype(np.int64), known.corners, known.scores]
    assert_same(Detector(Detr())(outputs, known.geometry), known)


def test_half_precision_is_read() -> None:
    known = known_boxes(2, (320, 320), 80)
    output = yolox_output(known, 80).astype(np.float16)
    found = Detector(YoloX())([output], known.geometry)
    assert found.boxes.dtype == np.float32
    np.testing.assert_allclose(found.boxes, known.source, atol=2)


@pytest.mark.parametrize("head", [YoloX(), YoloV5(), YoloV8(), FastestDet(), Detr(activation="sigmoid")])
def test_nothing_found_is_an_empty_record(head: Head) -> None:
    shapes = {FastestDet: (85, 22, 22), YoloX: (2541, 85), YoloV8: (84, 2541), YoloV5: (7623, 85), Detr: (100, 84)}
    nothing = -9 if isinstance(head, Detr) else 0
    found = Detector(head)([np.full(shapes[type(head)], nothing, np.float32)], identity((352, 352)))
    assert found.boxes.shape == (0, 4) and len(found) == 0


def test_the_lowest_score_counts_and_the_limit_holds() -> None:
    table = np.zeros((20, 6), np.float32)
    table[:, 2:4] = 5
    table[:, 4] = np.arange(20) / 32
    found = Detector(Decoded(), score=0.25, limit=4)([table], identity((64, 64)))
    np.testing.assert_array_equal(found.scores, np.float32([19, 18, 17, 16]) / 32)
    assert Detector(Decoded(), score=0.25)([table], identity((64, 64))).scores[-1] == 0.25


def test_wrong_shapes_name_the_decoder_that_fits() -> None:
    with raises(ModelError, what="detect: yolox", why=("[3549, 5 + classes]", "[84, 3549]"), fix="detect: yolov8"):
        Detector(YoloX()).check(((84, 3549),), (416, 416))


@pytest.mark.parametrize(("count", "fix"), [(2, "add the missing lines"), (81, "such as a background")])
def test_labels_of_another_number_are_refused_before_the_first_image(count: int, fix: str) -> None:
    with raises(ConfigError, f"{count} labels for 80 classes", fix=fix):
        Detector(YoloX(), labels=("x",) * count).check(((3549, 85),), (416, 416))
    Detector(YoloX(), labels=("x",) * 80).check(((3549, 85),), (416, 416))


def test_too_few_labels_are_refused_when_only_values_tell() -> None:
    table = np.array([[0, 0, 5, 5, 0.9, 2]], np.float32)
    with pytest.raises(ConfigError, match="2 labels for 3 classes"):
        Detector(Decoded(), labels=("a", "b"))([table], identity((64, 64)))
    Detector(Decoded(), labels=tuple("abcd"))([table], identity((64, 64)))  # who knows what it did not find


@pytest.mark.parametrize("turned", [False, True])
def test_a_class_score_that_is_not_a_number_makes_no_box(turned: bool) -> None:
    output = np.zeros((all_cells((64, 64), (8, 16, 32)), 7), np.float32)
    output[:3] = [[9, 9, 4, 4, 0.2, 0.9, 0], [30, 30, 4, 4, 0.9, np.nan, 0], [50, 50, 4, 4, 0, 0.7, 0.8]]
    record = Detector(YoloV8())([output.T if turned else output], identity((64, 64)))
    assert record.classes.tolist() == [1, 2]


@pytest.mark.parametrize("swapped", [False, True])
def test_yolo_nas_has_a_box_per_cell_and_no_background(swapped: bool) -> None:
    known = known_boxes(31, (640, 384), 20)
    boxes, scores = decoded(known, all_cells((640, 384), (8, 16, 32)))
    assert_same(Detector(YoloNas())([scores, boxes] if swapped else [boxes, scores], known.geometry), known)


def test_pp_yoloe_with_and_without_suppression() -> None:
    known = known_boxes(32, (640, 384), 20)
    boxes, scores = decoded(known, all_cells((640, 384), (8, 16, 32)))
    final = np.hstack([known.classes[:, None], known.scores[:, None], known.corners])
    padded = np.vstack([final, np.full((40, 6), 0.9)]).astype(np.float32)
    marked = np.vstack([final, np.full((40, 6), -1)]).astype(np.float32)
    turned = np.ascontiguousarray(scores.T)
    number = np.array([len(final)], np.int32)
    for outputs in (
        [boxes, turned], [turned, boxes], [np.hstack([boxes, scores])], [padded, number], [number, padded], [marked],
    ):  # fmt: skip
        assert_same(Detector(PpYoloe())(outputs, known.geometry), known)
    twice = np.array([[1, 0.9, 10, 10, 50, 50], [1, 0.8, 10, 10, 50, 51]], np.float32)
    assert len(Detector(PpYoloe())([np.repeat(twice, 4, axis=0), np.array([2], np.int32)], identity((64, 64)))) == 2


def test_final_boxes_by_their_centers() -> None:
    known = known_boxes(33, (640, 640), 20)
    table = final_table(known)
    table[: len(known.scores), :4] = np.hstack([known.centers, known.sizes]) / 640
    assert_same(Detector(Decoded(boxes="relative", order="cxcywh"))([table], known.geometry), known)


def test_a_query_of_softmax_counts_for_its_best_class_only() -> None:
    numbers = np.log(np.array([[0.55, 0.4, 0.05]], np.float32))
    boxes = np.array([[0.5, 0.5, 0.2, 0.2]], np.float32)
    record = Detector(Detr(activation="softmax"))([numbers, boxes], identity((64, 64)))
    assert record.classes.tolist() == [0]
    both = Detector(Detr(activation="none"))([np.array([[0.55, 0.4]], np.float32), boxes], identity((64, 64)))
    assert both.classes.tolist() == [0, 1]
    assert len(Detector(Detr())([np.hstack([boxes, [[0.55, 0.4, 0.1]]])], identity((64, 64)))) == 1
