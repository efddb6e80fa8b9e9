"""Inputs of a graph changed to what a pipeline feeds: a batch of images, and nothing else.

Inputs that only state the size of the image are stored as constants. Detectors that include their post-processing
multiply boxes by such a size. With the network's own size as a constant, boxes are in network pixels. A pipeline scales
these to the source as those of any other head; letterboxes and crops are then right, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from edgert.graph.model import initializer_names

if TYPE_CHECKING:
    import onnx

_VALUES: Mapping[str, Callable[[int, int], tuple[float, float]]] = {
    "orig_target_sizes": lambda width, height: (width, height),
    "im_shape": lambda width, height: (height, width),
    "scale_factor": lambda width, height: (1, 1),
}
"""Values of each such input, from width and height.

RT-DETR, D-FINE and DEIM: ``tools/export_onnx.py`` of github.com/lyuwenyu/RT-DETR and github.com/Peterande/D-FINE.
Others: ``deploy/EXPORT_MODEL_en.md`` of github.com/PaddlePaddle/PaddleDetection."""
_IR_WITH_FREE_WEIGHTS = 4  # before it, stored tensors had to be listed among the inputs


def bind_sizes(proto: onnx.ModelProto) -> None:
    """Replace such inputs by constants in place, where there is one image input with fixed height and width."""
    import onnx

    graph = proto.graph
    stored = initializer_names(graph)
    fed = [item for item in graph.input if item.name not in stored]
    sizes = [item for item in fed if item.name in _VALUES and _is_pair(item)]
    images = [item for item in fed if item not in sizes]
    if not sizes or len(images) != 1:
        return
    network = _network(images[0])
    for item in sizes if network else ():
        dtype = onnx.helper.tensor_dtype_to_np_dtype(item.type.tensor_type.elem_type)
        values = np.array([_VALUES[item.name](*network)], dtype)
        graph.initializer.append(onnx.numpy_helper.from_array(values, item.name))
        if proto.ir_version >= _IR_WITH_FREE_WEIGHTS:
            graph.input.remove(item)


_COLORS = 3
_LEAST_PX = 8  # a smaller dimension is no height or width of an image
_AXES_ARE_AN_INPUT = 13
"""First opset whose Squeeze takes its axes as an input (onnx, docs/Changelog.md)."""


def add_batch(proto: onnx.ModelProto, opset: int) -> None:
    """Give the only input of a graph a batch dimension of 1 in place, where it is one color image without that.

    Detectors of torchvision and conversions from Core ML take such an image.
    """
    import onnx

    graph = proto.graph
    stored = initializer_names(graph)
    fed = [item for item in graph.input if item.name not in stored]
    if len(fed) != 1 or not _is_image(_shape(fed[0])):
        return
    (image,), name = fed, f"{fed[0].name}/without_batch"
    _renamed(graph, image.name, name)
    dims = image.type.tensor_type.shape.dim
    sizes = [
        onnx.TensorShapeProto.Dimension(dim_value=1),
        *(type(dim).FromString(dim.SerializeToString()) for dim in dims),
    ]
    del dims[:]
    dims.extend(sizes)
    if opset < _AXES_ARE_AN_INPUT:
        graph.node.insert(0, onnx.helper.make_node("Squeeze", [image.name], [name], name=name, axes=[0]))
        return
    axis = f"{name}/axis"
    graph.node.insert(0, onnx.helper.make_node("Squeeze", [image.name, axis], [name], name=name))
    graph.node.insert(0, onnx.helper.make_node("Constant", [], [axis], name=axis, value_ints=[0]))


def _is_image(shape: list[int]) -> bool:
    if len(shape) != 3 or _COLORS not in (shape[0], shape[2]):
        return False
    sides = shape[1:] if shape[0] == _COLORS else shape[:2]
    return all(size == 0 or size >= _LEAST_PX for size in sides)


def _renamed(graph: onnx.GraphProto, before: str, after: str) -> None:
    """Make nodes read another tensor, including those of inner graphs."""
    for node in graph.node:
        for place, name in enumerate(node.input):
            if name == before:
                node.input[place] = after
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                _renamed(inner, before, after)


def _shape(item: onnx.ValueInfoProto) -> list[int]:
    """Return the dimensions, with 0 for one that is not fixed."""
    return [dim.dim_value for dim in item.type.tensor_type.shape.dim]


def _is_pair(item: onnx.ValueInfoProto) -> bool:
    shape = _shape(item)
    return len(shape) == 2 and shape[1] in (0, 2)


def _network(image: onnx.ValueInfoProto) -> tuple[int, int] | tuple[()]:
    """Return width and height; empty where they are not fixed."""
    shape = _shape(image)
    if len(shape) != 4:
        return ()
    height, width = shape[2:] if shape[1] in (1, 3, 4) else shape[1:3]
    return (width, height) if width and height else ()
