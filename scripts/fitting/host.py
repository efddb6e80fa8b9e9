"""What networks take of one core of this machine, by a few rates that are fitted to networks that were measured on it.

A unit of work takes its multiply-adds over the rate of its kind, which narrow and shallow products do not reach, plus
what it moves over another rate, plus a start. Times of all units of a network are known from ONNX Runtime's profiler;
rates are fitted so that each network's total and its parts by kind come out, with every network counting the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import least_squares

from edgert.graph import Graph, Node
from edgert.graph.operators import about
from edgert.placement.cost import work
from edgert.placement.cost.work import Numbers, Work, units

_RATES = {
    "windows": 60.0,  # multiply-adds a nanosecond of convolutions wider than 1x1
    "points": 60.0,  # of 1x1 convolutions
    "depthwise": 30.0,
    "products": 20.0,
    "half_depth": 8.0,  # depth and columns of a product that reaches half of the rate
    "half_columns": 4.0,
    "products_moved": 20.0,  # values a nanosecond, read or written beside products
    "weights_moved": 2.0,
    "pooled": 5.0,
    "mapped": 4.0,  # element by element
    "copied": 3.0,
    "joined": 10.0,  # as they lie in memory
    "resized": 1.0,  # with a computed place for each
    "softmax": 0.4,
    "spread": 1.5,  # written beside an operand that is repeated
    "summed": 1.0,  # over some axes
    "curved": 4.0,  # through a sigmoid or its like
    "start_us": 4.0,  # of products
    "other_start_us": 4.0,
}
"""Where the fit starts, and what each rate is weakly drawn to."""
_PULL, _OUTLIER, _PARTS = 0.1, 0.2, 0.5
_LEAST = 0.02
"""Parts of a network below this share of its time tell little."""
_OWN_KINDS = {"Softmax": "softmax", "LogSoftmax": "softmax", "Resize": "resized", "Upsample": "resized", "Pad": ""}
"""A pad is part of the convolution behind it: onnxruntime/core/optimizer/pad_fusion.cc."""
_UNFUSED = ("Clip",)
"""Activations that ONNX Runtime does not run within a blocked convolution: they pass over its result once more. Those
that it does: Relu, LeakyRelu, Sigmoid, Tanh and HardSigmoid, onnxruntime/core/optimizer/nchwc_transformer.cc."""


@dataclass(frozen=True, slots=True)
class Columns:
    """A network's units as columns of numbers, one of each for every unit."""

    macs: Numbers
    depth: Numbers
    columns: Numbers
    moved: Numbers
    weights: Numbers
    curved: Numbers
    again: Numbers
    spread: Numbers
    summed: Numbers
    starts: Numbers
    kind: Numbers


_PRODUCTS = ("windows", "points", "depthwise", "products")
_KINDS = (*_PRODUCTS, "pooled", "mapped", "copied", "joined", "resized", "softmax", "")


@dataclass(frozen=True, slots=True)
class Timed:
    """A network with milliseconds of its units on one core."""

    columns: Columns
    units_ms: Numbers


def columns(graph: Graph) -> Columns:
    """Of a static, clean graph."""
    nodes = {node.name: node for node in graph.nodes}
    shapes, rows = work.Shapes(graph), []
    for one in units(graph):
        own = [nodes[name] for name in one.nodes]
        product, again, kind = one.product, sum(node.op in _UNFUSED for node in own), _kind(one, own)
        moved, spread, summed, starts = float(one.read + one.written), 0.0, 0.0, int(kind != "")
        if kind == "joined":  # ONNX Runtime copies what TensorRT writes in place
            moved = 2 * max(shapes.size(node.outputs[0]) for node in own if about(node.op).kind == "join")
        elif kind == "mapped":
            moved, spread, summed, starts = _each_node(own, shapes)
        rows.append(
            (product.macs, product.channels * product.taps, product.columns, moved, one.weights, one.curved,
             again * 2 * one.written, spread, summed, starts, _KINDS.index(kind))
        )  # fmt: skip
    return Columns(*np.array(rows, np.float64).T)


def _each_node(nodes: Sequence[Node], shapes: work.Shapes) -> tuple[float, float, float, int]:
    """A chain as ONNX Runtime runs it on a processor, one node after the other: values that are moved as they lie,
    those that are written beside a repeated operand, those that are summed, and how many kernels that is."""
    moved = spread = summed = 0.0
    kernels = [node for node in nodes if node.op not in work.NO_KERNEL]
    for node in kernels:
        written, *reads = (shapes.elements(name, node) for name in (node.outputs[0], *filter(None, node.inputs)))
        if node.op.startswith("Reduce"):
            summed += max(reads)
        elif any(1 < read < written for read in reads):
            spread += written
        else:
            moved += written + sum(read for read in reads if read > 1)
    return moved, spread, summed, len(kernels)


def _kind(one: Work, nodes: Sequence[Node]) -> str:
    if any(about(node.op).kind == "join" for node in nodes) and one.kind == work.MOVE:
        return "joined"
    for node in nodes:
        if node.op in _OWN_KINDS:
            return _OWN_KINDS[node.op]
    if one.kind == work.CONV and one.product.groups == 1:
        return "points" if one.product.taps == 1 else "windows"
    names = {work.DEPTHWISE: "depthwise", work.POOL: "pooled", work.MAP: "mapped", work.MOVE: "copied", work.VIEW: ""}
    return names.get(one.kind, "products")


def predict_ms(found: Columns, rates: Mapping[str, float]) -> Numbers:
    """Milliseconds of every unit on one core that does nothing else."""
    of_kind = {name: found.kind == number for number, name in enumerate(_KINDS)}
    is_product = found.kind < len(_PRODUCTS)
    reached = np.where(
        of_kind["windows"] | of_kind["points"],
        found.depth / (found.depth + rates["half_depth"]) * found.columns / (found.columns + rates["half_columns"]),
        1.0,
    )
    rate = sum(rates[name] * of_kind[name] for name in _PRODUCTS) * reached
    moved = sum(of_kind[name] / rates[name] for name in _KINDS[len(_PRODUCTS) : -1])
    moved = moved + is_product / rates["products_moved"]
    ns = np.divide(found.macs, rate, out=np.zeros_like(found.macs), where=found.macs * rate > 0)
    ns = ns + found.moved * moved + found.weights / rates["weights_moved"] * is_product
    ns = ns + found.again / rates["mapped"]
    ns = ns + sum(getattr(found, name) / rates[name] for name in ("spread", "summed", "curved"))
    starts_us = np.where(is_product, rates["start_us"], rates["other_start_us"])
    return np.asarray(ns / 1e6 + found.starts * starts_us / 1e3)


def fit(networks: Sequence[Timed]) -> dict[str, float]:
    """The rates of this machine."""
    start = np.log(list(_RATES.values()))

    def rates(values: Numbers) -> dict[str, float]:
        return dict(zip(_RATES, np.exp(values).tolist(), strict=True))

    def residuals(values: Numbers) -> Numbers:
        errors = []
        for one in networks:
            predicted, whole = predict_ms(one.columns, rates(values)), float(one.units_ms.sum())
            errors.append(2 * np.log(predicted.sum() / whole))
            for number in range(len(_KINDS) - 1):
                part = one.columns.kind == number
                taken = float(one.units_ms[part].sum())
                if taken > _LEAST * whole:
                    errors.append(_PARTS * np.sqrt(taken / whole) * np.log(predicted[part].sum() / taken))
        return np.concatenate([np.array(errors), _PULL * (values - start)])

    return rates(least_squares(residuals, start, loss="soft_l1", f_scale=_OUTLIER).x)
