"""Rewriting of stored int8 weights for processors whose byte products saturate."""

from typing import Any

from edgert.board.host import saturates_bytes
from edgert.graph import Model, to_bytes
from edgert.graph.model import element_type
from edgert.graph.operators import of_kind


def content(model: Model) -> bytes:
    """Return the model as one ONNX file for a session. Raises ModelError above 2 GiB.

    On an x86 processor without VNNI, sessions convert stored int8 to uint8 (``session.x64quantprecision``) with a
    single zero point. A run fails where each channel has a scale and the zero point is left out, so the zero point is
    written out there.
    """
    if not saturates_bytes():
        return to_bytes(model)
    scales = {one.name: one.dims[0] for one in model.proto.graph.initializer if len(one.dims) == 1}
    int8, operators = element_type("int8"), of_kind("dequantize")
    stored = {one.name for one in model.proto.graph.initializer if one.data_type == int8}

    def is_bare(node: Any) -> bool:
        if node.op_type not in operators or any(node.input[2:]):
            return False
        return bool(node.input[0] in stored and node.input[1] in scales)

    if not any(map(is_bare, model.proto.graph.node)):
        return to_bytes(model)
    proto = type(model.proto)()
    proto.CopyFrom(model.proto)
    for node in filter(is_bare, proto.graph.node):
        name, count = f"{node.output[0]}_zero_point", scales[node.input[1]]
        proto.graph.initializer.add(name=name, dims=[count], data_type=int8, raw_data=bytes(count))
        node.input[:] = [*node.input[:2], name]
    return to_bytes(Model(proto, model.path, model.digest))
