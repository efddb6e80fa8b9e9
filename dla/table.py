"""The layer and the rules of each operator, and the verdicts on a node or a graph."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from dla.context import CONTEXT, Context
from dla.limit import ISSUE_SCALE, MATRIX
from dla.node import SEVERITY, Form, Node, Verdict, Wiring, combine, data_tensors, furthest_form
from dla.rule import Rule, Target
from dla.rules import activation, conv, elementwise, general, pool, shape
from dla.rules.shape import folded


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer that the DLA offers.

    Attributes:
        name: name in TensorRT.
        rules: rules that must all allow a node.
    """

    name: str
    rules: tuple[Rule, ...]


def _layer(name: str, *rules: Rule, planar: bool = True) -> Layer:
    return Layer(name, (*general.EVERY, *((general.planar,) if planar else ()), *rules))


_ACTIVATION = _layer("Activation")
_PROMOTED = _layer("Activation", activation.promoted)
_SUM = _layer("ElementWise", *elementwise.ARITHMETIC)
_EXTREME = _layer("ElementWise", elementwise.broadcast, elementwise.extreme)
_POOL = _layer("Pooling", *pool.POOL)
_TRIGONOMETRY = _layer("Unary", activation.trigonometry)
_LATE = _layer("ElementWise", *elementwise.COMPARISON)
_REDUCE = _layer("Reduce", *activation.REDUCTION)
_SHUFFLE = _layer("Shuffle", shape.target_shape, shape.shuffle, planar=False)
_LINEAR = _layer("FullyConnected", *conv.GEMM, planar=False)
_RESIZE = _layer("Resize", *pool.RESIZE)
_SCALE = _layer("Quantize", *shape.SCALE, planar=False)

LAYERS: Mapping[str, Layer] = MappingProxyType(
    {
        "Abs": _layer("Unary", activation.absolute),
        "Add": _SUM,
        "Atan": _TRIGONOMETRY,
        "Atanh": _TRIGONOMETRY,
        "AveragePool": _POOL,
        "BatchNormalization": _layer("Scale", elementwise.normalization),
        "Cast": Layer("Cast", (general.domain, elementwise.cast)),
        "Clip": _layer("Activation", activation.clip),
        "Concat": _layer("Concatenation", *shape.CONCAT),
        "Conv": _layer("Convolution", *conv.CONV),
        "ConvTranspose": _layer("Deconvolution", conv.weights, *conv.DECONV),
        "Cos": _TRIGONOMETRY,
        "DequantizeLinear": _SCALE,
        "Div": _layer("ElementWise", elementwise.release, elementwise.broadcast, elementwise.divided),
        "Equal": _layer("ElementWise", *elementwise.EQUALITY),
        "Gemm": _LINEAR,
        "GlobalMaxPool": _REDUCE,
        "Greater": _LATE,
        "LRN": _layer("LRN", pool.lrn),
        "LeakyRelu": _ACTIVATION,
        "Less": _LATE,
        "MatMul": _LINEAR,
        "Max": _EXTREME,
        "MaxPool": _POOL,
        "Min": _layer("ElementWise", elementwise.least),
        "Mul": _SUM,
        "PRelu": _layer("ParametricReLU", activation.slope),
        "Pow": _layer("ElementWise", elementwise.release, elementwise.power),
        "QuantizeLinear": _SCALE,
        "ReduceMax": _REDUCE,
        "Relu": _ACTIVATION,
        "Reshape": _SHUFFLE,
        "Resize": _RESIZE,
        "Sigmoid": _PROMOTED,
        "Sin": _TRIGONOMETRY,
        "Slice": _layer("Slice", *shape.SLICE),
        "Softmax": _layer("SoftMax", *activation.SOFTMAX),
        "Split": _layer("Slice", *shape.SPLIT),
        "Sub": _layer("ElementWise", *elementwise.SUBTRACTION),
        "Sum": _SUM,
        "Tanh": _PROMOTED,
        "Transpose": _SHUFFLE,
        "Upsample": _RESIZE,
    }
)
"""ONNX operator → layer; other operators have no layer."""

_ABSENT = Layer("none", (general.domain, general.operator))

RULES: Mapping[str, Rule] = MappingProxyType(
    {rule.name: rule for layer in (*LAYERS.values(), _ABSENT) for rule in layer.rules}
)
"""Name → rule, for all rules about one node."""


def layer_of(op: str) -> Layer:
    """Return the layer of an operator; an operator without one gets a layer that refuses all nodes."""
    return LAYERS.get(op, _ABSENT)


# The rules applied to one node or to a graph.

