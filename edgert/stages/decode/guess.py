"""Which decoder a model's outputs look like, from their shapes and names alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from edgert.stages.decode.shape import Shapes, Size, all_cells, boxes_and_scores, cells, is_rows_of_six, roles_of

_STRIDES = (8, 16, 32)
_EMBEDDINGS = (64, 128, 192, 256, 384, 512, 768, 1024, 1280, 2048)
_BODIES = (16, 17, 18)
"""Keypoints of a body in MPII, COCO and OpenPose."""


@dataclass(frozen=True, slots=True)
class Guess:
    """One way to read a model's outputs; ``str(guess)`` is what to write under ``task``.

    Attributes:
        task: the task's verb, like ``detect``.
        decoder: its value, like ``yolox``.
        reason: why, in words.
        weight: 1 possible, 2 likely, 3 fits in every number; one more or less by labels and names.
        classes: how many classes the outputs would then tell apart; None when shapes do not say.
    """

    task: str
    decoder: str
    reason: str
    weight: int
    classes: int | None = None

    def __str__(self) -> str:
        return f"{self.task}: {self.decoder}"


@dataclass(frozen=True, slots=True)
class _Facts:
    shapes: Shapes
    names: str
    network: Size | None

    def cells(self, strides: Sequence[int] = _STRIDES) -> int | None:
        return None if self.network is None else all_cells(self.network, strides)

    def stride(self, height: int, width: int) -> float | None:
        """Network pixels per cell of a map of that size; None when it does not have the network's shape."""
        if self.network is None or height < 2 or width < 2:
            return None
        across, down = self.network[0] / width, self.network[1] / height
        return across if abs(across - down) < 0.1 * down else None


def guess(
    output_shapes: Sequence[Sequence[int | None]],
    output_names: Sequence[str],
    input_shape: Sequence[int | None],
    n_labels: int | None,
) -> list[Guess]:
    """The decoders that can read such outputs, the likeliest first; empty when none can.

    Args:
        output_shapes: of one picture, without the batch dimension; a dynamic dimension is None.
        output_names: as in the model; may be empty.
        input_shape: (C, H, W) or (H, W, C), without the batch dimension; dynamic dimensions are None.
        n_labels: how many labels there are, when known.
    """
    shapes = tuple(tuple(size or 0 for size in shape) for shape in output_shapes)
    facts = _Facts(shapes, " ".join(output_names).lower(), network_size(input_shape))
    found = [_weighed(one, facts, n_labels) for rule in _RULES for one in rule(facts)]
    return sorted(found, key=lambda one: -one.weight)


def network_size(input_shape: Sequence[int | None]) -> Size | None:
    """Width and height of (C, H, W) or (H, W, C); None when dynamic or not a picture."""
    if len(input_shape) != 3:
        return None
    channels_first = input_shape[0] in (1, 3, 4) or input_shape[2] not in (1, 3, 4)
    height, width = input_shape[1:] if channels_first else input_shape[:2]
    return (width, height) if width and height else None


def _weighed(one: Guess, facts: _Facts, n_labels: int | None) -> Guess:
    """Labels that match the classes and telling names speak for a guess, too few labels against it."""
    weight = one.weight
    if n_labels and one.classes is not None:
        weight += 1 if n_labels == one.classes else -1 if n_labels < one.classes else 0
    words = _WORDS.get(one.task, ())
    weight += any(word in facts.names for word in words)
    return replace(one, weight=weight)


_WORDS = {
    "classify": ("prob", "softmax", "class", "logit", "fc"),
    "embed": ("embed", "feature", "feat", "descriptor"),
    "segment": ("seg", "mask", "sigmoid", "resizebilinear"),
    "keypoints": ("heat", "keypoint", "kpt", "pose"),
}


def _final(facts: _Facts) -> Iterator[Guess]:
    """Boxes that need no decoding."""
    if is_rows_of_six(facts.shapes) and facts.shapes[0][0] not in (facts.cells(), 6):
        yield Guess("detect", "yolov10", "[boxes, 6] is corners, score and class of final boxes", 3)
    if roles_of(facts.shapes) is not None:
        yield Guess("detect", "yolov10", "[N, 4] and twice [N] are final boxes, scores and classes", 3)


def _one_table(facts: _Facts) -> Iterator[Guess]:
    """One output of rows and columns, where the number of boxes tells the family."""
    if len(facts.shapes) != 1 or len(facts.shapes[0]) != 2:
        return
    rows, columns = facts.shapes[0]
    count, plus = facts.cells(), facts.cells((8, 16, 32, 64))
    if columns >= 6 and rows == count:
        reason = f"[{rows}, 5 + {columns - 5}] has one row for every cell of strides 8, 16, 32"
        yield Guess("detect", "yolox", reason, 3, columns - 5)
        yield Guess("detect", "yolov5", f"{reason}, if boxes are decoded in the graph", 1, columns - 5)
        yield Guess("detect", "yolov8", f"[{rows}, 4 + {columns - 4}] is its output turned round", 1, columns - 4)
    elif columns >= 6 and (rows > columns or not rows) and rows != plus:
        exact = count is not None and rows == 3 * count
        reason = f"[{rows or 'N'}, 5 + {columns - 5}] has {'three rows for every cell' if exact else 'a row per box'}"
        yield Guess("detect", "yolov5", reason, 3 if exact else 1, columns - 5)
    if columns > 36 and rows == plus:
        reason = f"[{rows}, {columns - 32} + 4 * 8] has one row for every cell of strides 8, 16, 32, 64"
        yield Guess("detect", "nanodet", reason, 3, columns - 32)
    if columns >= 5 and 10 <= rows <= 1000 and rows != count and not is_rows_of_six(facts.shapes):
        weight = 2 if count is not None and rows < count else 1
        yield Guess("detect", "detr", f"[{rows}, 4 + {columns - 4}] can be queries", weight, columns - 4)


