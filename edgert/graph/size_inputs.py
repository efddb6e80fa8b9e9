"""Inputs beside the image that only tell a graph how large that is: stored as constants, so that it takes images alone.

Detectors with their post-processing inside multiply boxes by such a size. Bound to the network's own, boxes are network
pixels, which a pipeline brings to the source's as those of any other head; letterboxes and crops are then right, too.
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
"""Input → its two numbers. RT-DETR, D-FINE and DEIM: ``tools/export_onnx.py`` of github.com/lyuwenyu/RT-DETR and
github.com/Peterande/D-FINE. Others: ``deploy/EXPORT_MODEL_en.md`` of github.com/PaddlePaddle/PaddleDetection."""
_IR_WITH_FREE_WEIGHTS = 4  # before, stored tensors had to be listed among the inputs


def bind_sizes(proto: onnx.ModelProto) -> None:
    """Replaces such inputs in place, where there is one image beside them and its height and width are fixed."""
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


def _shape(item: onnx.ValueInfoProto) -> list[int]:
    """0 for what is not fixed."""
    return [dim.dim_value for dim in item.type.tensor_type.shape.dim]


def _is_pair(item: onnx.ValueInfoProto) -> bool:
    shape = _shape(item)
    return len(shape) == 2 and shape[1] in (0, 2)


def _network(image: onnx.ValueInfoProto) -> tuple[int, int] | tuple[()]:
    """Width and height; empty where they are not fixed."""
    shape = _shape(image)
    if len(shape) != 4:
        return ()
    height, width = shape[2:] if shape[1] in (1, 3, 4) else shape[1:3]
    return (width, height) if width and height else ()
