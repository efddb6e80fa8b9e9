"""Nodes with their tensors, which the rules read, and verdicts, which the rules return."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from typing import Any, Literal

# The answer to whether the DLA can run a node.

Answer = Literal["yes", "no", "verify"]
Form = Literal["int8", "lookup", "fp16", "none"]
"""How a node runs in an INT8 build. ``lookup`` reads and writes integers, but computes in FP16 by a lookup table.
``none`` does not run on the DLA."""
_FORMS: tuple[Form, ...] = ("int8", "lookup", "fp16", "none")
FOLDED = "folded"
"""Rule of a node that becomes no layer and therefore takes no time."""

SEVERITY: tuple[Answer, ...] = ("no", "verify", "yes")
"""Answers, in order of precedence."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Answer for one node. A refusal is a value instead of an exception, since it is a normal result.

    Attributes:
        answer: ``yes``, ``no``, or ``verify`` if public sources are unclear and only the device can tell.
        rule: name of the deciding rule, such as ``"conv.kernel"``; the layer's name if no rule objected.
        reason: reason in words.
        fix: change that would allow the node; empty for ``yes``, or if there is none.
        form: how the node runs in an INT8 build, if it runs on the DLA.
    """

    answer: Answer
    rule: str
    reason: str
    fix: str = ""
    form: Form = "int8"

    @property
    def int8_form(self) -> Form:
        """How the node runs in an INT8 build, if the device accepts a doubtful node."""
        return "none" if self.answer == "no" else self.form

    @property
    def is_folded(self) -> bool:
        """Whether the node is removed before anything runs."""
        return self.rule == FOLDED


def no(reason: str, fix: str = "") -> Verdict:
    """Return a refusal, without the rule's name."""
    return Verdict("no", "", reason, fix)


def verify(
    reason: str, fix: str = "ask the builder on the device: config.can_run_on_DLA", form: Form = "int8"
) -> Verdict:
    """Return a doubt, without the rule's name."""
    return Verdict("verify", "", reason, fix, form)


def note(reason: str, form: Form = "int8") -> Verdict:
    """Return a yes with a remark, without the rule's name."""
    return Verdict("yes", "", reason, "", form)


def combine(verdicts: Sequence[Verdict]) -> Verdict:
    """Combine verdicts into one: a refusal overrides a doubt, and a doubt overrides a yes.

    The reasons of all verdicts with the resulting answer are joined. The form is the one furthest from INT8.

    Args:
        verdicts: verdicts to combine; at least one.
    """
    answer = min((verdict.answer for verdict in verdicts), key=SEVERITY.index)
    same = [verdict for verdict in verdicts if verdict.answer == answer]
    reasons, fixes = (dict.fromkeys(texts) for texts in ((v.reason for v in same), (v.fix for v in same)))
    form = furthest_form(verdicts)
    return Verdict(answer, same[0].rule, "; ".join(filter(None, reasons)), "; ".join(filter(None, fixes)), form)


def furthest_form(verdicts: Sequence[Verdict]) -> Form:
    """Return the form that is furthest from INT8; ``int8`` without verdicts."""
    return max((verdict.form for verdict in verdicts), key=_FORMS.index, default="int8")


