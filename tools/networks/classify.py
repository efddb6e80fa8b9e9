"""Classifiers, by the layer tables of their papers (URL at each) and torchvision's choices where those leave any."""

from edgert.graph import Graph
from tools.networks.builder import Builder

_BLOCKS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}


def resnet(depth: int, batch: int = 1) -> Graph:
    """https://arxiv.org/abs/1512.03385, with the stride in the 3x3 convolution (v1.5)."""
    b = Builder(batch, 3, 224, 224)
    return b.graph(b.linear(b.mean(resnet_stages(b, depth)[-1]), 1000))


def resnet_stages(b: Builder, depth: int, *, group_width: int = 0) -> list[str]:
    """Outputs of the four stages; ``group_width`` makes it ResNeXt's 32 x d, https://arxiv.org/abs/1611.05431."""
    x = b.pool(b.conv("input", 64, 7, 2), 3, 2, pad=1)
    stages = []
    for stage, count in enumerate(_BLOCKS[depth]):
        for index in range(count):
            x = residual(b, x, 64 << stage, 2 if stage and not index else 1, depth >= 50, group_width << stage)
        stages.append(x)
    return stages


def residual(b: Builder, x: str, width: int, stride: int, is_deep: bool, group_width: int = 0) -> str:
    """One residual block, of two 3x3 convolutions or of the 1x1-3x3-1x1 kind."""
    out = width * 4 if is_deep else width
    if is_deep:
        inner = 32 * group_width if group_width else width
        y = b.conv(b.conv(x, inner), inner, 3, stride, groups=32 if group_width else 1)
        y = b.conv(y, out, act=None)
    else:
        y = b.conv(b.conv(x, width, 3, stride), width, 3, act=None)
    if stride > 1 or b.channels(x) != out:
        x = b.conv(x, out, 1, stride, act=None)
    return b.add(y, x, act="relu")


def vgg(*plan: int, batch: int = 1) -> Graph:
    """https://arxiv.org/abs/1409.1556; ``plan`` tells the convolutions per stage."""
    b = Builder(batch, 3, 224, 224)
    x = "input"
    for stage, count in enumerate(plan):
        for _ in range(count):
            x = b.conv(x, min(64 << stage, 512), 3)
        x = b.pool(x, 2, 2)
    x = b.linear(b.linear(b.flat(x), 4096, "relu"), 4096, "relu")
    return b.graph(b.linear(x, 1000))


def alexnet(batch: int = 1) -> Graph:
    """Caffe's AlexNet, with grouped convolutions and 227-pixel inputs: https://doi.org/10.1145/3065386."""
    b = Builder(batch, 3, 227, 227)
    x = b.conv("input", 96, 11, 4, pad=0)
    x = b.pool(b.node("LRN", [x], b.shape(x), size=5), 3, 2)
    x = b.conv(x, 256, 5, groups=2)
    x = b.pool(b.node("LRN", [x], b.shape(x), size=5), 3, 2)
    x = b.conv(x, 384, 3)
    x = b.conv(b.conv(x, 384, 3, groups=2), 256, 3, groups=2)
    x = b.flat(b.pool(x, 3, 2))
    x = b.linear(b.linear(b.linear(x, 4096, "relu"), 4096, "relu"), 1000)
    return b.graph(b.node("Softmax", [x], b.shape(x)))


_INCEPTION = (  # 1x1, 3x3 reduce, 3x3, 5x5 reduce, 5x5, pool projection
    (64, 96, 128, 16, 32, 32), (128, 128, 192, 32, 96, 64), (192, 96, 208, 16, 48, 64), (160, 112, 224, 24, 64, 64),
    (128, 128, 256, 24, 64, 64), (112, 144, 288, 32, 64, 64), (256, 160, 320, 32, 128, 128),
    (256, 160, 320, 32, 128, 128), (384, 192, 384, 48, 128, 128),
)  # fmt: skip


def googlenet(batch: int = 1) -> Graph:
    """Caffe's GoogleNet: https://arxiv.org/abs/1409.4842, table 1."""
    b = Builder(batch, 3, 224, 224)
    x = b.pool(b.conv("input", 64, 7, 2), 3, 2, ceil=True)
    x = b.conv(b.conv(b.node("LRN", [x], b.shape(x), size=5), 64), 192, 3)
    x = b.pool(b.node("LRN", [x], b.shape(x), size=5), 3, 2, ceil=True)
    for index, (one, three_in, three, five_in, five, pool) in enumerate(_INCEPTION):
        x = b.cat(b.conv(x, one), b.conv(b.conv(x, three_in), three, 3), b.conv(b.conv(x, five_in), five, 5),
                  b.conv(b.pool(x, 3, 1, pad=1), pool))  # fmt: skip
        if index in (1, 6):
            x = b.pool(x, 3, 2, ceil=True)
    x = b.linear(b.mean(x), 1000)
    return b.graph(b.node("Softmax", [x], b.shape(x)))


