"""Static shapes: fix those of inputs, infer all others, and read a model as a graph with known types."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from edgert.errors import ModelError, nearest
from edgert.graph.clean import SORT_NODES, STORE_CONSTANTS
from edgert.graph.fold_constants import with_folded_constants
from edgert.graph.ir import Graph
from edgert.graph.model import Model, TensorSpec, element_type, initializer_names, inputs, outputs
from edgert.graph.onnx_convert import to_graph, with_large_constants_fed
from edgert.graph.type_inference import infer_values, specs_of

if TYPE_CHECKING:
    import onnx

Shapes = Mapping[str, Sequence[int]]
"""Positive dimensions by input name."""


def with_shapes(model: Model, shapes: Shapes, *, open_batch: bool = False) -> Model:
    """Return the model with the named inputs fixed to these shapes, and all other shapes inferred from them.

    A dimension that the model names ("batch") is fixed in every input that has it.

    Args:
        model: model to copy.
        shapes: all dimensions of each input, by name.
        open_batch: whether first dimensions that the model leaves open stay open, whatever ``shapes`` say.

    Raises:
        ModelError: there is no such input, or it has another rank. The model fixes a dimension to another size, or two
            inputs would give it different sizes. The graph cannot work with the shapes (a Concat no longer fits).
    """
    specs = {spec.name: spec for spec in inputs(model)}
    symbols = _named_sizes(specs, shapes, model)
    kept = {spec.shape[0] for spec in specs.values() if spec.shape} if open_batch else set()
    symbols = {dim: size for dim, size in symbols.items() if dim not in kept}
    proto = model.copied_proto()
    for value in proto.graph.input:
        if value.name in shapes:
            given = shapes[value.name]
            _set_dims(value, [None if open_batch else given[0], *given[1:]] if given else [])
        elif value.name in specs:
            _set_dims(value, [symbols.get(dim) if isinstance(dim, str) else None for dim in specs[value.name].shape])
    for value in (*proto.graph.value_info, *proto.graph.output):
        for dim in value.type.tensor_type.shape.dim:
            if dim.HasField("dim_param"):
                dim.ClearField("dim_param")  # the exporter's guess must not constrain inference
    graph = to_graph(proto)[0]
    _check_consistent(graph, model, shapes)
    _record_types(proto, graph)
    _restore_symbols(proto.graph, model.proto.graph, symbols)
    return model.derive(proto)


def infer(model: Model) -> Model:
    """Return the model with the type of every tensor recorded, as far as it can be inferred.

    Constants are folded to infer more, but the nodes stay. Raises ModelError on a broken graph.
    """
    proto = model.copied_proto()
    _record_types(proto, to_graph(proto)[0])
    return model.derive(proto)


def read(model: Model) -> Graph:
    """Return the model as a graph, with all types that can be inferred; clean it first to store its weights.

    Raises:
        ModelError: the graph is broken, or an input is not a tensor.
    """
    fed, results = inputs(model), outputs(model)
    graph = replace(to_graph(model.proto)[0], inputs=fed, outputs=results)
    return replace(graph, specs=tensor_types(graph))


def tensor_types(graph: Graph) -> dict[str, TensorSpec]:
    """Return known and inferred types by tensor name; raise ModelError if the graph is broken."""
    return specs_of(_infer_folded(graph))


def _named_sizes(specs: Mapping[str, TensorSpec], shapes: Shapes, model: Model) -> dict[str, int]:
    """Return the sizes of named dimensions; raise ModelError where the shapes do not fit the inputs."""
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
    """Yield each reason why an input cannot have a shape, with its fix; add named dimensions to ``symbols``."""
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


def _set_dims(value: onnx.ValueInfoProto, sizes: Sequence[int | None]) -> None:
    """Set the dimensions of an input; None leaves one as it is."""
    shape = value.type.tensor_type.shape
    while len(shape.dim) < len(sizes):
        shape.dim.add()
    for dim, size in zip(shape.dim, sizes, strict=True):
        if size is not None:
            dim.dim_value = size


def _restore_symbols(graph: onnx.GraphProto, before: onnx.GraphProto, symbols: Mapping[str, int]) -> None:
    """Give open dimensions of outputs their old names again, or the size that the name now stands for."""
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
    """Raise ModelError when the shapes contradict each other, unless the model does so without them."""
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


def _record_types(proto: onnx.ModelProto, read: Graph) -> None:
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
    """Return inferred types by tensor name; constants are folded first, which keeps names."""
    from onnx import helper

    for step in (SORT_NODES, STORE_CONSTANTS):
        graph, _ = step.apply(graph)
    graph = with_folded_constants(with_large_constants_fed(graph))
    found = infer_values(graph)
    for name, array in graph.constants.items():
        found[name] = helper.make_tensor_value_info(name, element_type(array.dtype.name), array.shape)
    return found
