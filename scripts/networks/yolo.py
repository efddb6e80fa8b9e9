"""The YOLO family from v5 on; blocks by their papers, sizes by the published model tables (URL at each)."""

from __future__ import annotations

from collections.abc import Callable

from edgert.graph.node import Graph
from scripts.networks.builder import Builder

_CLASSES = 80
Block = Callable[[str], str]


def _even(channels: float) -> int:
    return int(-(-channels // 8) * 8)


class Yolo(Builder):
    """Blocks that the family shares; SiLU everywhere."""

    def __init__(self, size: int, depth: float = 1.0, width: float = 1.0, limit: int = 1024, batch: int = 1) -> None:
        super().__init__(batch, 3, size, size, act="silu")
        self.depth, self.width, self.limit = depth, width, limit

    def wide(self, channels: int) -> int:
        """Channels of the scaled model."""
        return _even(min(channels, self.limit) * self.width)

    def deep(self, count: int) -> int:
        """Repeats of the scaled model."""
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
        """Down the pyramid and up again; blocks make the results of the four joins."""
        low, middle, top = taps
        x = blocks[0](self.cat(self.up(top), middle))
        small = blocks[1](self.cat(self.up(x), low))
        medium = blocks[2](self.cat(downs[0](small), x))
        return [small, medium, blocks[3](self.cat(downs[1](medium), top))]

    def head(self, taps: list[str], bins: int, *, light: bool) -> Graph:
        """Boxes and classes apart; ``light`` classes have depthwise convolutions; boxes are ``bins`` steps a side."""
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


_V8 = {"n": (1 / 3, 0.25, 1024), "s": (1 / 3, 0.5, 1024), "m": (2 / 3, 0.75, 768), "l": (1.0, 1.0, 512),
       "x": (1.0, 1.25, 512)}  # fmt: skip


def yolov8(scale: str, size: int = 640, batch: int = 1) -> Graph:
    """https://docs.ultralytics.com/models/yolov8/."""
    b = Yolo(size, *_V8[scale], batch=batch)
    x = b.c2f(b.down(b.down("input", 64), 128), 128, 3)
    low = b.c2f(b.down(x, 256), 256, 6)
    middle = b.c2f(b.down(low, 512), 512, 6)
    top = b.sppf(b.c2f(b.down(middle, 1024), 1024, 3), b.wide(1024))
    steps = tuple(_c2f(b, channels) for channels in (512, 256, 512, 1024))
    taps = b.neck((low, middle, top), steps, (lambda y: b.down(y, 256), lambda y: b.down(y, 512)))  # type: ignore[arg-type]
    return b.head(taps, 16, light=False)


def _c2f(b: Yolo, channels: int) -> Block:
    return lambda x: b.c2f(x, channels, 3, shortcut=False)


_V10 = {"n": (1 / 3, 0.25, 1024), "s": (1 / 3, 0.5, 1024), "m": (2 / 3, 0.75, 768)}


def yolov10(scale: str, size: int = 640, batch: int = 1) -> Graph:
    """https://arxiv.org/abs/2405.14458, its one-to-one head as exported."""
    b = Yolo(size, *_V10[scale], batch=batch)
    is_large = scale == "s"  # the small one has a 7x7 depthwise branch beside the 3x3; folded it is a 7x7
    x = b.c2f(b.down(b.down("input", 64), 128), 128, 3)
    low = b.c2f(b.down(x, 256), 256, 6)
    middle = b.c2f(_sc_down(b, low, 512), 512, 6)
    x = _sc_down(b, middle, 1024)
    x = b.c2f(x, 1024, 3) if scale == "n" else _c2f_cib(b, x, 1024, large=is_large)
    top = b.psa(b.sppf(x, b.wide(1024)))
    third = _c2f(b, 512) if scale != "m" else lambda y: _c2f_cib(b, y, 512, large=False)
    steps = (_c2f(b, 512), _c2f(b, 256), third, lambda y: _c2f_cib(b, y, 1024, large=scale != "m"))
    taps = b.neck((low, middle, top), steps, (lambda y: b.down(y, 256), lambda y: _sc_down(b, y, 512)))
    return b.head(taps, 16, light=True)


def _sc_down(b: Yolo, x: str, channels: int) -> str:
    """Channels first, then a depthwise convolution of stride two."""
    out = b.wide(channels)
    return b.conv(b.conv(x, out), out, 3, 2, groups=out, act=None)


def _c2f_cib(b: Yolo, x: str, channels: int, *, large: bool) -> str:
    inner = b.wide(channels) // 2

    def block(y: str) -> str:
        z = b.conv(b.conv(y, inner, 3, groups=inner), 2 * inner)
        z = b.conv(z, 2 * inner, 7 if large else 3, groups=2 * inner)
        z = b.conv(b.conv(z, inner), inner, 3, groups=inner)
        return b.add(y, z)

    return b.c2f(x, channels, 3, block)


_V11 = {"n": (0.5, 0.25, 1024), "s": (0.5, 0.5, 1024), "m": (0.5, 1.0, 512), "l": (1.0, 1.0, 512), "x": (1.0, 1.5, 512)}


def yolo11(scale: str, size: int = 640, batch: int = 1) -> Graph:
    """https://docs.ultralytics.com/models/yolo11/."""
    b, taps = _yolo11_taps(scale, size, batch, is_26=False)
    return b.head(taps, 16, light=True)


def yolo26(scale: str, size: int = 640, batch: int = 1) -> Graph:
    """https://docs.ultralytics.com/models/yolo26/: no bins, one-to-one head, attention in the last block."""
    b, taps = _yolo11_taps(scale, size, batch, is_26=True)
    return b.head(taps, 1, light=True)


def _yolo11_taps(scale: str, size: int, batch: int, *, is_26: bool) -> tuple[Yolo, list[str]]:
    b = Yolo(size, *_V11[scale], batch=batch)
    is_big = scale in "mlx"
    x = _c3k2(b, b.down(b.down("input", 64), 128), 256, deep=is_big, part=0.25)
    low = _c3k2(b, b.down(x, 256), 512, deep=is_big, part=0.25)
    middle = _c3k2(b, b.down(low, 512), 512, deep=True)
    x = _c3k2(b, b.down(middle, 1024), 1024, deep=True)
    x = b.sppf(x, b.wide(1024), shortcut=is_26, act=None if is_26 else "silu")
    top = b.psa(x, b.deep(2))

    def step(channels: int) -> Block:
        return lambda y: _c3k2(b, y, channels, deep=is_big or is_26)

    def last(y: str) -> str:
        return _c3k2(b, y, 1024, deep=True, attention=is_26)

    downs = (lambda y: b.down(y, 256), lambda y: b.down(y, 512))
    return b, b.neck((low, middle, top), (step(512), step(256), step(512), last), downs)


def _c3k2(b: Yolo, x: str, channels: int, *, deep: bool, part: float = 0.5, attention: bool = False) -> str:
    inner = int(b.wide(channels) * part)

    def block(y: str) -> str:
        if attention:
            return b.psa_block(b.bottleneck(y, inner, inner // 2, shortcut=True))
        if deep:
            return b.c3(y, inner, 2, first=3)
        return b.bottleneck(y, inner, inner // 2, shortcut=True)

    return b.c2f(x, channels, 1 if attention else 2, block, part=part)


_V9 = {
    "t": ((16, 32), (32, 64, 96, 128), (48, 64), 3),
    "s": ((32, 64), (64, 128, 192, 256), (96, 128), 3),
    "m": ((32, 64), (128, 240, 360, 480), (184, 240), 1),
}


def yolov9(scale: str, size: int = 640, batch: int = 1) -> Graph:
    """GELAN form of https://arxiv.org/abs/2402.13616, branches folded."""
    stem, widths, downs, count = _V9[scale]
    b = Yolo(size, batch=batch)
    x = b.conv(b.conv("input", stem[0], 3, 2), stem[1], 3, 2)
    first = widths[0]
    x = _elan(b, x, first, first, first // 2, count) if scale == "m" else _elan(b, x, first, first, first // 2, 0)
    low = _gelan(b, _avg_down(b, x, widths[1]), widths[1], count)
    middle = _gelan(b, _avg_down(b, low, widths[2]), widths[2], count)
    x = _gelan(b, _avg_down(b, middle, widths[3]), widths[3], count)
    parts = [b.conv(x, widths[3] // 2)]
    for _ in range(3):
        parts.append(b.pool(parts[-1], 5, 1, pad=2))
    top = b.conv(b.cat(*parts), widths[3])
    steps = tuple(_gelan_step(b, widths[index], count) for index in (2, 1, 2, 3))
    taps = b.neck((low, middle, top), steps, (lambda y: _avg_down(b, y, downs[0]), lambda y: _avg_down(b, y, downs[1])))  # type: ignore[arg-type]
    return b.head(taps, 16, light=False)


def _gelan_step(b: Yolo, width: int, count: int) -> Block:
    return lambda x: _gelan(b, x, width, count)


def _gelan(b: Yolo, x: str, width: int, count: int) -> str:
    return _elan(b, x, width, width, width // 2, count)


def _elan(b: Yolo, x: str, out: int, hidden: int, step: int, count: int) -> str:
    """Two branches in a row, each a cross-stage block and a convolution (or the convolution alone: ``count`` 0)."""
    parts = list(b.split(b.conv(x, hidden)))
    for _ in range(2):
        y = b.c3(parts[-1], step, count, first=3) if count else parts[-1]
        parts.append(b.conv(y, step, 3))
    return b.conv(b.cat(*parts), out)


def _avg_down(b: Yolo, x: str, out: int) -> str:
    return b.conv(b.pool(x, 2, 1, op="AveragePool"), out, 3, 2)


_YOLOX = {"n": (1 / 3, 0.25), "t": (1 / 3, 0.375), "s": (1 / 3, 0.5), "m": (2 / 3, 0.75)}


def yolox(scale: str, size: int = 640, batch: int = 1) -> Graph:
    """https://arxiv.org/abs/2107.08430; the smallest has depthwise convolutions."""
    depth, width = _YOLOX[scale]
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
        """As ``step``, for channels that are scaled already."""
        if self.light:
            return self.conv(self.conv(x, self.channels(x), 3, stride, groups=self.channels(x)), out)
        return self.conv(x, out, 3, stride)

    def block(self, x: str, channels: int, count: int, *, shortcut: bool = True) -> str:
        """Cross-stage block."""
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


def yolov5s(size: int = 640, batch: int = 1) -> Graph:
    """Version 6 of https://doi.org/10.5281/zenodo.3908559, its three raw outputs."""
    b = Yolo(size, 1 / 3, 0.5, batch=batch)
    x = b.c3(b.down(b.conv("input", b.wide(64), 6, 2, pad=2), 128), b.wide(128), 1)
    low = b.c3(b.down(x, 256), b.wide(256), 2)
    middle = b.c3(b.down(low, 512), b.wide(512), 3)
    x = b.sppf(b.c3(b.down(middle, 1024), b.wide(1024), 1), b.wide(1024))
    top = b.conv(x, b.wide(512))
    x = b.conv(b.c3(b.cat(b.up(top), middle), b.wide(512), 1, shortcut=False), b.wide(256))
    small = b.c3(b.cat(b.up(x), low), b.wide(256), 1, shortcut=False)
    medium = b.c3(b.cat(b.down(small, 256), x), b.wide(512), 1, shortcut=False)
    large = b.c3(b.cat(b.down(medium, 512), top), b.wide(1024), 1, shortcut=False)
    return b.graph(*(b.conv(tap, 255, act=None) for tap in (small, medium, large)))


def yolov7(size: int = 640, batch: int = 1) -> Graph:
    """https://arxiv.org/abs/2207.02696, branches folded."""
    b = Yolo(size, batch=batch)
    x = b.conv(b.conv(b.conv("input", 32, 3), 64, 3, 2), 64, 3)
    x = _aggregate(b, b.conv(x, 128, 3, 2), 64, 4, 2, 256)
    low = _aggregate(b, _both_down(b, x, 128), 128, 4, 2, 512)
    middle = _aggregate(b, _both_down(b, low, 256), 256, 4, 2, 1024)
    x = _aggregate(b, _both_down(b, middle, 512), 256, 4, 2, 1024)
    top = _spp_csp(b, x, 512)
    x = _wide_aggregate(b, b.cat(b.conv(middle, 256), b.up(b.conv(top, 256))), 256)
    small = _wide_aggregate(b, b.cat(b.conv(low, 128), b.up(b.conv(x, 128))), 128)
    medium = _wide_aggregate(b, b.cat(_both_down(b, small, 128), x), 256)
    large = _wide_aggregate(b, b.cat(_both_down(b, medium, 256), top), 512)
    ends = [b.conv(b.conv(tap, 2 * b.channels(tap), 3), 255, act=None) for tap in (small, medium, large)]
    return b.graph(*(_anchors(b, end) for end in ends))


def yolov7_tiny(size: int = 640, batch: int = 1) -> Graph:
    """https://arxiv.org/abs/2207.02696."""
    b = Yolo(size, batch=batch)
    b.act = "leaky"
    x = _tiny(b, b.conv(b.conv("input", 32, 3, 2), 64, 3, 2), 32, 64)
    low = _tiny(b, b.pool(x, 2, 2), 64, 128)
    middle = _tiny(b, b.pool(low, 2, 2), 128, 256)
    x = _tiny(b, b.pool(middle, 2, 2), 256, 512)
    side, y = b.conv(x, 256), b.conv(x, 256)
    top = b.conv(b.cat(b.conv(b.cat(*(b.pool(y, k, 1, pad=k // 2) for k in (13, 9, 5)), y), 256), side), 256)
    x = _tiny(b, b.cat(b.conv(middle, 128), b.up(b.conv(top, 128))), 64, 128)
    small = _tiny(b, b.cat(b.conv(low, 64), b.up(b.conv(x, 64))), 32, 64)
    medium = _tiny(b, b.cat(b.conv(small, 128, 3, 2), x), 64, 128)
    large = _tiny(b, b.cat(b.conv(medium, 256, 3, 2), top), 128, 256)
    ends = [b.conv(b.conv(tap, 2 * b.channels(tap), 3), 255, act=None) for tap in (small, medium, large)]
    return b.graph(*(_anchors(b, end) for end in ends))


def _anchors(b: Yolo, x: str) -> str:
    batch, _, high, wide = b.shape(x)
    y = b.transpose(b.reshape(x, batch, 3, 85, high, wide), 0, 1, 3, 4, 2)
    return b.node("Sigmoid", [y], b.shape(y))


def _aggregate(b: Yolo, x: str, inner: int, count: int, every: int, out: int) -> str:
    """Chain of 3x3 convolutions of which every second is joined."""
    parts = [b.conv(x, inner), b.conv(x, inner)]
    y = parts[-1]
    for index in range(count):
        y = b.conv(y, inner, 3)
        if (index + 1) % every == 0:
            parts.append(y)
    return b.conv(b.cat(*parts), out)


def _wide_aggregate(b: Yolo, x: str, out: int) -> str:
    parts = [b.conv(x, out), b.conv(x, out)]
    for _ in range(4):
        parts.append(b.conv(parts[-1], out // 2, 3))
    return b.conv(b.cat(*parts), out)


def _both_down(b: Yolo, x: str, width: int) -> str:
    return b.cat(b.conv(b.pool(x, 2, 2), width), b.conv(b.conv(x, width), width, 3, 2))


def _spp_csp(b: Yolo, x: str, out: int) -> str:
    y = b.conv(b.conv(b.conv(x, out), out, 3), out)
    y = b.cat(y, *(b.pool(y, kernel, 1, pad=kernel // 2) for kernel in (5, 9, 13)))
    return b.conv(b.cat(b.conv(b.conv(y, out), out, 3), b.conv(x, out)), out)


def _tiny(b: Yolo, x: str, inner: int, out: int) -> str:
    parts = [b.conv(x, inner), b.conv(x, inner)]
    for _ in range(2):
        parts.append(b.conv(parts[-1], inner, 3))
    return b.conv(b.cat(*parts), out)
