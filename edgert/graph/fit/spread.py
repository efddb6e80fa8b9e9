"""A number per channel combined with a whole image: spread over it first, so that both operands have one size.

Squeeze-and-excitation multiplies a (N, C, H, W) tensor by one of (N, C, 1, 1). Enlarging the small one by whole
numbers, nearest, repeats its values: the result is the same to the bit.
"""

from __future__ import annotations

from edgert.graph.draft import Chain, Draft, each
from edgert.graph.fit.resize import MIN_OPSET, grow
from edgert.graph.node import Node


def _spread(draft: Draft, node: Node) -> None:
    if draft.graph.opset < MIN_OPSET or len(node.inputs) != 2:
        return
    images = [draft.image(name) for name in node.inputs]
    for position in (0, 1):
        small, large = images[position], images[1 - position]
        if small is None or large is None or small[2:] != (1, 1) or small[:2] != large[:2] or large[2:] == (1, 1):
            continue
        chain = Chain(draft, node, node.inputs[position])
        if not grow(draft, chain, (large[2], large[3])):
            return
        chain.then(node.op, large, node.inputs[1 - position])
        chain.end(f"{node.inputs[position]!r} enlarged to {large[2]}x{large[3]} first")
        return


spread_operands = each("spread", dict.fromkeys(("Add", "Max", "Mul"), _spread))
