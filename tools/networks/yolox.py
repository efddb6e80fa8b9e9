"""YOLOX, which has separate branches for classes and boxes."""

from edgert.graph import Graph
from tools.networks.yolo_block import Yolo

_SCALES = {"n": (1 / 3, 0.25), "t": (1 / 3, 0.375), "s": (1 / 3, 0.5), "m": (2 / 3, 0.75)}


def yolox(scale: str, size: int = 640, batch: int = 1) -> Graph:
    """https://arxiv.org/abs/2107.08430; the smallest has depthwise convolutions."""
    depth, width = _SCALES[scale]
    b = _YoloX(size, depth, width, batch=batch, light=scale == "n")
    batch, _, high, wide = b.shape("input")
    parts = [b.node("Slice", ["input"], (batch, 3, high // 2, wide // 2)) for _ in range(4)]
    x = b.conv(b.cat(*parts), b.wide(64), 3)
    x = b.block(b.step(x, 128, 2), 128, 3)
    low = b.block(b.step(x, 256, 2), 256, 9)
    middle = b.block(b.step(low, 512, 2), 512, 9)
    x = b.spp(b.step(middle, 1024, 2))
    top = b.block(x, 1024, 3, shortcut=False)
    lateral = b.conv(top, b.wide(512))
    x = b.block(b.cat(b.up(lateral), middle), 512, 3, shortcut=False)
    narrow = b.conv(x, b.wide(256))
    small = b.block(b.cat(b.up(narrow), low), 256, 3, shortcut=False)
    medium = b.block(b.cat(b.step(small, 256, 2), narrow), 512, 3, shortcut=False)
    large = b.block(b.cat(b.step(medium, 512, 2), lateral), 1024, 3, shortcut=False)
    return b.graph(b.ends([small, medium, large]))


class _YoloX(Yolo):
    def __init__(self, size: int, depth: float, width: float, *, batch: int, light: bool) -> None:
        super().__init__(size, depth, width, batch=batch)
        self.light = light

    def step(self, x: str, channels: int, stride: int = 1) -> str:
        """A 3x3 convolution; in the smallest model a depthwise one and a 1x1."""
        return self.spatial(x, self.wide(channels), stride)

    def spatial(self, x: str, out: int, stride: int = 1) -> str:
        """Add a ``step`` whose channels are already scaled."""
        if self.light:
            return self.conv(self.conv(x, self.channels(x), 3, stride, groups=self.channels(x)), out)
        return self.conv(x, out, 3, stride)

    def block(self, x: str, channels: int, count: int, *, shortcut: bool = True) -> str:
        out = self.wide(channels)
        y, side = self.conv(x, out // 2), self.conv(x, out // 2)
        for _ in range(self.deep(count)):
            z = self.spatial(self.conv(y, out // 2), out // 2)
            y = self.add(y, z) if shortcut else z
        return self.conv(self.cat(y, side), out)

    def spp(self, x: str) -> str:
        """Pools of 5, 9 and 13 side by side."""
        y = self.conv(x, self.channels(x) // 2)
        pools = [self.pool(y, kernel, 1, pad=kernel // 2) for kernel in (5, 9, 13)]
        return self.conv(self.cat(y, *pools), self.channels(x))

    def ends(self, taps: list[str]) -> str:
        """Class and box branches of two convolutions each."""
        rows, width = [], self.wide(256)
        for tap in taps:
            x = self.conv(tap, width)
            classes = self.spatial(self.spatial(x, width), width)
            boxes = self.spatial(self.spatial(x, width), width)
            ends = [self.conv(boxes, 4, act=None), self.conv(boxes, 1, act=None), self.conv(classes, 80, act=None)]
            ends[1:] = [self.node("Sigmoid", [end], self.shape(end)) for end in ends[1:]]
            batch, channels, high, wide = self.shape(self.cat(*ends))
            rows.append(self.reshape(self.nodes[-1].outputs[0], batch, channels, high * wide))
        total = sum(self.shape(row)[2] for row in rows)
        y = self.node("Concat", rows, (batch, 85, total), axis=2)
        return self.transpose(y, 0, 2, 1)
