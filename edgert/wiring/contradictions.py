"""Metadata of a model's file that its graph contradicts, and operators that TensorRT lacks."""

from collections.abc import Iterator

from edgert.engine import output_shapes
from edgert.graph import Model, inputs
from edgert.graph.operators import is_integer
from edgert.wiring.exporter_metadata import DeclaredSettings
from edgert.wiring.prior import declared_task
from edgert.wiring.search import Subject
from edgert.wiring.trial import can_read


def find_contradictions(declared: DeclaredSettings, model: Model, found: Subject) -> Iterator[str]:
    """Yield a sentence for each declaration that the graph contradicts; the declaration is then ignored."""
    meant = declared_task(declared, tuple(output_shapes(found.engine)))
    if meant and not can_read(meant, found.engine, found.network):
        yield f"its metadata mean {meant}, which contradicts its outputs and is left out"
    sizes = {size for spec in inputs(model) for size in spec.shape[1:]}
    if declared.size and not set(declared.size) <= sizes and all(isinstance(size, int) for size in sizes):
        (width, height), network = declared.size, found.network
        yield f"its metadata say {width}x{height}, which contradicts its input of {network[0]}x{network[1]}"


def integer_warnings(model: Model) -> tuple[str, ...]:
    """Return a warning where a model has integer operators that TensorRT lacks; else an empty tuple."""
    found = next((node.op_type for node in model.proto.graph.node if is_integer(node.op_type)), "")
    if not found:
        return ()
    return (f"it was quantized for ONNX Runtime: TensorRT has no {found}; on a GPU or DLA, the float model is wanted",)
