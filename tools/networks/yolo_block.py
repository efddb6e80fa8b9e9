"""Blocks that the YOLO family shares, by their papers (URL at each)."""

from collections.abc import Callable

from edgert.graph import Graph
from tools.networks.builder import Builder

_CLASSES = 80
Block = Callable[[str], str]


def _even(channels: float) -> int:
    return int(-(-channels // 8) * 8)


class Yolo(Builder):
    """Blocks that the YOLO family shares, with SiLU."""

    def __init__(self, size: int, depth: float = 1.0, width: float = 1.0, limit: int = 1024, batch: int = 1) -> None:
        super().__init__(batch, 3, size, size, act="silu")
        self.depth, self.width, self.limit = depth, width, limit

    def wide(self, channels: int) -> int:
        """Return the channels of the scaled model."""
        return _even(min(channels, self.limit) * self.width)

    def deep(self, count: int) -> int:
        """Return the repeats of the scaled model."""
        return max(round(count * self.depth), 1) if count > 1 else count

    def down(self, x: str, channels: int) -> str:
        """A 3x3 convolution of stride two."""
        return self.conv(x, self.wide(channels), 3, 2)

    def bottleneck(self, x: str, out: int, inner: int, *, shortcut: bool, first: int = 3) -> str:
        """Two convolutions and perhaps a shortcut."""
        y = self.conv(self.conv(x, inner, first), out, 3)
        return self.add(x, y) if shortcut and self.channels(x) == out else y

    def c3(self, x: str, out: int, count: int, *, shortcut: bool = True, first: int = 1, inner: int = 0) -> str:
        """Cross-stage block of v5: https://arxiv.org/abs/1911.11929."""
        inner = inner or out // 2
        y, side = self.conv(x, inner), self.conv(x, inner)
        for _ in range(count):
            y = self.bottleneck(y, inner, inner, shortcut=shortcut, first=first)
        return self.conv(self.cat(y, side), out)

    def c2f(self, x: str, channels: int, count: int, block: Block | None = None, *, shortcut: bool = True,
            part: float = 0.5) -> str:  # fmt: skip
        """Cross-stage block of v8, all of whose steps are joined."""
        out = self.wide(channels)
        inner = int(out * part)
        parts = list(self.split(self.conv(x, 2 * inner)))
        for _ in range(self.deep(count)):
            last = parts[-1]
            parts.append(block(last) if block else self.bottleneck(last, inner, inner, shortcut=shortcut))
        return self.conv(self.cat(*parts), out)

    def sppf(self, x: str, out: int, *, shortcut: bool = False, act: str | None = "silu") -> str:
        """Three pools of five in a row, joined."""
        parts = [self.conv(x, self.channels(x) // 2, act=act)]
        for _ in range(3):
            parts.append(self.pool(parts[-1], 5, 1, pad=2))
        y = self.conv(self.cat(*parts), out)
        return self.add(x, y) if shortcut else y

    def attention(self, x: str) -> str:
        """Self-attention over positions, heads of 64 channels with keys of 32: https://arxiv.org/abs/2405.14458."""
        batch, channels, high, wide = self.shape(x)
        heads, area = max(channels // 64, 1), high * wide
        key = channels // heads // 2
        mixed = self.reshape(self.conv(x, channels + 2 * heads * key, act=None), batch, heads, -1, area)
        self.shapes[mixed] = (batch, heads, channels // heads + 2 * key, area)
        q, k, v = (self.node("Slice", [mixed], (batch, heads, rows, area)) for rows in (key, key, channels // heads))
        weights = self.matmul(self.transpose(q, 0, 1, 3, 2), k)
        weights = self.node("Softmax", [weights], self.shape(weights))
        y = self.reshape(self.matmul(v, self.transpose(weights, 0, 1, 3, 2)), *self.shape(x))
        place = self.conv(self.reshape(v, *self.shape(x)), channels, 3, groups=channels, act=None)
        return self.conv(self.add(y, place), channels, act=None)

    def psa_block(self, x: str) -> str:
        """Attention and two 1x1 convolutions, each with a shortcut."""
        x = self.add(x, self.attention(x))
        return self.add(x, self.conv(self.conv(x, 2 * self.channels(x)), self.channels(x), act=None))

    def psa(self, x: str, count: int = 1) -> str:
        """Half of the channels pass through attention."""
        side, y = self.split(self.conv(x, self.channels(x)))
        for _ in range(count):
            y = self.psa_block(y)
        return self.conv(self.cat(side, y), self.channels(x))

    def neck(self, taps: tuple[str, str, str], blocks: tuple[Block, Block, Block, Block],
             downs: tuple[Block, Block]) -> list[str]:  # fmt: skip
        """Pyramid down and up; blocks compute the results of its four joins."""
        low, middle, top = taps
        x = blocks[0](self.cat(self.up(top), middle))
        small = blocks[1](self.cat(self.up(x), low))
        medium = blocks[2](self.cat(downs[0](small), x))
        return [small, medium, blocks[3](self.cat(downs[1](medium), top))]

    def head(self, taps: list[str], bins: int, *, light: bool) -> Graph:
        """Separate branches of boxes (``bins`` a side) and classes (depthwise convolutions if ``light``)."""
        first = self.channels(taps[0])
        box_width = max(16, first // 4, 4 * bins)
        class_width = max(first, min(_CLASSES, 100))
        rows = []
        for tap in taps:
            box = self.conv(self.conv(self.conv(tap, box_width, 3), box_width, 3), 4 * bins, act=None)
            classes = tap
            for _ in range(2):
                classes = self._class_step(classes, class_width, light=light)
            ends = self.cat(box, self.conv(classes, _CLASSES, act=None))
            batch, channels, high, wide = self.shape(ends)
            rows.append(self.reshape(ends, batch, channels, high * wide))
        return self.graph(self._decode(rows, bins))

    def _class_step(self, x: str, width: int, *, light: bool) -> str:
        if light:
            return self.conv(self.conv(x, self.channels(x), 3, groups=self.channels(x)), width)
        return self.conv(x, width, 3)

    def _decode(self, rows: list[str], bins: int) -> str:
        """Boxes as expected values over the bins, and scores."""
        batch = self.shape(rows[0])[0]
        total = sum(self.shape(row)[2] for row in rows)
        y = self.node("Concat", rows, (batch, 4 * bins + _CLASSES, total), axis=2)
        box = self.node("Slice", [y], (batch, 4 * bins, total))
        scores = self.node("Slice", [y], (batch, _CLASSES, total))
        if bins > 1:
            box = self.transpose(self.reshape(box, batch, 4, bins, total), 0, 2, 1, 3)
            box = self.node("Softmax", [box], self.shape(box), axis=1)
            box = self.reshape(self.conv(box, 1, act=None), batch, 4, total)
        scores = self.node("Sigmoid", [scores], self.shape(scores))
        return self.node("Concat", [box, scores], (batch, 4 + _CLASSES, total), axis=1)
