"""Transformers, by their papers (URL at each), as PyTorch exports them."""

from __future__ import annotations

from edgert.graph import Graph
from scripts.networks.builder import Builder


class Transformer(Builder):
    """Blocks that all of them share, on tensors of (batch, tokens, width)."""

    def project(self, x: str, columns: int) -> str:
        """A product with a stored matrix, and its bias."""
        shape = (*self.shape(x)[:-1], columns)
        y = self.node("MatMul", [x, self.stored(self.shape(x)[-1], columns)], shape)
        return self.node("Add", [y, self.stored(columns)], shape)

    def norm(self, x: str) -> str:
        """Layer normalization."""
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
        """Every token of ``x`` looks at all of ``memory``, by default of itself: https://arxiv.org/abs/1706.03762."""
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
        """The image as tokens."""
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
