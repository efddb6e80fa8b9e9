"""The network that TensorRT's parser makes of an ONNX model.

This sets its formats and shapes, maps its layers to nodes, and places layers on a DLA core.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from edgert.backend.base import Span
from edgert.backend.tensorrt import library as api
from edgert.backend.tensorrt.build_request import DTYPES, GPU, BuildRequest
from edgert.errors import BuildError, DeviceError, nearest

_MARK = "[ONNX Layer: "
_SPLIT = re.compile(r"\]?\x1e?\[ONNX Layer: ")
_UNNAMED = "node_of_"


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer of the network that the parser made.

    Attributes:
        name, kind, metadata: as TensorRT reports them; the kind is ``CONVOLUTION`` and the like.
        inputs, outputs: tensor names.
        dtype: of its first output, ``FLOAT``; empty without one.
    """

    name: str
    kind: str
    metadata: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    dtype: str = ""


@dataclass(frozen=True, slots=True)
class Correspondence:
    """Mapping between TensorRT layers and ONNX nodes.

    Attributes:
        nodes_of: for every layer, in order, the nodes it belongs to.
        computes: for every layer, whether it computes a node, and does not only help one.
        layers_of: node → positions of its layers.
        folded: nodes that became no layer: constants, and what does nothing.
        stray: positions of layers that belong to no node.
    """

    nodes_of: tuple[tuple[str, ...], ...]
    computes: tuple[bool, ...]
    layers_of: Mapping[str, tuple[int, ...]]
    folded: tuple[str, ...]
    stray: tuple[int, ...]


def network_layers(network: api.INetworkDefinition) -> tuple[Layer, ...]:
    """Return the layers of a parsed network."""
    found = []
    for index in range(network.num_layers):
        layer: api.ILayer = network.get_layer(index)
        inputs = tuple(_name(layer.get_input(index)) for index in range(layer.num_inputs))
        outputs = tuple(_name(layer.get_output(index)) for index in range(layer.num_outputs))
        dtype = layer.get_output(0).dtype.name if outputs else ""
        found.append(Layer(layer.name, layer.type.name, layer.metadata or "", inputs, outputs, dtype))
    return tuple(found)


def metadata_names(metadata: str) -> tuple[str, ...]:
    """Return the names in a layer's metadata; a name may itself have brackets."""
    if _MARK not in metadata:
        return ()
    parts = _SPLIT.split(metadata)[1:]
    return tuple(dict.fromkeys(part.removesuffix("]") for part in parts))


def correspond(layers: Sequence[Layer], nodes: Mapping[str, tuple[str, ...]]) -> Correspondence:
    """Match layers, in the network's order, with nodes: node → its output tensors."""
    makers = {tensor: name for name, outputs in nodes.items() for tensor in outputs if tensor}
    direct: list[tuple[str, ...]] = []  # what a layer computes, by its metadata, its name, or the tensors it computes
    for layer in layers:
        named = tuple(known_names(metadata_names(layer.metadata) or (layer.name,), nodes, makers))
        direct.append(named or tuple(dict.fromkeys(makers[tensor] for tensor in layer.outputs if tensor in makers)))
    nodes_of = _helped(layers, direct)
    layers_of: dict[str, list[int]] = {}
    for position, names in enumerate(nodes_of):
        for name in names:
            layers_of.setdefault(name, []).append(position)
    return Correspondence(
        tuple(nodes_of),
        tuple(bool(names) for names in direct),
        {name: tuple(found) for name, found in layers_of.items()},
        tuple(name for name in nodes if name not in layers_of),
        tuple(position for position, names in enumerate(nodes_of) if not names),
    )


def known_names(names: Sequence[str], nodes: Mapping[str, object], makers: Mapping[str, str]) -> Iterator[str]:
    """Yield the nodes that TensorRT's names mean; unknown ones are left out."""
    for name in names:
        if name in nodes:
            yield name
        elif name.removeprefix(_UNNAMED) in makers and name.startswith(_UNNAMED):
            yield makers[name.removeprefix(_UNNAMED)]


