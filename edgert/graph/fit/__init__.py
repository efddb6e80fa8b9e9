"""Rewrites that let a model onto a DLA: the same results from operators and sizes that it has.

:func:`fit` rewrites a graph, :func:`fit_model` a model; :func:`prove` runs both and says how far they are apart;
:func:`cut_head` cuts off what no rewrite helps.
"""

from edgert.graph.fit.cut import Cut, cut_head
from edgert.graph.fit.model import fit_model, ready, static_batch
from edgert.graph.fit.proof import Proof, prove
from edgert.graph.fit.rewrites import REWRITES, fit, without

__all__ = [
    "REWRITES",
    "Cut",
    "Proof",
    "cut_head",
    "fit",
    "fit_model",
    "prove",
    "ready",
    "static_batch",
    "without",
]
