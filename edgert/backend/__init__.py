"""Engines behind one small interface. Vendor packages are imported when a backend is first asked to compile."""

from edgert.backend.base import (
    DEFAULT_PROFILE,
    USUAL,
    Backend,
    Engine,
    EngineOptions,
    Session,
    Shapes,
    Span,
    Store,
    Tensor,
    Tuning,
)
from edgert.errors import ConfigError, nearest

BACKENDS = ("ort", "openvino", "tensorrt", "null")


def backend(name: str) -> Backend:
    """The backend of a name; ``auto`` is the best one for this machine. Raises ConfigError for an unknown name."""
    from edgert.backend.null import NullBackend
    from edgert.backend.openvino import OpenVinoBackend
    from edgert.backend.ort import OrtBackend
    from edgert.backend.ort.cuda import OrtCudaBackend
    from edgert.backend.trt.backend import TrtBackend

    known: dict[str, type[Backend]] = {
        "auto": OrtBackend,
        "ort": OrtBackend,
        "onnxruntime-cuda": OrtCudaBackend,
        "openvino": OpenVinoBackend,
        "tensorrt": TrtBackend,
        "null": NullBackend,
    }
    if name not in known:
        raise ConfigError(f"no backend {name!r}{nearest(name, known)}", fix=f"backends: {', '.join(known)}")
    return known[name]()


__all__ = [
    "BACKENDS",
    "DEFAULT_PROFILE",
    "USUAL",
    "Backend",
    "Engine",
    "EngineOptions",
    "Session",
    "Shapes",
    "Span",
    "Store",
    "Tensor",
    "Tuning",
    "backend",
]
