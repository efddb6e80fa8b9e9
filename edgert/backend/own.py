"""Engines that cannot run operators of the user's own say so, by the first node that is one."""

from __future__ import annotations

from edgert.errors import BuildError
from edgert.graph.model import Model
from edgert.graph.own import operator_of
from edgert.graph.proto import label


def refuse_own(model: Model, engine: str) -> None:
    """Raises BuildError when a model has such a node.

    Args:
        engine: for the message, ``OpenVINO``.
    """
    for place, node in enumerate(model.proto.graph.node):
        one = operator_of(node)
        if one is not None:
            raise BuildError(
                f"{engine} cannot run node {label(node, place)!r}",
                why=f"{one} is an operator of your own: a Python function, and a CUDA kernel for TensorRT",
                where=str(model.path),
                fix="backend: ort runs it, TensorRT does where it has a kernel; or write it with ONNX operators",
            )