SCALE_RULE = "general.scale"
FORM_RULE = "general.form"
SOURCES: Mapping[str, str] = MappingProxyType(
    {
        **{name: rule.source for name, rule in RULES.items()},
        **{rule.name: rule.source for rule in CONTEXT},
        FORM_RULE: MATRIX,
        SCALE_RULE: ISSUE_SCALE,  # the page quotes TensorRT's message for a missing scale
    }
)
"""Rule → page that states it."""
ABOUT: Mapping[str, str] = MappingProxyType(
    {
        **{name: rule.about for name, rule in RULES.items()},
        **{rule.name: rule.about for rule in CONTEXT},
        FORM_RULE: "Require a node with inputs and outputs.",
        SCALE_RULE: "Require a scale of every tensor in INT8.",
    }
)
"""Rule → description in one sentence."""


def layers_of(rule: str) -> tuple[str, ...]:
    """Return the layers of a rule in alphabetical order; none for a rule about all nodes or a graph."""
    found = {layer.name for layer in LAYERS.values() if any(one.name == rule for one in layer.rules)}
    is_general = rule.startswith(("general.", "context."))
    return () if is_general else tuple(sorted(found))


def check(node: Node, target: Target, scaled: Collection[str] | None = None) -> Verdict:
    """Return whether the DLA can run a node, without regard to its neighbors.

    Args:
        node: node with its tensors.
        target: generation, release of TensorRT and precision.
        scaled: tensors with an INT8 scale; None skips the check for scales.
    """
    if target.release.answer == "no":
        return target.release
    if not any(node.inputs) or not any(node.outputs[:1]):
        return folded(node) or Verdict("no", FORM_RULE, "it has no inputs or no outputs", "leave it to the GPU")
    found = [verdict for rule in layer_of(node.op).rules if (verdict := rule(node, target)) is not None]
    gone = folded(node)
    if gone is not None:
        return combine([gone, *(verdict for verdict in found if verdict.rule.startswith("scale."))])
    missing = _missing_scale(node, target, scaled)
    if missing is not None:
        found.append(missing)
    if found and any(verdict.answer != "yes" for verdict in found):
        return combine(found)
    layer = layer_of(node.op).name
    reasons = [f"within the limits of the {layer} layer", *(verdict.reason for verdict in found)]
    return Verdict("yes", layer.lower(), "; ".join(reasons), form=furthest_form(found))


def check_graph(nodes: Sequence[Node], target: Target, scaled: Collection[str] | None = None) -> tuple[Verdict, ...]:
    """Return the verdicts on all nodes of a graph, including rules about neighbors.

    Args:
        nodes: nodes in topological order.
        target: generation, release of TensorRT and precision.
        scaled: as in :func:`check`; with a mapping from tensor to scale, rules also compare scales.
    """
    verdicts = [check(node, target, scaled) for node in nodes]
    if target.release.answer == "no":
        return tuple(verdicts)
    context = Context(nodes, verdicts, target, scaled, Wiring(nodes, verdicts))
    for rule in CONTEXT:
        for place, verdict in rule.test(context):
            verdicts[place] = _combine_verdicts(verdicts[place], verdict)
    return tuple(verdicts)


def _combine_verdicts(old: Verdict, new: Verdict) -> Verdict:
    """Return the more severe verdict; two refusals or two doubts are joined."""
    if old.answer == new.answer != "yes":
        return combine([old, new])
    severer = min(old, new, key=lambda verdict: SEVERITY.index(verdict.answer))
    return replace(severer, form=furthest_form([old, new]))


def _missing_scale(node: Node, target: Target, scaled: Collection[str] | None) -> Verdict | None:
    if scaled is None or not target.is_int8:
        return None
    missing = [tensor.name for tensor in data_tensors(node) if tensor.name not in scaled]
    if not missing:
        return None
    reason = f"no INT8 scale for {', '.join(missing)}: it runs in FP16, or on the GPU where FP16 is off"
    return Verdict("verify", SCALE_RULE, reason, "calibrate every tensor: edgert quantize --target dla")


# How the DLA runs nodes in an INT8 build, by the same rules.

_SUMS: Collection[str] = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul", "Add"})
_BEHIND: Collection[str] = frozenset({"Relu", "Clip", "LeakyRelu", "PRelu"})


def int8_form(node: Node, target: Target) -> Form:
    """Return how a node runs in an INT8 build, without regard to its neighbors.

    A doubtful node (``verify``) is assumed to be accepted by the device.

    Args:
        node: node with its tensors.
        target: generation and release; the precision is ignored.
    """
    return check(node, _in_int8(target)).int8_form


def int8_verdicts(nodes: Sequence[Node], target: Target) -> tuple[Verdict, ...]:
    """Return the verdicts on all nodes for an INT8 build; see their ``int8_form``.

    Args:
        nodes: nodes in topological order.
        target: generation and release; the precision is ignored.
    """
    return check_graph(nodes, _in_int8(target))


def fuses(first: str, then: str) -> bool:
    """Return whether an operator is computed in the kernel of the previous one, without rounding between them.

    This holds for an activation after a product or an addition, and for an addition after a product.
    """
    return first in _SUMS and (then in _BEHIND or (then == "Add" and first != "Add"))


def _in_int8(target: Target) -> Target:
    return target if target.is_int8 else replace(target, precision="int8")