def mobilenet_v2(batch: int = 1) -> Graph:
    """https://arxiv.org/abs/1801.04381, table 2."""
    b = Builder(batch, 3, 224, 224, act="relu6")
    x = b.conv("input", 32, 3, 2)
    for expand, out, count, stride in ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1),
                                       (6, 160, 3, 2), (6, 320, 1, 1)):  # fmt: skip
        for index in range(count):
            x = inverted(b, x, expand, out, 1 if index else stride)
    return b.graph(b.linear(b.mean(b.conv(x, 1280)), 1000))


def inverted(b: Builder, x: str, expand: int, out: int, stride: int, kernel: int = 3) -> str:
    """Inverted residual: widen, depthwise, narrow."""
    inner = b.channels(x) * expand
    y = b.conv(x, inner) if expand > 1 else x
    y = b.conv(b.conv(y, inner, kernel, stride, groups=inner), out, act=None)
    return b.add(x, y) if stride == 1 and b.channels(x) == out else y


def mnasnet(width: float, batch: int = 1) -> Graph:
    """https://arxiv.org/abs/1807.11626, figure 7 (the variant without squeeze-and-excite), as torchvision has it."""

    def scaled(channels: int) -> int:
        rounded = max(8, int(channels * width + 4) // 8 * 8)
        return rounded + 8 if rounded < 0.9 * channels * width else rounded

    b = Builder(batch, 3, 224, 224)
    first = scaled(32)
    x = b.conv("input", first, 3, 2)
    x = b.conv(b.conv(x, first, 3, groups=first), scaled(16), act=None)
    for expand, out, count, stride, kernel in ((3, 24, 3, 2, 3), (3, 40, 3, 2, 5), (6, 80, 3, 2, 5), (6, 96, 2, 1, 3),
                                               (6, 192, 4, 2, 5), (6, 320, 1, 1, 3)):  # fmt: skip
        for index in range(count):
            x = inverted(b, x, expand, scaled(out), 1 if index else stride, kernel)
    return b.graph(b.linear(b.mean(b.conv(x, 1280)), 1000))


def squeezenet(version: str, batch: int = 1) -> Graph:
    """https://arxiv.org/abs/1602.07360; 1.1 is its authors' later, lighter form."""
    is_old = version == "1.0"
    b = Builder(batch, 3, 224, 224)
    x = b.pool(b.conv("input", 96, 7, 2, pad=0) if is_old else b.conv("input", 64, 3, 2, pad=0), 3, 2, ceil=True)
    pools = (2, 6) if is_old else (1, 3)
    for index, squeeze in enumerate((16, 16, 32, 32, 48, 48, 64, 64)):
        y = b.conv(x, squeeze)
        x = b.cat(b.conv(y, squeeze * 4), b.conv(y, squeeze * 4, 3))
        if index in pools:
            x = b.pool(x, 3, 2, ceil=True)
    return b.graph(b.mean(b.conv(x, 1000)))


def shufflenet(stages: tuple[int, int, int], last: int, batch: int = 1) -> Graph:
    """ShuffleNet V2, https://arxiv.org/abs/1807.11164, table 5."""
    b = Builder(batch, 3, 224, 224)
    x = b.pool(b.conv("input", 24, 3, 2), 3, 2, pad=1)
    for channels, count in zip(stages, (4, 8, 4), strict=True):
        for index in range(count):
            x = _shuffle(b, _shuffle_unit(b, x, channels // 2, is_first=not index))
    return b.graph(b.linear(b.mean(b.conv(x, last)), 1000))


def _shuffle_unit(b: Builder, x: str, half: int, *, is_first: bool) -> str:
    if is_first:
        channels = b.channels(x)
        left = b.conv(b.conv(x, channels, 3, 2, groups=channels, act=None), half)
        right = x
    else:
        left, right = b.split(x)
    y = b.conv(b.conv(right, half), half, 3, 2 if is_first else 1, groups=half, act=None)
    return b.cat(left, b.conv(y, half))


def _shuffle(b: Builder, x: str) -> str:
    batch, channels, high, wide = b.shape(x)
    y = b.transpose(b.reshape(x, batch, 2, channels // 2, high, wide), 0, 2, 1, 3, 4)
    return b.reshape(y, batch, channels, high, wide)


def densenet(growth: int, blocks: tuple[int, ...], first: int, batch: int = 1) -> Graph:
    """https://arxiv.org/abs/1608.06993, table 1. The batch norm before a 1x1 convolution stays a pass of its own."""
    b = Builder(batch, 3, 224, 224)
    x = b.pool(b.conv("input", first, 7, 2), 3, 2, pad=1)
    for index, count in enumerate(blocks):
        for _ in range(count):
            y = b.conv(_norm(b, x), 4 * growth)
            x = b.cat(x, b.conv(y, growth, 3, act=None))
        if index + 1 < len(blocks):
            x = b.pool(b.conv(_norm(b, x), b.channels(x) // 2, act=None), 2, 2, op="AveragePool")
    return b.graph(b.linear(b.mean(_norm(b, x)), 1000))


def _norm(b: Builder, x: str) -> str:
    scale = [b.stored(b.channels(x)) for _ in range(4)]
    return b.activate(b.node("BatchNormalization", [x, *scale], b.shape(x)), "relu")
