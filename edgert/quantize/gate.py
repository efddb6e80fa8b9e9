"""Gates: activations x·g(x) with g value by value, as SiLU's x·sigmoid(x) and hard swish are.

They are not homogeneous, and yet channels can be scaled through them: where g is given x at its old scale, its product
with the scaled x is the scaled result.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from edgert.graph.fusion import activation
from edgert.graph.node import Graph, Names, Node
from edgert.graph.operators import SUMS


@dataclass(frozen=True, slots=True)
class Gate:
    """One x·g(x).

    Attributes:
        tensor: x.
        readers: names of the nodes of g that read x.
    """

    tensor: str
    readers: frozenset[str]


def gates(graph: Graph) -> tuple[Gate, ...]:
    """All gates of a graph whose x nothing else reads, in order. A HardSwish node is none: see :func:`opened`."""
    found = (_gate(graph, node.outputs[0]) for node in graph.nodes if node.outputs)
    return tuple(gate for gate in found if gate is not None)


def opened(graph: Graph) -> Graph:
    """The graph with every HardSwish as what it stands for, x·HardSigmoid(x) with slope 1/6 and offset 1/2
    (https://onnx.ai/onnx/operators/onnx__HardSwish.html): a gate."""
    names, nodes, specs = Names(graph), list[Node](), dict(graph.specs)
    for node in graph.nodes:
        if node.op != "HardSwish" or node.domain:
            nodes.append(node)
            continue
        factor = names.new(f"{node.outputs[0]}_gate")
        if node.outputs[0] in specs:
            specs[factor] = replace(specs[node.outputs[0]], name=factor)
        slope = {"alpha": 1 / 6, "beta": 0.5}
        nodes.append(Node("HardSigmoid", node.inputs, (factor,), slope, f"{node.name}_gate"))
        nodes.append(replace(node, op="Mul", inputs=(node.inputs[0], factor), attributes={}))
    return replace(graph, nodes=tuple(nodes), specs=specs)


def _gate(graph: Graph, tensor: str) -> Gate | None:
    chain = activation(graph, tensor)
    made = {node.outputs[0] for node in chain}
    readers = [node for node in chain if tensor in node.inputs]
    products = [node for node in readers if node.op not in SUMS and not made.isdisjoint(node.inputs)]
    if len(products) != 1:
        return None
    return Gate(tensor, frozenset(node.name for node in readers if node is not products[0]))
