"""Changes that reduce a graph's inputs to what a pipeline feeds: one batch of images.

Inputs that only state the size of the image become constants. Detectors that include their post-processing multiply
boxes by this size. With the network's own size as constant, boxes are in network pixels, which a pipeline scales back
to the source as for any other detector.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from edgert.graph.model import dtype_name, initializer_names

if TYPE_CHECKING:
    import onnx

_SIZE_INPUTS: Mapping[str, Callable[[int, int], tuple[float, float]]] = {
    "orig_target_sizes": lambda width, height: (width, height),
    "im_shape": lambda width, height: (height, width),
    "scale_factor": lambda width, height: (1, 1),
}
"""Functions that return the value of each such input from width and height in pixels, by the input's name.

RT-DETR, D-FINE and DEIM: ``tools/export_onnx.py`` of github.com/lyuwenyu/RT-DETR and github.com/Peterande/D-FINE.
Others: ``deploy/EXPORT_MODEL_en.md`` of github.com/PaddlePaddle/PaddleDetection."""
_IR_WITH_FREE_WEIGHTS = 4  # first IR version in which stored tensors need not be listed among the inputs


def bind_sizes(proto: onnx.ModelProto) -> None:
    """Replace inputs of the image size by constants, in place, where the only other input is an image of fixed size."""
    import onnx

    graph = proto.graph
    fed = _fed_inputs(graph)
    sizes = [item for item in fed if item.name in _SIZE_INPUTS and _is_pair(item)]
    images = [item for item in fed if item not in sizes]
    if not sizes or len(images) != 1:
        return
    size = _image_size(images[0])
    for item in sizes if size else ():
        values = np.array([_SIZE_INPUTS[item.name](*size)], dtype_name(item.type.tensor_type.elem_type))
        graph.initializer.append(onnx.numpy_helper.from_array(values, item.name))
        if proto.ir_version >= _IR_WITH_FREE_WEIGHTS:
            graph.input.remove(item)


_NUMBERS = ("float16", "float32", "float64", "int32", "int64")
_COLORS = 3
_LEAST_PX = 8  # a smaller dimension is no height or width of an image
_AXES_ARE_AN_INPUT = 13
"""First opset whose Squeeze takes its axes as an input: https://onnx.ai/onnx/operators/onnx__Squeeze.html."""


def add_batch(proto: onnx.ModelProto, opset: int) -> None:
    """Add a batch dimension of 1, in place, to the only input of a graph, where it is a color image without one.

    Detectors of torchvision and conversions from Core ML have such an input.
    """
    import onnx

    graph = proto.graph
    fed = _fed_inputs(graph)
    if len(fed) != 1 or not _is_image(_dims(fed[0])):
        return
    (image,), name = fed, f"{fed[0].name}/without_batch"
    _redirect_reads(graph, image.name, name)
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


def _fed_inputs(graph: onnx.GraphProto) -> list[onnx.ValueInfoProto]:
    stored = initializer_names(graph)
    return [item for item in graph.input if item.name not in stored]


def _is_image(shape: list[int]) -> bool:
    if len(shape) != 3 or _COLORS not in (shape[0], shape[2]):
        return False
    sides = shape[1:] if shape[0] == _COLORS else shape[:2]
    return all(size == 0 or size >= _LEAST_PX for size in sides)


def _redirect_reads(graph: onnx.GraphProto, before: str, after: str) -> None:
    for node in graph.node:
        for place, name in enumerate(node.input):
            if name == before:
                node.input[place] = after
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                _redirect_reads(inner, before, after)


def _dims(item: onnx.ValueInfoProto) -> list[int]:
    return [dim.dim_value for dim in item.type.tensor_type.shape.dim]


def _is_pair(item: onnx.ValueInfoProto) -> bool:
    shape, dtype = _dims(item), dtype_name(item.type.tensor_type.elem_type)
    return len(shape) == 2 and shape[1] in (0, 2) and dtype in _NUMBERS


def _image_size(image: onnx.ValueInfoProto) -> tuple[int, int] | tuple[()]:
    """Return width and height in pixels; empty where they are open."""
    shape = _dims(image)
    if len(shape) != 4:
        return ()
    height, width = shape[2:] if shape[1] in (1, 3, 4) else shape[1:3]
    return (width, height) if width and height else ()
