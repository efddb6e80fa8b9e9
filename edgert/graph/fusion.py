"""Fusion rules: which nodes one kernel computes, from its first node to the elementwise nodes behind it.

Kernels of three kinds fuse different nodes: :data:`GENERATED`, :data:`INT8_TENSORRT` and :data:`INT8_ONNX_RUNTIME`. In
all of them a node joins only if no other node reads the kernel's result up to there.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from edgert.graph.ir import Graph, Node
from edgert.graph.operators import ACTIVATIONS, ARITHMETIC, COMBINING, POINTWISE, about, of_kind

GATE_STEPS = 4
"""Largest number of nodes of f in x · f(x); x · clip(x + 3, 0, 6) / 6 has three."""

_ON_ONE = POINTWISE | of_kind("affine", "conversion")
_ON_SEVERAL = ARITHMETIC | of_kind("logic")
_FUNCTIONS = ACTIVATIONS | ARITHMETIC


@dataclass(frozen=True, slots=True)
class Fusion:
    """Fusion rules of one kind of kernel.

    Attributes:
        shortcuts: operators that combine a layer's result with another tensor of the same shape, once per kernel.
        is_open_ended: whether any number of elementwise nodes join, before and behind the shortcut, and any number of
            shortcuts join kernels that have no layer. Otherwise one activation function joins, at the end, which maps
            a number to a number in the same way in every channel.
        latest_adds: whether the last of two layers that could include the same shortcut does so, not the first.
    """

    shortcuts: frozenset[str]
    is_open_ended: bool
    latest_adds: bool


GENERATED = Fusion(COMBINING, is_open_ended=True, latest_adds=False)
"""Floating-point kernels, which TensorRT generates from any sequence of elementwise nodes.

See https://docs.nvidia.com/deeplearning/tensorrt/latest/performance/best-practices.html, layer fusion. The cost model
was fitted with shortcuts in the first of two layers; both ways move the same elements."""

SHORTCUT = frozenset({"Add"})
"""Operators of residual connections, which TensorRT can run in INT8, activation included."""

INT8_TENSORRT = Fusion(SHORTCUT, is_open_ended=False, latest_adds=True)
"""INT8 layers of TensorRT, on GPU and DLA: "Residual add" and activations, in its guide to Q/DQ placement.

