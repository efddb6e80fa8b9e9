"""What a float16 graph computes, on processors that have no float16 arithmetic."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from edgert.graph import Graph, Names, Node
from edgert.graph.ir import free_name
from edgert.graph.type_inference import cast_node, dtypes


def rounded(graph: Graph) -> Graph:
    """The same graph with every float16 node computed in float32 and its results rounded to float16.

    ONNX Runtime's CPU kernels compute chains of float16 nodes in float32 without rounding in between, which hides
    overflow; in this graph it shows. It is what a processor gives that multiplies float16 and adds up in float32, as
    tensor cores do; where a backend adds up in float16 the result is worse.

    Inputs and outputs keep names and types.
    """
    fp16_nodes = {name for name, dtype in dtypes(graph).items() if dtype == "float16"}
    names = Names(graph)
    read = {name for node in graph.nodes for name in node.inputs if name in fp16_nodes}
    wide = {name: names.new(f"{name}_wide") for name in sorted(read)}
    raw = {name: names.new(f"{name}_raw") for node in graph.nodes for name in node.outputs if name in fp16_nodes}
    steps = _Steps(wide, raw, {node.name for node in graph.nodes})
    nodes = [*steps.widened(spec.name for spec in graph.inputs)]
    for node in graph.nodes:
        nodes.extend(steps.of(node))
    stored = {wide[name]: graph.constants[name].astype(np.float32) for name in wide if name in graph.constants}
    return replace(graph, nodes=tuple(nodes), constants={**graph.constants, **stored})


@dataclass(frozen=True, slots=True)
class _Steps:
    """Names of float16 tensors in float32: as they are read, and as they are computed; node names taken."""

    wide: Mapping[str, str]
    raw: Mapping[str, str]
    taken: set[str]

    def of(self, node: Node) -> Iterator[Node]:
        """A node in float32, what rounds its results, and what reads them back."""
        inputs = tuple(self.wide.get(name, name) for name in node.inputs)
        if node.op == "Cast":
            yield replace(node, inputs=inputs)
        else:
            yield replace(node, inputs=inputs, outputs=tuple(self.raw.get(name, name) for name in node.outputs))
            for name in filter(self.raw.__contains__, node.outputs):
                yield self._cast(self.raw[name], name, "float16")
        yield from self.widened(node.outputs)

    def widened(self, names: Iterable[str]) -> Iterator[Node]:
        """Casts to float32 of those that somebody reads."""
        for name in filter(self.wide.__contains__, names):
            yield self._cast(name, self.wide[name], "float32")

    def _cast(self, source: str, target: str, dtype: str) -> Node:
        name = free_name(f"Cast_{target}", self.taken)
        self.taken.add(name)
        return cast_node(source, target, dtype, name)
