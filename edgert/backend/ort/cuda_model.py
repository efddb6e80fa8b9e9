"""Preparation of a model for ONNX Runtime on a GPU: cleaned, without size arithmetic, and cached."""

import hashlib
import json
import logging
import time
from collections.abc import Mapping

import numpy as np

from edgert.backend import base
from edgert.backend.ort import cpu
from edgert.board.host import core_count
from edgert.errors import BuildError, ModelError
from edgert.graph import Model, inputs, outputs, to_bytes, with_shapes
from edgert.graph.batch_size import with_open_batch

log = logging.getLogger("edgert.backend")

_RECIPE = 3
"""Part of the cache key, to be raised when models are prepared differently."""


def prepare_cached(
    model: Model, profiles: Mapping[str, base.Shapes], static: base.Shapes, store: base.Store | None
) -> tuple[bytes, bool]:
    """Return the prepared model as an ONNX file, and whether it came from the store.

    ``static`` are the shapes of the only profile, if there is one. Raises ModelError if an output's size is unknown.
    """
    key = cache_key(model, profiles)
    cached = store.get(key) if store else None
    if cached is not None:
        return cached, True
    started = time.perf_counter()
    check_output_sizes(model, profiles)
    content = to_bytes(remove_size_nodes(model, static))
    log.info("%s: prepared for ONNX Runtime on the GPU in %.1f s", model.path, time.perf_counter() - started)
    if store:
        base.cache_content(store, key, content)
    return content, False


def cache_key(model: Model, profiles: Mapping[str, base.Shapes]) -> str:
    """Return the key under which the prepared model is stored."""
    shapes = {profile: dict(sizes) for profile, sizes in profiles.items()}
    facts = json.dumps(["cuda", _RECIPE, model.engine_key, shapes], sort_keys=True)
    return hashlib.sha256(facts.encode()).hexdigest()[:32]


_MAX_ERROR = 0.02
"""Largest relative distance of equal outputs in the Euclidean norm. It is 1 or more if images were mixed up."""


def remove_size_nodes(model: Model, static: base.Shapes) -> Model:
    """Return the prepared model, if possible without nodes that compute sizes from an open batch.

    The host would wait for these nodes. The model is fixed to one image and its batch is opened again; this version is
    used if it gives the same results for two images.
    """
    prepared = cpu.prepare(model, static)
    has_sizes = any(node.op_type == "Shape" for node in prepared.proto.graph.node)
    if not has_sizes or not cpu.open_batch_names(model, static):
        return prepared
    random = np.random.default_rng(0)
    try:
        reopened = with_open_batch(cpu.prepare(model, {name: (1, *shape[1:]) for name, shape in static.items()}))
        feeds = {
            spec.name: random.random((2, *static[spec.name][1:]), np.float32).astype(spec.dtype)
            for spec in inputs(reopened)
            if spec.name in static
        }
        before, after = (cpu.Function(one, threads=core_count())(feeds) for one in (prepared, reopened))
    except (BuildError, ModelError) as error:  # the fixed batch could not be opened again
        log.debug("sizes of the batch are computed in each run: %s", error.why)
        return prepared
    return reopened if all(_agree(before[name], after.get(name)) for name in before) else prepared


def _agree(one: base.Array, other: base.Array | None) -> bool:
    if other is None or one.shape != other.shape:
        return False
    first, second = one.astype(np.float64), other.astype(np.float64)
    return bool(np.linalg.norm(first - second) <= _MAX_ERROR * np.linalg.norm(first))


def check_output_sizes(model: Model, profiles: Mapping[str, base.Shapes]) -> None:
    """Raise ModelError for outputs whose sizes do not follow from the input shapes."""
    for shapes in profiles.values():
        for spec in outputs(with_shapes(model, shapes) if shapes else model):
            if not spec.is_static:
                raise ModelError(
                    f"the size of output {spec.name!r} depends on the data, or on open dimensions",
                    why=f"its shape is {list(spec.shape)}, and tensors on a GPU are bound before a run",
                    where=str(model.path),
                    fix="use backend: ort, which runs it on the CPU; or export the model without NonMaxSuppression",
                )
