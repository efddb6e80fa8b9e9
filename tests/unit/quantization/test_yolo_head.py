"""A YOLOv8 head joins boxes of hundreds of pixels and scores up to 1 in one output: one scale for both would leave the
scores two values. ``quantize`` keeps them apart, for every target."""

from pathlib import Path

import numpy as np
import pytest
from onnx import NodeProto, TensorProto

from edgert import QuantizeOptions, quantize
from edgert.backend.ort import Function
from edgert.graph import Model, load, to_bytes
from edgert.stages.decode.decoder import grid_of
from tests.helpers.models import make, node

SIDE, CLASSES, WIDTH = 64, 3, 16
FLOAT = TensorProto.FLOAT


def yolov8_like(seed: int = 0) -> Model:
    """``output0`` [1, 4 + 3, 84]: center, size in pixels and class scores past their sigmoid, of three levels."""
    random, weights = np.random.default_rng(seed), dict[str, np.ndarray]()
    nodes: list[NodeProto] = []

    def add(op: str, *inputs: str, **attributes: object) -> str:
        nodes.append(node(op, inputs, [f"t{len(nodes)}"], name=f"{op}_{len(nodes)}", **attributes))
        return str(nodes[-1].output[0])

    def stored(array: object, dtype: str = "f4") -> str:
        weights[f"w{len(weights)}"] = np.asarray(array, dtype)
        return f"w{len(weights) - 1}"

    def conv(x: str, depth: int, width: int, kernel: int = 3, stride: int = 1, gain: float = 1.4) -> str:
        scale = gain / np.sqrt(depth * kernel * kernel)
        kernels = stored(random.standard_normal((width, depth, kernel, kernel)) * scale)
        bias = stored(random.uniform(-0.2, 0.2, width))
        return add("Conv", x, kernels, bias, pads=[kernel // 2] * 4, strides=[stride] * 2)

    def silu(x: str) -> str:
        return add("Mul", x, add("Sigmoid", x))

    x, levels = silu(conv(silu(conv("images", 3, WIDTH, stride=2)), WIDTH, WIDTH, stride=2)), []
    for _ in range(3):
        x = silu(conv(x, WIDTH, WIDTH, stride=2))
        heads = [add("Relu", conv(x, WIDTH, 4, 1, gain=3)), conv(x, WIDTH, CLASSES, 1, gain=6)]
        pairs = zip(heads, (4, CLASSES), strict=True)
        levels.append([add("Reshape", one, stored((1, rows, -1), "i8")) for one, rows in pairs])
    sides, scores = (add("Concat", *parts, axis=2) for parts in zip(*levels, strict=True))
    left, right = (add("Slice", sides, *(stored([at], "i8") for at in (start, start + 2, 1))) for start in (0, 2))
    grid = grid_of((SIDE, SIDE), (8, 16, 32))
    anchors, strides = stored(np.stack([grid.x, grid.y])[None] + 0.5), stored(grid.stride[None, None])
    low, high = add("Sub", anchors, left), add("Add", anchors, right)
    centers = add("Mul", add("Add", low, high), stored(0.5))
    boxes = add("Mul", add("Concat", centers, add("Sub", high, low), axis=1), strides)
    nodes.append(node("Concat", [boxes, add("Sigmoid", scores)], ["output0"], name="joined", axis=1))
    shape = (1, 3, SIDE, SIDE)
    return make(nodes, {"images": shape}, {"output0": (1, 4 + CLASSES, 84)}, weights)


SLOW = pytest.mark.slow


@pytest.mark.parametrize("target", ["ort", pytest.param("gpu", marks=SLOW), pytest.param("dla", marks=SLOW)])
def test_scores_beside_boxes_survive(tmp_path: Path, target: str) -> None:
    (tmp_path / "net.onnx").write_bytes(to_bytes(yolov8_like()))
    random = np.random.default_rng(1)
    images = [random.integers(0, 256, (SIDE, SIDE, 3), np.uint8) for _ in range(20)]
    options = QuantizeOptions(task="detect yolov8", target=target)
    made = quantize(tmp_path / "net.onnx", images, input="stretch rgb mean=0 std=255", options=options)
    is_own = target == "ort"
    first, second = Function(load(tmp_path / "net.onnx")), Function(made.model, fused=is_own)
    feeds = [{"images": random.uniform(0, 1, (1, 3, SIDE, SIDE)).astype(np.float32)} for _ in range(4)]
    pairs = [(first(feed)["output0"][0], second(feed)["output0"][0]) for feed in feeds]
    true, found = (np.concatenate(some, axis=1) for some in zip(*pairs, strict=True))
    assert true[:4].max() > 50 and np.ptp(true[4:]) > 0.5  # or the test would show nothing
    for rows in (slice(0, 4), slice(4, None)):
        noise = np.square(true[rows] - found[rows]).sum() / np.square(true[rows]).sum()
        assert noise < 0.01, f"signal to noise {-10 * np.log10(noise):.1f} dB"
    assert len(np.unique(found[4:])) > 50, "scores are steps of a scale made for boxes"
