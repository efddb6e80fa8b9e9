"""Functions that make shapes static: for engines, profiles, and everything that must know sizes beforehand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from edgert.errors import ModelError, nearest
from edgert.graph.clean import SORT_NODES, STORE_CONSTANTS
from edgert.graph.fold_constants import with_known
from edgert.graph.ir import Graph
from edgert.graph.model import Model, TensorSpec, element_type, initializer_names, inputs, outputs
from edgert.graph.onnx_convert import lightened, to_graph
from edgert.graph.type_inference import infer_values, specs_of

if TYPE_CHECKING:
    import onnx

Shapes = Mapping[str, Sequence[int]]
"""Dimensions by input name, all positive."""


def with_shapes(model: Model, shapes: Shapes, *, open_batch: bool = False) -> Model:
    """Return the model with the named inputs fixed to these shapes, and all other shapes inferred from them.

    A dimension the model names ("batch") is fixed in every input that has a dimension of that name.

    Args:
        model: the model; it is not changed.
        shapes: input name → all its dimensions.
        open_batch: first dimensions that the model leaves open stay open, whatever ``shapes`` say.

    Raises:
        ModelError: no such input, or another rank. The model fixes a dimension to another size, or two inputs would
            give it different sizes. The graph cannot work with the shapes (a Concat that no longer fits).
    """
    specs = {spec.name: spec for spec in inputs(model)}
    symbols = _bind(specs, shapes, model)
    kept = {spec.shape[0] for spec in specs.values() if spec.shape} if open_batch else set()
    symbols = {dim: size for dim, size in symbols.items() if dim not in kept}
    proto = model.copied_proto()
    for value in proto.graph.input:
        if value.name in shapes:
            given = shapes[value.name]
            _fix(value, [None if open_batch else given[0], *given[1:]] if given else [])
        elif value.name in specs:
            _fix(value, [symbols.get(dim) if isinstance(dim, str) else None for dim in specs[value.name].shape])
    for value in (*proto.graph.value_info, *proto.graph.output):
        for dim in value.type.tensor_type.shape.dim:
            if dim.HasField("dim_param"):
                dim.ClearField("dim_param")  # the exporter's guess must not constrain inference
    graph = to_graph(proto)[0]
    _check_consistent(graph, model, shapes)
    _record(proto, graph)
    _restore_symbols(proto.graph, model.proto.graph, symbols)
    return model.derive(proto)


def infer(model: Model) -> Model:
    """Return the model with the type of every tensor recorded, as far as it can be inferred.

    Shape chains are folded to infer more, but the graph itself stays. Raises ModelError on a broken graph.
    """
    proto = model.copied_proto()
    _record(proto, to_graph(proto)[0])
    return model.derive(proto)


def read(model: Model) -> Graph:
    """Return the model as plain records, with all types that can be inferred; clean it first to store its weights.

    Raises:
        ModelError: the graph is broken, or an input is no tensor.
    """
    fed, results = inputs(model), outputs(model)
    graph = replace(to_graph(model.proto)[0], inputs=fed, outputs=results)
    return replace(graph, specs=types(graph))


def types(graph: Graph) -> dict[str, TensorSpec]:
    """Return tensor name → spec for every tensor whose type is known or can be inferred; raise ModelError if broken."""
    return specs_of(_infer_folded(graph))


def _bind(specs: Mapping[str, TensorSpec], shapes: Shapes, model: Model) -> dict[str, int]:
    """Return the sizes of the named dimensions; raise ModelError where the shapes do not fit."""
    symbols: dict[str, int] = {}
    for name, given in shapes.items():
        if name not in specs:
            why = f"its inputs are {', '.join(map(str, specs.values())) or 'none'}{nearest(name, specs)}"
            raise ModelError(f"model {str(model.path)!r} has no input {name!r}", why=why, fix="correct the name")
        for why, fix in _misfits(specs[name], given, symbols):
            what = (
                f"input {name!r} of model {str(model.path)!r} cannot have shape {list(given)}; expected {specs[name]}"
            )
            raise ModelError(what, why=why, fix=fix)
    return symbols


def _misfits(spec: TensorSpec, given: Sequence[int], symbols: dict[str, int]) -> Iterator[tuple[str, str]]:
    """Yield why an input cannot have a shape, and what to do; add its named dimensions to ``symbols``."""
    if any(size < 1 for size in given):
        yield "every dimension must be a positive number", "give positive sizes"
    if spec.ranked and len(given) != len(spec.shape):
        yield f"{len(given)} dimensions given, {len(spec.shape)} expected", "give one size per dimension"
    for axis, (dim, size) in enumerate(zip(spec.shape, given, strict=False)):
        if isinstance(dim, int) and dim != size:
            why = f"dimension {axis} is fixed to {dim} in the model, {size} given"
            yield why, f"give {dim}, or export the model with that dimension dynamic"
    for dim, size in zip(spec.shape, given, strict=False):
        if isinstance(dim, str) and symbols.setdefault(dim, size) != size:
            why = f"dimension {dim!r} is {symbols[dim]} in one input and {size} in another; the model has one size"
            yield why, "give both the same size"


def _fix(value: onnx.ValueInfoProto, sizes: Sequence[int | None]) -> None:
    """Set the dimensions of an input; None keeps one."""
    shape = value.type.tensor_type.shape
    while len(shape.dim) < len(sizes):
        shape.dim.add()
    for dim, size in zip(shape.dim, sizes, strict=True):
        if size is not None:
            dim.dim_value = size


def _restore_symbols(graph: onnx.GraphProto, before: onnx.GraphProto, symbols: Mapping[str, int]) -> None:
    """Give outputs that inference left open their old names again, or the size that the name now has."""
    for value, old in zip(graph.output, before.output, strict=True):
        if value.type.WhichOneof("value") != "tensor_type":
            continue
        for dim, named in zip(value.type.tensor_type.shape.dim, old.type.tensor_type.shape.dim, strict=False):
            if dim.HasField("dim_value") or not named.dim_param:
                continue
            if named.dim_param in symbols:
                dim.dim_value = symbols[named.dim_param]
            else:
                dim.dim_param = named.dim_param


def _check_consistent(graph: Graph, model: Model, shapes: Shapes) -> None:
    """Raise ModelError for the shapes, but only when the model itself is consistent without them."""
    try:
        infer_values(graph, strict=True)
    except ModelError as error:
        try:
            infer_values(to_graph(model.proto)[0], strict=True)
        except ModelError:
            return  # the model itself has contradictions or unknown operators; the backend decides
        given = ", ".join(f"{name} {list(size)}" for name, size in shapes.items())
        raise ModelError(
            f"model {str(model.path)!r} does not work with {given}",
            why=error.why,
            fix="give a size that the network was made for, often a multiple of 32",
        ) from error


def _record(proto: onnx.ModelProto, read: Graph) -> None:
    """Write what can be inferred into the message: types of inner tensors and shapes of outputs."""
    inferred, graph = _infer_folded(read), proto.graph
    known = {item.name for item in (*graph.input, *graph.output)} | initializer_names(graph)
    made = [name for node in graph.node for name in node.output if name in inferred and name not in known]
    infos = [*(item for item in graph.value_info if item.name not in inferred), *(inferred[name] for name in made)]
    del graph.value_info[:]
    graph.value_info.extend(infos)
    for value in graph.output:
        if value.name in inferred:
            value.type.CopyFrom(inferred[value.name].type)


def _infer_folded(graph: Graph) -> dict[str, onnx.ValueInfoProto]:
    """Return inferred types by name; folding keeps tensor names, so the types hold for the graph as it was."""
    from onnx import helper

    for step in (SORT_NODES, STORE_CONSTANTS):
        graph, _ = step.apply(graph)
    graph = with_known(lightened(graph))
    found = infer_values(graph)
    for name, array in graph.constants.items():
        found[name] = helper.make_tensor_value_info(name, element_type(array.dtype.name), array.shape)
    return found
