"""Rewrites that let a DLA run a model: the same results from operators and sizes that it supports.

:func:`fit` rewrites a graph, :func:`fit_model` a model. :func:`prove` runs both and returns how far their outputs
differ. :func:`cut_head` cuts off the part that no rewrite can help.
"""

from edgert.graph.dla_rewrites.apply import (
    REWRITES,
    Cut,
    Proof,
    cut_head,
    fit,
    fit_model,
    prove,
    ready,
    static_batch,
    without,
)

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
