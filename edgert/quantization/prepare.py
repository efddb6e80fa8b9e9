"""The model that everything in quantization works on, and which of its tensors need a range."""

import logging
from collections.abc import Iterator, Mapping, Sequence

from edgert.errors import ModelError
from edgert.graph import Graph, Model, Node, TensorSpec, clean, inputs, raise_opset, read, with_shapes
from edgert.graph.operators import QDQ, WEIGHTED, about, is_integer
from edgert.quantization.scheme.units import is_float, is_weighted

log = logging.getLogger("edgert.quantize")

OPSET = 17
"""Per-channel Q/DQ came with 13 (https://onnx.ai/onnx/operators/onnx__DequantizeLinear.html); 17 is the newest that
ONNX Runtime and TensorRT have both read since 2022. Models that use a newer one keep it."""

_16_BITS = frozenset({"float16", "bfloat16"})


def prepare(model: Model, shapes: Mapping[str, Sequence[int]] | None = None) -> Model:
    """The model with static shapes, opset 17 or newer, batch normalization and constants folded, and named nodes.

    It computes the same up to the rounding of folded weights, and equal models give equal digests. Tensors that remain
    keep their names. Bodies of If, Loop and Scan, and nodes of other domains, stay as they are, in float; both are
    logged.

    Args:
        shapes: input name → all its dimensions. A first dimension that stays open becomes 1.

    Raises:
        ModelError: dimensions stay open, or the shapes do not fit; the model is quantized already, or float16; it takes
            no float32 input; it has no weights that could be quantized; an operator has no equal in opset 17.
    """
    _check_types(model)
    fixed = _static(with_shapes(model, shapes or {}))
    cleaned, _ = clean(fixed)
    raised, _ = clean(raise_opset(cleaned, OPSET))
    graph = read(raised)
    if not any(is_weighted(graph, node) for node in graph.nodes):
        raise ModelError(
            f"model {str(model.path)!r} has nothing to quantize",
            why=f"no {', '.join(sorted(WEIGHTED))} in it has stored float32 weights",
            fix="run it in float: precision: fp32",
        )
    for text in _notes(graph):
        log.info("%s: %s", model.path, text)
    return raised


def calibrated(graph: Graph) -> tuple[str, ...]:
    """Float32 tensors that are worth a range, in the order they are fed and computed.

    That is every one whose values depend on the values fed: not stored tensors, nor what is computed from stored
    tensors and from shapes alone.

    Args:
        graph: of a prepared model.
    """
    alive = {spec.name for spec in graph.inputs}
    found = [spec.name for spec in graph.inputs if spec.dtype == "float32"]
    for node in graph.nodes:
        if about(node.op).kind == "measure" or alive.isdisjoint(node.reads):
            continue
        alive.update(filter(None, node.outputs))
        found.extend(name for name in node.outputs if is_float(graph, name))
    return tuple(found)


def is_quantized(model: Model) -> bool:
    """Whether the model computes in integers already, by Q/DQ nodes or integer operators."""
    return any(_is_quantized(node) for node in read(model).nodes)


def _is_quantized(node: Node) -> bool:
    return node.op in QDQ or is_integer(node.op)


def _check_types(model: Model) -> None:
    graph = read(model)
    for node in graph.nodes:
        if _is_quantized(node):
            raise ModelError(
                f"model {str(model.path)!r} is already quantized",
                why=f"node {node.name!r} is a {node.op}",
                where=str(model.path),
                fix="give the float32 model that it was made from; run this one as it is: precision: fp32; or take the "
                "scales of its Q/DQ nodes to a DLA: edgert quantize --target cache, or --target dla",
            )
    narrow = [name for name, array in graph.constants.items() if array.dtype.name in _16_BITS]
    narrow += [spec.name for spec in graph.inputs if spec.dtype in _16_BITS]
    if narrow:
        raise ModelError(
            f"model {str(model.path)!r} is a float16 model",
            why=f"tensor {narrow[0]!r} is stored or fed in 16 bits; ranges are measured in float32",
            where=str(model.path),
            fix="export it in float32; edgert makes fp16 and int8 from that",
        )
    if not any(spec.dtype == "float32" for spec in graph.inputs):
        raise ModelError(
            f"model {str(model.path)!r} takes no float32 input",
            why=f"its inputs are {', '.join(map(str, graph.inputs)) or 'none'}",
            where=str(model.path),
            fix="export it with a float32 input, without the conversion from bytes",
        )


def _static(model: Model) -> Model:
    """The model with open batch dimensions set to 1. Raises ModelError when others are open."""
    ones = {spec.name: (1, *_rest(spec)) for spec in inputs(model) if _has_open_batch(spec)}
    fixed = with_shapes(model, ones) if ones else model
    for spec in inputs(fixed):
        if not spec.is_static:
            raise ModelError(
                f"input {spec.name!r} of model {str(model.path)!r} has open dimensions: {spec}",
                why="ranges belong to one size of the network",
                where=str(model.path),
                fix="give its size (--shape, or input: {size: WIDTHxHEIGHT}, or profiles in the pipeline file)",
            )
    return fixed


def _has_open_batch(spec: TensorSpec) -> bool:
    known = [isinstance(dim, int) for dim in spec.shape]
    return spec.ranked and known[:1] == [False] and all(known[1:])


def _rest(spec: TensorSpec) -> tuple[int, ...]:
    """The known dimensions after the first."""
    return tuple(dim for dim in spec.shape[1:] if isinstance(dim, int))


def _notes(graph: Graph) -> Iterator[str]:
    for node in graph.nodes:
        if node.domain:
            yield f"node {node.name!r} ({node.domain}.{node.op}) stays in float"
        elif about(node.op).kind == "control":
            yield f"what is inside node {node.name!r} ({node.op}) stays in float"
