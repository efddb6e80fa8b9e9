"""ResNet-50 with random weights, as exporters write it: Conv, BatchNormalization, a global mean, Flatten and Gemm.

Layers and widths: K. He et al., Deep Residual Learning for Image Recognition, table 1, https://arxiv.org/abs/1512.03385,
with the stride in the 3x3 convolution, as torchvision has it.
"""

from typing import Any

import numpy as np

from edgert.graph import Model, from_proto
from tests.helpers.models import make_proto, node

STAGES = ((64, 3), (128, 4), (256, 6), (512, 3))
"""(width, blocks) of each stage; a block puts out four times its width."""


class _Maker:
    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.stored: dict[str, Any] = {}
        self.rng = np.random.default_rng(50)

    def store(self, name: str, array: Any) -> str:
        self.stored[name] = np.asarray(array, np.float32)
        return name

    def add(self, op: str, inputs: list[str], name: str, **given: Any) -> str:
        self.nodes.append(node(op, inputs, [f"{name}_out"], name, **given))
        return f"{name}_out"

    def conv(self, source: str, shape: tuple[int, int, int], name: str, stride: int = 1, gain: float = 2.0) -> str:
        """Filters, channels, side; then normalized. Weights keep the spread of what they read."""
        filters, channels, side = shape
        spread = (gain / (channels * side * side)) ** 0.5
        weight = self.store(f"{name}_w", self.rng.standard_normal((filters, channels, side, side)) * spread)
        found = self.add("Conv", [source, weight], name, strides=[stride] * 2, pads=[side // 2] * 4)
        statistics = [
            self.store(f"{name}_{what}", low + wide * self.rng.random(filters))
            for what, low, wide in (("gamma", 0.9, 0.2), ("beta", -0.1, 0.2), ("mean", -0.1, 0.2), ("var", 0.9, 0.2))
        ]
        return self.add("BatchNormalization", [found, *statistics], f"{name}_bn")

    def relu(self, source: str, name: str) -> str:
        return self.add("Relu", [source], name)

    def block(self, source: str, channels: int, width: int, stride: int, name: str) -> str:
        first = self.relu(self.conv(source, (width, channels, 1), f"{name}_a"), f"{name}_a_relu")
        second = self.relu(self.conv(first, (width, width, 3), f"{name}_b", stride), f"{name}_b_relu")
        third = self.conv(second, (4 * width, width, 1), f"{name}_c", gain=0.2)
        if stride > 1 or channels != 4 * width:
            source = self.conv(source, (4 * width, channels, 1), f"{name}_skip", stride, gain=1.0)
        return self.relu(self.add("Add", [third, source], f"{name}_add"), f"{name}_relu")


def resnet50(classes: int = 1000, size_px: int = 224) -> Model:
    """A classifier of (1, 3, size, size) float32 images with 25.6 million weights, none of them trained."""
    make = _Maker()
    found = make.relu(make.conv("x", (64, 3, 7), "stem", 2), "stem_relu")
    found = make.add("MaxPool", [found], "pool", kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    channels = 64
    for stage, (width, blocks) in enumerate(STAGES):
        for number in range(blocks):
            stride = 2 if stage and not number else 1
            found = make.block(found, channels, width, stride, f"stage{stage}_block{number}")
            channels = 4 * width
    found = make.add("GlobalAveragePool", [found], "mean")
    found = make.add("Flatten", [found], "flat")
    weight = make.store("fc_w", make.rng.standard_normal((classes, channels)) * channels**-0.5)
    bias = make.store("fc_b", make.rng.random(classes))
    make.nodes.append(node("Gemm", [found, weight, bias], ["y"], "fc", transB=1))
    proto = make_proto(make.nodes, {"x": [1, 3, size_px, size_px]}, {"y": [1, classes]}, make.stored)
    return from_proto(proto, "resnet50.onnx")
