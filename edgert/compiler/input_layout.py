"""The layout in which an engine takes its image: a layout of the DLA, where the image can be written in it.

Any other input is changed into a DLA's layout by a kernel on the GPU, frame by frame
(https://github.com/NVIDIA/Deep-Learning-Accelerator-SW, FAQ). The kernel that prepares images writes every number
anyway, and a DLA's layout as well as a plain one. Which layouts a DLA takes:
https://docs.nvidia.com/deeplearning/tensorrt/11.4.1/inference-library/dla-runtime-configuration.html
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from edgert.backend.tensorrt.build_request import GPU, Format
from edgert.config import InputConfig
from edgert.graph import Graph, Node, TensorSpec

_HWC4_CHANNELS, _HWC4_GROUPS = (1, 3, 4), 4
_VECTORS = {"float16": "CHW16", "int8": "CHW32"}
_RETYPES = ("Cast", "QuantizeLinear")


@dataclass(frozen=True, slots=True)
class InputLayout:
    """How an engine with DLA layers takes its image.

    Attributes:
        tensor: the input; empty where there is no one image.
        format: what is asked for; None leaves it plain, and the GPU changes it.
        why: the reason, in one line.
    """

    tensor: str
    format: Format | None
    why: str

    def describe(self, built: Mapping[str, Format]) -> str:
        """One line; ``built`` has the formats that the engine was built with in the end."""
        name = f"input {self.tensor!r}" if self.tensor else "inputs"
        if self.format is None:
            return f"{name} plain: {self.why}"
        kind = f"{self.format.layout} {self.format.dtype}".rstrip()
        if self.tensor not in built:
            return f"{name} plain: TensorRT could not build it with {kind}"
        return f"{name} in {kind}: {self.why}"


def input_layout(
    graph: Graph,
    config: InputConfig,
    placement: Mapping[str, str],
    *,
    typed: bool,
    precision: str,
    fp16_nodes: Collection[str] = (),
    scales: Mapping[str, float],
) -> InputLayout:
    """The layout for the image of an engine with DLA layers.

    Args:
        graph: what is compiled.
        config: how images are prepared.
        placement: node → accelerator; those that are left out run on the GPU.
        typed: whether types are in the model, as for TensorRT >= 11, so that only a layout can be requested.
        precision: in which a weakly typed TensorRT computes; nodes in ``fp16_nodes`` stay float16.
        scales: tensor → what one step of int8 is worth, for a weakly typed TensorRT.
    """
    if len(graph.inputs) != 1 or len(graph.inputs[0].shape) != 4:
        return InputLayout("", None, "the model takes something else than one image")
    (image,) = graph.inputs
    readers = graph.consumers.get(image.name, ())
    types = {_computed(reader, precision, fp16_nodes) for reader in readers}
    dtype = image.dtype if typed else "".join(sorted(types)) if len(types) == 1 else ""
    why = _why_plain(image, config, readers, placement) or _why_not_typed(image, readers, dtype, typed, scales)
    if why:
        return InputLayout(image.name, None, why)
    layout, reason = _layout(image, readers, dtype)
    requested = "" if typed else dtype
    scale = scales[image.name] if requested == "int8" else 0.0
    return InputLayout(image.name, Format(layout, requested, scale, optional=True), reason)


def _computed(reader: Node, precision: str, fp16_nodes: Collection[str]) -> str:
    """What a DLA computes a node in, which has no float32."""
    return "int8" if precision == "int8" and reader.name not in fp16_nodes else "float16"


def _why_plain(image: TensorSpec, config: InputConfig, readers: tuple[Node, ...], where: Mapping[str, str]) -> str:
    """Why a DLA's layout would not help, or cannot be written; empty if neither."""
    on_gpu = [reader.name for reader in readers if where.get(reader.name, GPU) == GPU]
    if on_gpu or not readers:
        return f"node {on_gpu[0]!r}, which reads it, runs on the GPU" if on_gpu else "no node reads it"
    channels = 1 if config.color == "gray" else 3
    if config.layout == "nhwc" or image.shape[1] != channels:
        return f"it is {list(image.shape)}, not (N, {channels}, H, W)"
    return ""


def _why_not_typed(
    image: TensorSpec, readers: tuple[Node, ...], dtype: str, typed: bool, scales: Mapping[str, float]
) -> str:
    """Why it cannot have a type that a DLA reads; empty if it can."""
    if typed:
        changed = [reader for reader in readers if reader.op in _RETYPES]
        if dtype not in _VECTORS:
            return f"types are in the model, whose input is {dtype}, and a DLA reads float16 and int8"
        return f"node {changed[0].name!r} changes its type first" if changed else ""
    if image.dtype != "float32" and image.dtype != dtype:
        return f"the model takes {image.dtype}, and a DLA reads float16 and int8"
    if not dtype:
        return "some nodes that read it compute in int8, others in float16"
    if dtype == "int8" and image.name not in scales:
        return "it has no scale for int8"
    return ""


def _layout(image: TensorSpec, readers: tuple[Node, ...], dtype: str) -> tuple[str, str]:
    """DLA_HWC4 for one convolution, whose precision is the input's; else the vectors that every DLA layer reads."""
    first = readers[0]
    is_conv = len(readers) == 1 and first.op == "Conv" and first.attributes.get("group", 1) <= _HWC4_GROUPS
    if is_conv and image.shape[1] in _HWC4_CHANNELS:
        return "DLA_HWC4", f"convolution {first.name!r} on the DLA reads it, and no kernel of the GPU changes it"
    return _VECTORS[dtype], f"node {first.name!r} on the DLA reads it, and no kernel of the GPU changes it"
