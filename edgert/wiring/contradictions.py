"""What in a model's file speaks against its graph, or against running it on a Jetson."""

from collections.abc import Iterator

from edgert.engine import one_image
from edgert.graph import Model, inputs
from edgert.graph.operators import is_integer
from edgert.wiring.exporter_metadata import DeclaredSettings
from edgert.wiring.prior import declared_task
from edgert.wiring.search import Subject
from edgert.wiring.trial import reads


def contradictions(declared: DeclaredSettings, model: Model, found: Subject) -> tuple[str, ...]:
    """Return a sentence for every statement of a file that its graph contradicts; the graph counts."""
    return tuple(_contradictions(declared, model, found))


def _contradictions(declared: DeclaredSettings, model: Model, found: Subject) -> Iterator[str]:
    meant = declared_task(declared, tuple(one_image(found.engine)))
    if meant and not reads(meant, found.engine, found.network):
        yield f"its metadata mean {meant}, which contradicts its outputs and is left out"
    sizes = {size for spec in inputs(model) for size in spec.shape[1:]}
    if declared.size and not set(declared.size) <= sizes and all(isinstance(size, int) for size in sizes):
        (width, height), network = declared.size, found.network
        yield f"its metadata say {width}x{height}, which contradicts its input of {network[0]}x{network[1]}"


def integers(model: Model) -> tuple[str, ...]:
    """Return a sentence where TensorRT cannot run such a quantized model; nothing otherwise."""
    found = next((node.op_type for node in model.proto.graph.node if is_integer(node.op_type)), "")
    if not found:
        return ()
    return (f"it was quantized for ONNX Runtime: TensorRT has no {found}; on a GPU or DLA, the float model is wanted",)
