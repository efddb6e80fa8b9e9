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
"""Part of the cache key: raise it when models are prepared in another way."""


def cleaned(
    model: Model, profiles: Mapping[str, base.Shapes], static: base.Shapes, store: base.Store | None
) -> tuple[bytes, bool]:
    """Return the prepared model, and whether it was stored. Raises ModelError where an output's size is unknown."""
    key = key_of(model, profiles)
    cached = store.get(key) if store else None
    if cached is not None:
        return cached, True
    started = time.perf_counter()
    check_sizes(model, profiles)
    content = to_bytes(without_sizes(model, static))
    log.info("%s: prepared for ONNX Runtime on the GPU in %.1f s", model.path, time.perf_counter() - started)
    if store:
        base.cache_content(store, key, content)
    return content, False


def key_of(model: Model, profiles: Mapping[str, base.Shapes]) -> str:
    """Return the key under which the cleaned model is stored."""
    shapes = {profile: dict(given) for profile, given in profiles.items()}
    facts = json.dumps(["cuda", _RECIPE, model.digest, shapes], sort_keys=True)
    return hashlib.sha256(facts.encode()).hexdigest()[:32]


_SAME = 0.02
"""How far outputs of the same numbers may be apart, in parts of their length; of images mixed up it is 1 and more."""


def without_sizes(model: Model, static: base.Shapes) -> Model:
    """Return the prepared model, if possible without nodes that compute sizes where its batch stays open.

    The host would wait for these nodes. The model is fixed to one image and its batch opened again; that version is
    used if it gives the same results for two images.
    """
    ready = cpu.prepared(model, static)
    if not cpu.open_batch(model, static) or all(node.op_type != "Shape" for node in ready.proto.graph.node):
        return ready
    random = np.random.default_rng(0)
    try:
        made = with_open_batch(cpu.prepared(model, {name: (1, *shape[1:]) for name, shape in static.items()}))
        feeds = {
            spec.name: random.random((2, *static[spec.name][1:]), np.float32).astype(spec.dtype)
            for spec in inputs(made)
            if spec.name in static
        }
        before, after = (cpu.Function(one, threads=core_count(), quiet=True)(feeds) for one in (ready, made))
    except (BuildError, ModelError) as error:  # it holds itself to one image in a way that could not be opened
        log.debug("sizes of the batch stay computed: %s", error.why)
        return ready
    return made if all(_agree(before[name], after.get(name)) for name in before) else ready


def _agree(one: base.Array, other: base.Array | None) -> bool:
    if other is None or one.shape != other.shape:
        return False
    first, second = one.astype(np.float64), other.astype(np.float64)
    return bool(np.linalg.norm(first - second) <= _SAME * np.linalg.norm(first))


def check_sizes(model: Model, profiles: Mapping[str, base.Shapes]) -> None:
    """Raise ModelError for outputs whose sizes do not follow from the input shapes."""
    for shapes in profiles.values():
        for spec in outputs(with_shapes(model, shapes) if shapes else model):
            if not spec.is_static:
                raise ModelError(
                    f"the size of output {spec.name!r} depends on the data, or on dimensions that are left open",
                    why=f"it is {list(spec.shape)}, and tensors on a GPU are bound before it is known",
                    where=str(model.path),
                    fix="backend: ort runs it on the CPU; or export the model without NonMaxSuppression",
                )
