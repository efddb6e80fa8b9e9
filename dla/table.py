"""Table of the layer that each operator becomes and its rules, and the verdicts on a node or a graph."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from dla.context import CONTEXT, Context
from dla.limit import ISSUE_SCALE, MATRIX
from dla.node import SEVERITY, Form, Node, Verdict, Wiring, data_tensors, furthest, worst
from dla.rule import Rule, Target
from dla.rules import activation, conv, elementwise, general, pool, shape
from dla.rules.shape import folded


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer that the DLA offers.

    Attributes:
        name: as TensorRT calls it.
        rules: all must agree.
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
"""Layer by ONNX operator; an operator that is not listed has none."""

_ABSENT = Layer("none", (general.domain, general.operator))

RULES: Mapping[str, Rule] = MappingProxyType(
    {rule.name: rule for layer in (*LAYERS.values(), _ABSENT) for rule in layer.rules}
)
"""All rules about one node, by name."""


def layer_of(op: str) -> Layer:
    """Return the layer that an operator becomes; for an operator without one, a layer that refuses everything."""
    return LAYERS.get(op, _ABSENT)


# Verdicts: the rules applied to one node, or to all of a graph.

SCALE_RULE = "general.scale"
FORM_RULE = "general.form"
SOURCES: Mapping[str, str] = MappingProxyType(
    {
        **{name: rule.source for name, rule in RULES.items()},
        **{rule.name: rule.source for rule in CONTEXT},
        FORM_RULE: MATRIX,
        SCALE_RULE: ISSUE_SCALE,  # it quotes TensorRT's message for a missing scale
    }
)
"""Page that states each rule, by rule."""
ABOUT: Mapping[str, str] = MappingProxyType(
    {
        **{name: rule.about for name, rule in RULES.items()},
        **{rule.name: rule.about for rule in CONTEXT},
        FORM_RULE: "Require a node with inputs and outputs.",
        SCALE_RULE: "Require a scale of every tensor in INT8.",
    }
)
"""Content of each rule in one sentence, by rule."""


def layers_of(rule: str) -> tuple[str, ...]:
    """Return the layers that a rule is about, in alphabetical order; none for rules about every node or a graph."""
    found = {layer.name for layer in LAYERS.values() if any(one.name == rule for one in layer.rules)}
    is_general = rule.startswith(("general.", "context."))
    return () if is_general else tuple(sorted(found))


def check(node: Node, target: Target, scaled: Collection[str] | None = None) -> Verdict:
    """Return whether the DLA can run a node, as far as the node itself shows.

    Args:
        node: the node with its tensors.
        target: generation, release of TensorRT and precision.
        scaled: tensors that have an INT8 scale; None where that is not known yet: no rule objects then.
    """
    if target.release.answer == "no":
        return target.release
    if not any(node.inputs) or not any(node.outputs[:1]):
        return folded(node) or Verdict("no", FORM_RULE, "it has no inputs or no outputs", "leave it to the GPU")
    found = [verdict for rule in layer_of(node.op).rules if (verdict := rule(node, target)) is not None]
    gone = folded(node)
    if gone is not None:
        return worst([gone, *(verdict for verdict in found if verdict.rule.startswith("scale."))])
    missing = _missing_scale(node, target, scaled)
    if missing is not None:
        found.append(missing)
    if found and any(verdict.answer != "yes" for verdict in found):
        return worst(found)
    layer = layer_of(node.op).name
    reasons = [f"within the limits of the {layer} layer", *(verdict.reason for verdict in found)]
    return Verdict("yes", layer.lower(), "; ".join(reasons), form=furthest(found))


def check_graph(nodes: Sequence[Node], target: Target, scaled: Collection[str] | None = None) -> tuple[Verdict, ...]:
    """Return the verdicts on every node of a graph, including rules that need its neighbors.

    Args:
        nodes: each after those it reads.
        target: generation, release of TensorRT and precision.
        scaled: as in :func:`check`. A mapping of tensor to scale also lets rules check whether scales agree.
    """
    verdicts = [check(node, target, scaled) for node in nodes]
    if target.release.answer == "no":
        return tuple(verdicts)
    context = Context(nodes, verdicts, target, scaled, Wiring(nodes, verdicts))
    for rule in CONTEXT:
        for place, verdict in rule.test(context):
            verdicts[place] = _joined(verdicts[place], verdict)
    return tuple(verdicts)


def _joined(old: Verdict, new: Verdict) -> Verdict:
    """Return the verdict of a context rule, unless the node was refused anyway; a doubt replaces a yes."""
    if old.answer == new.answer != "yes":
        return worst([old, new])
    heard = min(old, new, key=lambda verdict: SEVERITY.index(verdict.answer))
    return replace(heard, form=furthest([old, new]))


def _missing_scale(node: Node, target: Target, scaled: Collection[str] | None) -> Verdict | None:
    if scaled is None or not target.is_int8:
        return None
    missing = [tensor.name for tensor in data_tensors(node) if tensor.name not in scaled]
    if not missing:
        return None
    reason = f"no INT8 scale for {', '.join(missing)}: it runs in FP16, or on the GPU where FP16 is off"
    return Verdict("verify", SCALE_RULE, reason, "calibrate every tensor: edgert quantize --target dla")


# The form in which the DLA runs nodes in an INT8 build, by the same rules.

_SUMS: Collection[str] = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul", "Add"})
_BEHIND: Collection[str] = frozenset({"Relu", "Clip", "LeakyRelu", "PRelu"})


def int8_form(node: Node, target: Target) -> Form:
    """Return how a node runs in an INT8 build, as far as the node itself shows.

    A node that only the device can decide about (``verify``) has the form that it has if the device accepts it.

    Args:
        node: the node with its tensors.
        target: generation and release; its precision does not matter.
    """
    return check(node, _in_int8(target)).int8_form


def int8_verdicts(nodes: Sequence[Node], target: Target) -> tuple[Verdict, ...]:
    """Return verdicts for an INT8 build of a graph, including the rules about neighbors; see their ``int8_form``.

    Args:
        nodes: each after those it reads.
        target: generation and release; its precision does not matter.
    """
    return check_graph(nodes, _in_int8(target))


def fuses(first: str, then: str) -> bool:
    """Return whether an operator computes in the kernel of the one before it, before results are rounded.

    An activation behind a product or an addition does, and so does an addition behind a product.
    """
    return first in _SUMS and (then in _BEHIND or (then == "Add" and first != "Add"))


def _in_int8(target: Target) -> Target:
    return target if target.is_int8 else replace(target, precision="int8")
