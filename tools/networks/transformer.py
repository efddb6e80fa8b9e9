"""Transformers, by their papers (URL at each), as PyTorch exports them."""

from edgert.graph import Graph
from tools.networks.builder import Builder


class Transformer(Builder):
    """Blocks that all transformers share, on tensors of (batch, tokens, width)."""

    def project(self, x: str, columns: int) -> str:
        """Multiply by a stored matrix, and add a bias."""
        shape = (*self.shape(x)[:-1], columns)
        y = self.node("MatMul", [x, self.stored(self.shape(x)[-1], columns)], shape)
        return self.node("Add", [y, self.stored(columns)], shape)

    def norm(self, x: str) -> str:
        wide = self.shape(x)[-1]
        return self.node("LayerNormalization", [x, self.stored(wide), self.stored(wide)], self.shape(x))

    def gelu(self, x: str) -> str:
        """x / 2 · (1 + erf(x / √2)), in the five nodes that exporters write."""
        y = x
        for op in ("Div", "Erf", "Add"):
            y = self.node(op, [y] if op == "Erf" else [y, self.stored(1)], self.shape(x))
        y = self.node("Mul", [x, y], self.shape(x))
        return self.node("Mul", [y, self.stored(1)], self.shape(x))

    def heads(self, x: str, count: int, *perm: int) -> str:
        """(batch, tokens, width) → one matrix for each head, its axes in the order ``perm``."""
        batch, tokens, wide = self.shape(x)
        return self.transpose(self.reshape(x, batch, tokens, count, wide // count), *perm)

    def attention(self, x: str, heads: int, memory: str | None = None) -> str:
        """Attention of each token of ``x`` to ``memory``, by default ``x``: https://arxiv.org/abs/1706.03762."""
        wide, memory = self.shape(x)[-1], memory or x
        query = self.heads(self.project(x, wide), heads, 0, 2, 1, 3)
        key = self.heads(self.project(memory, wide), heads, 0, 2, 3, 1)
        value = self.heads(self.project(memory, wide), heads, 0, 2, 1, 3)
        weights = self.matmul(query, key)
        weights = self.node("Div", [weights, self.stored(1)], self.shape(weights))
        weights = self.node("Softmax", [weights], self.shape(weights))
        mixed = self.transpose(self.matmul(weights, value), 0, 2, 1, 3)
        return self.project(self.reshape(mixed, *self.shape(x)), wide)

    def feed_forward(self, x: str, factor: int = 4) -> str:
        """Two products with a GELU between."""
        wide = self.shape(x)[-1]
        return self.project(self.gelu(self.project(x, factor * wide)), wide)

    def block(self, x: str, heads: int) -> str:
        """Normalization first: https://arxiv.org/abs/2010.11929, figure 1."""
        x = self.add(x, self.attention(self.norm(x), heads))
        return self.add(x, self.feed_forward(self.norm(x)))

    def patches(self, width: int, side: int) -> str:
        x = self.conv("input", width, side, side, pad=0, act=None)
        batch, _, high, wide = self.shape(x)
        return self.transpose(self.reshape(x, batch, width, high * wide), 0, 2, 1)


def vit(patch: int, size: int = 224, batch: int = 1, *, width: int = 768, depth: int = 12, heads: int = 12) -> Graph:
    """https://arxiv.org/abs/2010.11929; CLIP's, OWL-ViT's and DINOv2's image encoders have the same blocks."""
    b = Transformer(batch, 3, size, size)
    x = b.patches(width, patch)
    tokens = b.shape(x)[1] + 1  # one more for the class
    x = b.node("Concat", [b.stored(batch, 1, width), x], (batch, tokens, width), axis=1)
    x = b.node("Add", [x, b.stored(1, tokens, width)], b.shape(x))
    for _ in range(depth):
        x = b.block(x, heads)
    return b.graph(b.norm(x))


def bert(tokens: int, batch: int = 1, *, width: int = 1024, depth: int = 24, heads: int = 16) -> Graph:
    """https://arxiv.org/abs/1810.04805, the large one, from the embeddings on; normalization last, two outputs each."""
    b = Transformer(batch, tokens, width)
    x = b.norm("input")
    for _ in range(depth):
        x = b.norm(b.add(x, b.attention(x, heads)))
        x = b.norm(b.add(x, b.feed_forward(x)))
    return b.graph(b.project(x, 2))


def swin(size: int = 224, batch: int = 1, *, width: int = 96, depths: tuple[int, ...] = (2, 2, 6, 2)) -> Graph:
    """https://arxiv.org/abs/2103.14030, the tiny one: attention in windows of 7 x 7, every second time shifted."""
    b = Transformer(batch, 3, size, size)
    x, side = b.norm(b.patches(width, 4)), size // 4
    for stage, count in enumerate(depths):
        wide = width << stage
        if stage:
            parts = [b.node("Slice", [x], (batch, side * side // 4, wide // 2)) for _ in range(4)]
            side //= 2
            joined = b.node("Concat", parts, (batch, side * side, 2 * wide), axis=2)
            joined = b.norm(joined)
            x = b.node("MatMul", [joined, b.stored(2 * wide, wide)], (batch, side * side, wide))
        for index in range(count):
            x = _window_block(b, x, side, wide // 32, is_shifted=bool(index % 2))
    return b.graph(b.norm(x))


def _window_block(b: Transformer, x: str, side: int, heads: int, *, is_shifted: bool) -> str:
    batch, _, wide = b.shape(x)
    y = b.reshape(b.norm(x), batch, side, side, wide)
    y = _roll(b, y) if is_shifted else y
    count = side // 7
    y = b.transpose(b.reshape(y, batch, count, 7, count, 7, wide), 0, 1, 3, 2, 4, 5)
    y = b.attention(b.reshape(y, batch * count * count, 49, wide), heads)
    y = b.transpose(b.reshape(y, batch, count, count, 7, 7, wide), 0, 1, 3, 2, 4, 5)
    y = b.reshape(y, batch, side, side, wide)
    y = _roll(b, y) if is_shifted else y
    x = b.add(x, b.reshape(y, batch, side * side, wide))
    return b.add(x, b.feed_forward(b.norm(x)))


def _roll(b: Transformer, x: str) -> str:
    batch, high, wide, channels = b.shape(x)
    for axis in (1, 2):
        rest = {1: (batch, high - 3, wide, channels), 2: (batch, high, wide - 3, channels)}[axis]
        edge = {1: (batch, 3, wide, channels), 2: (batch, high, 3, channels)}[axis]
        parts = [b.node("Slice", [x], rest), b.node("Slice", [x], edge)]
        x = b.node("Concat", parts, (batch, high, wide, channels), axis=axis)
    return x


class RfDetr(Transformer):
    """https://github.com/roboflow/rf-detr/tree/35ac6ab64634e188bbb0fa3fc5135132f0df45fc/rfdetr/models, as exported."""

    WIDE, HEADS, QUERIES, CLASSES, LOOKING, POINTS = 384, 6, 300, 91, 16, 2

    def __init__(
        self, size: int, batch: int, *, patch: int, windows: int, decoders: int, taken: tuple[int, ...]
    ) -> None:
        super().__init__(batch, 3, size, size, act="silu")
        self.side, self.patch, self.windows, self.decoders, self.taken = size // patch, patch, windows, decoders, taken

    def made(self) -> Graph:
        memory = self.tokens(self.projected([self.normed(x) for x in self.backbone()]))
        chosen = self.norm(self.project(memory, self.shape(memory)[-1]))
        scores, boxes = self.project(chosen, self.CLASSES), self.mlp(chosen, 256, 256, 4)
        batch, count, wide = self.shape(chosen)
        best = self.node("ReduceMax", [scores], (batch, count))
        index = self.node("TopK", [best], (batch, self.QUERIES), (batch, self.QUERIES))
        first = self.node("GatherElements", [boxes, index], (batch, self.QUERIES, 4))
        first = self.node(
            "Add", [self.node("Mul", [first, self.stored(1)], self.shape(first)), self.stored(1)], self.shape(first)
        )
        place = self.mlp(self.sines(first), 256, 256)
        x = self.node("Add", [place, self.stored(1, self.QUERIES, wide)], self.shape(place))
        for _ in range(self.decoders):
            x = self.norm(self.add(x, self.attention(self.add(x, place), 8)))
            x = self.norm(self.add(x, self.looked(self.add(x, place), memory)))
            inner = self.project(x, 2048)
            inner = self.node("Relu", [inner], self.shape(inner))
            x = self.norm(self.add(x, self.project(inner, wide)))
        x = self.norm(x)
        return self.graph(self.project(x, self.CLASSES), self.mlp(x, 256, 256, 4))

    def backbone(self) -> list[str]:
        """DINOv2's small transformer: https://arxiv.org/abs/2304.07193; a class token for every window."""
        x = self.patches(self.WIDE, self.patch)
        batch, tokens, wide = self.shape(x)
        x = self.node("Add", [x, self.stored(1, tokens, wide)], self.shape(x))
        part = self.side // self.windows
        x = self.reshape(x, batch * self.windows, part, self.windows, part, wide)
        x = self.reshape(self.transpose(x, 0, 2, 1, 3, 4), batch * self.windows**2, part * part, wide)
        shape = (batch * self.windows**2, part * part + 1, wide)
        x = self.node("Concat", [self.stored(shape[0], 1, wide), x], shape, axis=1)
        whole, found = (batch, shape[0] // batch * shape[1], wide), []
        for index in range(max(self.taken) + 1):
            if index in self.taken:
                found.append(x)
            if len(found) == len(self.taken):
                break
            y = self.norm(x)
            y = self.attention(self.reshape(y, *whole) if index in self.taken else y, self.HEADS)
            x = self.add(x, self.scaled(self.reshape(y, *shape) if index in self.taken else y))
            x = self.add(x, self.scaled(self.feed_forward(self.norm(x))))
        return found

    def scaled(self, x: str) -> str:
        return self.node("Mul", [x, self.stored(self.shape(x)[-1])], self.shape(x))

    def normed(self, x: str) -> str:
        """Tokens of all windows as one tensor of (batch, width, side, side)."""
        count, tokens, wide = self.shape(x)
        batch, part = count // self.windows**2, self.side // self.windows
        x = self.node("Slice", [self.norm(x)], (count, tokens - 1, wide))
        x = self.transpose(self.reshape(x, batch * self.windows, self.windows, part, part, wide), 0, 2, 1, 3, 4)
        return self.transpose(self.reshape(x, batch, self.side, self.side, wide), 0, 3, 1, 2)

    def projected(self, parts: list[str]) -> str:
        """Three bottlenecks of which every result is joined, each convolution followed by a normalization."""
        x = self.split(self.convx(self.cat(*parts), 256))
        found = list(x)
        for _ in range(3):
            found.append(self.convx(self.convx(found[-1], 128, 3), 128, 3))
        return self.over_channels(self.convx(self.cat(*found), 256))

    def convx(self, x: str, columns: int, kernel: int = 1) -> str:
        """Convolution, normalization over channels, activation."""
        return self.activate(self.over_channels(self.conv(x, columns, kernel, act=None)), "silu")

    def over_channels(self, x: str) -> str:
        """Layer normalization of a tensor whose channels are second."""
        return self.transpose(self.norm(self.transpose(x, 0, 2, 3, 1)), 0, 3, 1, 2)

    def tokens(self, x: str) -> str:
        """(batch, width, side, side) → (batch, tokens, width)."""
        batch, wide, high, across = self.shape(x)
        return self.transpose(self.reshape(x, batch, wide, high * across), 0, 2, 1)

    def mlp(self, x: str, *columns: int) -> str:
        """Products with a rectifier between."""
        for wide in columns[:-1]:
            x = self.project(x, wide)
            x = self.node("Relu", [x], self.shape(x))
        return self.project(x, columns[-1])

    def sines(self, boxes: str) -> str:
        """Sines and cosines of four coordinates, 128 of each."""
        shape = (*self.shape(boxes)[:-1], 512)
        x = self.node("Mul", [self.reshape(boxes, *self.shape(boxes), 1), self.stored(128)], (*self.shape(boxes), 128))
        parts = [self.node(op, [x], self.shape(x)) for op in ("Sin", "Cos")]
        return self.reshape(self.node("Where", [self.stored(128), *parts], self.shape(x)), *shape)

    def looked(self, x: str, memory: str) -> str:
        """Deformable attention: https://arxiv.org/abs/2010.04159."""
        batch, count, wide = self.shape(x)
        heads, points = self.LOOKING, self.POINTS
        values = self.transpose(self.project(memory, wide), 0, 2, 1)
        values = self.reshape(values, batch * heads, wide // heads, self.side, self.side)
        where = self.reshape(self.project(x, heads * points * 2), batch, count, heads, points, 2)
        where = self.node(
            "Add", [self.node("Mul", [where, self.stored(1)], self.shape(where)), self.stored(1)], self.shape(where)
        )
        where = self.reshape(self.transpose(where, 0, 2, 1, 3, 4), batch * heads, count, points, 2)
        seen = self.node("GridSample", [values, where], (batch * heads, wide // heads, count, points))
        shares = self.reshape(self.project(x, heads * points), batch, count, heads, points)
        shares = self.node("Softmax", [shares], self.shape(shares))
        shares = self.reshape(self.transpose(shares, 0, 2, 1, 3), batch * heads, 1, count, points)
        mixed = self.node("Mul", [seen, shares], self.shape(seen))
        mixed = self.node("ReduceSum", [mixed], (batch * heads, wide // heads, count))
        return self.project(self.transpose(self.reshape(mixed, batch, wide, count), 0, 2, 1), wide)


_RF_DETR = {
    "n": (16, 2, 2, (3, 6, 9, 12)), "s": (16, 2, 3, (3, 6, 9, 12)), "m": (16, 2, 4, (3, 6, 9, 12)),
    "l": (16, 2, 4, (3, 6, 9, 12)), "b": (14, 4, 3, (2, 5, 8, 11)),
}  # fmt: skip
"""Size → patch, windows, decoder layers, and blocks whose outputs are used, of ``rfdetr/config.py`` there."""


def rf_detr(scale: str, size: int, batch: int = 1) -> Graph:
    """Build :class:`RfDetr` in a size: n, s, m, l, or b, which came first."""
    patch, windows, decoders, taken = _RF_DETR[scale]
    return RfDetr(size, batch, patch=patch, windows=windows, decoders=decoders, taken=taken).made()
