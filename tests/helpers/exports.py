"""Networks as exporters write them: shapes computed by nodes, none written down but those of inputs and outputs.

Each has the operators and the wiring of the real one and few blocks of it. Weights are zeros in one file beside the
model that takes no room on the disk.
"""

from collections.abc import Callable, Sequence
from math import prod
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
_VALUE_BYTES = 4

Dims = Sequence[int | str]


class Export:
    """A graph that grows; tensors are handed around by name."""

    def __init__(self, **inputs: Dims) -> None:
        self.inputs: list[tuple[str, Dims, int]] = [(name, dims, FLOAT) for name, dims in inputs.items()]
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.outputs: list[tuple[str, int]] = []
        self.domains = {"": 17}
        self._count = 0
        self._largest_bytes = 0

    def node(self, op: str, *inputs: str, outputs: int = 1, domain: str = "", **attributes: object) -> str:
        self._count += 1
        names = [f"{op}_{self._count}_out{index}" for index in range(outputs)]
        if domain:
            self.domains[domain] = 1
        self.nodes.append(helper.make_node(op, inputs, names, name=f"/{op}_{self._count}", domain=domain, **attributes))
        return names[0]

    def weight(self, *dims: int) -> str:
        size = _VALUE_BYTES * prod(dims)
        self._largest_bytes = max(self._largest_bytes, size)
        tensor = TensorProto(name=f"w{len(self.weights)}", dims=dims, data_type=FLOAT)
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in (("location", "weights.bin"), ("offset", "0"), ("length", str(size))):
            tensor.external_data.add(key=key, value=value)
        self.weights.append(tensor)
        return tensor.name

    def value(self, *numbers: float, kind: int = INT64, is_scalar: bool = False) -> str:
        array = np.array(numbers, helper.tensor_dtype_to_np_dtype(kind))
        return self.node("Constant", value=numpy_helper.from_array(array[0] if is_scalar else array))

    def scalar(self, number: float) -> str:
        return self.value(number, kind=FLOAT, is_scalar=True)

    def dim(self, x: str, axis: int) -> str:
        return self.node("Gather", self.node("Shape", x), self.value(axis, is_scalar=True), axis=0)

    def reshape(self, x: str, *dims: int | str) -> str:
        """To these dimensions, some of which may be tensors."""
        parts = [
            self.node("Unsqueeze", one, self.value(0)) if isinstance(one, str) else self.value(one) for one in dims
        ]
        return self.node("Reshape", x, self.node("Concat", *parts, axis=0))

    def linear(self, x: str, depth: int, width: int) -> str:
        return self.node("Add", self.weight(width), self.node("MatMul", x, self.weight(depth, width)))

    def conv(self, x: str, channels: int, out: int, kernel: int = 3, stride: int = 1, groups: int = 1) -> str:
        weights = self.weight(out, channels // groups, kernel, kernel), self.weight(out)
        return self.node("Conv", x, *weights, kernel_shape=[kernel] * 2, strides=[stride] * 2, group=groups,
                         pads=[kernel // 2] * 4)  # fmt: skip

    def norm(self, x: str, width: int) -> str:
        centered = self.node("Sub", x, self.node("ReduceMean", x, axes=[-1]))
        variance = self.node("ReduceMean", self.node("Pow", centered, self.scalar(2)), axes=[-1])
        deviation = self.node("Sqrt", self.node("Add", variance, self.scalar(1e-5)))
        scaled = self.node("Mul", self.node("Div", centered, deviation), self.weight(width))
        return self.node("Add", scaled, self.weight(width))

    def gelu(self, x: str) -> str:
        erf = self.node("Add", self.node("Erf", self.node("Div", x, self.scalar(2**0.5))), self.scalar(1))
        return self.node("Mul", self.node("Mul", x, erf), self.scalar(0.5))

    def attention(self, x: str, width: int, heads: int, memory: str = "", mask: str = "") -> str:
        memory = memory or x
        query, key, value = (
            self.node(
                "Transpose",
                self.reshape(self.linear(one, width, width), self.dim(one, 0), self.dim(one, 1), heads, width // heads),
                perm=perm,
            )
            for one, perm in ((x, [0, 2, 1, 3]), (memory, [0, 2, 3, 1]), (memory, [0, 2, 1, 3]))
        )
        scores = self.node("Mul", self.node("MatMul", query, key), self.scalar((width / heads) ** -0.5))
        scores = self.node("Add", scores, mask) if mask else scores
        mixed = self.node("MatMul", self.node("Softmax", scores, axis=-1), value)
        joined = self.reshape(self.node("Transpose", mixed, perm=[0, 2, 1, 3]), self.dim(x, 0), self.dim(x, 1), width)
        return self.linear(joined, width, width)

    def block(self, x: str, width: int, heads: int, mask: str = "") -> str:
        x = self.node("Add", x, self.attention(self.norm(x, width), width, heads, mask=mask))
        inner = self.gelu(self.linear(self.norm(x, width), width, 4 * width))
        return self.node("Add", x, self.linear(inner, 4 * width, width))

    def tokens(self, x: str, width: int) -> str:
        """(batch, width, high, wide) → (batch, tokens, width)."""
        return self.node("Transpose", self.reshape(x, self.dim(x, 0), width, -1), perm=[0, 2, 1])

    def silu(self, x: str) -> str:
        return self.node("Mul", x, self.node("Sigmoid", x))

    def save(self, path: Path, *results: str, kind: int = FLOAT) -> Path:
        """Writes the model, and beside it a file of zeros that all weights are the start of."""
        graph = helper.make_graph(
            self.nodes, path.stem,
            [helper.make_tensor_value_info(name, of, dims) for name, dims, of in self.inputs],
            [helper.make_tensor_value_info(name, kind, None) for name in results], self.weights,
        )  # fmt: skip
        opsets = [helper.make_opsetid(domain, version) for domain, version in self.domains.items()]
        model = helper.make_model(graph, opset_imports=opsets)
        model.ir_version = 8
        path.write_bytes(model.SerializeToString())
        with (path.parent / "weights.bin").open("ab") as file:
            file.truncate(max(self._largest_bytes, file.tell()))
        return path


def vit(path: Path) -> Path:
    """An image of 224 x 224 in patches of 16, and a class token: https://arxiv.org/abs/2010.11929."""
    b = Export(images=(1, 3, 224, 224))
    weights = b.weight(192, 3, 16, 16), b.weight(192)
    x = b.tokens(b.node("Conv", "images", *weights, kernel_shape=[16, 16], strides=[16, 16]), 192)
    batch = b.node("Unsqueeze", b.dim("images", 0), b.value(0))
    shape = b.node("Concat", batch, b.value(-1), b.value(-1), axis=0)
    is_same = b.node("Equal", shape, b.value(-1, -1, -1))
    shape = b.node("Where", is_same, b.value(1, 1, 1), shape)
    x = b.node("Concat", b.node("Expand", b.weight(1, 1, 192), shape), x, axis=1)
    x = b.node("Add", x, b.weight(1, 197, 192))
    for _ in range(2):
        x = b.block(x, 192, 3)
    x = b.node("Gather", b.norm(x, 192), b.value(0, is_scalar=True), axis=1)
    return b.save(path, b.node("Gemm", x, b.weight(1000, 192), b.weight(1000), transB=1))


def convnext(path: Path) -> Path:
    """Depthwise 7 x 7, normalization over channels that come last: https://arxiv.org/abs/2201.03545."""
    b = Export(images=(1, 3, 224, 224))
    weights = b.weight(96, 3, 4, 4), b.weight(96)
    x, width = b.node("Conv", "images", *weights, kernel_shape=[4, 4], strides=[4, 4]), 96
    for _ in range(2):
        y = b.node("Transpose", b.conv(x, width, width, 7, groups=width), perm=[0, 2, 3, 1])
        y = b.linear(b.gelu(b.linear(b.norm(y, width), width, 4 * width)), 4 * width, width)
        y = b.node("Transpose", b.node("Mul", b.weight(width), y), perm=[0, 3, 1, 2])
        x = b.node("Add", x, y)
        halved = b.weight(2 * width, width, 2, 2), b.weight(2 * width)
        x, width = b.node("Conv", x, *halved, kernel_shape=[2, 2], strides=[2, 2]), 2 * width
    return b.save(path, b.node("Flatten", b.node("GlobalAveragePool", x)))


def swin(path: Path) -> Path:
    """Windows of 7 x 7, shifted by slices, with a bias by distance and a mask: https://arxiv.org/abs/2103.14030."""
    b = Export(images=(1, 3, 224, 224))
    side, width, heads = 56, 96, 3
    weights = b.weight(width, 3, 4, 4), b.weight(width)
    x = b.tokens(b.node("Conv", "images", *weights, kernel_shape=[4, 4], strides=[4, 4]), width)
    for shift in (0, 3):
        y = b.reshape(b.norm(x, width), 1, side, side, width)
        for axis in (1, 2) if shift else ():
            start, end = (b.node("Slice", y, b.value(first), b.value(last), b.value(axis))
                          for first, last in ((shift, 2**62), (0, shift)))  # fmt: skip
            y = b.node("Concat", start, end, axis=axis)
        y = b.node("Transpose", b.reshape(y, 1, side // 7, 7, side // 7, 7, width), perm=[0, 1, 3, 2, 4, 5])
        y = b.reshape(y, -1, 49, width)
        table = b.node("Gather", b.weight(169, heads), b.value(*([0] * 49 * 49)), axis=0)
        bias = b.node("Unsqueeze", b.node("Transpose", b.reshape(table, 49, 49, heads), perm=[2, 0, 1]), b.value(0))
        y = b.attention(y, width, heads, mask=bias)
        y = b.node("Transpose", b.reshape(y, 1, side // 7, side // 7, 7, 7, width), perm=[0, 1, 3, 2, 4, 5])
        x = b.node("Add", x, b.reshape(y, 1, side * side, width))
        x = b.node("Add", x, b.linear(b.gelu(b.linear(b.norm(x, width), width, 4 * width)), 4 * width, width))
    return b.save(path, b.node("ReduceMean", b.norm(x, width), axes=[1], keepdims=0))


def detr(path: Path) -> Path:
    """A convolutional backbone, an encoder and a decoder of 100 queries: https://arxiv.org/abs/2005.12872."""
    b = Export(images=(1, 3, 480, 640))
    x, width = b.node("Relu", b.conv("images", 3, 64, 7, 2)), 64
    for _ in range(4):
        x, width = b.node("Relu", b.conv(x, width, 2 * width, 3, 2)), 2 * width
    x = b.tokens(b.conv(x, width, 256, 1), 256)
    for _ in range(2):
        x = b.block(x, 256, 8)
    queries = b.node("Expand", b.weight(1, 100, 256), b.value(1, 100, 256))
    for _ in range(2):
        queries = b.norm(b.node("Add", queries, b.attention(queries, 256, 8)), 256)
        queries = b.norm(b.node("Add", queries, b.attention(queries, 256, 8, memory=x)), 256)
        inner = b.node("Relu", b.linear(queries, 256, 2048))
        queries = b.norm(b.node("Add", queries, b.linear(inner, 2048, 256)), 256)
    return b.save(path, b.linear(queries, 256, 92), b.node("Sigmoid", b.linear(queries, 256, 4)))


def rt_detr(path: Path) -> Path:
    """The best queries of an encoder, looking at points of its tensor: https://arxiv.org/abs/2304.08069."""
    b = Export(images=(1, 3, 320, 320))
    x, width = b.silu(b.conv("images", 3, 32, 3, 2)), 32
    for _ in range(3):
        x, width = b.silu(b.conv(x, width, 2 * width, 3, 2)), 2 * width
    memory = b.block(b.tokens(x, width), width, 8)
    best = b.node("ReduceMax", b.linear(memory, width, 80), axes=[-1], keepdims=0)
    top = b.node("TopK", best, b.value(100), outputs=2, axis=1)
    index = b.node("Tile", b.node("Unsqueeze", top.replace("out0", "out1"), b.value(-1)), b.value(1, 1, width))
    queries = b.node("GatherElements", memory, index, axis=1)
    values = b.reshape(b.node("Transpose", b.linear(memory, width, width), perm=[0, 2, 1]), 8, width // 8, 20, 20)
    points = b.node("Transpose", b.reshape(b.linear(queries, width, 64), 1, 100, 8, 8), perm=[0, 2, 1, 3])
    points = b.node("Sub", b.node("Mul", b.node("Sigmoid", b.reshape(points, 8, 100, 4, 2)), b.scalar(2)), b.scalar(1))
    seen = b.node("GridSample", values, points, mode="bilinear", padding_mode="zeros", align_corners=0)
    shares = b.node("Softmax", b.reshape(b.linear(queries, width, 32), 8, 1, 100, 4), axis=-1)
    mixed = b.node("ReduceSum", b.node("Mul", seen, shares), b.value(-1), keepdims=0)
    mixed = b.node("Transpose", b.reshape(mixed, 1, width, 100), perm=[0, 2, 1])
    queries = b.norm(b.node("Add", queries, b.linear(mixed, width, width)), width)
    return b.save(path, b.linear(queries, width, 80), b.node("Sigmoid", b.linear(queries, width, 4)))


def mamba(path: Path) -> Path:
    """A state that a Scan carries from token to token: https://arxiv.org/abs/2312.00752."""
    b = Export(images=(1, 3, 224, 224))
    width, state = 192, 16
    weights = b.weight(width, 3, 16, 16), b.weight(width)
    x = b.tokens(b.node("Conv", "images", *weights, kernel_shape=[16, 16], strides=[16, 16]), width)
    x = b.node("Transpose", x, perm=[0, 2, 1])
    x = b.node("Conv", x, b.weight(width, 1, 4), b.weight(width), kernel_shape=[4], pads=[3, 0], group=width)
    x = b.node("Transpose", b.silu(x), perm=[2, 0, 1])
    step = b.node("Softplus", b.linear(x, width, width))
    drive = b.linear(x, width, state)
    info = helper.make_tensor_value_info
    body = helper.make_graph(
        [
            helper.make_node("Unsqueeze", ["d", "axis"], ["d1"]),
            helper.make_node("Neg", ["d1"], ["nd"]),
            helper.make_node("Exp", ["nd"], ["decay"]),
            helper.make_node("Mul", ["h", "decay"], ["kept"]),
            helper.make_node("Unsqueeze", ["u", "first"], ["u1"]),
            helper.make_node("Mul", ["d1", "u1"], ["new"]),
            helper.make_node("Add", ["kept", "new"], ["h_next"]),
            helper.make_node("ReduceSum", ["h_next", "axis"], ["y"], keepdims=0),
        ],
        "token",
        [info("h", FLOAT, (1, width, state)), info("d", FLOAT, (1, width)), info("u", FLOAT, (1, state))],
        [info("h_next", FLOAT, (1, width, state)), info("y", FLOAT, (1, width))],
        [numpy_helper.from_array(np.array([-1]), "axis"), numpy_helper.from_array(np.array([1]), "first")],
    )
    begin = b.node("ConstantOfShape", b.value(1, width, state))
    scan = b.node("Scan", begin, step, drive, outputs=2, body=body, num_scan_inputs=2)
    return b.save(path, b.linear(scan.replace("out0", "out1"), width, 1000))


def lstm(path: Path) -> Path:
    """Lines of text: convolutions, then two recurrent layers over columns: https://arxiv.org/abs/1507.05717."""
    b = Export(images=(1, 3, 32, 320))
    x, width = "images", 3
    for out in (64, 128, 256):
        x, width = b.node("MaxPool", b.node("Relu", b.conv(x, width, out)), kernel_shape=[2, 2], strides=[2, 2]), out
    x = b.node("Squeeze", b.node("ReduceMean", x, axes=[2]), b.value(2))
    x = b.node("Transpose", x, perm=[2, 0, 1])
    for depth in (256, 512):
        weights = b.weight(2, 1024, depth), b.weight(2, 1024, 256), b.weight(2, 2048)
        y = b.node("LSTM", x, *weights, outputs=3, hidden_size=256, direction="bidirectional")
        y = b.node("Transpose", y, perm=[0, 2, 1, 3])
        x = b.reshape(y, 0, 0, -1)
    return b.save(path, b.node("Softmax", b.linear(x, 512, 97), axis=2))


def bert(path: Path) -> Path:
    """Numbers of words, which are no image: https://arxiv.org/abs/1810.04805."""
    b = Export()
    b.inputs = [("input_ids", (1, 128), INT64), ("attention_mask", (1, 128), INT64)]
    x = b.node("Add", b.node("Gather", b.weight(30522, 256), "input_ids"), b.weight(1, 128, 256))
    mask = b.node("Cast", b.node("Unsqueeze", "attention_mask", b.value(1, 2)), to=FLOAT)
    mask = b.node("Mul", b.node("Sub", b.scalar(1), mask), b.scalar(-1e4))
    for _ in range(2):
        x = b.block(x, 256, 4, mask=mask)
    return b.save(path, x)


def unet(path: Path) -> Path:
    """Down and up again, to sizes that are computed: https://arxiv.org/abs/1505.04597."""
    b = Export(images=(1, 3, 256, 256))
    x, width, sides = "images", 3, []
    for out in (32, 64, 128):
        x = b.node("Relu", b.node("InstanceNormalization", b.conv(x, width, out), b.weight(out), b.weight(out)))
        sides.append((x, out))
        x, width = b.node("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2]), out
    for side, out in reversed(sides):
        if out == 128:
            x = b.node(
                "ConvTranspose", x, b.weight(width, out, 2, 2), b.weight(out), kernel_shape=[2, 2], strides=[2, 2]
            )
        else:
            size = b.node("Slice", b.node("Shape", side), b.value(2), b.value(4), b.value(0))
            size = b.node("Concat", b.value(1, width), size, axis=0)
            x = b.node("Resize", x, "", "", size, mode="linear", coordinate_transformation_mode="half_pixel")
        x, width = b.node("Relu", b.conv(b.node("Concat", x, side, axis=1), width + out, out)), out
    return b.save(path, b.node("ArgMax", b.conv(x, width, 21, 1), axis=1, keepdims=0), kind=INT64)


def efficientnet(path: Path) -> Path:
    """Depthwise convolutions with gates of one number a channel: https://arxiv.org/abs/1905.11946."""
    b = Export(images=(1, 3, 240, 240))
    x, width = b.silu(b.conv("images", 3, 32, 3, 2)), 32
    for out in (16, 24, 40):
        y = b.silu(b.conv(x, width, 6 * width, 1))
        y = b.silu(b.conv(y, 6 * width, 6 * width, 5, 2, groups=6 * width))
        gate = b.silu(b.conv(b.node("ReduceMean", y, axes=[2, 3], keepdims=1), 6 * width, 8, 1))
        y = b.node("Mul", y, b.node("Sigmoid", b.conv(gate, 8, 6 * width, 1)))
        x, width = b.conv(y, 6 * width, out, 1), out
    return b.save(path, b.node("GlobalAveragePool", x))


def video(path: Path) -> Path:
    """Convolutions over time, too: https://arxiv.org/abs/1412.0767."""
    b = Export(frames=(1, 3, 16, 112, 112))
    x, width = "frames", 3
    for out in (32, 64):
        weights = b.weight(out, width, 3, 3, 3), b.weight(out)
        x = b.node("Relu", b.node("Conv", x, *weights, kernel_shape=[3] * 3, pads=[1] * 6))
        x, width = b.node("MaxPool", x, kernel_shape=[2] * 3, strides=[2] * 3), out
    return b.save(path, b.node("GlobalAveragePool", x))


def suppressed(path: Path) -> Path:
    """A detector whose suppression is in it, so that nobody knows how many boxes come out."""
    b = Export(images=(1, 3, 320, 320))
    x = b.tokens(b.node("Relu", b.conv(b.conv("images", 3, 32, 3, 8), 32, 84, 3, 4)), 84)
    boxes, scores = (b.node("Slice", x, b.value(first), b.value(last), b.value(2)) for first, last in ((0, 4), (4, 84)))
    limits = b.value(100), b.value(0.5, kind=FLOAT), b.value(0.3, kind=FLOAT)
    kept = b.node("NonMaxSuppression", boxes, b.node("Transpose", scores, perm=[0, 2, 1]), *limits)
    index = b.node("Gather", kept, b.value(2, is_scalar=True), axis=1)
    return b.save(path, b.node("Gather", boxes, index, axis=1))


def custom(path: Path) -> Path:
    """An operator that only a plugin of its maker has."""
    b = Export(images=(1, 3, 64, 64))
    y = b.node("DCNv4", b.conv("images", 3, 16), b.weight(16, 16), domain="my.ops", groups=4)
    return b.save(path, b.conv(y, 16, 16))


EXPORTS: dict[str, Callable[[Path], Path]] = {
    made.__name__: made
    for made in (vit, convnext, swin, detr, rt_detr, mamba, lstm, bert, unet, efficientnet, video, suppressed, custom)
}


def open_size(path: Path) -> Path:
    """Height and width that nobody says."""
    b = Export(images=(1, 3, "height", "width"))
    return b.save(path, b.node("Relu", b.conv("images", 3, 16)))


def huge(path: Path) -> Path:
    """2.2 GB of weights, more than a protobuf message may have."""
    b = Export(images=(1, 3, 16, 16))
    x, side = b.node("Flatten", b.conv("images", 3, 3)), 768
    for _ in range(2):
        x = b.node("Relu", b.linear(b.linear(x, side, 180_000), 180_000, side))
    x = b.node("Add", x, b.linear(x, side, side))
    return b.save(path, x)
