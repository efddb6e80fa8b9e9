"""Builder of graphs layer by layer; its stored tensors are one repeated zero, and take no memory."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from edgert.graph import Graph, Node, TensorSpec

Shape = tuple[int, ...]


class Builder:
    """Builder of a graph. Tensors are passed by name, with shapes NCHW in ``shape``; batch norms are folded."""

    def __init__(self, *shape: int, act: str | None = "relu") -> None:
        self.act = act
        self.shapes: dict[str, Shape] = {"input": shape}
        self.nodes: list[Node] = []
        self.constants: dict[str, Any] = {}

    def graph(self, *outputs: str) -> Graph:
        """Return the graph built so far, with these outputs."""
        specs = {name: TensorSpec(name, shape, "float32") for name, shape in self.shapes.items()}
        ends = tuple(specs[name] for name in outputs)
        return Graph(tuple(self.nodes), self.constants, (specs["input"],), ends, specs, 17)

    def shape(self, tensor: str) -> Shape:
        """Return the shape of a tensor."""
        return self.shapes[tensor]

    def channels(self, tensor: str) -> int:
        return self.shapes[tensor][1]

    def node(self, op: str, inputs: Sequence[str], *shapes: Shape, **attributes: object) -> str:
        name = f"{op}_{len(self.nodes)}"
        outputs = tuple(name if index == 0 else f"{name}:{index}" for index in range(len(shapes)))
        self.nodes.append(Node(op, tuple(inputs), outputs, attributes, name))
        self.shapes.update(zip(outputs, shapes, strict=True))
        return name

    def stored(self, *shape: int) -> str:
        name = f"weight_{len(self.constants)}"
        self.constants[name] = np.broadcast_to(np.zeros((), np.float32), shape)
        return name

    def conv(
        self, x: str, columns: int, kernel: int | tuple[int, int] = 1, stride: int = 1, *, pad: int | None = None,
        groups: int = 1, act: str | None = "", dilation: int = 1,
    ) -> str:  # fmt: skip
        """Add convolution, bias and activation, by default the builder's activation and padding that keeps the size."""
        high, wide = (kernel, kernel) if isinstance(kernel, int) else kernel
        batch, channels, *size = self.shape(x)
        sides = [(k - 1) * dilation // 2 if pad is None else pad for k in (high, wide)]
        out = [(s + 2 * p - (k - 1) * dilation - 1) // stride + 1
               for s, p, k in zip(size, sides, (high, wide), strict=True)]  # fmt: skip
        inputs = [x, self.stored(columns, channels // groups, high, wide), self.stored(columns)]
        y = self.node("Conv", inputs, (batch, columns, *out), group=groups, kernel_shape=[high, wide],
                      strides=[stride, stride], pads=[*sides, *sides], dilations=[dilation, dilation])  # fmt: skip
        return self.activate(y, self.act if act == "" else act)

    def activate(self, x: str, act: str | None) -> str:
        if act is None:
            return x
        if act == "silu":
            return self.node("Mul", [x, self.node("Sigmoid", [x], self.shape(x))], self.shape(x))
        return self.node({"relu": "Relu", "leaky": "LeakyRelu", "relu6": "Clip"}[act], [x], self.shape(x))

    def pool(self, x: str, kernel: int, stride: int, *, pad: int = 0, op: str = "MaxPool", ceil: bool = False) -> str:
        """Add a pool of window maxima, or with ``op="AveragePool"`` of means."""
        batch, channels, *size = self.shape(x)
        out = [-((s + 2 * pad - kernel) // -stride if ceil else -((s + 2 * pad - kernel) // stride)) + 1 for s in size]
        return self.node(op, [x], (batch, channels, *out), kernel_shape=[kernel, kernel], strides=[stride, stride],
                         pads=[pad] * 4, ceil_mode=int(ceil))  # fmt: skip

    def mean(self, x: str) -> str:
        """Add a global average pool, flattened."""
        batch, channels = self.shape(x)[:2]
        y = self.node("GlobalAveragePool", [x], (batch, channels, 1, 1))
        return self.node("Flatten", [y], (batch, channels))

    def flat(self, x: str) -> str:
        """Flatten to one row per image."""
        batch, *rest = self.shape(x)
        return self.node("Flatten", [x], (batch, int(np.prod(rest))))

    def linear(self, x: str, columns: int, act: str | None = None) -> str:
        batch, depth = self.shape(x)
        y = self.node("Gemm", [x, self.stored(columns, depth), self.stored(columns)], (batch, columns), transB=1)
        return self.activate(y, act)

    def add(self, *xs: str, act: str | None = None) -> str:
        return self.activate(self.node("Add", xs, self.shape(xs[0])), act)

    def cat(self, *xs: str) -> str:
        batch, _, *size = self.shape(xs[0])
        return self.node("Concat", xs, (batch, sum(map(self.channels, xs)), *size), axis=1)

    def split(self, x: str, parts: int = 2) -> tuple[str, ...]:
        batch, channels, *size = self.shape(x)
        name = self.node("Split", [x], *[(batch, channels // parts, *size)] * parts, axis=1)
        return (name, *(f"{name}:{index}" for index in range(1, parts)))

    def up(self, x: str, factor: int = 2) -> str:
        """Enlarge by nearest neighbors."""
        batch, channels, high, wide = self.shape(x)
        return self.node("Resize", [x], (batch, channels, high * factor, wide * factor))

    def reshape(self, x: str, *shape: int) -> str:
        return self.node("Reshape", [x], shape)

    def transpose(self, x: str, *perm: int) -> str:
        return self.node("Transpose", [x], tuple(self.shape(x)[axis] for axis in perm), perm=list(perm))

    def matmul(self, x: str, y: str) -> str:
        """Multiply two computed matrices."""
        return self.node("MatMul", [x, y], (*self.shape(x)[:-1], self.shape(y)[-1]))