def _columns(facts: _Facts) -> Iterator[Guess]:
    """One output whose columns are boxes."""
    if len(facts.shapes) != 1 or len(facts.shapes[0]) != 2:
        return
    rows, columns = facts.shapes[0]
    if rows < 5 or (columns and columns <= rows):
        return
    exact = columns == facts.cells()
    reason = f"[4 + {rows - 4}, {columns or 'N'}] has {'one column for every cell' if exact else 'a column per box'}"
    yield Guess("detect", "yolov8", reason, 3 if exact else 2, rows - 4)
    if rows > 5 and (rows - 5) % 3 == 0:
        points = (rows - 5) // 3
        usual = points in _BODIES
        yield Guess("keypoints", "yolo-pose", f"{rows} rows are a box, a score and {points} points", 4 if usual else 1)


def _several(facts: _Facts) -> Iterator[Guess]:
    """Scores and boxes apart."""
    shapes = facts.shapes
    roles = boxes_and_scores(shapes)
    if roles is not None:
        boxes, classes = shapes[roles[1]]
        queries = 0 < boxes <= 1000
        reason = f"scores [{boxes or 'N'}, {classes}] beside boxes [{boxes or 'N'}, 4]"
        yield Guess("detect", "ssd", f"{reason}, a box per prior", 1 if queries else 3, classes - 1)
        yield Guess("detect", "detr", f"{reason}, a box per query", 3 if queries else 1, classes)
    levels = len(shapes) // 2
    if facts.network and levels >= 2 and len(shapes) % 2 == 0 and all(len(shape) == 2 for shape in shapes):
        wanted = sorted(2 * [cells(facts.network, stride) for stride in (8, 16, 32, 64)[:levels]])
        if sorted(shape[0] for shape in shapes) == wanted:
            yield Guess("detect", "nanodet", f"scores and sides for each of {levels} strides", 3)


def _maps(facts: _Facts) -> Iterator[Guess]:
    """One output with a height and a width."""
    if len(facts.shapes) != 1 or len(facts.shapes[0]) not in (2, 3):
        return
    for channels, height, width, order in _orders(facts.shapes[0]):
        stride = facts.stride(height, width)
        dynamic = order == "nchw" and not height and not width
        if channels == 1 and (dynamic or (stride is not None and stride <= 8)):
            yield Guess("segment", "threshold", "one channel over the picture is a mask", 3)
        elif channels > 1 and (dynamic or (stride is not None and stride <= 8)):
            few = 2 if channels == 3 and stride == 1 else 3
            yield Guess("segment", "argmax", f"{channels} channels over the picture, {order}", few, channels)
        if order != "nchw" or stride is None:
            continue
        if channels > 1 and 2 <= stride <= 8:
            weight = 4 if channels in _BODIES else 1
            yield Guess("keypoints", "heatmap", f"{channels} maps at 1/{stride:g} of the picture", weight)
        if channels > 5 and stride > 8:
            yield Guess("detect", "fastestdet", f"5 + {channels - 5} channels, stride {stride:g}", 3, channels - 5)


def _orders(shape: tuple[int, ...]) -> Iterator[tuple[int, int, int, str]]:
    """Channels, height, width, order: every way to see a map in a shape."""
    if len(shape) == 2:
        yield 1, shape[0], shape[1], "no channels"
        return
    yield shape[0], shape[1], shape[2], "nchw"
    if 0 < shape[2] < min(shape[:2]):
        yield shape[2], shape[0], shape[1], "nhwc"


def _vector(facts: _Facts) -> Iterator[Guess]:
    """One output of one dimension, others being 1."""
    if len(facts.shapes) != 1:
        return
    sizes = [size for size in facts.shapes[0] if size != 1]
    if len(sizes) > 1 or 0 in sizes:
        return
    length = sizes[0] if sizes else 1
    known = length in (1000, 1001)
    round_length = length in _EMBEDDINGS
    yield Guess("classify", "auto", f"{length} numbers, one per class", 3 if known else 2, length)
    yield Guess("embed", "l2", f"{length} numbers, a usual length of an embedding", 3 if round_length else 1)


_RULES: tuple[Callable[[_Facts], Iterator[Guess]], ...] = (_final, _one_table, _columns, _several, _maps, _vector)
