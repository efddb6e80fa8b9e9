"""What the values of tensors can be, as it follows from the nodes that compute them."""

import numpy as np

from edgert.graph.ir import Graph, Node
from edgert.graph.operators import COPIES, about, data_of


def non_negative(graph: Graph) -> frozenset[str]:
    """Names of the tensors, stored ones among them, that hold no negative value whatever is fed."""
    found = {name for name, array in graph.constants.items() if array.dtype.kind in "fiub" and bool(np.all(array >= 0))}
    for node in graph.nodes:
        if _is_non_negative(graph, node, found):
            found.update(filter(None, node.outputs))
    return frozenset(found)


def _is_non_negative(graph: Graph, node: Node, found: set[str]) -> bool:
    if node.domain:
        return False
    bounds = clip_bounds(graph, node)
    if about(node.op).is_non_negative or is_square(node) or (bounds is not None and bounds[0] >= 0):
        return True
    keeps = about(node.op).keeps_sign or is_copy(graph, node) or is_interpolation(node)
    data = set(filter(None, data_of(node.op, node.inputs)))
    return keeps and bool(data) and data <= found


def is_square(node: Node) -> bool:
    """Whether a node multiplies a tensor by itself."""
    return node.op == "Mul" and not node.domain and node.inputs[0] == node.inputs[1]


def is_copy(graph: Graph, node: Node) -> bool:
    """Whether every output value of a node is one of its first input's values, or 0."""
    if node.domain:
        return False
    if node.op == "Resize":
        return attribute_text(node, "mode", "nearest") == "nearest" and _scales_are_plain(node)
    if node.op == "Pad":
        return _pads_with_zero(graph, node)
    return node.op in COPIES


def is_interpolation(node: Node) -> bool:
    """Whether every output value of a node lies between two of its input's; a cubic Resize goes beyond."""
    linear = node.op == "Resize" and attribute_text(node, "mode", "nearest") in ("linear", "nearest")
    return linear and not node.domain and _scales_are_plain(node)


def _scales_are_plain(node: Node) -> bool:
    """A region of interest brings in an extrapolated value."""
    return attribute_text(node, "coordinate_transformation_mode", "half_pixel") != "tf_crop_and_resize"


def _pads_with_zero(graph: Graph, node: Node) -> bool:
    if attribute_text(node, "mode", "constant") != "constant":
        return True
    if len(node.inputs) < 3 or not node.inputs[2]:
        return not node.attributes.get("value", 0.0)  # an attribute before opset 11
    value = graph.constants.get(node.inputs[2])
    return value is not None and not np.any(value)


def clip_bounds(graph: Graph, node: Node) -> tuple[float, float] | None:
    """What a Relu or Clip keeps values between; None when that is computed at run time, or the node is neither."""
    if node.op == "Relu":
        return 0.0, np.inf
    if node.op != "Clip":
        return None
    low, high = _bound(graph, node, 1, "min", -np.inf), _bound(graph, node, 2, "max", np.inf)
    return None if low is None or high is None else (low, high)


def _bound(graph: Graph, node: Node, position: int, name: str, missing: float) -> float | None:
    """One bound of a Clip: an input, or an attribute before opset 11."""
    given = node.inputs[position] if position < len(node.inputs) else ""
    if not given:
        return float(node.attributes.get(name, missing))
    value = graph.constants.get(given)
    return None if value is None or np.size(value) != 1 else float(np.reshape(value, ()))


def attribute_text(node: Node, name: str, default: str) -> str:
    """A string attribute."""
    value = node.attributes.get(name, default)
    return value.decode() if isinstance(value, bytes) else str(value)