def _helped(layers: Sequence[Layer], direct: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Return the nodes of every layer; a helper layer has its readers' nodes. Layers are roughly in running order."""
    readers: dict[str, list[int]] = {}
    for position, layer in enumerate(layers):
        for tensor in layer.inputs:
            readers.setdefault(tensor, []).append(position)
    found, changed = list(direct), True
    while changed:
        changed = False
        for position in range(len(layers) - 1, -1, -1):
            if not found[position]:
                following = [reader for tensor in layers[position].outputs for reader in readers.get(tensor, ())]
                names = tuple(dict.fromkeys(name for reader in following for name in found[reader]))
                found[position], changed = names, changed or bool(names)
    return found


def _name(tensor: api.ITensor) -> str:
    """Return a tensor's name, empty for an omitted optional input."""
    return "" if tensor is None else str(tensor.name)


_MOST_ERRORS = 5


def parse(parser: api.OnnxParser, network: api.INetworkDefinition, request: BuildRequest) -> None:
    """Fill the parser's network. Raises BuildError with the nodes that fail."""
    if parser.parse(request.model):
        if not network.num_outputs:  # bytes that are no ONNX at all may be parsed as an empty model
            raise request.refusal("TensorRT found no network in the model", "nothing in it computes an output")
        return
    found = [_error(parser.get_error(index), request) for index in range(min(parser.num_errors, _MOST_ERRORS))]
    if not found:
        raise request.refusal("TensorRT's ONNX parser gave up", "it gave no reason")
    more = parser.num_errors - len(found)
    if more > 0:
        found[-1].why += f" (and {more} more)"
    first, *others = found
    first.others = tuple(others)
    raise first


def set_formats(trt: api.Trt, network: api.INetworkDefinition, request: BuildRequest) -> None:
    """Set layouts and types of inputs and outputs. Raises BuildError for a tensor that is neither."""
    ends: dict[str, api.ITensor] = {}
    for index in range(network.num_inputs):
        ends[network.get_input(index).name] = network.get_input(index)
    for index in range(network.num_outputs):
        ends[network.get_output(index).name] = network.get_output(index)
    for name, form in request.formats.items():
        if name not in ends:
            raise request.refusal(f"no input or output {name!r}{nearest(name, ends)}", "a format names it")
        tensor: api.ITensor = ends[name]
        tensor.allowed_formats = 1 << int(getattr(trt.TensorFormat, form.layout))
        if form.dtype:
            tensor.dtype = getattr(trt.DataType, DTYPES[form.dtype])


def add_profiles(
    builder: api.Builder, network: api.INetworkDefinition, config: api.IBuilderConfig, request: BuildRequest
) -> None:
    """Add optimization profiles. Raises BuildError where an input with open dimensions has no shapes."""
    inputs: dict[str, tuple[int, ...]] = {}
    for index in range(network.num_inputs):
        tensor: api.ITensor = network.get_input(index)
        inputs[tensor.name] = tuple(tensor.shape)
    open_inputs = [name for name, shape in inputs.items() if any(dim < 0 for dim in shape)]
    for number, profile in enumerate(request.profiles or ({},)):
        missing = [name for name in open_inputs if name not in profile]
        if missing:
            raise request.refusal(
                f"input {missing[0]!r} has open dimensions {list(inputs[missing[0]])}",
                f"profile {number} gives no shapes for it",
                "write input: shape with the least, usual and largest size",
            )
        if not profile:
            continue
        made: api.IOptimizationProfile = builder.create_optimization_profile()
        for name, span in profile.items():
            if name not in inputs:
                raise request.refusal(f"no input {name!r}{nearest(name, inputs)}", "a profile gives shapes for it")
            _check(name, inputs[name], span, request)
            made.set_shape(name, span.least, span.usual, span.most)
        config.add_optimization_profile(made)


def _check(name: str, shape: tuple[int, ...], span: Span, request: BuildRequest) -> None:
    """Raise BuildError for a profile that does not fit; TensorRT would only log it, and build nothing."""
    for sizes in (span.least, span.usual, span.most):
        fits = len(sizes) == len(shape) and all(dim < 0 or dim == size for dim, size in zip(shape, sizes, strict=True))
        if not fits:
            raise request.refusal(f"input {name!r} cannot be {list(sizes)}", f"the model has {list(shape)}")
    ordered = all(low <= mid <= high for low, mid, high in zip(span.least, span.usual, span.most, strict=True))
    if not ordered or min(span.least, default=1) < 0:
        raise request.refusal(f"the shapes of input {name!r} are not in order", "least ≤ usual ≤ largest, each size")


def _error(error: api.ParserError, request: BuildRequest) -> BuildError:
    """Return a parser's error; releases before 10.0 report the node's position only."""
    name = error.node_name() if hasattr(error, "node_name") else ""
    operator = error.node_operator() if hasattr(error, "node_operator") else ""
    name = name or dict(enumerate(request.nodes)).get(error.node(), "")
    opset = f"opset {request.opset}" if request.opset else ""
    kind = ", ".join(filter(None, (operator, opset)))
    subject = f"node {name!r}{f' ({kind})' if kind else ''}" if name else "the model"
    text = error.desc()
    why = text.partition('&& "')[2].rstrip('" ') or text  # without the C++ expression that failed
    fix = "engines: [tensorrt, onnxruntime] has ONNX Runtime run what TensorRT cannot"
    if "Plugin not found" in text:
        fix = f"TensorRT has no such operator: write it with others; {fix}"
    elif "zero point" in text:
        fix = "quantize the float model with edgert quantize, which gives symmetric ranges"
    return request.refusal(f"TensorRT cannot parse {subject}", why, fix)


# Layers put on a DLA core. The calls are the same in every TensorRT that has DLAs.


def check_core(builder: api.Builder, request: BuildRequest) -> None:
    """Raise DeviceError when the engine's DLA core is missing."""
    core, cores = request.dla_core, builder.num_DLA_cores
    if core is not None and core >= cores:
        raise DeviceError(
            f"there is no dla{core}",
            why=f"TensorRT sees {cores} DLA core{'' if cores == 1 else 's'} on this machine",
            where=request.title,
            fix="edgert doctor reports why; placement: gpu does without",
        )


def place(
    trt: api.Trt,
    network: api.INetworkDefinition,
    config: api.IBuilderConfig,
    request: BuildRequest,
    parts: Correspondence,
) -> tuple[str, ...]:
    """Set the accelerator of layers by the placement; the GPU may run what the DLA cannot.

    A network that is all on the DLA is put there by default, as ``trtexec --useDLACore`` does. In a mixed one each
    layer is put where its nodes are; a layer that helps nodes on both sides stays on the GPU. Set flags for precision
    before: they decide what a DLA can run.

    Returns:
        Nodes placed on the DLA that TensorRT reports it cannot run there.
    """
    core = request.dla_core
    if core is None:
        return ()
    config.set_flag(trt.BuilderFlag.GPU_FALLBACK)
    config.DLA_core = core
    if request.all_on_dla:
        config.default_device_type = trt.DeviceType.DLA
        chosen: Sequence[int] = range(network.num_layers)
    else:
        config.default_device_type = trt.DeviceType.GPU
        on_gpu = {name for name in request.nodes if request.placement.get(name, GPU) == GPU}
        chosen = [index for index, names in enumerate(parts.nodes_of) if names and on_gpu.isdisjoint(names)]
    refused: dict[str, None] = {}
    for index in chosen:
        layer: api.ILayer = network.get_layer(index)
        if not request.all_on_dla:
            config.set_device_type(layer, trt.DeviceType.DLA)
        if parts.computes[index] and not config.can_run_on_DLA(layer):
            refused.update(dict.fromkeys(parts.nodes_of[index]))
    return tuple(refused)