Shape = tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor that a node reads or writes.

    Attributes:
        name: name in the graph.
        shape: dimensions, None for an open one; None if the rank is unknown.
        dtype: NumPy's name of the type, such as ``"float32"``.
        is_constant: whether it is stored, or computed from stored tensors before the network runs.
        values: values of a small constant in row-major order; None if there are many, or they are unknown.
        is_zero: whether every element of a constant of any size is 0; None if unknown.
    """

    name: str
    shape: Shape | None
    dtype: str = "float32"
    is_constant: bool = False
    values: tuple[float, ...] | None = None
    is_zero: bool | None = None

    @property
    def rank(self) -> int | None:
        """Number of dimensions; None if unknown."""
        return None if self.shape is None else len(self.shape)

    @property
    def size(self) -> int | None:
        """Number of elements; None if a dimension is open."""
        known = [dim for dim in self.shape or () if dim is not None]
        return None if self.shape is None or len(known) < len(self.shape) else prod(known)


@dataclass(frozen=True, slots=True)
class Node:
    """An ONNX node with its tensors.

    Attributes:
        op: operator, such as ``Conv``.
        inputs: inputs in the operator's order; None for an omitted one.
        outputs: outputs in the operator's order; None for an omitted one.
        attributes: name → int, float, str or bytes, or a list of these.
        name: unique name in the graph.
        domain: domain of the operator; empty for standard operators.
        opset: version of the standard operators, some of which have other defaults in old versions.
    """

    op: str
    inputs: tuple[Tensor | None, ...]
    outputs: tuple[Tensor | None, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    name: str = ""
    domain: str = ""
    opset: int = 17


def input_at(node: Node, position: int) -> Tensor | None:
    """Return the input at a position; None if it is omitted."""
    return node.inputs[position] if position < len(node.inputs) else None


def data_inputs(node: Node) -> list[Tensor]:
    """Return the inputs that are computed at run time."""
    return [tensor for tensor in node.inputs if tensor is not None and not tensor.is_constant]


def data_tensors(node: Node) -> list[Tensor]:
    """Return the inputs and outputs that exist at run time."""
    return data_inputs(node) + [tensor for tensor in node.outputs if tensor is not None and not tensor.is_constant]


def constants(node: Node) -> list[Tensor]:
    """Return the stored inputs."""
    return [tensor for tensor in node.inputs if tensor is not None and tensor.is_constant]


def float_attribute(node: Node, name: str, default: float) -> float:
    """Return a numeric attribute."""
    return float(node.attributes.get(name, default))


def int_attribute(node: Node, name: str, default: int) -> int:
    """Return an integer attribute."""
    return int(node.attributes.get(name, default))


def int_list(node: Node, name: str, default: Sequence[int]) -> tuple[int, ...]:
    """Return a list of integers from an attribute."""
    return tuple(map(int, node.attributes.get(name, default)))


def text_attribute(node: Node, name: str, default: str) -> str:
    """Return a text attribute."""
    value = node.attributes.get(name, default)
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def stored_integers(node: Node, name: str, position: int) -> tuple[int, ...] | None:
    """Return integers that are an attribute in old operators and an input in new ones; None if they are unknown.

    An omitted list is returned as an empty one.
    """
    if name in node.attributes:
        return int_list(node, name, ())
    tensor = input_at(node, position)
    if tensor is None:
        return ()
    if tensor.values is None or not all(float(value).is_integer() for value in tensor.values):
        return None
    return tuple(map(int, tensor.values))


def axis_of(node: Node, rank: int, default: int) -> int:
    """Return the axis attribute, counted from the first axis."""
    axis = int_attribute(node, "axis", default)
    return axis + rank if axis < 0 else axis


# The window that a convolution or pooling moves over an image.

Pair = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Window:
    """Window of a convolution or pooling in pixels; height comes before width.

    Attributes:
        kernel: size of the kernel.
        stride: distance between two positions of the window.
        dilation: distance between neighboring elements of the kernel.
        padding: padding above, left, below and right; empty if it depends on an unknown size.
    """

    kernel: Pair
    stride: Pair = (1, 1)
    dilation: Pair = (1, 1)
    padding: tuple[int, ...] = (0, 0, 0, 0)

    @property
    def reach(self) -> Pair:
        """Height and width of the dilated kernel."""
        high, wide = (dilation * (kernel - 1) + 1 for kernel, dilation in zip(self.kernel, self.dilation, strict=True))
        return high, wide


def window(node: Node) -> Window | None:
    """Return a node's window; None if it is unknown or not two-dimensional."""
    weight = input_at(node, 1)
    stored = weight.shape[2:] if weight is not None and weight.shape is not None else ()
    kernel = node.attributes.get("kernel_shape", stored)
    stride, dilation = int_list(node, "strides", (1, 1)), int_list(node, "dilations", (1, 1))
    pads = int_list(node, "pads", (0, 0, 0, 0))
    if None in kernel or (len(kernel), len(stride), len(dilation), len(pads)) != (2, 2, 2, 4):
        return None
    bare = Window((int(kernel[0]), int(kernel[1])), (stride[0], stride[1]), (dilation[0], dilation[1]), pads)
    return replace(bare, padding=_padding(node, bare))


def _padding(node: Node, bare: Window) -> tuple[int, ...]:
    """Return the padding, including that of ``SAME`` modes and of an output size that is rounded up."""
    mode, image = text_attribute(node, "auto_pad", "NOTSET"), input_at(node, 0)
    if mode == "VALID":
        return (0, 0, 0, 0)
    if min(bare.stride) < 1 or not (mode.startswith("SAME") or int_attribute(node, "ceil_mode", 0)):
        return bare.padding
    sides = [side for side in (image.shape or ())[2:] if side is not None] if image is not None else []
    if len(sides) != 2 or image is None or image.rank != 4:
        return () if mode.startswith("SAME") else bare.padding
    axes = list(zip(sides, bare.stride, bare.reach, strict=True))
    if mode.startswith("SAME"):
        totals = [max((-(-size // step) - 1) * step + reach - size, 0) for size, step, reach in axes]
        small, large = [total // 2 for total in totals], [total - total // 2 for total in totals]
        return (*large, *small) if mode == "SAME_LOWER" else (*small, *large)
    paired = zip(axes, bare.padding[:2], bare.padding[2:], strict=True)
    end = [last + (reach - size - first - last) % step for (size, step, reach), first, last in paired]
    return (*bare.padding[:2], *end)


# Edges between nodes. Nodes that become no layer are skipped.


class Wiring:
    """Edges between the remaining nodes.

    Args:
        nodes: nodes in topological order.
        verdicts: verdicts on the nodes; edges pass through folded nodes.
    """

    def __init__(self, nodes: Sequence[Node], verdicts: Sequence[Verdict]) -> None:
        self.nodes = nodes
        self.folded = [verdict.is_folded for verdict in verdicts]
        self.producers = {
            tensor.name: place for place, node in enumerate(nodes) for tensor in node.outputs if tensor is not None
        }

    @cached_property
    def before(self) -> tuple[tuple[int, ...], ...]:
        """For each node, the remaining nodes whose results it reads; empty for a folded node."""
        read: list[dict[int, None]] = []  # a folded node passes on its own sources
        for node in self.nodes:
            found: dict[int, None] = {}
            for tensor in node.inputs:
                source = None if tensor is None or tensor.is_constant else self.producers.get(tensor.name)
                if source is not None:
                    found.update(read[source] if self.folded[source] else {source: None})
            read.append(found)
        return tuple(() if gone else tuple(found) for gone, found in zip(self.folded, read, strict=True))

    @cached_property
    def after(self) -> tuple[tuple[int, ...], ...]:
        """For each node, the remaining nodes that read its results."""
        readers: list[list[int]] = [[] for _ in self.nodes]
        for place, sources in enumerate(self.before):
            for source in sources:
                readers[source].append(place)
        return tuple(map(tuple, readers))

    @cached_property
    def readers(self) -> dict[str, list[int]]:
        """Tensor name → positions of all nodes that read it, including folded ones."""
        found: dict[str, list[int]] = {}
        for place, node in enumerate(self.nodes):
            for tensor in dict.fromkeys(filter(None, node.inputs)):
                found.setdefault(tensor.name, []).append(place)
        return found
