"""The onnxruntime package: found, configured, its errors understood. Nothing else imports it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from types import ModuleType
from typing import Any

from edgert.board.cpu import saturates_bytes
from edgert.errors import BuildError, DeviceError
from edgert.graph.model import Model


def ort() -> ModuleType:
    """The package. Raises DeviceError when it is not installed."""
    try:
        import onnxruntime
    except ImportError as error:
        raise DeviceError(
            "ONNX Runtime is not installed", why=str(error), fix="pip install onnxruntime, or onnxruntime-gpu"
        ) from error
    module: ModuleType = onnxruntime
    return module


@lru_cache(maxsize=1)
def ort_errors() -> tuple[type[Exception], ...]:
    """What onnxruntime raises."""
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    found = [value for value in vars(state).values() if isinstance(value, type) and issubclass(value, Exception)]
    return (*found, RuntimeError, ValueError)


def first_line(error: Exception) -> str:
    """The first line of its message."""
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


def session_settings(threads: int | None) -> Any:
    """Options of a session that runs its nodes one after another, every optimisation on; None: all threads."""
    settings = ort().SessionOptions()
    settings.execution_mode = ort().ExecutionMode.ORT_SEQUENTIAL
    settings.graph_optimization_level = ort().GraphOptimizationLevel.ORT_ENABLE_ALL
    settings.inter_op_num_threads = 1
    settings.intra_op_num_threads = threads or 0
    if saturates_bytes():
        settings.add_session_config_entry("session.x64quantprecision", "1")  # exact, by uint8 weights, and slower
    settings.log_severity_level = 3  # its warnings name nodes of the optimised graph, which help nobody
    return settings


def open_session(
    source: str | bytes, settings: Any, model: Model, providers: Sequence[object] = ("CPUExecutionProvider",)
) -> Any:
    """A session on a file or its bytes; ``model`` is what it was made from. Raises BuildError."""
    try:
        return ort().InferenceSession(source, settings, providers=list(providers))
    except ort_errors() as error:
        raise BuildError(
            "ONNX Runtime cannot run this model",
            why=first_line(error),
            where=str(model.path),
            fix="edgert inspect MODEL lists its operators; export it again with standard ONNX operators",
        ) from error
