"""Rewrites that let a DLA run a model: the same results from operators and sizes that it supports.

:func:`fit` rewrites a graph, :func:`fit_model` a model. :func:`prove` runs the original and the rewritten model and
returns the difference. :func:`cut_head` separates the part that no rewrite helps.
"""

from edgert.graph.dla_rewrites.apply import (
    REWRITES,
    Cut,
    Proof,
    cut_head,
    fit,
    fit_model,
    prepare_for_dla,
    prove,
    remaining_rewrites,
    with_static_batch,
)

__all__ = [
    "REWRITES",
    "Cut",
    "Proof",
    "cut_head",
    "fit",
    "fit_model",
    "prepare_for_dla",
    "prove",
    "remaining_rewrites",
    "with_static_batch",
]
