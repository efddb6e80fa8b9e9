"""edgert: camera, ONNX model, output, from one YAML file, on a Jetson or any other machine.

The public names. They are imported when first used, so that ``import edgert`` costs nothing.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from edgert._version import __version__

_HOME = {
    "Pipeline": "edgert.pipeline",
    "ResultTimeout": "edgert.pipeline",
    "load_pipeline": "edgert.config",
    "load_engine": "edgert.engine",
    "LoadedEngine": "edgert.engine",
    "build": "edgert.importer.from_torch",
    "calibrate": "edgert.quantization.facade",
    "quantize": "edgert.quantization.facade",
    "op": "edgert.custom_op",
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
    from edgert.custom_op import op
    from edgert.engine import LoadedEngine, load_engine
    from edgert.errors import EdgertError
    from edgert.importer.from_torch import build
    from edgert.pipeline import Pipeline, ResultTimeout
    from edgert.quantization.facade import calibrate, quantize
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
    "build",
    "calibrate",
    "load_engine",
    "load_pipeline",
    "op",
    "quantize",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'edgert' has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    return globals().setdefault(name, value)


class _Package(ModuleType):
    """``edgert.quantize`` is a package and, called, the function of that name."""

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        name = self.__name__.rpartition(".")[2]
        return getattr(import_module(_HOME[name]), name)(*arguments, **named)


class _Facade(ModuleType):
    def __setattr__(self, name: str, value: object) -> None:
        if name in _HOME and isinstance(value, ModuleType):  # the import system puts a package here when it is loaded
            value.__class__ = _Package
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Facade


def __dir__() -> list[str]:
    return __all__
