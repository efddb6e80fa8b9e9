"""YOLO v7 and v9, networks of aggregated layers; sizes by the published model tables (URL at each)."""

from edgert.graph import Graph
from tools.networks.yolo_block import Block, Yolo


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
