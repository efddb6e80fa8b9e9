"""The rules, asked about one node or about all of a graph."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from dla.context import CONTEXT, Context
from dla.limit import MATRIX
from dla.node import Node, data_tensors
from dla.rules.fold import folded
from dla.table import RULES, layer_of
from dla.target import Target
from dla.verdict import SEVERITY, Verdict, furthest, worst
from dla.wiring import Wiring

SCALE_RULE = "general.scale"
FORM_RULE = "general.form"
SOURCES: Mapping[str, str] = MappingProxyType(
    {
        **{name: rule.source for name, rule in RULES.items()},
        **{rule.name: rule.source for rule in CONTEXT},
        FORM_RULE: MATRIX,
        SCALE_RULE: "https://github.com/Deci-AI/super-gradients/issues/1760",  # what TensorRT says where one is missing
    }
)
"""Rule → the page it was read on."""


def check(node: Node, target: Target, scaled: Collection[str] | None = None) -> Verdict:
    """Whether the DLA can run a node, as far as the node itself tells.

    Args:
        scaled: tensors that have an INT8 scale; None where that is not known yet, which objects to nothing.
    """
    if target.release.answer == "no":
        return target.release
    if not any(node.inputs) or not any(node.outputs[:1]):
        return folded(node) or Verdict("no", FORM_RULE, "it reads nothing or makes nothing", "leave it to the GPU")
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
    """The same for every node, with the rules that need its neighbours.

    Args:
        nodes: each after those it reads.
        scaled: as in :func:`check`. A mapping of tensor to scale is also asked whether scales agree where they must.
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
    """A neighbour's word counts unless the node was refused anyway; a doubt behind a yes replaces it."""
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