The other operand must be computed before, so the later layer includes the shortcut."""

INT8_ONNX_RUNTIME = Fusion(frozenset(), is_open_ended=False, latest_adds=True)
"""Integer kernels of ONNX Runtime, which include no addition: QLinearAdd is a separate kernel."""


def kernel(
    graph: Graph,
    first: Node,
    fusion: Fusion,
    may_join: Callable[[Node, Sequence[Node]], bool] = lambda node, group: True,
) -> list[Node]:
    """Return the nodes of a kernel in the order in which they join, beginning with ``first``.

    Args:
        graph: graph that holds the nodes.
        first: first node of the kernel.
        fusion: kind of kernel.
        may_join: function that returns whether a node that fits may join the nodes so far.
    """
    group = [first]
    is_layer = bool(about(first.op).work)
    may_add = is_layer or fusion.is_open_ended
    while len(group[-1].outputs) == 1 and (step := _joining_nodes(graph, group[-1].outputs[0], fusion, may_add)):
        if not all(may_join(node, group) for node in step):
            break
        adds = len(step) == 1 and len(activation_inputs(graph, step[0])) > 1
        if adds:
            may_add = fusion.is_open_ended and not is_layer
        group += step
        if not (adds or fusion.is_open_ended):
            break
    return group


def activation(graph: Graph, tensor: str) -> tuple[Node, ...]:
    """Return the nodes of the activation function behind a tensor; empty where anything else reads it.

    The function is one node (Relu) or several, as x · sigmoid(x) or clip(x + 3, 0, 6) · x / 6.
    """
    return tuple(_joining_nodes(graph, tensor, INT8_ONNX_RUNTIME, may_add=False))


def _joining_nodes(graph: Graph, tensor: str, fusion: Fusion, may_add: bool) -> list[Node]:
    """Return the nodes that join a kernel next: the only readers of its result."""
    if tensor in graph.output_names:
        return []
    readers = graph.consumers.get(tensor, ())
    if len(readers) == 2:
        return _gate_nodes(graph, tensor, readers, fusion)
    joins = len(readers) == 1 and (
        _is_step(graph, readers[0], fusion, opens=True) or (may_add and _is_shortcut(graph, readers[0], tensor, fusion))
    )
    return list(readers) if joins else []


def _is_step(graph: Graph, node: Node, fusion: Fusion, *, opens: bool = False) -> bool:
    """Return whether a node is elementwise on one tensor, for this kind of kernel.

    With ``opens`` it must be a complete activation function, unless the kernel is open-ended.
    """
    if not fusion.is_open_ended:
        return _is_function(graph, node) and (not opens or node.op in ACTIVATIONS)
    return node.op in _ON_ONE or (node.op in _ON_SEVERAL and len(activation_inputs(graph, node)) == 1)


def _is_function(graph: Graph, node: Node) -> bool:
    """Return whether a node maps each value of one tensor, in the same way in every channel unless it is a PRelu."""
    if node.domain or len(node.outputs) != 1 or node.op not in _FUNCTIONS or len(activation_inputs(graph, node)) != 1:
        return False
    stored = [graph.constants[name] for name in node.inputs if name in graph.constants]
    return len(stored) + 1 == len(set(filter(None, node.inputs))) and (
        node.op == "PRelu" or all(value.size == 1 for value in stored)
    )


def _is_shortcut(graph: Graph, node: Node, tensor: str, fusion: Fusion) -> bool:
    others = [name for name in activation_inputs(graph, node) if name != tensor]
    if node.op not in fusion.shortcuts or node.domain or len(others) != 1:
        return False
    specs = [graph.spec(name) for name in (tensor, *others, *node.outputs)]
    if len({spec.shape for spec in specs if spec is not None}) != 1 or None in specs:
        return False
    rival = graph.producers.get(others[0]) if fusion.latest_adds and graph.is_private(others[0]) else None
    if rival is None or not about(rival.op).work:
        return True
    if graph.constants.keys().isdisjoint(rival.inputs[about(rival.op).weight :][:1]):
        return True
    order = [id(node) for node in graph.nodes]
    return order.index(id(rival)) <= order.index(id(graph.producers[tensor]))  # otherwise the later layer includes it


def _gate_nodes(graph: Graph, tensor: str, readers: Sequence[Node], fusion: Fusion) -> list[Node]:
    """Return the nodes of ``x · f(x)`` or ``x + f(x)``; empty where the readers of x compute something else."""
    for start, end in (readers, tuple(reversed(readers))):
        if end.op not in COMBINING or len(activation_inputs(graph, end)) != 2:
            continue
        chain = list(_private_chain(graph, start, end, fusion))
        if not chain or chain[-1].outputs[0] not in end.reads or not graph.is_private(chain[-1].outputs[0]):
            continue
        if fusion.is_open_ended:
            return [*chain, end]
        if end.domain or not any(node.op in ACTIVATIONS for node in chain):
            return []
        tensor = end.outputs[0]
        behind = graph.consumers[tensor] if len(chain) > 1 and graph.is_private(tensor) else ()
        # a hard swish of several nodes ends with a multiplication by a stored number
        return [*chain, end, *(node for node in behind if node.op in ("Mul", "Div") and _is_function(graph, node))]
    return []


def _private_chain(graph: Graph, node: Node, end: Node, fusion: Fusion) -> Iterator[Node]:
    """Yield elementwise nodes from ``node`` up to, but without, ``end``, each read only by the next."""
    for _ in range(GATE_STEPS):
        if node is end or not _is_step(graph, node, fusion):
            return
        yield node
        if not graph.is_private(node.outputs[0]):
            return
        node = graph.consumers[node.outputs[0]][0]


def activation_inputs(graph: Graph, node: Node) -> list[str]:
    """Return the activations that a node reads: neither stored nor index tensors."""
    return [name for name in node.reads if name not in graph.constants and not is_index(graph, name)]


def is_index(graph: Graph, tensor: str) -> bool:
    """Return whether a tensor holds shapes, indices or booleans, not values that an accelerator computes with."""
    spec = graph.spec(tensor)
    return spec is not None and spec.dtype in ("int64", "int32", "bool")
