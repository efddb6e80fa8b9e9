"""edgert: camera, ONNX model, output, from one YAML file, on a Jetson or any other machine.

The public names. They are imported when first used, so that ``import edgert`` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOME = {
    "Pipeline": "edgert.pipeline",
    "ResultTimeout": "edgert.pipeline",
    "load_pipeline": "edgert.config",
    "load_engine": "edgert.engine",
    "LoadedEngine": "edgert.engine",
    "Result": "edgert.runtime",
    "Frame": "edgert.runtime",
    "Summary": "edgert.runtime",
    "Detections": "edgert.runtime",
    "Classification": "edgert.runtime",
    "Segmentation": "edgert.runtime",
    "Keypoints": "edgert.runtime",
    "Embedding": "edgert.runtime",
    "Crops": "edgert.runtime",
    "EdgertError": "edgert.errors",
}

if TYPE_CHECKING:
    from edgert.config import load_pipeline
    from edgert.engine import LoadedEngine, load_engine
    from edgert.errors import EdgertError
    from edgert.pipeline import Pipeline, ResultTimeout
    from edgert.runtime import (
        Classification,
        Crops,
        Detections,
        Embedding,
        Frame,
        Keypoints,
        Result,
        Segmentation,
        Summary,
    )

__all__ = [
    "Classification",
    "Crops",
    "Detections",
    "EdgertError",
    "Embedding",
    "Frame",
    "Keypoints",
    "LoadedEngine",
    "Pipeline",
    "Result",
    "ResultTimeout",
    "Segmentation",
    "Summary",
    "__version__",
    "load_engine",
    "load_pipeline",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'edgert' has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
