"""Rules for what NVIDIA's deep-learning accelerator (DLA) can run.

:func:`check` applies the rules to one node, :func:`check_graph` to a whole graph. :func:`int8_form` returns how a node
runs in an INT8 build, and :func:`fuses` whether two operators are computed without rounding between them.
:func:`regions` groups the supported nodes into few segments, each of which becomes a loadable. :func:`summarize` counts
nodes and work. ``SOURCES`` and ``LIMITS`` name the public page behind every rule and limit.

The package uses the standard library only, and imports nothing from edgert.
"""

from dla.limit import LIMITS, Limit, banks
from dla.node import Answer, Form, Node, Tensor, Verdict, Window, window
from dla.region import MAX_LOADABLES, Region, convex_groups, regions
from dla.rule import ORIN, PRECISIONS, USUAL_RELEASE, XAVIER, Precision, Rule, Target, supported_by
from dla.summary import Reason, Summary, summarize
from dla.table import LAYERS, RULES, SOURCES, check, check_graph, fuses, int8_form, int8_verdicts

__all__ = [
    "LAYERS",
    "LIMITS",
    "MAX_LOADABLES",
    "ORIN",
    "PRECISIONS",
    "RULES",
    "SOURCES",
    "USUAL_RELEASE",
    "XAVIER",
    "Answer",
    "Form",
    "Limit",
    "Node",
    "Precision",
    "Reason",
    "Region",
    "Rule",
    "Summary",
    "Target",
    "Tensor",
    "Verdict",
    "Window",
    "banks",
    "check",
    "check_graph",
    "convex_groups",
    "fuses",
    "int8_form",
    "int8_verdicts",
    "regions",
    "summarize",
    "supported_by",
    "window",
]
