"""Groups of nodes that TensorRT runs as one kernel: attention and layer normalization.

TensorRT generates one kernel for the two products of an attention and the softmax between. The kernel never writes the
matrix of weights, and reads queries, keys and values where the projections wrote them:
https://docs.nvidia.com/deeplearning/tensorrt/latest/performance/best-practices.html (fusions of attention and of
normalization).
"""

from collections.abc import Iterator

from edgert.graph import Graph, Node
from edgert.graph.fusion import activation_inputs
from edgert.graph.operators import ARITHMETIC, VIEWS, about, of_kind

_BETWEEN = ARITHMETIC | VIEWS | of_kind("conversion", "logic", "quantize", "dequantize")
"""Operators that scale the weights of an attention or add a mask to them."""
_MOVES = ARITHMETIC | VIEWS | of_kind("conversion", "copy", "quantize", "dequantize")
"""Operators that rearrange operands, or scale them by a stored number."""
_TRANSPOSE = "Transpose"
"""Operator that moves the axis of a normalization last, and back; the kernel handles either layout."""
_DEVIATION_KINDS = ("arithmetic", "reduction", "arithmetic", "arithmetic", "reduction")
"""Kinds of the nodes before the root of a standard deviation, last first: + epsilon, mean, square, - mean, mean."""


def attentions(graph: Graph) -> Iterator[list[Node]]:
    """Yield each attention: a softmax between two products of computed matrices, and nodes that prepare operands."""
    for softmax in (node for node in graph.nodes if node.op == "Softmax"):
        first = _product_before(graph, softmax)
        last = _nodes_up_to_product(graph, softmax)
        if first is None or not last or not _is_product(graph, first[0]) or not _is_product(graph, last[-1]):
            continue
        group = [*first, softmax, *last]
        _absorb_moves(graph, group)
        _absorb_head_transpose(graph, group)
        yield group


def normalizations(graph: Graph) -> Iterator[list[Node]]:
    """Yield each layer normalization, of one node or several, with the transposes that move its axis last and back."""
    for group in (*([node] for node in graph.nodes if node.op == "LayerNormalization"), *_layer_norms(graph)):
        written = {name for node in group for name in node.outputs}
        read = {name for node in group for name in activation_inputs(graph, node)} - written
        before = graph.producers.get(next(iter(read))) if len(read) == 1 else None
        behind = graph.consumers.get(group[-1].outputs[0], ())
        if len(behind) == 1 and behind[0].op == _TRANSPOSE and graph.output_names.isdisjoint(group[-1].outputs):
            group.append(behind[0])
        if before is not None and before.op == _TRANSPOSE and _is_closed(graph, [before, *group]):
            group.insert(0, before)
        yield group


def _layer_norms(graph: Graph) -> Iterator[list[Node]]:
    """Yield the nodes of (x - mean) / sqrt(mean((x - mean)²) + epsilon)."""
    for root in (node for node in graph.nodes if node.op == "Sqrt"):
        back = list(_nodes_before(graph, root))
        readers = graph.consumers.get(root.outputs[0], ())
        if len(back) < len(_DEVIATION_KINDS) or len(readers) != 1 or readers[0].op not in ARITHMETIC:
            continue
        _, _, _, difference, mean = back
        if difference.outputs[0] not in readers[0].reads or mean.reads[0] not in difference.reads:
            continue
        group = [*reversed(back), root, readers[0]]
        for _ in range(2):  # multiplication by a scale, addition of a shift
            behind = graph.consumers.get(group[-1].outputs[0], ())
            if len(behind) == 1 and behind[0].op in ARITHMETIC and len(activation_inputs(graph, behind[0])) == 1:
                group.append(behind[0])
        if _is_closed(graph, group):
            yield group


def _is_product(graph: Graph, node: Node) -> bool:
    return about(node.op).work == "matmul" and len(activation_inputs(graph, node)) == 2


def _product_before(graph: Graph, softmax: Node) -> list[Node] | None:
    """Return the product that a softmax reads, then nodes that scale it or add a mask; None without a product."""
    chain: list[Node] = []
    tensor = softmax.reads[0]
    for _ in range(6):
        producer = graph.producers.get(tensor)
        if producer is None or not graph.is_private(tensor):
            return None
        chain.insert(0, producer)
        if about(producer.op).work == "matmul":
            return chain
        if producer.op not in _BETWEEN or not producer.reads:
            return None
        tensor = next(
            (name for name in activation_inputs(graph, producer) if _comes_from_product(graph, name)), producer.reads[0]
        )
    return None


def _comes_from_product(graph: Graph, tensor: str) -> bool:
    """Return whether a product a few nodes before computes a tensor; none computes a mask."""
    for _ in range(4):
        producer = graph.producers.get(tensor)
        if producer is None:
            return False
        if about(producer.op).work == "matmul":
            return True
        if producer.op not in _BETWEEN or not producer.reads:
            return False
        tensor = producer.reads[0]
    return False


def _nodes_up_to_product(graph: Graph, node: Node) -> list[Node]:
    """Return the nodes up to the next product, each read only by the next; empty where no product follows."""
    chain: list[Node] = []
    for _ in range(4):
        readers = graph.consumers.get(node.outputs[0], ())
        if len(readers) != 1 or node.outputs[0] in graph.output_names:
            return []
        node = readers[0]
        chain.append(node)
        if about(node.op).work == "matmul":
            return chain
        if node.op not in _BETWEEN:
            return []
    return []


def _absorb_moves(graph: Graph, group: list[Node]) -> None:
    """Add nodes that only move or scale inputs of the group and whose results no other node reads."""
    members = {id(node) for node in group}
    grows = True
    while grows:
        grows = False
        for name in [name for node in group for name in activation_inputs(graph, node)]:
            producer = graph.producers.get(name)
            if producer is None or id(producer) in members or not _is_move(graph, producer):
                continue
            readers = [reader for output in producer.outputs for reader in graph.consumers.get(output, ())]
            is_inner = graph.output_names.isdisjoint(producer.outputs)
            if (
                is_inner
                and len(activation_inputs(graph, producer)) == 1
                and all(id(reader) in members for reader in readers)
            ):
                group.insert(0, producer)
                members.add(id(producer))
                grows = True


def _is_move(graph: Graph, node: Node) -> bool:
    """Return whether a node only rearranges its one tensor, or scales it by a number.

    The addition of a bias does not count: it belongs to the product before.
    """
    stored = [graph.constants[name] for name in node.reads if name in graph.constants]
    return node.op in _MOVES and (node.op not in ARITHMETIC or all(array.size == 1 for array in stored))


def _absorb_head_transpose(graph: Graph, group: list[Node]) -> None:
    tensor = group[-1].outputs[0]
    readers = graph.consumers.get(tensor, ())
    if tensor not in graph.output_names and len(readers) == 1 and about(readers[0].op).kind == "copy":
        group.append(readers[0])


def _nodes_before(graph: Graph, node: Node) -> Iterator[Node]:
    """Yield the nodes before a root, last first, as long as their kinds are those of a standard deviation."""
    for kind in _DEVIATION_KINDS:
        found = [graph.producers[name] for name in node.reads if name in graph.producers]
        matching = [one for one in found if about(one.op).kind == kind]
        if not matching:
            return
        node = matching[0]
        yield node


def _is_closed(graph: Graph, group: list[Node]) -> bool:
    members = {id(node) for node in group}
    inner = [name for node in group[:-1] for name in node.outputs]
    return graph.output_names.isdisjoint(inner) and all(
        id(reader) in members for name in inner for reader in graph.consumers.get(name, ())
    )
