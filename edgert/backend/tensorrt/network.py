"""The network that TensorRT's parser creates from an ONNX model.

Functions set its formats and shapes, match its layers with nodes, and place layers on a DLA core.
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
    """A layer of the network.

    ``dtype`` is TensorRT's name of the first output's type, such as ``FLOAT``; empty without outputs.
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
        nodes_of: nodes of every layer, in the order of the layers.
        computes: whether each layer computes a node; else it is a helper layer, such as for a constant.
        layers_of: positions of layers by node; nodes without a layer, such as constants, are absent.
    """

    nodes_of: tuple[tuple[str, ...], ...]
    computes: tuple[bool, ...]
    layers_of: Mapping[str, tuple[int, ...]]


def network_layers(network: api.INetworkDefinition) -> tuple[Layer, ...]:
    """Return the layers of a parsed network."""
    found = []
    for index in range(network.num_layers):
        layer: api.ILayer = network.get_layer(index)
        inputs = tuple(_tensor_name(layer.get_input(index)) for index in range(layer.num_inputs))
        outputs = tuple(_tensor_name(layer.get_output(index)) for index in range(layer.num_outputs))
        dtype = layer.get_output(0).dtype.name if outputs else ""
        found.append(Layer(layer.name, layer.type.name, layer.metadata or "", inputs, outputs, dtype))
    return tuple(found)


def metadata_names(metadata: str) -> tuple[str, ...]:
    """Return the node names in a layer's metadata; names may contain brackets."""
    if _MARK not in metadata:
        return ()
    parts = _SPLIT.split(metadata)[1:]
    return tuple(dict.fromkeys(part.removesuffix("]") for part in parts))


def correspond(layers: Sequence[Layer], nodes: Mapping[str, tuple[str, ...]]) -> Correspondence:
    """Return the correspondence of layers, in the network's order, and nodes, which are given with their outputs."""
    producers = {tensor: name for name, outputs in nodes.items() for tensor in outputs if tensor}
    computed: list[tuple[str, ...]] = []  # nodes of a layer by its metadata, its name, or its outputs
    for layer in layers:
        names = tuple(known_names(metadata_names(layer.metadata) or (layer.name,), nodes, producers))
        outputs = (producers[tensor] for tensor in layer.outputs if tensor in producers)
        computed.append(names or tuple(dict.fromkeys(outputs)))
    nodes_of = _assign_helpers(layers, computed)
    layers_of: dict[str, list[int]] = {}
    for position, names in enumerate(nodes_of):
        for name in names:
            layers_of.setdefault(name, []).append(position)
    return Correspondence(
        tuple(nodes_of),
        tuple(bool(names) for names in computed),
        {name: tuple(found) for name, found in layers_of.items()},
    )


def known_names(names: Sequence[str], nodes: Mapping[str, object], producers: Mapping[str, str]) -> Iterator[str]:
    """Yield the nodes of TensorRT's names, without unknown ones. ``producers`` are nodes by output tensor."""
    for name in names:
        if name in nodes:
            yield name
        elif name.startswith(_UNNAMED) and name.removeprefix(_UNNAMED) in producers:
            yield producers[name.removeprefix(_UNNAMED)]


