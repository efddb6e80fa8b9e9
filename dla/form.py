"""How the DLA runs nodes in an INT8 build, by the same rules that decide whether it runs them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from dla.node import Node
from dla.rule import Target
from dla.table import check, check_graph
from dla.verdict import Form, Verdict

_SUMS: Collection[str] = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul", "Add"})
_BEHIND: Collection[str] = frozenset({"Relu", "Clip", "LeakyRelu", "PRelu"})


def int8_form(node: Node, target: Target) -> Form:
    """How a node runs in an INT8 build, as far as the node itself shows.

    A node that only the device can decide about (``verify``) has the form that it has if the device takes it.

    Args:
        node: the node with the tensors around it.
        target: generation and release; its precision does not matter.
    """
    return check(node, _in_int8(target)).int8_form


def int8_verdicts(nodes: Sequence[Node], target: Target) -> tuple[Verdict, ...]:
    """The same for every node of a graph, with the rules about neighbors: verdicts, whose ``int8_form`` is how.

    Args:
        nodes: each after those it reads.
        target: generation and release; its precision does not matter.
    """
    return check_graph(nodes, _in_int8(target))


def fuses(first: str, then: str) -> bool:
    """Whether an operator works on the results of the one before it in the same kernel, before these are rounded.

    So does an activation behind a product or an addition, and an addition behind a product.
    """
    return first in _SUMS and (then in _BEHIND or (then == "Add" and first != "Add"))


def _in_int8(target: Target) -> Target:
    return target if target.is_int8 else replace(target, precision="int8")
