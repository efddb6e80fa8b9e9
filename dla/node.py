"""Records that the rules read and return: nodes with their tensors, and verdicts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from typing import Any, Literal

# The answer to "can the DLA run this?".

Answer = Literal["yes", "no", "verify"]
Form = Literal["int8", "lookup", "fp16", "none"]
"""Way in which a node runs in an INT8 build. It is on integers, with integers in and out but computed in FP16 by a
lookup table, in FP16, or not on the DLA."""
_FORMS: tuple[Form, ...] = ("int8", "lookup", "fp16", "none")
FOLDED = "folded"
"""Rule of a node that becomes no layer: it costs nothing, wherever its neighbors run."""

SEVERITY: tuple[Answer, ...] = ("no", "verify", "yes")
"""Answers, the one that overrides the others first."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Answer about one node; a refusal is a normal answer, so it is a value and no exception.

    Attributes:
        answer: ``verify`` where public sources do not settle it and only the device can.
        rule: the rule that decided, ``"conv.kernel"``; the layer's name where none objected.
        reason: why, in words.
        fix: what would change the answer; empty for ``yes`` and where nothing would.
        form: how the node runs in an INT8 build, if it runs on the DLA.
    """

    answer: Answer
    rule: str
    reason: str
    fix: str = ""
    form: Form = "int8"

    @property
    def int8_form(self) -> Form:
        """Way in which the node runs in an INT8 build, assuming that the device accepts a doubtful node."""
        return "none" if self.answer == "no" else self.form

    @property
    def is_folded(self) -> bool:
        """Whether the node is removed before anything runs."""
        return self.rule == FOLDED


def no(reason: str, fix: str = "") -> Verdict:
    """Return a refusal; the caller sets the rule's name."""
    return Verdict("no", "", reason, fix)


def verify(
    reason: str, fix: str = "ask the builder on the device: config.can_run_on_DLA", form: Form = "int8"
) -> Verdict:
    """Return an open question."""
    return Verdict("verify", "", reason, fix, form)


def note(reason: str, form: Form = "int8") -> Verdict:
    """Return a yes with a remark."""
    return Verdict("yes", "", reason, "", form)


def worst(verdicts: Sequence[Verdict]) -> Verdict:
    """Return one verdict for several: a refusal overrides a doubt, and a doubt overrides a yes.

    The reasons of all with that answer are joined. The form is the one furthest from INT8.

    Args:
        verdicts: at least one.
    """
    answer = min((verdict.answer for verdict in verdicts), key=SEVERITY.index)
    same = [verdict for verdict in verdicts if verdict.answer == answer]
    reasons, fixes = (dict.fromkeys(texts) for texts in ((v.reason for v in same), (v.fix for v in same)))
    form = furthest(verdicts)
    return Verdict(answer, same[0].rule, "; ".join(filter(None, reasons)), "; ".join(filter(None, fixes)), form)


def furthest(verdicts: Sequence[Verdict]) -> Form:
    """Return the form furthest from INT8 of several verdicts; ``int8`` for none."""
    return max((verdict.form for verdict in verdicts), key=_FORMS.index, default="int8")


