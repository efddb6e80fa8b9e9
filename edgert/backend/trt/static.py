"""The request for a model by itself, as it stands: its shapes from profiles, its precision from its own types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from edgert.backend.base import DEFAULT_PROFILE, BuilderSettings, EngineOptions, Shapes, Span
from edgert.backend.trt.pool import Pools
from edgert.backend.trt.request import GPU, BuildRequest, Precision, request_of
from edgert.graph.clean import clean
from edgert.graph.model import Model
from edgert.graph.node import Graph, read
from edgert.graph.operators import QDQ
from edgert.graph.shape import with_shapes
from edgert.graph.spec import TensorSpec, inputs


def static_request(model: Model, options: EngineOptions, **further: Any) -> BuildRequest:
    """The request for a model and its profiles.

    One profile makes the shapes static, unless several are to be allowed, or a batch of several rows, which stays open
    so that fewer can be run.

    Args:
        further: other fields of the request.

    Raises:
        ModelError: a profile does not fit the model's inputs.
        BuildError: a further field cannot be.
    """
    profiles = options.profiles or {DEFAULT_PROFILE: {}}
    specs = [spec for spec in inputs(model) if not spec.is_static]
    fixed = {name: with_shapes(model, shapes) if shapes else model for name, shapes in profiles.items()}
    rows = max((sizes[0] for shapes in profiles.values() for sizes in shapes.values() if sizes), default=1)
    is_one = len(profiles) == 1 and not options.spans and (rows == 1 or not _open_batch(specs))
    if not specs or is_one:
        ready, spans = clean(next(iter(fixed.values())))[0], []
    else:
        ready, spans = clean(model)[0], [{**_spans(specs, shapes), **options.spans} for shapes in profiles.values()]
    graph = read(ready)
    told = {"precision": precision_of(graph, options.precision), "profiles": tuple(filter(None, spans)), **further}
    return request_of(ready, **told, **settings_of(options.builder, further.get("placement", {})))


def settings_of(builder: BuilderSettings, placement: Mapping[str, str]) -> dict[str, Any]:
    """Fields of a request. Pools of a DLA are left out where no node is placed on one."""
    dla = (builder.dla_sram_bytes, builder.dla_local_bytes, builder.dla_global_bytes)
    uses_dla = any(where != GPU for where in placement.values())
    return {
        "pools": Pools(builder.workspace_bytes, *(dla if uses_dla else ())),
        "optimization_level": builder.optimization_level,
        "version_compatible": builder.version_compatible,
        "refit": builder.refit,
    }


def precision_of(graph: Graph, asked: str) -> Precision:
    """That of the model's own numbers: ``int8`` with Q/DQ nodes, ``fp16`` with float16 tensors, else as asked for."""
    if any(node.op in QDQ for node in graph.nodes):
        return "int8"
    if any(array.dtype == "float16" for array in graph.constants.values()):
        return "fp16"
    return "fp16" if asked == "fp16" else "fp32"


def _open_batch(specs: Sequence[TensorSpec]) -> bool:
    batches = {spec.shape[0] if spec.shape else 1 for spec in specs}
    return len(batches) == 1 and not isinstance(batches.pop(), int)


def _spans(specs: Sequence[TensorSpec], shapes: Shapes) -> dict[str, Span]:
    """The profile's own shapes, and below them every smaller batch where the batch is open."""
    found = {}
    for spec in specs:
        most = tuple(shapes.get(spec.name, ()))
        least = (1, *most[1:]) if most and _open_batch(specs) else most
        found[spec.name] = Span(least, most, most)
    return found
