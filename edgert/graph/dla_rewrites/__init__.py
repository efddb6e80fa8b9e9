"""Rewrites that let a model onto a DLA: the same results from operators and sizes that it has.

:func:`fit` rewrites a graph, :func:`fit_model` a model; :func:`prove` runs both and returns how far they are apart;
:func:`cut_head` cuts off what no rewrite helps.
"""

from edgert.graph.dla_rewrites.apply import Cut, Proof, cut_head, fit_model, prove, ready, static_batch
from edgert.graph.dla_rewrites.rewrites import REWRITES, fit, without

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
