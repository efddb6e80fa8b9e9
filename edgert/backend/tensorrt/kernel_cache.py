"""The kernels of a TensorRT-RTX engine: compiled when it first runs, cached beside its plan, found at the next start.

What TensorRT-RTX builds is no code for a GPU yet. Its runtime makes that, seconds of work, and holds it in a runtime
cache (https://docs.nvidia.com/deeplearning/tensorrt-rtx/latest/inference-library/work-with-runtime-cache.html).
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from edgert.backend.base import Shapes, Store, cache_content
from edgert.backend.tensorrt import library as api
from edgert.errors import DeviceError

log = logging.getLogger("edgert.backend")
_PAUSES_S = 0.01, 0.1
"""Pauses before the second and the third try to read cached kernels."""


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """Cache entry for the compiled kernels of one engine.

    Attributes:
        key: of the engine's plan, its GPU, driver and release of TensorRT-RTX.
    """

    store: Store
    key: str


class KernelCache:
    """One runtime cache for all execution contexts of an engine, so that a kernel is compiled once for all of them.

    Not for several threads at once: callers hold the lock of the engine's queue. It must outlive the contexts.

    Args:
        cache_entry: where kernels of an earlier start are found, and new ones cached; None caches nothing.
        title: of the model, for messages.
        synchronize: waits for the GPU; raises DeviceError while another thread keeps it from work like this one's.
    """

    def __init__(
        self,
        library: api.Library,
        engine: api.ICudaEngine,
        cache_entry: CacheEntry | None,
        title: str,
        synchronize: Callable[[], None],
    ) -> None:
        self._trt: api.Trt = library.trt
        self._engine: api.ICudaEngine = engine
        self._cache_entry, self._title, self._synchronize = cache_entry, title, synchronize
        self._made_by: api.IRuntimeConfig = engine.create_runtime_config()
        self._kernels: api.IRuntimeCache = self._made_by.create_runtime_cache()
        self._cached_bytes, self._ran = self._read(), set[object]()

    def context(self) -> api.IExecutionContext:
        """Return a new execution context; None where TensorRT makes none.

        Its kernels are compiled for its shapes at once (eager). By default TensorRT-RTX runs generic kernels while it
        compiles better ones in the background, and a CUDA graph would keep the generic ones:
        https://docs.nvidia.com/deeplearning/tensorrt-rtx/latest/inference-library/work-with-dynamic-shapes.html.
        """
        settings: api.IRuntimeConfig = self._engine.create_runtime_config()
        settings.dynamic_shapes_kernel_specialization_strategy = (
            self._trt.DynamicShapesKernelSpecializationStrategy.EAGER
        )
        settings.set_runtime_cache(self._kernels)
        return self._engine.create_execution_context(settings)

    def opened(self) -> None:
        """Cache the kernels of a context that was opened, if there were none: the process may end before it runs."""
        if not self._cached_bytes:
            self._cache()

    def ran(self, profile: int, shapes: Shapes) -> None:
        """Cache the kernels of a context that ran for the first time, atomically."""
        ran = profile, tuple(shapes.items())
        if ran not in self._ran:  # else another session's context brought them here
            self._ran.add(ran)
            self._cache()

    def _cache(self) -> None:
        if self._cache_entry is None:
            return
        made: api.IHostMemory = self._kernels.serialize()
        content = bytes(memoryview(made)) if made is not None else b""
        if len(content) > self._cached_bytes:  # it only ever grows
            cache_content(self._cache_entry.store, self._cache_entry.key, content)
            self._cached_bytes = len(content)

    def _read(self) -> int:
        """Read the cached kernels and return how many bytes they are; 0 where there are none to use.

        TensorRT-RTX also refuses good ones while another thread of the program records or frees on the GPU. So a
        refusal is tried again, and kernels are only removed where the GPU itself is fine: then they are damaged, or of
        another release or GPU than their key says.
        """
        content = self._cache_entry.store.get(self._cache_entry.key) if self._cache_entry is not None else None
        if content is None or self._cache_entry is None:
            log.info("%s: TensorRT-RTX compiles its kernels for this GPU, which takes seconds", self._title)
            return 0
        for pause_s in (*_PAUSES_S, None):
            if self._kernels.deserialize(content):
                return len(content)
            self._kernels = self._made_by.create_runtime_cache()
            is_disturbed = self._is_disturbed()
            if pause_s is not None:
                time.sleep(pause_s)
        if is_disturbed:
            log.warning(
                "%s: its cached kernels cannot be read while another thread uses the GPU; compiled again for now, and "
                "kept for the next start",
                self._title,
            )
            return len(content)
        log.warning("%s: its cached kernels are not those of this TensorRT-RTX and GPU: compiled again", self._title)
        self._cache_entry.store.remove(self._cache_entry.key)
        return 0

    def _is_disturbed(self) -> bool:
        """Return whether the GPU refuses ordinary work now, as it does while a CUDA graph is recorded."""
        try:
            self._synchronize()
        except DeviceError as error:
            log.debug("%s: %s", self._title, error)
            return True
        return False
