"""The timing cache, which every TensorRT but RTX fills while it tries kernels."""

from __future__ import annotations

from edgert.backend.tensorrt.trt_types import IBuilderConfig, ITimingCache


def set_timing_cache(config: IBuilderConfig, content: bytes) -> bool:
    """See :meth:`~edgert.backend.tensorrt.dialect.Dialect.set_timing_cache`. A foreign cache is replaced by an empty
    one:
    its timings could be used all the same (``ignore_mismatch``), and would pick kernels that are slow here."""
    cache: ITimingCache = config.create_timing_cache(content)
    if cache is not None and config.set_timing_cache(cache, False):
        return True
    config.set_timing_cache(config.create_timing_cache(b""), False)
    return False


def timing_cache(config: IBuilderConfig) -> bytes:
    """See :meth:`~edgert.backend.tensorrt.dialect.Dialect.timing_cache`."""
    cache: ITimingCache = config.get_timing_cache()
    return bytes(memoryview(cache.serialize())) if cache is not None else b""