def _assign_helpers(layers: Sequence[Layer], computed: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Return the nodes of every layer, which for helper layers are those of the layers that read their outputs."""
    readers: dict[str, list[int]] = {}
    for position, layer in enumerate(layers):
        for tensor in layer.inputs:
            readers.setdefault(tensor, []).append(position)
    nodes_of, changed = list(computed), True
    while changed:
        changed = False
        for position in range(len(layers) - 1, -1, -1):  # layers are roughly in execution order
            if not nodes_of[position]:
                following = [reader for tensor in layers[position].outputs for reader in readers.get(tensor, ())]
                names = tuple(dict.fromkeys(name for reader in following for name in nodes_of[reader]))
                nodes_of[position], changed = names, changed or bool(names)
    return nodes_of


def _tensor_name(tensor: api.ITensor) -> str:
    return "" if tensor is None else str(tensor.name)


_MAX_ERRORS = 5


def parse(parser: api.OnnxParser, network: api.INetworkDefinition, request: BuildRequest) -> None:
    """Parse the model into the parser's network. Raises BuildError that names the nodes that fail."""
    if parser.parse(request.model):
        if not network.num_outputs:  # bytes that are no ONNX at all may be parsed as an empty model
            raise request.refusal("TensorRT found no network in the model", "nothing in it computes an output")
        return
    errors = [_parser_error(parser.get_error(index), request) for index in range(min(parser.num_errors, _MAX_ERRORS))]
    if not errors:
        raise request.refusal("TensorRT's ONNX parser failed", "it gave no reason")
    more = parser.num_errors - len(errors)
    if more > 0:
        errors[-1].why += f" (and {more} more)"
    first, *others = errors
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
    """Add optimization profiles. Raises BuildError if an input with open dimensions has no shapes, or wrong ones."""
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
                "set input: shape with the least, usual and largest size",
            )
        if not profile:
            continue
        added: api.IOptimizationProfile = builder.create_optimization_profile()
        for name, span in profile.items():
            if name not in inputs:
                raise request.refusal(f"no input {name!r}{nearest(name, inputs)}", "a profile gives shapes for it")
            _check_span(name, inputs[name], span, request)
            added.set_shape(name, span.least, span.usual, span.most)
        config.add_optimization_profile(added)


def _check_span(name: str, shape: tuple[int, ...], span: Span, request: BuildRequest) -> None:
    """Raise BuildError for shapes that do not fit the input, for which TensorRT would only log an error."""
    for sizes in (span.least, span.usual, span.most):
        fits = len(sizes) == len(shape) and all(dim < 0 or dim == size for dim, size in zip(shape, sizes, strict=True))
        if not fits:
            raise request.refusal(f"input {name!r} cannot be {list(sizes)}", f"the model has {list(shape)}")
    ordered = all(low <= mid <= high for low, mid, high in zip(span.least, span.usual, span.most, strict=True))
    if not ordered or min(span.least, default=1) < 0:
        raise request.refusal(f"the shapes of input {name!r} are not in order", "least ≤ usual ≤ largest, each size")


def _parser_error(error: api.ParserError, request: BuildRequest) -> BuildError:
    """Return the error of a parser's error; releases before 10.0 report only the position of the node."""
    name = error.node_name() if hasattr(error, "node_name") else ""
    operator = error.node_operator() if hasattr(error, "node_operator") else ""
    name = name or dict(enumerate(request.nodes)).get(error.node(), "")
    opset = f"opset {request.opset}" if request.opset else ""
    kind = ", ".join(filter(None, (operator, opset)))
    subject = f"node {name!r}{f' ({kind})' if kind else ''}" if name else "the model"
    text = error.desc()
    why = text.partition('&& "')[2].rstrip('" ') or text  # without the C++ expression that failed
    fix = "use engines: [tensorrt, onnxruntime], where ONNX Runtime runs models that TensorRT cannot"
    if "Plugin not found" in text:
        fix = f"write the operator, which TensorRT lacks, with other operators; or {fix}"
    elif "zero point" in text:
        fix = "quantize the float model with edgert quantize, which gives symmetric ranges"
    return request.refusal(f"TensorRT cannot parse {subject}", why, fix)


# Placement of layers on a DLA core, which is the same in every TensorRT that supports DLAs.


def check_core(builder: api.Builder, request: BuildRequest) -> None:
    """Raise DeviceError if the engine's DLA core is missing."""
    core, cores = request.dla_core, builder.num_DLA_cores
    if core is not None and core >= cores:
        raise DeviceError(
            f"there is no dla{core}",
            why=f"TensorRT sees {cores} DLA core{'' if cores == 1 else 's'} on this machine",
            where=request.title,
            fix="edgert doctor reports why; or use placement: gpu",
        )


def place_layers(
    trt: api.Trt,
    network: api.INetworkDefinition,
    config: api.IBuilderConfig,
    request: BuildRequest,
    parts: Correspondence,
) -> tuple[str, ...]:
    """Set the accelerator of layers by the placement; the GPU may run layers that the DLA cannot.

    If all nodes are placed on the DLA, it becomes the default device, as with ``trtexec --useDLACore``. Otherwise each
    layer runs where its nodes are placed; a helper layer of nodes on both sides runs on the GPU. Flags for precision
    must be set before, as the layers that a DLA can run depend on them. Returns the nodes placed on the DLA that
    TensorRT reports it cannot run there.
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
