"""``edgert import``: a model of PyTorch or TensorFlow as an ONNX file that was seen to compute the same.

import_model("module:function", Path("model.onnx")) → Imported      converted in a process of its own, then compared
build(module, example_inputs=(x,)) → LoadedEngine                   the same from Python, ready to run
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

_HOME = {"Imported": "make", "import_model": "make", "build": "python"}

if TYPE_CHECKING:
    from edgert.importer.make import Imported, import_model
    from edgert.importer.python import build

__all__ = ["Imported", "build", "import_model"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'edgert.importer' has no attribute {name!r}")
    return getattr(import_module(f"edgert.importer.{_HOME[name]}"), name)
