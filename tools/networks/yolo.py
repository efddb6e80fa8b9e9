"""YOLO v5, v8, v10, 11 and 26; sizes by the published model tables (URL at each)."""

from edgert.graph import Graph
from tools.networks.yolo_block import Block, Yolo


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
