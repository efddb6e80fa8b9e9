"""Compiling for ONNX Runtime: prepared, optimized, and cached in the store."""

import hashlib
import json
import logging
import platform
import tempfile
import time
from functools import lru_cache
from pathlib import Path
from typing import Any

from edgert.backend.base import DEFAULT_PROFILE, EngineOptions, Shapes, cache_content
from edgert.backend.ort.custom_ops import CustomOpEngine, compile_with_custom_ops
from edgert.backend.ort.runtime import OrtEngine, open_session, ort, session_settings
from edgert.graph import Model, clean, inputs, to_bytes, with_shapes
from edgert.graph.type_inference import has_custom_operators

log = logging.getLogger("edgert.backend")

_RECIPE = 1
"""Part of the cache key: raise it when edgert prepares a model in another way."""


class OrtBackend:
    """Compiles with all of ONNX Runtime's graph optimizations and caches the optimized model in the store."""

    name = "ort"

    @property
    def version(self) -> str:
        """Of ONNX Runtime. Raises DeviceError when it is not installed."""
        return str(ort().__version__)

    def compile(self, model: Model, options: EngineOptions) -> OrtEngine | CustomOpEngine:
        """See :class:`~edgert.backend.base.Backend`.

        Raises:
            BuildError: ONNX Runtime cannot take the model; the node it stumbled over is named where it is known.
            ModelError: a profile does not fit the model's inputs.
        """
        if has_custom_operators(model.proto):
            return compile_with_custom_ops(model, options, self._whole)
        return self._whole(model, options)

    def _whole(self, model: Model, options: EngineOptions) -> OrtEngine:
        """A model of ONNX Runtime's own operators."""
        started = time.perf_counter()
        profiles = options.profiles or {DEFAULT_PROFILE: {}}
        static = next(iter(profiles.values())) if len(profiles) == 1 else {}
        if not static:
            for shapes in profiles.values():
                with_shapes(model, shapes)  # raises where they do not fit; one engine then serves all of them
        session, cached = _session(model, static, options)
        info = {
            "backend": self.name,
            "version": self.version,
            "threads": options.threads,
            "cached": cached,
            "compile_s": round(time.perf_counter() - started, 3),
        }
        return OrtEngine(session, profiles, str(model.path), info)


def _session(model: Model, static: Shapes, options: EngineOptions) -> tuple[Any, bool]:
    """An ONNX Runtime session and whether its optimized model came from the store."""
    # What an optimized model depends on: the model, our preparation, ONNX Runtime, and the CPU's instructions.
    shapes = sorted((name, list(shape)) for name, shape in static.items())
    facts = [_RECIPE, model.digest, shapes, options.tuning.optimization, ort().__version__, _cpu()]
    key = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]
    cached = options.store.get(key) if options.store else None
    settings = session_settings(options.threads, options.tuning)
    if cached is not None:
        settings.graph_optimization_level = ort().GraphOptimizationLevel.ORT_DISABLE_ALL
        return open_session(cached, settings, model), True
    ready = prepared(model, static, settings)
    if options.store is None:
        return open_session(to_bytes(ready), settings, model), False
    with tempfile.TemporaryDirectory(prefix="edgert-") as folder:
        content = Path(folder) / "optimized.onnx"
        settings.optimized_model_filepath = str(content)
        session = open_session(to_bytes(ready), settings, model)
        cache_content(options.store, key, content.read_bytes())
    return session, False


def prepared(model: Model, static: Shapes, settings: Any) -> Model:
    """The model with a profile's shapes fixed and cleaned; a batch of several rows stays open, for runs of fewer."""
    open_batch = {
        spec.shape[0]
        for spec in inputs(model)
        if spec.shape and not isinstance(spec.shape[0], int) and static.get(spec.name, (1,))[0] > 1
    }
    if not open_batch:
        return clean(with_shapes(model, static) if static else model)[0]
    with_shapes(model, static)  # raises where they do not fit
    for spec in inputs(model):
        for dim, size in zip(spec.shape, static.get(spec.name, ()), strict=False):
            if isinstance(dim, str) and dim not in open_batch:
                settings.add_free_dimension_override_by_name(dim, size)
    return clean(model)[0]


@lru_cache(maxsize=1)
def _cpu() -> str:
    """Machine and instruction-set flags; ONNX Runtime chooses tensor layouts by them."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), platform.processor())
    return f"{platform.machine()} {flags}"
