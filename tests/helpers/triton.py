"""Triton's own description of its configuration, to read what was written with."""

import importlib.util
from functools import cache
from importlib.metadata import files
from pathlib import Path
from types import ModuleType
from typing import Any

from google.protobuf import text_format  # type: ignore[import-untyped]


@cache
def messages() -> ModuleType:
    """``model_config_pb2`` of the package tritonclient, by itself: the package would import its gRPC client."""
    path = next(Path(str(file.locate())) for file in files("tritonclient") or () if file.name == "model_config_pb2.py")
    spec = importlib.util.spec_from_file_location("model_config_pb2", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def parsed(text: str) -> Any:
    """``config.pbtxt`` as a ModelConfig. Raises ParseError for a field or value that Triton does not have."""
    return text_format.Parse(text, messages().ModelConfig())
