"""``edgert build``: a pipeline's models prepared for a board on any machine, and packed into one file.

build(file, output, board=…) → Built           workstation: every step but the compilation
finish.finish(bundle, output) → Finished        board: the compilation
unpacked(bundle) → Unpacked                    any machine: the bundle as a pipeline that runs there
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

_HOME = {
    "Built": "edgert.build.make",
    "Unpacked": "edgert.build.unpack",
    "build": "edgert.build.make",
    "unpacked": "edgert.build.unpack",
}

if TYPE_CHECKING:
    from edgert.build.make import Built, build
    from edgert.build.unpack import Unpacked, unpacked

__all__ = ["Built", "Unpacked", "build", "unpacked"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'edgert.build' has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    if callable(value):
        globals()[name] = value
    return value
