"""A small network to quantize."""

import numpy as np

from edgert.dataset import ImageDataset, open_images
from edgert.graph import Model
from tests.helpers.models import make, node

SIZE, IMAGES = 16, 32


def random_images(count: int, seed: int) -> ImageDataset:
    """Images of noise."""
    random = np.random.default_rng(seed)
    return open_images([random.integers(0, 256, (SIZE, SIZE, 3), dtype=np.uint8) for _ in range(count)])


def network(*, pooled: bool = True) -> Model:
    """Three convolutions and a fully connected layer; channels of the first differ in size by up to a thousand.

    Without ``pooled`` it ends with the third convolution.
    """
    random = np.random.default_rng(3)
    weights = {
        "w1": random.normal(0, 0.3, (8, 3, 3, 3)) * np.logspace(-1.5, 1.5, 8).reshape(-1, 1, 1, 1),
        "w2": random.normal(0, 0.2, (16, 8, 3, 3)),
        "w3": random.normal(0, 0.1, (16, 16, 3, 3)),
        "w4": random.normal(0, 0.3, (16, 5)),
        **{f"b{n}": random.normal(0, 0.1, (count,)) for n, count in enumerate((8, 16, 16, 5), 1)},
    }
    nodes = [
        node("Conv", ["x", "w1", "b1"], ["c1"], name="first", pads=[1] * 4),
        node("Relu", ["c1"], ["r1"], name="relu1"),
        node("Conv", ["r1", "w2", "b2"], ["c2"], name="second", pads=[1] * 4),
        node("Relu", ["c2"], ["r2"], name="relu2"),
        node("Conv", ["r2", "w3", "b3"], ["c3"], name="third", pads=[1] * 4),
        node("GlobalAveragePool", ["c3"], ["mean"], name="mean"),
        node("Flatten", ["mean"], ["flat"], name="flat"),
        node("Gemm", ["flat", "w4", "b4"], ["scores"], name="last"),
        node("Softmax", ["scores"], ["y"], name="softmax"),
    ]
    stored = {name: array.astype(np.float32) for name, array in weights.items()}
    inputs = {"x": (1, 3, SIZE, SIZE)}
    if not pooled:
        return make(nodes[:5], inputs, {"c3": (1, 16, SIZE, SIZE)}, stored)
    return make(nodes, inputs, {"y": (1, 5)}, stored)
