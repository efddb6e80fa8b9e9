"""``edgert.build(...)`` from Python: a PyTorch module made an engine, or a pipeline file made a bundle."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, overload

from edgert.compiler.build_pipeline import Built
from edgert.compiler.build_pipeline import build as build_bundle
from edgert.config import load_pipeline
from edgert.engine import LoadedEngine, load_model
from edgert.errors import ConfigError
from edgert.importer.conversion import OPSET, TOLERANCE, finished
from edgert.importer.subprocess import Request, read_told


@overload
def build(source: str | Path, output: str | Path, **options: Any) -> Built: ...
@overload
def build(
    source: object,
    output: str | Path | None = None,
    *,
    example_inputs: Any,
    dynamic: Mapping[str, Sequence[str | None]] | None = None,
    opset: int = OPSET,
    tolerance: float = TOLERANCE,
    threads: int | None = None,
) -> LoadedEngine: ...
def build(source: object, output: str | Path | None = None, **options: Any) -> Built | LoadedEngine:
    """Builds a pipeline into a bundle, or a PyTorch module into an engine of this machine. Blocks until done.

    Args:
        source: a pipeline file; or an ``nn.Module`` or exported program, which is exported to ONNX, compared with
            itself, and compiled. A module is exported in evaluation mode.
        output: the bundle; or where to keep the module's ONNX file, which then can stand in a pipeline.
        options: of a pipeline, those of :func:`edgert.compiler.build_pipeline.build`. Of a module: ``example_inputs`` (
        tensor, a
            tuple of them, or a dict by parameter), ``dynamic`` (parameter → a name or None for each dimension),
            ``opset``, ``tolerance`` (of the largest value of an output), ``threads``.

    Raises:
        ConfigError: a module without example inputs.
        DeviceError: PyTorch's exporter is not installed.
        BuildError: the module cannot be exported or compiled, or computes something else as ONNX.
        EdgertError: as :func:`edgert.compiler.build_pipeline.build` for a pipeline.
    """
    if isinstance(source, (str, Path)):
        if output is None:
            raise ConfigError("a bundle of what name?", fix="edgert.build('pipeline.yaml', 'dock.edgert', board=…)")
        return build_bundle(load_pipeline(source), Path(output), **options)
    return _module(source, Path(output) if output is not None else None, **options)


def _module(
    module: object,
    output: Path | None,
    *,
    example_inputs: Any = None,
    dynamic: Mapping[str, Sequence[str | None]] | None = None,
    opset: int = OPSET,
    tolerance: float = TOLERANCE,
    threads: int | None = None,
) -> LoadedEngine:
    """In this process: a module cannot be handed to another one but as a pickle."""
    from edgert.importer.torch_model import convert_object

    title = type(module).__name__
    if example_inputs is None:
        raise ConfigError(f"{title} without example inputs", fix="edgert.build(module, example_inputs=(tensor,))")
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="edgert-") as name:
        folder = Path(name)
        request = Request("function", title, opset=opset, dynamic=dynamic or {})
        convert_object(module, example_inputs, request, folder)
        versions = read_told(folder) or {}
        made = finished(folder, title, versions, tolerance, started, output)
    return load_model(made.model, threads=threads)