Shape = tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor that a node reads or writes.

    Attributes:
        name: in the graph.
        shape: None for an open dimension; None altogether where even the rank is unknown.
        dtype: NumPy's name, ``"float32"``.
        is_constant: stored, or computed from stored tensors before anything runs.
        values: of a small constant, in row-major order; None where they are many or not known.
        is_zero: whether every element of a constant is 0, however many there are; None where that is not known.
    """

    name: str
    shape: Shape | None
    dtype: str = "float32"
    is_constant: bool = False
    values: tuple[float, ...] | None = None
    is_zero: bool | None = None

    @property
    def rank(self) -> int | None:
        """Number of dimensions, where known."""
        return None if self.shape is None else len(self.shape)

    @property
    def size(self) -> int | None:
        """Number of elements; None while a dimension is open."""
        known = [dim for dim in self.shape or () if dim is not None]
        return None if self.shape is None or len(known) < len(self.shape) else prod(known)


@dataclass(frozen=True, slots=True)
class Node:
    """An ONNX node with its tensors.

    Attributes:
        op: its operator, such as ``Conv``.
        inputs: in the operator's order; None for one that is left out.
        outputs: in the operator's order; None for one that is left out.
        attributes: name → int, float, str or bytes, or a list of them.
        name: unique in the graph.
        domain: of the operator; empty for the standard ones.
        opset: version of the standard operators, for defaults that changed.
    """

    op: str
    inputs: tuple[Tensor | None, ...]
    outputs: tuple[Tensor | None, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    name: str = ""
    domain: str = ""
    opset: int = 17


def given(node: Node, position: int) -> Tensor | None:
    """Return the input at that position, or None where it is left out."""
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


def number(node: Node, name: str, default: float) -> float:
    """Return a numeric attribute."""
    return float(node.attributes.get(name, default))


def whole(node: Node, name: str, default: int) -> int:
    """Return an integer attribute."""
    return int(node.attributes.get(name, default))


def numbers(node: Node, name: str, default: Sequence[int]) -> tuple[int, ...]:
    """Return a list of integers from an attribute."""
    return tuple(map(int, node.attributes.get(name, default)))


def word(node: Node, name: str, default: str) -> str:
    """Return a text attribute."""
    value = node.attributes.get(name, default)
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def integers(node: Node, name: str, position: int) -> tuple[int, ...] | None:
    """Return a list that older operators have as an attribute and newer ones as an input; None if it is not known.

    A list that is left out comes back empty.
    """
    if name in node.attributes:
        return numbers(node, name, ())
    tensor = given(node, position)
    if tensor is None:
        return ()
    if tensor.values is None or not all(float(value).is_integer() for value in tensor.values):
        return None
    return tuple(map(int, tensor.values))


def axis_of(node: Node, rank: int, default: int) -> int:
    """Return the axis attribute, counted from the front."""
    axis = whole(node, "axis", default)
    return axis + rank if axis < 0 else axis


# The window that a convolution or pooling moves over an image.

Pair = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Window:
    """Window of a convolution or pooling, height before width everywhere; all in pixels.

    Attributes:
        kernel: as in ONNX.
        stride: as in ONNX.
        dilation: as in ONNX.
        padding: above, left, below, right; empty where it depends on a size that is not known.
    """

    kernel: Pair
    stride: Pair = (1, 1)
    dilation: Pair = (1, 1)
    padding: tuple[int, ...] = (0, 0, 0, 0)

    @property
    def reach(self) -> Pair:
        """Pixels from the window's first to its last, both counted."""
        high, wide = (dilation * (kernel - 1) + 1 for kernel, dilation in zip(self.kernel, self.dilation, strict=True))
        return high, wide


def window(node: Node) -> Window | None:
    """Return a node's window; None where it is not two-dimensional or not known."""
    weight = given(node, 1)
    stored = weight.shape[2:] if weight is not None and weight.shape is not None else ()
    kernel = node.attributes.get("kernel_shape", stored)
    stride, dilation = numbers(node, "strides", (1, 1)), numbers(node, "dilations", (1, 1))
    pads = numbers(node, "pads", (0, 0, 0, 0))
    if None in kernel or (len(kernel), len(stride), len(dilation), len(pads)) != (2, 2, 2, 4):
        return None
    bare = Window((int(kernel[0]), int(kernel[1])), (stride[0], stride[1]), (dilation[0], dilation[1]), pads)
    return replace(bare, padding=_padding(node, bare))


def _padding(node: Node, bare: Window) -> tuple[int, ...]:
    """Return the padding that SAME stands for, and with what rounding the size up adds at the end."""
    mode, image = word(node, "auto_pad", "NOTSET"), given(node, 0)
    if mode == "VALID":
        return (0, 0, 0, 0)
    if min(bare.stride) < 1 or not (mode.startswith("SAME") or whole(node, "ceil_mode", 0)):
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


# Edges between nodes; nodes that become no layer are skipped.


class Wiring:
    """Edges between the remaining nodes.

    Args:
        nodes: each after those it reads.
        verdicts: of the nodes; edges lead through folded ones.
    """

    def __init__(self, nodes: Sequence[Node], verdicts: Sequence[Verdict]) -> None:
        self.nodes = nodes
        self.folded = [verdict.is_folded for verdict in verdicts]
        self.producers = {
            tensor.name: place for place, node in enumerate(nodes) for tensor in node.outputs if tensor is not None
        }

    @cached_property
    def before(self) -> tuple[tuple[int, ...], ...]:
        """For each node, the remaining nodes whose results it reads; empty for a folded one."""
        read: list[dict[int, None]] = []  # a folded node has the sources behind it
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
        """Positions of every node that has a tensor among its inputs, folded ones too, by the tensor's name."""
        found: dict[str, list[int]] = {}
        for place, node in enumerate(self.nodes):
            for tensor in dict.fromkeys(filter(None, node.inputs)):
                found.setdefault(tensor.name, []).append(place)
        return found
